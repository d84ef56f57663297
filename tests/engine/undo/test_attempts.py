"""After its undo steps an instance has the attempt at which it ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gen_durable import (
    Await,
    Backoff,
    Cancel,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    Retry,
    Settings,
    Status,
    step,
)
from gen_durable.testing import Crash, Harness


class Failing(Machine[str, str], retry=Backoff(max_attempts=3, base=timedelta(0))):
    """It ends at attempt 2."""

    @step(undo="clean")
    async def begin(self, ctx: Context[str]) -> Outcome[str]:
        return Next(self.work)

    @step
    async def work(self, ctx: Context[str]) -> Outcome[str]:
        if ctx.attempt < 2:
            raise RuntimeError("no")
        match ctx.state:
            case "raise":
                raise RuntimeError("no")
            case "cancel":
                raise Cancel("no")
            case _:
                return Await("go", then=self.work)

    @step
    async def clean(self, ctx: Context[str]) -> Outcome[str]:
        return Done("clean") if ctx.attempt == 1 else Retry(timedelta(0))


@pytest.mark.clause("UNDO-3")
@pytest.mark.clause("OUT-20")
@pytest.mark.parametrize("durable_settings", [Settings(alerts="ops")])
@pytest.mark.parametrize(("ending", "status"), [("raise", Status.FAILED), ("cancel", Status.CANCELLED)])
def test_attempt_after_undo_is_that_of_the_step_that_ended(
    durable: Harness, ending: str, status: Status
) -> None:
    ref = durable.insert(Failing, ending)
    durable.drain()
    ended = durable.get(ref)
    assert ended is not None
    assert (ended.status, ended.step, ended.attempt) == (status, "work", 2)
    alerts: list[Any] = [event.data for event in durable.events(ref, sink="ops")]
    assert [alert["attempts"] for alert in alerts] == ([3] if status is Status.FAILED else [])


@pytest.mark.clause("UNDO-3")
@pytest.mark.clause("OUT-20")
def test_attempt_of_a_cancelled_retry_is_kept_over_its_undo(durable: Harness) -> None:
    class Retrying(Machine[None, str]):
        @step(undo="clean")
        async def begin(self, ctx: Context[None]) -> Outcome[str]:
            return Next(self.work)

        @step
        async def work(self, ctx: Context[None]) -> Outcome[str]:
            return Retry(timedelta(days=1) if ctx.attempt else timedelta(0))

        @step
        async def clean(self, ctx: Context[None]) -> Outcome[str]:
            return Done("clean")

    ref = durable.insert(Retrying, None)
    durable.drain(collapse=False)
    durable.cancel(ref)
    durable.drain()
    ended = durable.get(ref)
    assert ended is not None
    assert (ended.status, ended.step, ended.attempt) == (Status.CANCELLED, "work", 2)


@pytest.mark.clause("UNDO-3")
@pytest.mark.clause("OUT-20")
@pytest.mark.parametrize("durable_settings", [Settings(crash_limit=2)])
def test_attempt_of_poison_is_kept_over_its_undo(durable: Harness) -> None:
    class Crashing(Machine[None, str]):
        @step(undo="clean")
        async def begin(self, ctx: Context[None]) -> Outcome[str]:
            return Next(self.work)

        @step
        async def work(self, ctx: Context[None]) -> Outcome[str]:
            return Done("never committed")

        @step
        async def clean(self, ctx: Context[None]) -> Outcome[str]:
            return Done("clean")

    ref = durable.insert(Crashing, None)
    for _ in range(2):
        with durable.crash_at("work"), pytest.raises(Crash):
            durable.drain()
    durable.drain()
    ended = durable.get(ref)
    assert ended is not None
    assert (ended.status, ended.step, ended.attempt) == (Status.FAILED, "work", 1)
