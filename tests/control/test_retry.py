"""Manual retry: failed and cancelled instances continue at the step where they ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import (
    Await,
    Backoff,
    Cancel,
    Context,
    Done,
    Duplicate,
    EncodeError,
    Machine,
    Next,
    NoTargetError,
    NotRetried,
    Outcome,
    Retried,
    Signal,
    Status,
    Stop,
    UsageError,
    Worker,
    step,
)
from gen_durable.errors import UnknownStepError
from gen_durable.testing import AsyncHarness
from tests.support.machines import Order, Plain, Sitter
from tests.support.rows import audit, job_states, row_of
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, happens


class Cart(msgspec.Struct):
    items: int
    is_mended: bool = False


class Shop(Machine[Cart, str]):
    """Its second step fails or cancels until its state is repaired."""

    @step
    async def open(self, ctx: Context[Cart]) -> Outcome[str]:
        return Next(self.pay, Cart(ctx.state.items + 1, ctx.state.is_mended))

    @step(retry=Backoff(max_attempts=2))
    async def pay(self, ctx: Context[Cart]) -> Outcome[str]:
        if ctx.state.is_mended:
            return Done(f"{ctx.state.items} items, attempt {ctx.attempt}, {ctx.idempotency_key}")
        if ctx.state.items > 5:
            raise Cancel("too many")
        raise ConnectionError("the bank does not answer")


@pytest.mark.clause("RTY-1", "RTY-7")
async def test_retried_step_starts_with_attempt_zero(async_durable: AsyncHarness, db: Any) -> None:
    ref = await async_durable.insert(Shop, Cart(1))
    await async_durable.drain()
    failed = async_durable.assert_failed(ref, match="the bank does not answer")
    assert (failed.step, failed.step_seq) == ("pay", 2)
    assert await async_durable.retry(ref, reason="the bank is back", actor="eve") == Retried(ref.id)
    row = await row_of(db, ref.id)
    assert (row["status"], row["step"], row["attempt"], row["crash_count"]) == ("runnable", "pay", 0, 0)
    assert (row["finished_at"], row["result"], row["step_seq"]) == (None, None, 2)
    assert row["eligible_at"] == row["updated_at"]
    assert await job_states(db, [ref.id]) == ["RUNNING"]
    tally = await async_durable.drain()
    assert (tally.retry, tally.stopped) == (1, 1), "two attempts again, and then it fails again"
    assert await job_states(db, [ref.id]) == ["FAILED"]
    assert await audit(db, ref.id) == [
        ("retried", None, None),
        ("failed", None, None),
        ("retried", "eve", "the bank is back"),
        ("retried", None, None),
        ("failed", None, None),
    ]
    records = await async_durable.executions(ref)
    assert [(one.outcome, one.step_attempt, one.retried_at is not None) for one in records] == [
        ("next", 0, False),
        ("retry", 0, False),
        ("stop", 1, True),
        ("retry", 0, False),
        ("stop", 1, False),
    ]


@pytest.mark.clause("RTY-2")
async def test_retry_checks_a_new_state_against_its_type(async_durable: AsyncHarness) -> None:
    ref = await async_durable.insert(Shop, Cart(1))
    await async_durable.drain()
    with pytest.raises(EncodeError, match="the new state cannot be stored as Cart"):
        await async_durable.retry(ref, state={"items": "many"})
    async_durable.assert_failed(ref)
    assert await async_durable.retry(ref, state=Cart(3, is_mended=True)) == Retried(ref.id)
    await async_durable.drain()
    # A stop is a transition, so the retried step makes another one.
    assert async_durable.assert_done(ref) == f"3 items, attempt 0, {ref.id}:3"


async def test_retry_by_id_or_key_takes_plain_json(async_durable: AsyncHarness) -> None:
    ref = await async_durable.insert(Shop, Cart(1), correlation_key="cart")
    await async_durable.drain()
    assert await async_durable.retry("cart", state={"items": 4, "is_mended": True}) == Retried(ref.id)
    await async_durable.drain()
    assert async_durable.assert_done(ref) == f"4 items, attempt 0, {ref.id}:3"


@pytest.mark.clause("RTY-1")
async def test_cancelled_step_retries_with_the_same_idempotency_key(
    async_durable: AsyncHarness, db: Any
) -> None:
    """A cancel makes no transition, so the idempotency key is the same."""
    by_itself = await async_durable.insert(Shop, Cart(7))
    asked = await async_durable.insert(Shop, Cart(8, is_mended=True))
    await async_durable.cancel(asked, reason="by mistake")
    await async_durable.drain()
    async_durable.assert_cancelled(by_itself, match="too many")
    assert await async_durable.retry(by_itself, state=Cart(9, is_mended=True)) == Retried(by_itself.id)
    assert await async_durable.retry(asked) == Retried(asked.id)
    row = await row_of(db, asked.id)
    assert (row["cancel_requested_at"], row["cancel_reason"], row["cancelled_by"]) == (None, None, None)
    assert await job_states(db, [by_itself.id, asked.id]) == ["RUNNING", "PENDING"]
    await async_durable.drain()
    assert async_durable.assert_done(by_itself) == f"9 items, attempt 0, {by_itself.id}:2"
    assert async_durable.assert_done(asked) == f"9 items, attempt 0, {asked.id}:2"
    assert await job_states(db, [by_itself.id, asked.id]) == ["SUCCEEDED", "SUCCEEDED"]


@pytest.mark.clause("RTY-1")
async def test_poisoned_step_can_be_retried(async_durable: AsyncHarness, db: Any) -> None:
    ref = await async_durable.insert(Plain, 7)
    await db.execute(
        """update gen_durable.gen_durable set status = 'failed', attempt = 20, crash_count = 20, execution = 20,
                  last_error = 'poison', finished_at = now()"""
    )
    await db.execute(
        """insert into gen_durable.executions
                  (instance_id, step_seq, execution, attempt, status, outcome, step, finished_at)
           select $1, 1, n, n - 1, 'ABORTED', case n when 20 then 'poison' else 'lease' end, 'run', now()
             from generate_series(1, 20) n""",
        ref.id,
    )
    assert await job_states(db, [ref.id]) == ["FAILED"]
    assert await async_durable.retry(ref) == Retried(ref.id)
    row = await row_of(db, ref.id)
    assert (row["attempt"], row["crash_count"], row["status"]) == (0, 0, "runnable")
    assert await job_states(db, [ref.id]) == ["PENDING"]
    await async_durable.drain()
    assert async_durable.assert_done(ref) == 7
    assert (await async_durable.executions(ref))[-1].attempt == 21


@pytest.mark.clause("RTY-4")
async def test_live_and_done_instances_are_not_retried(async_durable: AsyncHarness, durable_dsn: str) -> None:
    done, waiting = await async_durable.insert(Plain, 1), await async_durable.insert(Order, 1)
    await async_durable.drain()
    runnable = await async_durable.insert(Plain, 2)
    for ref, status in ((done, "done"), (waiting, "awaiting_signal"), (runnable, "runnable")):
        assert await async_durable.retry(ref, state=5) == NotRetried(ref.id, Status(status))
    assert async_durable.assert_done(done) == 1
    with pytest.raises(NoTargetError):
        await async_durable.retry(4711)
    machine = Sitter()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        executing = await worker.insert(machine, "", step="deaf")
        await happens(machine.is_there)
        assert await worker.retry(executing) == NotRetried(executing.id, Status.EXECUTING)
        machine.may_go.set()


@pytest.mark.clause("RTY-3")
async def test_retry_keeps_queue_keys_priority_and_limits(client: Any, db: Any) -> None:
    options: Any = {
        "queue": "slow",
        "priority": 7,
        "concurrency_key": "tenant:1",
        "correlation_key": "c",
        "unique_key": "u",
        "max_attempts": 4,
    }
    ref = await client.insert(Plain, 1, **options)
    before = await row_of(db, ref.id)
    await client.cancel(ref)
    await client.retry(ref)
    after = await row_of(db, ref.id)
    for name in (
        *options,
        "correlation_scope",
        "unique_scope",
        "parent_id",
        "fsm_version",
        "state",
        "inserted_at",
    ):
        assert after[name] == before[name], name
    assert isinstance(await client.insert(Plain, 1, correlation_key="c"), Duplicate)


@pytest.mark.clause("RTY-5")
async def test_retry_fails_when_the_key_is_taken(client: Any, db: Any) -> None:
    old = await client.insert(Plain, 1, correlation_key="c")
    await client.cancel(old)
    new = await client.insert(Plain, 2, correlation_key="c")
    with pytest.raises(
        UsageError, match=r"cannot retry instance \d+: its \w+_key belongs to \w+ (\d+) now; delete \1 first"
    ):
        await client.retry(old)
    assert (await client.get(old)).status is Status.CANCELLED
    assert [event for event, _, _ in await audit(db, old.id)] == ["cancelled"]
    assert await job_states(db, [old.id, new.id]) == ["CANCELLED", "PENDING"]
    await client.cancel(new)
    assert await client.retry(old) == Retried(old.id)


@pytest.mark.clause("RTY-6")
async def test_retried_await_waits_for_its_signal_again(async_durable: AsyncHarness) -> None:
    """The inbox was deleted at the end, so the step waits for its signal again."""
    order = await async_durable.insert(Order, 1)
    await async_durable.drain()
    await async_durable.cancel(order)
    assert await async_durable.retry(order) == Retried(order.id)
    async_durable.assert_awaiting(order, Order.paid)
    assert (await async_durable.drain()).done == 0
    await async_durable.signal(order, Order.paid, 100)
    await async_durable.drain()
    assert async_durable.assert_done(order) == "shipped for 100"


class Fragile(Machine[bool, str]):
    """Fails in the step that a signal or a timeout wakes."""

    go = Signal("go", int)

    @step
    async def start(self, ctx: Context[bool]) -> Outcome[str]:
        return Await(self.go, then=self.woken, timeout=timedelta(hours=1))

    @step
    async def woken(self, ctx: Context[bool]) -> Outcome[str]:
        if not ctx.state:
            return Stop("not yet")
        number = ctx.awaited.get(self.go)
        return Done(f"{number} {ctx.timed_out}")


async def test_retried_woken_step_waits_for_its_signal_again(async_durable: AsyncHarness) -> None:
    ref = await async_durable.insert(Fragile, False)
    await async_durable.signal(ref, Fragile.go, 1)
    await async_durable.drain()
    async_durable.assert_failed(ref, match="not yet")
    assert await async_durable.retry(ref, state=True) == Retried(ref.id)
    assert async_durable.assert_awaiting(ref, Fragile.go).step == "woken"
    await async_durable.signal(ref, Fragile.go, 2)
    await async_durable.drain()
    assert async_durable.assert_done(ref) == "2 False"


async def test_retried_timed_out_step_is_timed_out_again(async_durable: AsyncHarness) -> None:
    ref = await async_durable.insert(Fragile, False)
    await async_durable.drain()
    async_durable.fire_timeouts()
    await async_durable.drain()
    async_durable.assert_failed(ref, match="not yet")
    await async_durable.retry(ref, state=True)
    await async_durable.drain()
    assert async_durable.assert_done(ref) == "None True"


async def test_deadline_is_kept_while_cancelled(async_durable: AsyncHarness) -> None:
    soon, late = await async_durable.insert(Fragile, True), await async_durable.insert(Fragile, True)
    await async_durable.drain()
    deadline = async_durable.assert_awaiting(late).await_deadline
    for ref in (soon, late):
        await async_durable.cancel(ref)
    await async_durable.retry(late)
    assert async_durable.assert_awaiting(late).await_deadline == deadline
    async_durable.advance(hours=2)
    await async_durable.drain()
    assert async_durable.assert_done(late) == "None True"
    async_durable.assert_cancelled(soon)
    await async_durable.retry(soon)
    await async_durable.drain()
    assert async_durable.assert_done(soon) == "None True", "its deadline had passed meanwhile"


async def test_retried_await_keeps_its_deadline(
    async_durable: AsyncHarness,
) -> None:
    ref = await async_durable.insert(Fragile, False)
    await async_durable.drain()
    deadline = async_durable.assert_awaiting(ref).await_deadline
    await async_durable.signal(ref, Fragile.go, 1)
    found = await async_durable.get(ref)
    assert found is not None
    assert (found.status, found.await_deadline) == (Status.RUNNABLE, None)
    await async_durable.drain()
    assert async_durable.assert_failed(ref, match="not yet").await_deadline is None
    await async_durable.retry(ref, state=True)
    assert async_durable.assert_awaiting(ref).await_deadline == deadline
    async_durable.advance(hours=1)
    await async_durable.drain()
    assert async_durable.assert_done(ref) == "None True"


async def test_retried_await_past_its_deadline_wakes_at_once(async_durable: AsyncHarness) -> None:
    ref = await async_durable.insert(Fragile, False)
    await async_durable.signal(ref, Fragile.go, 1)
    await async_durable.drain()
    async_durable.assert_failed(ref)
    async_durable.advance(hours=2)
    await async_durable.retry(ref, state=True)
    await async_durable.drain()
    assert async_durable.assert_done(ref) == "None True"


class Twice(Machine[None, str]):
    """Awaits with a timeout, continues, and fails in a step that awaits nothing."""

    go = Signal("go", int)

    @step
    async def start(self, ctx: Context[None]) -> Outcome[str]:
        return Await(self.go, then=self.woken, timeout=timedelta(hours=1))

    @step
    async def woken(self, ctx: Context[None]) -> Outcome[str]:
        return Next(self.end)

    @step
    async def end(self, ctx: Context[None]) -> Outcome[str]:
        return Stop("no")


async def test_retry_ignores_the_deadline_of_an_earlier_await(async_durable: AsyncHarness) -> None:
    ref = await async_durable.insert(Twice)
    await async_durable.signal(ref, Twice.go, 1)
    await async_durable.drain()
    async_durable.assert_failed(ref, match="no")
    await async_durable.retry(ref)
    found = await async_durable.get(ref)
    assert found is not None
    assert (found.status, found.awaits, found.await_deadline) == (Status.RUNNABLE, (), None)


async def test_retry_clears_the_error_and_keeps_the_records(async_durable: AsyncHarness, db: Any) -> None:
    ref = await async_durable.insert(Fragile, False)
    await async_durable.signal(ref, Fragile.go, 1)
    await async_durable.drain()
    assert async_durable.assert_failed(ref).last_error == "not yet"
    await async_durable.retry(ref)
    assert (await async_durable.get(ref)).last_error is None  # type: ignore[union-attr]
    assert [each.error for each in await async_durable.executions(ref)][-1] == "not yet"


async def test_instance_can_be_retried_repeatedly(async_durable: AsyncHarness, db: Any) -> None:
    ref = await async_durable.insert(Shop, Cart(1))
    for round in range(4):
        await async_durable.drain()
        async_durable.assert_failed(ref)
        assert await job_states(db, [ref.id]) == ["FAILED"]
        assert await async_durable.retry(ref) == Retried(ref.id)
        await async_durable.cancel(ref)
        assert await job_states(db, [ref.id]) == ["CANCELLED"]
        assert await async_durable.retry(ref, state=Cart(round, is_mended=round == 3)) == Retried(ref.id)
        assert await job_states(db, [ref.id]) == ["RUNNING"]
    await async_durable.drain()
    async_durable.assert_done(ref)
    assert await job_states(db, [ref.id]) == ["SUCCEEDED"]


async def test_worker_runs_a_retried_instance(durable_dsn: str) -> None:
    async with Worker([Shop, Plain], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Shop, Cart(1), max_attempts=1)
        assert (await worker.wait(ref, timeout=PATIENCE)).status is Status.FAILED
        assert await worker.retry(ref, state=Cart(2, is_mended=True)) == Retried(ref.id)
        assert (await worker.wait(ref, timeout=PATIENCE)).result == f"2 items, attempt 0, {ref.id}:3"


@pytest.mark.clause("RTY-8")
async def test_retry_at_another_step_runs_it_at_once(async_durable: AsyncHarness, db: Any) -> None:
    ref = await async_durable.insert(Shop, Cart(1))
    await async_durable.drain()
    assert await async_durable.retry(ref, step=Shop.open, state=Cart(1, is_mended=True)) == Retried(ref.id)
    row = await row_of(db, ref.id)
    assert (row["status"], row["step"], row["step_seq"]) == ("runnable", "open", 3)
    assert await job_states(db, [ref.id]) == ["RUNNING"]
    await async_durable.drain()
    assert async_durable.assert_done(ref) == f"2 items, attempt 0, {ref.id}:5"
    outcomes = [one.outcome for one in await async_durable.executions(ref)]
    assert outcomes == ["next", "retry", "stop", "edit", "next", "done"]
    with pytest.raises(UnknownStepError, match="has no step 'pray'; did you mean 'pay'"):
        await async_durable.retry(ref, step="pray")


@pytest.mark.clause("RTY-8")
async def test_retry_at_another_step_leaves_the_former_signal(async_durable: AsyncHarness, db: Any) -> None:
    ref = await async_durable.insert(Order, 1)
    await async_durable.drain()
    await async_durable.cancel(ref)
    before = await row_of(db, ref.id)
    assert before["awaits"]
    assert await async_durable.retry(ref, step=before["step"]) == Retried(ref.id)
    row = await row_of(db, ref.id)
    assert (row["status"], row["awaits"], row["step_seq"]) == ("runnable", None, before["step_seq"] + 1)
