"""`on_failure=`, and the exceptions that a retry policy retries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

import msgspec
import pytest

from gen_durable import (
    Await,
    Backoff,
    Context,
    Discard,
    Done,
    Failure,
    Machine,
    Next,
    Outcome,
    Retry,
    RetryAfter,
    Settings,
    Signal,
    Sql,
    Stop,
    job,
    step,
)
from gen_durable.testing import Crash, DrainCounts, Harness
from tests.support.rows import SqlConnection

SOON = timedelta(milliseconds=1)


class DeclinedError(Exception):
    pass


class Order(msgspec.Struct):
    raises: str = "timeout"
    note: str = ""


ERRORS: dict[str, Callable[[], BaseException]] = {
    "timeout": lambda: TimeoutError("no answer"),
    "declined": lambda: DeclinedError("no money"),
    "value": lambda: ValueError("bad"),
    "discard": lambda: Discard("not wanted"),
    "later": lambda: RetryAfter(SOON, "busy"),
    "timeouts": lambda: ExceptionGroup("both", [TimeoutError("a"), TimeoutError("b")]),
    "mixed": lambda: ExceptionGroup("both", [TimeoutError("a"), DeclinedError("b")]),
}


class Shop(Machine[Order, str]):
    """Charges; if that fails for good, it compensates."""

    @step
    async def compensate(self, ctx: Context[Order]) -> Outcome[str]:
        assert ctx.failure is not None
        if ctx.state.note == "again" and ctx.attempt < 2:
            return Retry()
        return Done(f"{ctx.failure.step} {ctx.failure.attempt} {ctx.failure.type}: {ctx.failure.message}")

    @step(
        initial=True,
        retry=Backoff(max_attempts=3, base=SOON, on=(TimeoutError, LookupError), never=DeclinedError),
        on_failure=compensate,
        to=(),
    )
    async def charge(self, ctx: Context[Order]) -> Outcome[str]:
        ctx.state.note = "changed by a step that raised"
        raise ERRORS[ctx.state.raises]()


@pytest.mark.clause("ERR-10", "ERR-11", "ERR-12")
@pytest.mark.parametrize(
    ("raises", "retries", "result"),
    [
        ("timeout", 2, "charge 2 TimeoutError: no answer"),
        ("declined", 0, "charge 0 DeclinedError: no money"),
        ("value", 0, "charge 0 ValueError: bad"),
        ("discard", 0, "charge 0 Discard: not wanted"),
        ("later", 2, "charge 2 RetryAfter: busy"),
        ("timeouts", 2, "charge 2 ExceptionGroup: both (2 sub-exceptions)"),
        ("mixed", 0, "charge 0 ExceptionGroup: both (2 sub-exceptions)"),
    ],
)
def test_step_that_fails_for_good_leads_to_on_failure(
    durable: Harness, raises: str, retries: int, result: str
) -> None:
    ref = durable.insert(Shop, Order(raises))
    assert durable.drain() == DrainCounts(retry=retries, next=1, done=1)
    durable.assert_done(ref, result)
    (instance,) = durable.instances(Shop)
    assert instance.state == Order(raises), "changes of a step that raised are discarded"


@pytest.mark.clause("ERR-12")
def test_failure_is_kept_until_the_next_transition(durable: Harness, sql: SqlConnection) -> None:
    seen: list[Failure | None] = []

    class Careful(Machine[int, None]):
        go = Signal("go")

        @step
        async def charge(self, ctx: Context[int]) -> Outcome[None]:
            raise TimeoutError("no answer")

        @step
        async def mend(self, ctx: Context[int]) -> Outcome[None]:
            seen.append(ctx.failure)
            match len(seen):
                case 1 | 2:  # the first time, the process crashes before the commit
                    raise ValueError("a second error")
                case 3:
                    return Retry()
                case 4:
                    return Stop("give up")
            return Await(self.go, then=self.after)

        @step
        async def after(self, ctx: Context[int]) -> Outcome[None]:
            seen.append(ctx.failure)
            return Done()

        def handle(self, error: Exception, ctx: Context[int]) -> Outcome[None]:
            return Next(self.mend) if ctx.step == "charge" else Retry()

    ref = durable.insert(Careful, 1)
    with durable.crash_at(Careful.mend), pytest.raises(Crash):
        durable.drain()
    durable.drain()
    assert durable.assert_failed(ref).error is None
    durable.retry(ref)
    durable.drain()
    durable.signal(ref, "go")
    durable.drain()
    durable.assert_done(ref)
    first = seen[0]
    assert first is not None
    assert (first.type, first.message, first.step, first.attempt) == (
        "TimeoutError",
        "no answer",
        "charge",
        0,
    )
    assert first.traceback
    assert seen == [first] * 5 + [None]
    assert sql.columns(ref.id, "failure") == (None,)


@pytest.mark.clause("ERR-10")
def test_handle_wins_over_on_failure_and_may_defer_to_it(durable: Harness) -> None:
    class Own(Machine[str, str]):
        @step
        async def fall_back(self, ctx: Context[str]) -> Outcome[str]:
            return Done(f"fell back after {ctx.failure.type if ctx.failure else None}")

        @step(initial=True, retry=Backoff(max_attempts=2, base=SOON), on_failure=fall_back)
        async def run(self, ctx: Context[str]) -> Outcome[str]:
            raise LookupError if ctx.state == "lookup" else ValueError

        async def handle(self, error: Exception, ctx: Context[str]) -> Outcome[str]:
            if isinstance(error, LookupError):
                return Stop("handled")
            return super().handle(error, ctx)

    own, deferred = durable.insert(Own, "lookup"), durable.insert(Own, "value")
    assert durable.drain() == DrainCounts(stopped=1, retry=1, next=1, done=1)
    durable.assert_failed(own, match="^handled$")
    durable.assert_done(deferred, "fell back after ValueError")


@pytest.mark.clause("ERR-10")
def test_timeout_of_a_step_is_a_timeout_error_for_the_policy(durable: Harness) -> None:
    class Slow(Machine[int, str]):
        @step
        async def late(self, ctx: Context[int]) -> Outcome[str]:
            return Done(ctx.failure.type if ctx.failure else "")

        @step(
            initial=True,
            timeout=SOON,
            retry=Backoff(max_attempts=2, base=SOON, on=TimeoutError),
            on_failure=late,
        )
        async def wait(self, ctx: Context[int]) -> Outcome[str]:
            await asyncio.sleep(60)
            return Done("")

    ref = durable.insert(Slow, 1)
    assert durable.drain() == DrainCounts(retry=1, next=1, done=1)
    durable.assert_done(ref, "StepTimeoutError")


@pytest.mark.clause("ERR-11", "JOB-23")
def test_job_retries_only_the_exceptions_of_its_policy(durable: Harness) -> None:
    @job("picky", retry=Backoff(max_attempts=3, base=SOON, on=TimeoutError, never=()))
    async def picky(kind: str) -> None:
        raise ERRORS[kind]()

    again, once = durable.insert(picky, "timeout"), durable.insert(picky, "value")
    assert durable.drain() == DrainCounts(retry=2, stopped=2)
    assert [durable.assert_failed(ref).attempt for ref in (again, once)] == [2, 0]


class Fragile(Machine[int, str]):
    """Its first step crashes; the step after that has signals and children of its own."""

    @step
    async def rescue(self, ctx: Context[int]) -> Outcome[str]:
        assert ctx.failure is not None
        names = [message.name for message in ctx.inbox]
        return Done(f"{ctx.failure.type} {ctx.failure.step} {ctx.idempotency_key} {ctx.attempt} {names}")

    @step(initial=True)
    async def begin(self, ctx: Context[int]) -> Outcome[str]:
        return Await("go", then="crash", timeout=timedelta(hours=1))

    @step(on_failure="rescue")
    async def crash(self, ctx: Context[int]) -> Outcome[str]:
        return Done("never")


@pytest.mark.clause("CRASH-12")
@pytest.mark.parametrize("durable_settings", [Settings(crash_limit=2)])
def test_step_that_crashed_too_often_leads_to_on_failure(durable: Harness, sql: SqlConnection) -> None:
    ref = durable.insert(Fragile, 1, concurrency_key="k")
    durable.drain(collapse=False)
    durable.signal(ref, "go")
    for _ in range(2):
        with durable.crash_at(Fragile.crash, "before_step"), pytest.raises(Crash):
            durable.drain()
    durable.drain()
    durable.assert_done(ref, f"Poison crash {ref.id}:3 0 ['go']")
    assert sql.columns(ref.id, "step_seq crash_count awaits") == (3, 0, None)
    records = [(each.step, each.status, each.outcome) for each in durable.executions(ref)]
    assert records[-2:] == [("crash", "DONE", "poison"), ("rescue", "DONE", "done")]


class FragileFirst(Machine[list[int], str], history="all"):
    """Its first step crashes."""

    @step(on_failure="rescue")
    async def crash(self, ctx: Context[list[int]]) -> Outcome[str]:
        return Next(self.rescue, [*ctx.state, 1])

    @step
    async def rescue(self, ctx: Context[list[int]]) -> Outcome[str]:
        return Done("rescued")


@pytest.mark.clause("CRASH-12", "HIS-1", "HIS-4", "HIS-5")
@pytest.mark.parametrize("durable_settings", [Settings(crash_limit=2, executions="off")])
def test_reaper_keeps_the_history_of_on_failure(durable: Harness) -> None:
    ref = durable.insert(FragileFirst, [0])
    for _ in range(2):
        with durable.crash_at("crash", "before_step"), pytest.raises(Crash):
            durable.drain()
    durable.drain()
    durable.assert_done(ref, "rescued")
    found = durable.history(ref)
    assert [(one.outcome, one.state, one.version, one.executions) for one in found] == [
        ("insert", [0], 1, 0),
        ("poison", [0], 1, 2),
        ("done", [0], 1, 1),
    ]
    assert found[1].changes == ()
    for at in (0, 1):
        forked = durable.fork(ref, at=at)
        durable.drain()
        durable.assert_done(forked.id, "rescued")


@pytest.mark.clause("HIS-1")
@pytest.mark.parametrize("durable_settings", [Settings(crash_limit=1)])
def test_initial_state_is_kept_if_the_first_step_is_poison(durable: Harness) -> None:
    class Brittle(Machine[list[int], str], history="all"):
        @step
        async def crash(self, ctx: Context[list[int]]) -> Outcome[str]:
            ctx.state.append(1)
            return Done("done")

    ref = durable.insert(Brittle, [0])
    with durable.crash_at("crash", "before_step"), pytest.raises(Crash):
        durable.drain()
    durable.drain()
    durable.assert_failed(ref)
    durable.retry(ref, state=[5])
    durable.drain()
    assert [one.state for one in durable.history(ref)] == [[0], [5, 1]]


def test_on_failure_may_be_used_with_the_effect_of_an_outcome(durable: Harness) -> None:
    class Book(Machine[int, str]):
        @step
        async def report(self, ctx: Context[int]) -> Outcome[str]:
            return Done(ctx.failure.type if ctx.failure else "")

        @step(initial=True, on_failure=report)
        async def book(self, ctx: Context[int]) -> Outcome[str]:
            return Done("booked", effect=Sql("select 1 / 0"))

    ref = durable.insert(Book, 1)
    durable.drain()
    durable.assert_done(ref, "DivisionByZeroError")


class Trip(Machine[str, str]):
    """Books, with an undo step; then pays, which fails or crashes."""

    @step
    async def cancel_booking(self, ctx: Context[str]) -> Outcome[str]:
        failure = ctx.failure
        assert failure is not None
        return Stop(f"undo saw {failure.type} of {failure.step}") if ctx.state == "tell" else Done("")

    @step
    async def recover(self, ctx: Context[str]) -> Outcome[str]:
        return Done(f"recovered from {ctx.failure.type}" if ctx.failure else "")

    @step(initial=True, undo=cancel_booking)
    async def book(self, ctx: Context[str]) -> Outcome[str]:
        return Next("pay" if ctx.state == "recover" else "fail")

    @step(on_failure=recover)
    async def pay(self, ctx: Context[str]) -> Outcome[str]:
        raise ValueError("no money")

    @step
    async def fail(self, ctx: Context[str]) -> Outcome[str]:
        raise ValueError("no money")


@pytest.mark.clause("ERR-10", "ERR-12")
def test_on_failure_comes_before_undo_and_undo_steps_see_the_failure(durable: Harness) -> None:
    recovered, undone = durable.insert(Trip, "recover"), durable.insert(Trip, "tell")
    durable.drain()
    durable.assert_done(recovered, "recovered from ValueError")
    durable.assert_failed(undone, match="undo saw ValueError of fail")


@pytest.mark.clause("CRASH-12")
@pytest.mark.parametrize("durable_settings", [Settings(crash_limit=1)])
@pytest.mark.parametrize(("state", "step", "status"), [("recover", "pay", "done"), ("", "fail", "failed")])
def test_crashed_step_leads_to_on_failure_or_else_to_undo(
    durable: Harness, state: str, step: str, status: str
) -> None:
    ref = durable.insert(Trip, state)
    with durable.crash_at(step, "before_step"), pytest.raises(Crash):
        durable.drain()
    durable.drain()
    (instance,) = durable.instances(Trip)
    assert instance.status == status
    assert [each.step for each in durable.executions(ref)][-1] == (
        "recover" if status == "done" else "cancel_booking"
    )
