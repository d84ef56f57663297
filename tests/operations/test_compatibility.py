"""Live instances that new code cannot run: `check`, `doctor`, and the log of a starting worker."""

from __future__ import annotations

import json
import logging
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
    ScheduleChildren,
    Signal,
    Spec,
    Worker,
    step,
    upgrade,
)
from gen_durable._db import workers
from gen_durable._db.pool import Database
from gen_durable.cli.root import root
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
async def test_sample_is_bounded_and_every_reads_all(client: Any) -> None:
    await client.insert_all([Spec(Shop, Cart(1)) for _ in range(150)])
    (sampled,) = await client.check(Retyped)
    (complete,) = await client.check(Retyped, every=True)
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


async def test_check_of_an_empty_database_finds_nothing(durable_dsn: str) -> None:
    async with AsyncClient(durable_dsn) as client:
        assert await client.check(Shop) == []
