"""Live instances that new code cannot run: `check`, `doctor`, and the log of a starting worker."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from gen_durable import (
    AsyncClient,
    Await,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    Retry,
    ScheduleChildren,
    Signal,
    Spec,
    UsageError,
    Worker,
    step,
    upgrade,
)
from gen_durable._db import workers
from gen_durable._db.pool import Database
from gen_durable.cli.root import root
from gen_durable.reasons import Incompatible
from tests.support.settings import AN_HOUR, CALM
from tests.support.waiting import PATIENCE, until_true
from tests.support.worker_rows import WORKER_ROW


class Cart(msgspec.Struct):
    total: int


class BigCart(msgspec.Struct):
    total: int
    currency: str


class Child(Machine[None, None], name="parcel"):
    never = Signal("never")

    @step
    async def wait(self, ctx: Context[None]) -> Outcome[None]:
        return Await(self.never, then=self.end)

    @step
    async def end(self, ctx: Context[None]) -> Outcome[None]:
        return Done(None)


class Shop(Machine[Cart, None], name="shop"):
    paid = Signal("paid", int)

    @step
    async def start(self, ctx: Context[Cart]) -> Outcome[None]:
        if ctx.state.total == 0:
            return ScheduleChildren([Spec(Child)], then=self.decide)
        return Await(self.paid, then=self.decide)

    @step
    async def decide(self, ctx: Context[Cart]) -> Outcome[None]:
        return Done(None)


class Renamed(Machine[Cart, None], name="shop"):
    """`decide` is now `judge`."""

    paid = Signal("paid", int)

    @step
    async def start(self, ctx: Context[Cart]) -> Outcome[None]:
        return Await(self.paid, then=self.judge)

    @step
    async def judge(self, ctx: Context[Cart]) -> Outcome[None]:
        return Done(None)


class RenamedWell(Machine[Cart, None], name="shop"):
    paid = Signal("paid", int)

    @step
    async def start(self, ctx: Context[Cart]) -> Outcome[None]:
        return Await(self.paid, then=self.judge)

    @step(was="decide")
    async def judge(self, ctx: Context[Cart]) -> Outcome[None]:
        return Done(None)


class Retyped(Machine[BigCart, None], name="shop"):
    """Other types of state and payload, and another signal."""

    settled = Signal("settled")

    @step
    async def start(self, ctx: Context[BigCart]) -> Outcome[None]:
        return Await(self.settled, then=self.decide)

    @step
    async def decide(self, ctx: Context[BigCart]) -> Outcome[None]:
        return Done(None)


class Repaid(Machine[Cart, None], name="shop"):
    paid = Signal("paid", str)

    @step
    async def start(self, ctx: Context[Cart]) -> Outcome[None]:
        return Await(self.paid, then=self.decide)

    @step
    async def decide(self, ctx: Context[Cart]) -> Outcome[None]:
        return Next(self.decide) if ctx.timed_out else Done(None)


class Newer(Machine[BigCart, None], name="shop", version=2):
    paid = Signal("paid", int)

    @step
    async def start(self, ctx: Context[BigCart]) -> Outcome[None]:
        return Await(self.paid, then=self.decide)

    @step
    async def decide(self, ctx: Context[BigCart]) -> Outcome[None]:
        return Done(None)


class Upgraded(Newer, name="shop", version=2):
    @upgrade(from_version=1)
    @staticmethod
    def add_currency(state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "currency": "EUR"}


class WrongUpgrade(Newer, name="shop", version=2):
    @upgrade(from_version=1)
    @staticmethod
    def nothing(state: dict[str, Any]) -> dict[str, Any]:
        return state


class RaisingUpgrade(Newer, name="shop", version=2):
    @upgrade(from_version=1)
    @staticmethod
    def fail(state: dict[str, Any]) -> dict[str, Any]:
        raise KeyError("price")


class Booking(Machine[None, None], name="booking"):
    paid = Signal("paid")

    @step(undo="release")
    async def reserve(self, ctx: Context[None]) -> Outcome[None]:
        return Await(self.paid, then=self.end)

    @step
    async def end(self, ctx: Context[None]) -> Outcome[None]:
        return Done(None)

    @step
    async def release(self, ctx: Context[None]) -> Outcome[None]:
        return Done(None)


class RenamedUndo(Booking, name="booking"):
    """`release` is now `free`."""

    release = None  # type: ignore[assignment]  # removed

    @step(undo="free")
    async def reserve(self, ctx: Context[None]) -> Outcome[None]:
        return Await(self.paid, then=self.end)

    @step
    async def free(self, ctx: Context[None]) -> Outcome[None]:
        return Done(None)


class UndoRenamedWell(RenamedUndo, name="booking"):
    @step(was="release")
    async def free(self, ctx: Context[None]) -> Outcome[None]:
        return Done(None)


@pytest.fixture
async def parked(durable_dsn: str) -> None:
    """Two instances of shop version 1 that await `paid`."""
    async with Worker([Shop], dsn=durable_dsn, settings=CALM) as worker:
        for total in (1, 2):
            await worker.wait(await worker.insert(Shop, Cart(total)), until="parked", timeout=PATIENCE)


def codes(findings: Any) -> list[tuple[str, str]]:
    return [(each.code, each.severity) for each in findings]


@pytest.mark.clause("GRAPH-5")
@pytest.mark.usefixtures("parked")
async def test_code_that_can_run_everything_has_no_findings(client: Any) -> None:
    assert await client.check(Shop, Child) == []
    assert await client.check(RenamedWell, every=True) == []
    assert await client.check(Upgraded, every=True) == []


@pytest.mark.clause("GRAPH-5")
@pytest.mark.usefixtures("parked")
async def test_step_that_the_code_does_not_have_is_found(client: Any) -> None:
    (found,) = await client.check(Renamed)
    assert (found.code, found.severity) == ("instance.step_unknown", "problem")
    assert found.facts == {"machine": "shop", "version": 1, "step": "decide", "count": 2}
    assert "2 live instances of shop version 1 are at step decide" in found.what
    assert 'was="decide"' in found.fix


@pytest.mark.clause("GRAPH-5")
async def test_runnable_and_gated_instances_are_checked(client: Any) -> None:
    for key in ("a", "a", None):
        options = {} if key is None else {"concurrency_key": key}
        await client.insert(Shop, Cart(1), step="decide", **options)
    (found,) = await client.check(Renamed)
    assert (found.code, found.facts["step"], found.facts["count"]) == ("instance.step_unknown", "decide", 3)


@pytest.mark.clause("GRAPH-5")
@pytest.mark.usefixtures("parked")
async def test_version_that_the_code_does_not_have_is_found(client: Any) -> None:
    (found,) = await client.check(Newer)
    assert (found.code, found.facts["version"], found.facts["count"]) == ("instance.version_unknown", 1, 2)


@pytest.mark.clause("GRAPH-5")
@pytest.mark.usefixtures("parked")
async def test_states_and_signals_that_do_not_fit_are_found(client: Any, db: Any) -> None:
    id = await db.fetchval("select min(id) from gen_durable.gen_durable")
    await db.execute("update gen_durable.gen_durable set awaits = '{other}' where id <> $1", id)
    found = await client.check(Retyped)
    assert codes(found) == [("state.undecodable", "problem")] + [("signal.unknown", "problem")] * 2
    assert found[0].facts["count"] == 2
    assert "currency" in found[0].what
    assert {each.facts["signal"] for each in found[1:]} == {"paid", "other"}
    assert [each.facts["count"] for each in found[1:]] == [1, 1]


@pytest.mark.clause("GRAPH-5")
async def test_unread_payload_that_does_not_fit_is_found(client: Any) -> None:
    inserted = await client.insert(Shop, Cart(1))
    await client.signal(inserted, Shop.paid, 7)
    (found,) = await client.check(Repaid)
    assert (found.code, found.facts["signal"], found.facts["ids"]) == (
        "signal.undecodable",
        "paid",
        [inserted.id],
    )


@pytest.mark.clause("GRAPH-5")
@pytest.mark.usefixtures("parked")
async def test_upgrade_that_does_not_give_the_new_state_is_found(client: Any) -> None:
    (found,) = await client.check(WrongUpgrade)
    assert (found.code, found.facts["version"], found.facts["count"]) == ("state.undecodable", 1, 2)


@pytest.mark.clause("GRAPH-5")
@pytest.mark.usefixtures("parked")
async def test_upgrade_that_raises_is_found_with_its_exception(client: Any) -> None:
    (found,) = await client.check(RaisingUpgrade)
    assert (found.code, found.facts["count"]) == ("state.undecodable", 2)
    assert "the upgrade raised KeyError: 'price'" in found.what
    assert found.fix == "correct the upgrades from version 1 on"


@pytest.mark.clause("GRAPH-5")
async def test_recorded_undo_step_that_the_code_does_not_have_is_found(client: Any, durable_dsn: str) -> None:
    async with Worker([Booking], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Booking)
        await worker.wait(ref, until="parked", timeout=PATIENCE)
    (found,) = await client.check(RenamedUndo)
    assert (found.code, found.facts["step"], found.facts["ids"]) == (
        "instance.undo_unknown",
        "release",
        [ref.id],
    )
    assert (
        "1 live instance of booking version 1 (of 1 that were read) has recorded undo step release"
        in found.what
    )
    assert await client.check(UndoRenamedWell) == []
    assert await client.check(Booking) == []


@pytest.mark.clause("GRAPH-5")
async def test_sample_is_bounded_and_every_reads_all(client: Any) -> None:
    await client.insert_all([Spec(Shop, Cart(1)) for _ in range(150)])
    (sampled,) = await client.check(Retyped)
    (complete,) = await client.check(Retyped, every=True)
    assert (sampled.facts["count"], complete.facts["count"]) == (100, 150)


@pytest.mark.clause("GRAPH-5")
async def test_every_finds_an_unknown_step_behind_many_instances(client: Any) -> None:
    await client.insert_all([Spec(Shop, Cart(1)) for _ in range(1_100)])
    await client.insert(Shop, Cart(1), step="decide")
    assert await client.check(Renamed) == [], "outside the 1,000 instances that a sample reads"
    (found,) = await client.check(Renamed, every=True)
    assert (found.code, found.facts["step"], found.facts["count"]) == ("instance.step_unknown", "decide", 1)


@pytest.mark.clause("GRAPH-5")
async def test_every_counts_instances_at_unknown_steps_exactly(client: Any) -> None:
    await client.insert_all([Spec(Shop, Cart(1), step="decide") for _ in range(1_100)])
    (sampled,) = await client.check(Renamed)
    (complete,) = await client.check(Renamed, every=True)
    assert sampled.what.startswith("at least 1000 live instances of shop")
    assert complete.what.startswith("1100 live instances of shop")


@pytest.mark.clause("GRAPH-5")
@pytest.mark.parametrize("status", ["executing", "gated"])
async def test_every_reads_all_gated_and_executing_instances(client: Any, db: Any, status: str) -> None:
    await client.insert_all([Spec(Shop, Cart(1)) for _ in range(1_100)])
    if status == "gated":
        await db.execute("update gen_durable.gen_durable set concurrency_key = 'k', gated = true")
    else:
        await db.execute(
            "update gen_durable.gen_durable set status = 'executing', leased_at = now(), "
            "lease_expires_at = now() + interval '1 h', lease_token = 7, execution = 1"
        )
    (found,) = await client.check(Retyped, every=True)
    assert (found.code, found.facts["count"]) == ("state.undecodable", 1_100)


@pytest.mark.clause("GRAPH-5")
async def test_every_reads_all_unread_signals(client: Any, db: Any) -> None:
    ref = await client.insert(Shop, Cart(1))
    await client.signal(ref, Shop.paid, 1)
    await db.execute(
        "insert into gen_durable.signals (target_id, name, payload) "
        "select target_id, name, payload from gen_durable.signals, generate_series(1, 149)"
    )
    (sampled,) = await client.check(Repaid)
    (complete,) = await client.check(Repaid, every=True)
    assert (sampled.facts["count"], complete.facts["count"]) == (100, 150)


@pytest.mark.clause("GRAPH-5")
async def test_children_of_unknown_machines_are_found(client: Any, durable_dsn: str) -> None:
    async with Worker([Shop, Child], dsn=durable_dsn, settings=CALM) as worker:
        parent = await worker.insert(Shop, Cart(0))
        await worker.wait(parent, until="parked", timeout=PATIENCE)
        (child,) = await worker.children(parent)
        await worker.wait(child.id, until="parked", timeout=PATIENCE)
        # The worker has a machine of this code, so the code replaces it.
        assert codes(await client.check(Shop)) == [
            ("instance.machine_unknown", "problem"),
            ("child.unknown", "problem"),
        ]
        assert await client.check(Shop, Child) == []
    found = await client.check(Shop)
    assert codes(found) == [("instance.machine_unknown", "notice"), ("child.unknown", "problem")]
    assert found[0].what.endswith("has machine parcel; 1 live instance of version 1 is waiting")
    async with Worker([Child], dsn=durable_dsn, settings=CALM):
        assert await client.check(Shop) == []  # another service runs it


@pytest.mark.clause("GRAPH-5")
@pytest.mark.usefixtures("parked")
def test_command_checks_code_and_instances(durable_dsn: str, tmp_path: Path) -> None:
    file = tmp_path / "next_release.py"
    file.write_text("from tests.operations.test_compatibility import Renamed, RenamedWell\n")
    run = CliRunner().invoke
    done = run(root, ["check", f"{file}:Renamed", "--against", durable_dsn, "--json"])
    assert (done.exit_code, [each["code"] for each in json.loads(done.stdout)]) == (
        1,
        ["instance.step_unknown"],
    )
    done = run(root, ["check", f"{file}:RenamedWell", "--against", durable_dsn, "--all"])
    assert (done.exit_code, done.stdout) == (0, "no problems found in 1 machine\n")
    assert run(root, ["check", f"{file}:Renamed", "--all"]).exit_code == 2


@pytest.mark.clause("GRAPH-5")
@pytest.mark.usefixtures("parked")
async def test_starting_worker_logs_one_warning_per_group(
    durable_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> list[str]:
        return [each.getMessage() for each in caplog.records if "incompatible" in each.getMessage()]

    with caplog.at_level(logging.WARNING, "gen_durable.worker"):
        async with Worker([Renamed], dsn=durable_dsn, settings=CALM):
            await until_true(lambda: bool(warnings()))
    (line,) = warnings()
    assert "2 live instances of shop version 1 are at step decide" in line
    caplog.clear()
    async with Worker([RenamedWell], dsn=durable_dsn, settings=CALM):
        pass
    assert warnings() == []


@pytest.mark.clause("GRAPH-5")
@pytest.mark.usefixtures("parked")
async def test_doctor_and_explain_know_what_a_worker_found_at_its_start(
    client: Any, db: Any, durable_dsn: str
) -> None:
    async def found() -> list[str]:
        return [each.code for each in await client.doctor()]

    (first, second) = await db.fetchval("select array_agg(id order by id) from gen_durable.gen_durable")
    async with Worker([Retyped], dsn=durable_dsn, settings=CALM) as worker:
        while "state.undecodable" not in await found():
            await asyncio.sleep(0.02)
        assert sorted(await found()) == ["signal.unknown", "state.undecodable"]
        findings = {each.code: each for each in await client.doctor()}
        state = findings["state.undecodable"]
        assert state.facts["workers"] == [worker.name]
        assert re.match(f"worker {worker.name} found at .*: 2 live instances of shop version 1 ", state.what)
        reasons = [each for each in (await client.explain(first)).reasons if isinstance(each, Incompatible)]
        assert {each.code for each in reasons} == {"state.undecodable", "signal.unknown"}
        assert {(each.workers, each.fix) for each in reasons} == {
            ((worker.name,), each.fix) for each in findings.values()
        }
        assert "gen-durable signal" not in str(await client.explain(first)), "the instance would fail"
        await client.cancel(first)
        assert not any(isinstance(each, Incompatible) for each in (await client.explain(first)).reasons)
        assert sorted(await found()) == ["signal.unknown", "state.undecodable"]
        await client.cancel(second)
        assert await found() == []


class Slow(Machine[int, int], name="slow"):
    @step(checkpoint=int)
    async def go(self, ctx: Context[int]) -> Outcome[int]:
        await ctx.checkpoint(7)
        return Retry(timedelta(days=1))


class SlowList(Machine[int, int], name="slow"):
    @step(checkpoint=list[int])
    async def go(self, ctx: Context[int]) -> Outcome[int]:
        return Done(0)


@pytest.mark.clause("GRAPH-5")
async def test_checkpoint_that_does_not_fit_is_found(client: Any, durable_dsn: str) -> None:
    async with Worker([Slow], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Slow, 1)
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while (await worker.get(ref)).checkpoint is None:  # type: ignore[union-attr]  # it exists
                await asyncio.sleep(0.02)
    (found,) = await client.check(SlowList)
    assert (found.code, found.facts["step"], found.facts["ids"]) == ("checkpoint.undecodable", "go", [ref.id])
    assert await client.check(Slow) == []


@pytest.mark.clause("GRAPH-5")
@pytest.mark.usefixtures("parked")
async def test_version_of_newer_code_needs_no_upgrade(client: Any, db: Any) -> None:
    await db.execute("update gen_durable.gen_durable set fsm_version = 2")
    (found,) = await client.check(Shop)
    assert found.fix == "newer code has inserted or upgraded them: let workers with version 2 run"


async def register(database: Database, name: str, *machines: tuple[str, int, list[str]]) -> None:
    row = msgspec.structs.replace(
        WORKER_ROW,
        name=name,
        fsms=[fsm for fsm, _, _ in machines],
        fsm_versions=[version for _, version, _ in machines],
        fsm_steps=msgspec.json.encode([steps for _, _, steps in machines]).decode(),
    )
    await database.run(workers.announce(row, AN_HOUR))


async def differences(client: Any) -> list[tuple[str, str]]:
    findings = await client.doctor()
    return [(each.severity, each.what) for each in findings if each.code == "machine.steps_differ"]


@pytest.mark.clause("GRAPH-6")
async def test_doctor_reports_different_steps_of_live_workers(client: Any, database: Database) -> None:
    await register(database, "one", ("shop", 1, ["start", "decide"]))
    assert await differences(client) == []
    await register(database, "two", ("shop", 1, ["start", "judge"]))
    text = "shop version 1 has different steps in live workers: only one has decide, only two has judge"
    assert await differences(client) == [("problem", text)]


@pytest.mark.clause("GRAPH-6")
async def test_additional_step_of_a_new_release_is_a_notice(client: Any, database: Database) -> None:
    await register(database, "one", ("shop", 1, ["start", "decide"]))
    await register(database, "two", ("shop", 1, ["start", "decide", "ship"]))
    ((severity, text),) = await differences(client)
    assert severity == "notice"
    assert text.endswith("only two has ship")


async def test_versions_that_a_worker_upgrades_are_not_compared(client: Any, database: Database) -> None:
    await register(database, "old", ("shop", 1, ["start", "decide"]))
    await register(database, "new", ("shop", 2, ["start", "judge"]), ("shop", 1, ["start", "judge"]))
    assert await differences(client) == []


@pytest.mark.clause("GRAPH-6")
async def test_worker_warns_of_other_steps_in_another_worker(
    database: Database, durable_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    await register(database, "other", ("shop", 1, ["start", "decide"]))
    with caplog.at_level(logging.WARNING, "gen_durable.worker"):
        async with Worker([Renamed], dsn=durable_dsn, settings=CALM):
            await until_true(lambda: "shop version 1 has different steps" in caplog.text)


@pytest.mark.clause("GRAPH-6")
async def test_worker_with_a_renamed_step_does_not_warn(
    database: Database, durable_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    await register(database, "old", ("shop", 1, ["start", "decide"]))
    with caplog.at_level(logging.INFO, "gen_durable.worker"):
        async with Worker([RenamedWell], dsn=durable_dsn, settings=CALM):
            await until_true(lambda: "one of them may be a later release" in caplog.text)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_check_of_an_empty_database_finds_nothing(durable_dsn: str) -> None:
    async with AsyncClient(durable_dsn) as client:
        assert await client.check(Shop) == []


async def test_check_without_a_machine_is_an_error(client: Any) -> None:
    with pytest.raises(UsageError, match="check got no machine"):
        await client.check()
