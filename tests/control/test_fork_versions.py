"""Forks of instances that a newer version of their machine has upgraded."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import (
    AsyncClient,
    Await,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    Retry,
    Settings,
    Signal,
    Status,
    Stop,
    Transition,
    Worker,
    step,
    upgrade,
)
from gen_durable.errors import EncodeError, UnknownStepError
from tests.support.rows import row_of
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE

SETTINGS = msgspec.structs.replace(CALM, history="all")


class Order(Machine[int, str], name="order"):
    """Version 1: the state is a price."""

    paid = Signal("paid")

    @step
    async def open(self, ctx: Context[int]) -> Outcome[str]:
        return Await(self.paid, then=self.pack, state=ctx.state + 1)

    @step
    async def pack(self, ctx: Context[int]) -> Outcome[str]:
        return Next(self.ship, ctx.state + 1, requeue=True)

    @step
    async def ship(self, ctx: Context[int]) -> Outcome[str]:
        return Done(f"1: {ctx.state}")


class OrderV2(Machine[list[int], str], name="order", version=2):
    """Version 2: the state is a list of prices, and a step is renamed. It tries the first step twice."""

    paid = Signal("paid")

    @upgrade(from_version=1)
    @staticmethod
    def list_prices(state: int) -> list[int]:
        return [state]

    @step
    async def open(self, ctx: Context[list[int]]) -> Outcome[str]:
        if not ctx.attempt:
            return Retry(timedelta(0), [*ctx.state, 100])
        return Await(self.paid, then=self.wrap, state=[*ctx.state, 1])

    @step(was="pack")
    async def wrap(self, ctx: Context[list[int]]) -> Outcome[str]:
        return Next(self.ship, [*ctx.state, 2], requeue=True)

    @step
    async def ship(self, ctx: Context[list[int]]) -> Outcome[str]:
        return Done(f"2: {ctx.state}")


class Trip(Machine[int, str], name="trip"):
    """Version 1 of a machine with an undo step."""

    going = Signal("going")

    @step(undo="release")
    async def reserve(self, ctx: Context[int]) -> Outcome[str]:
        return Await(self.going, then="leave")

    @step
    async def leave(self, ctx: Context[int]) -> Outcome[str]:
        return Done("left")

    @step
    async def release(self, ctx: Context[int]) -> Outcome[str]:
        return Done("released")


class TripV2(Trip, name="trip", version=2):
    @upgrade(from_version=1)
    @staticmethod
    def add(state: int) -> int:
        return state + 10

    @step
    async def leave(self, ctx: Context[int]) -> Outcome[str]:
        return Stop("closed")


def _versions(found: Sequence[Transition]) -> list[tuple[int, Any, int | None]]:
    return [(one.step_seq, one.state, one.version) for one in found]


async def _upgraded(dsn: str, settings: Settings = SETTINGS) -> int:
    """Run an order: version 1 until it waits, then version 2."""
    async with Worker([Order], dsn=dsn, settings=settings) as old:
        ref = await old.insert(Order, 5)
        await old.wait(ref, until="parked", timeout=PATIENCE)
    async with Worker([OrderV2], dsn=dsn, settings=settings) as new:
        await new.signal(ref, "paid")
        assert (await new.wait(ref, timeout=PATIENCE)).result == "2: [6, 2]"
    return ref.id


@pytest.mark.clause("HIS-5", "FRK-3")
@pytest.mark.parametrize("at", [0, 1])
async def test_fork_before_an_upgrade_is_upgraded_again(durable_dsn: str, db: Any, at: int) -> None:
    id = await _upgraded(durable_dsn)
    async with Worker([OrderV2], dsn=durable_dsn, settings=SETTINGS) as worker:
        assert _versions(await worker.history(id)) == [
            (0, 5, 1),
            (1, 6, 1),
            (2, [6, 2], 2),
            (3, [6, 2], 2),
        ]
        await worker.pause_queue("default")
        forked = await worker.fork(id, at=at)
        row = await row_of(db, forked.id)
        assert (row["fsm_version"], row["state"]) == (1, str(5 + at))
        assert (await worker.audit(forked.id))[0].data["version"] == 1
        await worker.resume_queue("default")
        await worker.signal(forked.id, "paid")
        ended = await worker.wait(forked.id, timeout=PATIENCE)
    assert (ended.result, ended.version) == (["2: [5, 100, 1, 2]", "2: [6, 2]"][at], 2)


@pytest.mark.clause("HIS-5", "FRK-3")
async def test_first_transition_by_newer_code_keeps_the_old_version(durable_dsn: str, db: Any) -> None:
    async with AsyncClient(durable_dsn) as client:
        ref = await client.insert(Order, 5)
    async with Worker([OrderV2], dsn=durable_dsn, settings=SETTINGS) as worker:
        await worker.wait(ref, until="parked", timeout=PATIENCE)
        assert _versions(await worker.history(ref)) == [(0, 5, 1), (1, [5, 100, 1], 2)]
        forked = await worker.fork(ref, at=0)
        parked = await worker.wait(forked.id, until="parked", timeout=PATIENCE)
    assert (parked.status, parked.state) == (Status.AWAITING_SIGNAL, [5, 100, 1])


@pytest.mark.clause("HIS-5", "FRK-3")
async def test_edits_keep_the_version_of_both_states(durable_dsn: str, db: Any) -> None:
    async with Worker([Order], dsn=durable_dsn, settings=CALM) as old:
        ref = await old.insert(Order, 5)
        await old.wait(ref, until="parked", timeout=PATIENCE)
        await old.edit(ref, state=20)
        await old.cancel(ref)
        await old.retry(ref, step=Order.open, state=30)
        await old.wait(ref, until="parked", timeout=PATIENCE)
    async with Worker([OrderV2], dsn=durable_dsn, settings=CALM) as new:
        await new.signal(ref, "paid")
        await new.wait(ref, timeout=PATIENCE)
        assert _versions(await new.history(ref))[2:4] == [(2, 20, 1), (3, 30, 1)]
        edited, again = [await new.fork(ref, at=at) for at in (2, 3)]
        for each in (edited, again):
            await new.signal(each.id, "paid")
        assert (await new.wait(edited.id, timeout=PATIENCE)).result == "2: [20, 2]"
        assert (await new.wait(again.id, timeout=PATIENCE)).result == "2: [30, 100, 1, 2]"
    before = await db.fetch(
        """select state_before::text, state_before_version from gen_durable.executions
            where instance_id = $1 and state_before is not null order by step_seq""",
        ref.id,
    )
    assert [tuple(row) for row in before] == [("6", 1), ("20", 1)]


@pytest.mark.clause("HIS-5")
async def test_transitions_of_undo_keep_the_version_of_their_state(durable_dsn: str, db: Any) -> None:
    async with Worker([Trip], dsn=durable_dsn, settings=SETTINGS) as old:
        ref = await old.insert(Trip, 1)
        await old.wait(ref, until="parked", timeout=PATIENCE)
    async with Worker([TripV2], dsn=durable_dsn, settings=SETTINGS) as new:
        await new.signal(ref, "going")
        assert (await new.wait(ref, timeout=PATIENCE)).status is Status.FAILED
        assert _versions(await new.history(ref)) == [(0, 1, 1), (1, 1, 1), (2, 11, 2), (3, 11, 2)]


@pytest.mark.clause("FRK-3")
async def test_given_state_and_step_are_of_the_version_of_the_transition(durable_dsn: str, db: Any) -> None:
    id = await _upgraded(durable_dsn)
    async with AsyncClient(durable_dsn) as client:
        with pytest.raises(EncodeError, match="order version 1"):
            await client.fork(id, at=1, state=[7])
        with pytest.raises(UnknownStepError, match="fold"):
            await client.fork(id, at=1, step="fold")
        with pytest.raises(EncodeError, match="order version 2"):
            await client.fork(id, at=2, state=7)
        forks = [
            await client.fork(id, at=1, state=7, step="pack"),
            await client.fork(id, at=2, state=[7]),
            await client.fork(id, state=[7], step=OrderV2.open, machine=OrderV2),
        ]
    versions = [(await row_of(db, forked.id))["fsm_version"] for forked in forks]
    assert versions == [1, 2, 2]


@pytest.mark.clause("FRK-3")
async def test_fork_without_history_has_the_version_of_its_origin(durable_dsn: str, db: Any) -> None:
    id = await _upgraded(durable_dsn, CALM)
    async with AsyncClient(durable_dsn) as client:
        forked = await client.fork(id, at=1, state=[7])
    assert (await row_of(db, forked.id))["fsm_version"] == 2


@pytest.mark.clause("FRK-3")
async def test_fork_checked_before_an_upgrade_is_refused(durable_dsn: str, db: Any) -> None:
    id = await _upgraded(durable_dsn)
    fork = "select problem, id from gen_durable.fork_row($1, $2, '7', null, $3, null, null, null, null)"
    found = [tuple(await db.fetchrow(fork, id, at, version)) for at, version in [(None, 1), (1, 2), (1, 1)]]
    assert found == [("upgraded", None), ("upgraded", None), (None, id + 1)]
