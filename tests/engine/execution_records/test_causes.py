"""An execution record has the step that its transition led to, and why the step failed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from gen_durable import (
    Await,
    Backoff,
    Context,
    Discard,
    Done,
    ExecutionRecord,
    Machine,
    Next,
    Outcome,
    Retry,
    RetryAfter,
    ScheduleChildren,
    Settings,
    Spec,
    Stop,
    step,
)
from gen_durable.testing import Crash, Harness
from tests.support.machines import Say

NOW = Backoff(base=timedelta(0), max_attempts=2)


class Ways(Machine[int, None]):
    """Each step leaves in another way. The state is how often a step has failed."""

    @step
    async def goes_on(self, ctx: Context[int]) -> Outcome[None]:
        return Retry() if ctx.attempt == 0 else Next(self.waits)

    @step
    async def waits(self, ctx: Context[int]) -> Outcome[None]:
        return Await("go", then=self.splits)

    @step
    async def splits(self, ctx: Context[int]) -> Outcome[None]:
        return ScheduleChildren([Spec(Say, "a")], then=self.ends)

    @step
    async def ends(self, ctx: Context[int]) -> Outcome[None]:
        return Done(None)

    @step
    async def stops(self, ctx: Context[int]) -> Outcome[None]:
        return Stop("no more")

    @step
    async def discards(self, ctx: Context[int]) -> Outcome[None]:
        raise Discard("not worth it")

    @step(retry=NOW)
    async def raises(self, ctx: Context[int]) -> Outcome[None]:
        raise ValueError("broken")

    @step
    async def asks(self, ctx: Context[int]) -> Outcome[None]:
        if ctx.attempt == 0:
            raise RetryAfter(timedelta(0))
        return Done(None)

    @step(timeout=timedelta(milliseconds=10), retry=NOW, on_failure="ends")
    async def hangs(self, ctx: Context[int]) -> Outcome[None]:
        await asyncio.sleep(60)
        return Done(None)

    @step(timeout=timedelta(milliseconds=10), retry=Backoff(never=(TimeoutError,)))
    async def hangs_once(self, ctx: Context[int]) -> Outcome[None]:
        await asyncio.sleep(60)
        return Done(None)

    @step(on_failure="ends")
    async def dies(self, ctx: Context[int]) -> Outcome[None]:
        return Done(None)

    @step(undo="undoes")
    async def begins(self, ctx: Context[int]) -> Outcome[None]:
        return Next(self.stops)

    @step
    async def undoes(self, ctx: Context[int]) -> Outcome[None]:
        return Done(None)


def _ways(records: Sequence[ExecutionRecord]) -> list[tuple[str, str | None, str | None, str | None]]:
    return [(each.step, each.outcome, each.to_step, each.cause) for each in records]


def _run(durable: Harness, first: str) -> list[tuple[str, str | None, str | None, str | None]]:
    ref = durable.insert(Ways, 0, step=first)
    durable.drain()
    return _ways(durable.executions(ref))


@pytest.mark.clause("EXEC-12")
def test_record_has_the_step_that_the_transition_led_to(durable: Harness) -> None:
    ref = durable.insert(Ways, 0)
    durable.signal(ref, "go")
    durable.drain()
    assert _ways(durable.executions(ref)) == [
        ("goes_on", "retry", None, None),
        ("goes_on", "next", "waits", None),
        ("waits", "await", "splits", None),
        ("splits", "schedule_children", "ends", None),
        ("ends", "done", None, None),
    ]
    steps = [entry.to_step for entry in durable.timeline(ref) if entry.outcome in ("next", "await")]
    assert steps == ["waits", "splits"]
    assert [one.to for one in durable.history(ref)] == ["goes_on", "waits", "splits", "ends", None]


@pytest.mark.clause("EXEC-12")
@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("stops", [("stop", None, "stop")]),
        ("discards", [("stop", None, "stop")]),
        ("raises", [("retry", None, "error"), ("stop", None, "exhausted")]),
        ("asks", [("retry", None, "error"), ("done", None, None)]),
        ("hangs", [("retry", None, "timeout"), ("next", "ends", "timeout")]),
        ("hangs_once", [("stop", None, "timeout")]),
    ],
)
def test_record_has_the_cause_of_a_failure(
    durable: Harness, first: str, expected: list[tuple[str, str | None, str | None]]
) -> None:
    assert [
        (outcome, to, cause) for name, outcome, to, cause in _run(durable, first) if name == first
    ] == expected


@pytest.mark.clause("EXEC-12")
@pytest.mark.parametrize("durable_settings", [Settings(crash_limit=2)])
def test_record_has_the_cause_of_a_crash(durable: Harness) -> None:
    ref = durable.insert(Ways, 0, step="dies")
    for _ in range(2):
        with durable.crash_at(Ways.dies), pytest.raises(Crash):
            durable.drain()
        durable.advance(minutes=5)
    durable.drain()
    assert _ways(durable.executions(ref)) == [
        ("dies", "lease", None, "crash"),
        ("dies", "poison", "ends", "poison"),
        ("ends", "done", None, None),
    ]


@pytest.mark.clause("EXEC-12")
def test_record_of_undo_steps_has_step_and_cause(durable: Harness) -> None:
    assert _run(durable, "begins") == [
        ("begins", "next", "stops", None),
        ("stops", "undo", "undoes", "stop"),
        ("undoes", "undone", None, None),
    ]


@pytest.mark.clause("EXEC-12")
def test_undo_step_that_succeeds_has_no_error(durable: Harness) -> None:
    ref = durable.insert(Ways, 0, step="begins")
    durable.drain()
    failed, undone = durable.executions(ref)[-2:]
    assert (failed.step, failed.error is None, undone.step, undone.error) == ("stops", False, "undoes", None)
    assert [(each.step, each.error) for each in durable.history(ref)][-1] == ("undoes", None)
    assert [group.step for group in durable.stats().failures] == ["stops"]


@pytest.mark.clause("EXEC-12")
def test_record_of_a_cancel_or_an_edit_has_no_cause(durable: Harness) -> None:
    ref = durable.insert(Ways, 0)
    durable.edit(ref, step="ends")
    durable.cancel(ref)
    assert _ways(durable.executions(ref)) == [
        ("goes_on", "edit", "ends", None),
        ("ends", "cancelled", None, None),
    ]
    durable.retry(ref, step="waits")
    assert _ways(durable.executions(ref))[-1] == ("ends", "edit", "waits", None)
