"""An instance at a step that no live worker has is left alone and reported."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import timedelta
from typing import Any

import pytest

from gen_durable import Context, Done, Machine, Next, Outcome, Spec, Status, Worker, step
from gen_durable._core.model import Execution
from gen_durable._runtime.unknown_steps import UnknownSteps
from gen_durable.errors import UnknownStepError
from gen_durable.reasons import NotDue, NoWorkerForStep
from gen_durable.telemetry import StepMissing, StepStop
from gen_durable.testing import Harness
from tests.support.rows import row_of
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, Events


class Removed(Machine[int, int], name="form"):
    """The step `check` was removed, and `handle` must not be asked about it."""

    @step
    async def fill(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)

    def handle(self, error: Exception, ctx: Context[int]) -> Any:
        raise AssertionError("a row at an unknown step is not a failed step")


class Complete(Machine[int, int], name="form"):
    @step
    async def fill(self, ctx: Context[int]) -> Outcome[int]:
        return Next(self.check)

    @step
    async def check(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state + 1)


async def insert_at(db: Any, step: str, **columns: Any) -> int:
    key = columns.get("concurrency_key")
    insert = "select id from gen_durable.insert('form', '1', step => $1, version => 1, concurrency_key => $2)"
    id: int = await db.fetchval(insert, step, key)
    return id


@pytest.mark.clause("VER-8", "TEL-12")
@pytest.mark.parametrize("source", ["queue", "prefix"])
async def test_instance_at_an_unknown_step_is_left_alone(
    durable_dsn: str, db: Any, caplog: pytest.LogCaptureFixture, source: str
) -> None:
    ids = [await insert_at(db, "check") for _ in range(3)]
    served: dict[str, Any] = {"queues": {"default": 4}} if source == "queue" else {"prefixes": ["form"]}
    async with Worker([Removed], dsn=durable_dsn, settings=CALM, **served) as worker:
        events = Events(worker)
        await events.wait(StepMissing, count=4)
        for id in ids:
            row = await row_of(db, id)
            if row["status"] == "executing":
                continue
            assert (row["status"], row["attempt"], row["crash_count"]) == ("runnable", 0, 0)
            assert (row["step"], row["last_error"]) == ("check", None)
            assert row["eligible_at"] > row["updated_at"]
        assert not events.of(StepStop)
        assert {(each.fsm, each.version, each.step) for each in events.of(StepMissing)} == {
            ("form", 1, "check")
        }
        reasons = [type(each) for each in (await worker.explain(ids[0])).reasons]
        assert NoWorkerForStep in reasons
        assert set(reasons) <= {NoWorkerForStep, NotDue}
        # A worker of another release that has the step takes it.
        async with Worker([Complete], dsn=durable_dsn, settings=CALM) as other:
            ended = await other.wait_all(ids, timeout=PATIENCE)
    assert [one.result for one in ended] == [2, 2, 2]
    lines = [line for line in caplog.messages if line.startswith("step not known")]
    assert len(lines) == 1
    assert "form" in lines[0]
    assert "step check of version 1; this worker has fill" in lines[0]


@pytest.mark.clause("VER-8")
async def test_explain_names_the_steps_of_live_workers(durable_dsn: str, db: Any) -> None:
    id = await insert_at(db, "check")
    async with Worker([Removed], dsn=durable_dsn, settings=CALM) as worker:
        found: NoWorkerForStep | None = None
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while found is None:  # it may be leased for a moment
                reasons = (await worker.explain(id)).reasons
                found = next((each for each in reasons if isinstance(each, NoWorkerForStep)), None)
        assert found == NoWorkerForStep(machine="form", version=1, step="check", known=("fill",))
        assert str(found).startswith(
            'no live worker has step "check" of machine "form" version 1; live workers have: fill; '
        )
        async with Worker([Complete], dsn=durable_dsn, settings=CALM):
            assert NoWorkerForStep not in map(type, (await worker.explain(id)).reasons)


@pytest.mark.clause("EXEC-11", "INV-3")
async def test_only_the_first_return_of_an_unknown_step_is_recorded(durable_dsn: str, db: Any) -> None:
    id = await insert_at(db, "check")
    async with Worker([Removed], dsn=durable_dsn, settings=CALM) as worker:
        await Events(worker).wait(StepMissing, count=3)
        assert "check" not in {each.step for each in (await worker.stats()).steps}
    async with Worker([Complete], dsn=durable_dsn, settings=CALM) as worker:
        ended = await worker.wait(id, timeout=PATIENCE)
        records = await worker.executions(id)
    assert ended.result == 2
    assert [(each.attempt, each.outcome) for each in records] == [(1, "unknown_step"), (2, "done")]


@pytest.mark.clause("VER-8")
async def test_unknown_step_does_not_block_its_concurrency_key(durable_dsn: str, db: Any) -> None:
    blocked = await insert_at(db, "check", concurrency_key="k")
    async with Worker([Removed], dsn=durable_dsn, settings=CALM) as worker:
        others = await worker.insert_all([Spec(Removed, n, concurrency_key="k") for n in range(3)])
        ended = await worker.wait_all(others, timeout=PATIENCE)
        assert [one.result for one in ended] == [0, 1, 2]
        assert (await worker.get(blocked)).status in (Status.RUNNABLE, Status.EXECUTING)  # type: ignore[union-attr]


def test_delay_grows_with_the_time_since_the_step_was_met(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(random, "uniform", lambda low, high: (low + high) / 2)
    steps = UnknownSteps()
    one, other = (Execution(1, 1, "form", 1, name, 0, 0, "1", "default") for name in ("check", "sign"))
    delays = []
    for passed in (0, 5, 100, 3000, 1_000_000):
        now = 1000.0 + passed
        delays.append(steps.delay(one))
    assert delays == [timedelta(seconds=seconds) for seconds in (1, 1, 10, 300, 600)]
    assert steps.delay(other) == timedelta(seconds=1)


def test_harness_names_the_unknown_step(durable: Harness) -> None:
    ref = durable.load(Removed, step="check", state=1)
    with pytest.raises(
        UnknownStepError, match=f"form {ref.target}, version 1: machine 'form' has no step 'check'"
    ):
        durable.drain()
    durable.use(Complete)
    durable.drain()
    durable.assert_done(ref, 2)


async def test_many_rows_at_an_unknown_step_do_not_stop_the_queue(durable_dsn: str, db: Any) -> None:
    await db.execute(
        "select gen_durable.insert('form', '1', step => 'check', version => 1) from generate_series(1, 50)"
    )
    assert await db.fetchval("select count(*) from gen_durable.gen_durable") == 50
    async with Worker([Removed], dsn=durable_dsn, settings=CALM) as worker:
        refs = await worker.insert_all([Spec(Removed, n) for n in range(20)])
        assert [one.result for one in await worker.wait_all(refs, timeout=PATIENCE)] == list(range(20))
