"""What is registered of a machine is that of the code that runs its instances, during and after a rolling deploy."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import (
    Await,
    Context,
    Done,
    Machine,
    Outcome,
    Retried,
    Signal,
    Status,
    Worker,
    step,
    upgrade,
)
from gen_durable._core.registry import Registry
from gen_durable._db import machines, workers
from gen_durable._db.pool import Database
from gen_durable.testing import Harness
from tests.support.rows import row_of
from tests.support.settings import AN_HOUR, CALM
from tests.support.waiting import PATIENCE, holds
from tests.support.worker_rows import WORKER_ROW

# A worker renews its registration every second.
EAGER = msgspec.structs.replace(CALM, lease=timedelta(seconds=3), heartbeat=timedelta(seconds=1))


class OldTrip(Machine[int, str], name="trip"):
    paid = Signal("paid", int)

    @step
    async def book(self, ctx: Context[int]) -> Outcome[str]:
        return Await(self.paid, then=self.decide)

    @step
    async def decide(self, ctx: Context[int]) -> Outcome[str]:
        return Done("old")


class Trip(Machine[int, str], name="trip", retention_cancelled=timedelta(days=9)):
    """The same version with a renamed step that reacts to a cancel."""

    paid = Signal("paid")

    @step
    async def book(self, ctx: Context[int]) -> Outcome[str]:
        return Await(self.paid, then=self.approve)

    @step(was="decide", on_cancel="recall")
    async def approve(self, ctx: Context[int]) -> Outcome[str]:
        return Done("new")

    @step
    async def recall(self, ctx: Context[int]) -> Outcome[str]:
        return Done("recalled")


class TripV2(Machine[list[int], str], name="trip", version=2, retention_cancelled=timedelta(days=9)):
    """A newer version, which upgrades version 1."""

    paid = Signal("paid")

    @upgrade(from_version=1)
    @staticmethod
    def wrap(state: int) -> list[int]:
        return [state]

    @step
    async def book(self, ctx: Context[list[int]]) -> Outcome[str]:
        return Await(self.paid, then=self.approve)

    @step(was="decide", on_cancel="recall", on_failure="fix")
    async def approve(self, ctx: Context[list[int]]) -> Outcome[str]:
        return Done("new")

    @step
    async def recall(self, ctx: Context[list[int]]) -> Outcome[str]:
        return Done("recalled")

    @step
    async def fix(self, ctx: Context[list[int]]) -> Outcome[str]:
        return Done("fixed")


async def steps_of(db: Any, version: int = 1) -> list[str]:
    stored = await db.fetchval(
        "select steps from gen_durable.machines where fsm = 'trip' and fsm_version = $1", version
    )
    found: list[str] = json.loads(stored)
    return found


@pytest.mark.clause("GRAPH-7")
async def test_restarted_old_worker_leaves_the_registration_of_newer_code(durable_dsn: str, db: Any) -> None:
    async with Worker([OldTrip], dsn=durable_dsn, settings=CALM):
        assert await steps_of(db) == ["book", "decide"]
        async with Worker([Trip], dsn=durable_dsn, settings=CALM) as new:
            assert await steps_of(db) == ["book", "approve", "recall"]
            async with Worker([OldTrip], dsn=durable_dsn, settings=CALM):
                assert await steps_of(db) == ["book", "approve", "recall"]
                ref = await new.insert(Trip, 1)
                await new.wait(ref, until="parked", timeout=PATIENCE)
                await new.cancel(ref)
                assert (await new.wait(ref, timeout=PATIENCE)).result == "recalled"


@pytest.mark.clause("GRAPH-7")
async def test_registration_is_renewed_after_the_last_worker_of_other_code(durable_dsn: str, db: Any) -> None:
    async with Worker([OldTrip], dsn=durable_dsn, settings=EAGER):
        async with Worker([Trip], dsn=durable_dsn, settings=EAGER):
            assert await steps_of(db) == ["book", "approve", "recall"]
        # A rollback: only old code is left.
        await holds(
            db, """select steps = '["book", "decide"]' and on_cancel is null from gen_durable.machines"""
        )


@pytest.mark.clause("GRAPH-7")
async def test_registration_is_renewed_only_if_no_live_worker_has_it(database: Database, db: Any) -> None:
    old, new = (Registry([one]).descriptions for one in (OldTrip, Trip))
    rows = [
        msgspec.structs.replace(
            WORKER_ROW, name=name, fsms=["trip"], fsm_versions=[1], fsm_digests=machines.digests(code)
        )
        for name, code in (("old", old), ("new", new))
    ]
    await database.run_in_transaction(machines.register(old))
    assert await database.run(workers.announce(rows[0], AN_HOUR)) == workers.Foreign(False, False)
    await database.run_in_transaction(machines.register(new))
    # The worker that has registered this is not live.
    assert await database.run(workers.announce(rows[0], AN_HOUR)) == workers.Foreign(True, True)
    assert await database.run(workers.announce(rows[1], AN_HOUR)) == workers.Foreign(False, False)
    assert await database.run(workers.announce(rows[0], AN_HOUR)) == workers.Foreign(True, False)
    for renews in (False, True):
        await database.run_in_transaction(machines.register(old, renews=renews))
        assert await steps_of(db) == ["book", "approve", "recall"]
    await database.run(workers.announce(rows[1], AN_HOUR, is_draining=True))
    assert await database.run(workers.announce(rows[0], AN_HOUR)) == workers.Foreign(True, True)
    await database.run_in_transaction(machines.register(old, renews=True))
    assert await steps_of(db) == ["book", "decide"]


@pytest.mark.clause("GRAPH-7")
async def test_code_that_is_not_older_replaces_the_registration(durable_dsn: str, db: Any) -> None:
    class Other(Machine[int, str], name="trip"):
        @step
        async def walk(self, ctx: Context[int]) -> Outcome[str]:
            return Done("")

    async with (
        Worker([Trip], dsn=durable_dsn, settings=CALM),
        Worker([Other], dsn=durable_dsn, settings=CALM),
    ):
        assert await steps_of(db) == ["walk"]


@pytest.mark.clause("VER-9")
async def test_options_of_newer_code_apply_to_rows_that_it_upgrades(durable_dsn: str, db: Any) -> None:
    async with Worker([OldTrip], dsn=durable_dsn, settings=CALM) as old:
        refs = [await old.insert(OldTrip, number) for number in range(3)]
        for ref in refs:
            await old.wait(ref, until="parked", timeout=PATIENCE)
    async with Worker([TripV2], dsn=durable_dsn, settings=CALM) as new:
        await new.cancel(refs[0])
        assert (await new.wait(refs[0], timeout=PATIENCE)).result == "recalled"
        await new.cancel(refs[1], force=True)
        ended = await row_of(db, refs[1].id)
        assert ended["expires_at"] - ended["finished_at"] == timedelta(days=9)
        stored = await db.fetchrow("select * from gen_durable.machines where fsm_version = 1")
        assert json.loads(stored["on_failure"]) == {"approve": "fix", "decide": "fix"}
        # What concerns inserts and states is that of the version itself.
        assert json.loads(stored["state_schema"])["type"] == "integer"
        assert len(json.loads(stored["graph"])["nodes"]) < 6


@pytest.mark.clause("VER-9")
async def test_version_that_was_never_registered_is_not_listed(durable_dsn: str, db: Any) -> None:
    async with Worker([TripV2], dsn=durable_dsn, settings=CALM):
        assert await db.fetchval("select array_agg(fsm_version) from gen_durable.machines") == [2]


@pytest.mark.clause("VER-9")
def test_loaded_instance_of_an_older_version_reacts_to_a_cancel(durable: Harness) -> None:
    ref = durable.load(TripV2, version=1, step="decide", state=1, awaits=["paid"])
    durable.cancel(ref)
    durable.drain()
    durable.assert_done(ref, "recalled")


@pytest.mark.clause("RTY-8")
async def test_former_name_of_a_step_is_known(durable_dsn: str, client: Any) -> None:
    async with Worker([OldTrip], dsn=durable_dsn, settings=CALM) as old:
        ref = await old.insert(OldTrip, 1)
        await old.wait(ref, until="parked", timeout=PATIENCE)
        await old.cancel(ref)
    async with Worker([Trip], dsn=durable_dsn, settings=CALM) as new:
        # A client without the code.
        assert isinstance(await client.retry(ref.id, step="decide"), Retried)
        ended = await new.wait(ref, timeout=PATIENCE)
        assert (ended.status, ended.result) == (Status.DONE, "new")
