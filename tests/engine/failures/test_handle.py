"""`handle`, retry policies, and the stored error."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gen_durable import (
    Await,
    Backoff,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    Retry,
    ScheduleChildren,
    Spec,
    backoff,
    step,
)
from gen_durable.testing import Harness
from tests.support.machines import Say, one_step, probe
from tests.support.rows import SqlConnection, has_no_lease
from tests.support.settings import AN_HOUR


def broken(ctx: Context[int]) -> Outcome[Any]:
    raise ConnectionError("the bank does not answer")


@pytest.mark.clause("ERR-3", "ERR-2")
def test_handle_sees_the_state_from_before_the_step(durable: Harness) -> None:
    seen: list[Any] = []

    class Half(Machine[list[int], None]):
        @step
        async def change(self, ctx: Context[list[int]]) -> Outcome[None]:
            ctx.state.append(99)
            raise ConnectionError("the bank does not answer")

        def handle(self, error: Exception, ctx: Context[list[int]]) -> Outcome[None]:
            seen.append((str(error), ctx.id, ctx.machine, ctx.version, ctx.step, ctx.attempt, ctx.state))
            return Retry() if ctx.attempt == 0 else Done()

    ref = durable.insert(Half, [1])
    durable.drain()
    durable.assert_done(ref)
    assert seen == [("the bank does not answer", ref.id, "Half", 1, "change", n, [1]) for n in (0, 1)]


@pytest.mark.clause("ERR-5")
@pytest.mark.parametrize(
    ("outcome", "left", "awaits"),
    [
        (Next("one", delay=AN_HOUR), ["other"], None),
        (ScheduleChildren([Spec(Say, "a", schedule_in=AN_HOUR)], then="one"), ["other"], None),
        (Retry(AN_HOUR), ["go", "other"], ["go"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_handle_consumes_the_signals_of_its_step(
    durable: Harness, sql: SqlConnection, outcome: Any, left: list[str], awaits: Any
) -> None:
    ref = durable.insert(
        probe(lambda ctx: Await("go", then="two"), broken, handle=lambda error, ctx: outcome), 7
    )
    durable.signal(ref, "go")
    durable.signal(ref, "other")
    durable.drain(collapse=False)
    assert sql.inbox(ref.id) == left
    assert sql.columns(ref.id, "awaits") == (awaits,)


class Plain(Machine[int, int]):
    """Has no `handle`; one of its steps has a retry policy."""

    @step
    async def once(self, ctx: Context[int]) -> Outcome[int]:
        raise ConnectionError("the bank does not answer")

    @step(retry=Backoff(max_attempts=3))
    async def thrice(self, ctx: Context[int]) -> Outcome[int]:
        raise ConnectionError(f"attempt {ctx.attempt}")


class Patient(Machine[int, int], retry=Backoff(max_attempts=4)):
    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.attempt) if ctx.attempt == 3 else Done(1 // 0)


@pytest.mark.clause("ERR-6")
def test_without_handle_the_retry_policy_decides(durable: Harness) -> None:
    once, thrice = durable.insert(Plain, 1), durable.insert(Plain, 1, step=Plain.thrice)
    patient = durable.insert(Patient, 1)
    durable.drain()
    durable.assert_failed(once, match="^ConnectionError: the bank does not answer$")
    durable.assert_failed(thrice, match="attempt 2")
    durable.assert_done(patient, 3)
    assert [len(durable.outcomes(ref)) for ref in (once, thrice, patient)] == [1, 3, 4]


@pytest.mark.clause("ERR-7")
def test_default_retry_policy() -> None:
    assert backoff == Backoff(
        max_attempts=3,
        base=timedelta(seconds=1),
        factor=2.0,
        cap=timedelta(minutes=5),
        jitter=0.5,
    )
    plain = Backoff(jitter=0)
    assert [plain(n).total_seconds() for n in (0, 1, 2, 8, 9, 1000)] == [1, 2, 4, 256, 300, 300]
    for _ in range(100):
        assert timedelta(seconds=4) <= backoff(2) <= timedelta(seconds=6)


@pytest.mark.clause("ERR-8", "ERR-9")
def test_error_is_kept_over_a_retry(durable: Harness, sql: SqlConnection) -> None:
    seen: list[tuple[Any, ...]] = []

    def one(ctx: Context[int]) -> Outcome[Any]:
        seen.append(sql.columns(ctx.id, "lease_token execution status"))
        return Done(0) if ctx.attempt else broken(ctx)

    ref = durable.insert(probe(one, handle=lambda error, ctx: Retry()), 7, concurrency_key="k")
    one_step(durable)
    row = sql.row(ref.id)
    assert (row["last_error"], row["attempt"]) == ("ConnectionError: the bank does not answer", 1)
    assert has_no_lease(row)
    durable.drain()
    durable.assert_done(ref)
    (first, *_), (second, number, status) = seen
    assert first != second
    assert (number, status) == (3, "executing"), "the second execution was given back by the test"
    assert sql.columns(ref.id, "last_error error") == (None, None), "it is done, and not in error"
