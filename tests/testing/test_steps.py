"""Unit tests of single steps."""

from __future__ import annotations

import inspect
import pydoc
from datetime import timedelta
from typing import Any, assert_type

import pytest

from gen_durable import (
    AsyncClient,
    Await,
    Child,
    Context,
    Done,
    Failure,
    Machine,
    Next,
    Outcome,
    Status,
    Stop,
    step,
)
from gen_durable.errors import EncodeError, OutcomeError, UsageError
from gen_durable.refs import InsertOptions
from gen_durable.testing import AsyncHarness, Harness, context, reported_progress, run_step, run_step_async
from gen_durable.testing._steps import ContextOptions
from tests.testing.machines import Checkout, Order, Payment, Receipt, Shipment

PAID = [(Checkout.payment, Payment(7))]


def test_plain_step_is_called() -> None:
    outcome = run_step(Checkout().ship, Order(42), awaited=PAID)
    assert outcome == Done(Receipt(42, 7))


def test_async_step_is_run() -> None:
    outcome = run_step(Checkout().start, Order(42))
    assert outcome == Await(
        Checkout.payment, Checkout.withdrawn, then=Checkout.ship, timeout=timedelta(hours=24)
    )


async def test_async_step_is_awaited_in_an_async_test() -> None:
    assert await run_step_async(Checkout().ship, Order(42), awaited=PAID) == Done(Receipt(42, 7))
    assert await run_step_async(Checkout().remind, Order(42)) == Next(Checkout.start)


async def test_run_step_in_a_running_loop_raises_with_advice() -> None:
    with pytest.raises(UsageError, match="await run_step_async"):
        run_step(Checkout().start, Order(42))


def test_step_changes_the_given_state() -> None:
    order = Order(42)
    run_step(Checkout().remind, order)
    assert order.reminded


def test_context_can_be_timed_out() -> None:
    assert run_step(Checkout().ship, Order(42), timed_out=True) == Next(Checkout.remind)
    assert run_step(Checkout().ship, Order(42, reminded=True), timed_out=True) == Stop("payment never came")


def test_context_can_have_a_failure() -> None:
    class Mending(Machine[int, str]):
        @step
        async def mend(self, ctx: Context[int]) -> Outcome[str]:
            return Done(ctx.failure.message if ctx.failure else "none")

    failure = Failure(type="TimeoutError", message="no answer", step="charge")
    assert run_step(Mending().mend, 1, failure=failure) == Done("no answer")
    assert run_step(Mending().mend, 1) == Done("none")


def test_context_can_have_children() -> None:
    children = [
        Child(id=2, machine="Parcel", status=Status.DONE, state=1, result="parcel 1", last_error=None),
        Child(id=3, machine="Parcel", status=Status.FAILED, state=3, result=None, last_error="lost"),
    ]
    assert run_step(Shipment().join, [1, 3], children=children) == Done(["parcel 1"])


def test_help_lists_the_context_options() -> None:
    for function in (Harness.insert, AsyncHarness.insert, AsyncClient.insert):
        text = pydoc.plain(pydoc.render_doc(function))
        assert [name for name in InsertOptions.__annotations__ if name not in text] == []
        assert "state" in inspect.signature(function).parameters
    text = pydoc.plain(pydoc.render_doc(context))
    assert [name for name in ContextOptions.__annotations__ if name not in text] == []


def test_context_has_the_given_values() -> None:
    seen: list[Context[int]] = []

    class Seen(Machine[int, None], name="seen"):
        @step
        def look(self, ctx: Context[int]) -> Outcome[None]:
            seen.append(ctx)
            return Done()

    run_step(
        Seen().look,
        5,
        attempt=3,
        awaited=[("a", 1)],
        inbox=[("b", 2)],
        id=9,
        step_seq=4,
        parent_id=8,
        correlation_key="nine",
    )
    (ctx,) = seen
    assert (ctx.machine, ctx.step, ctx.attempt, ctx.idempotency_key) == ("seen", "look", 3, "9:4")
    assert (ctx.parent_id, ctx.correlation_key, ctx.state) == (8, "nine", 5)
    assert [message.name for message in ctx.awaited] == ["a"]
    assert [message.name for message in ctx.inbox] == ["a", "b"]


def test_run_step_raises_what_the_step_raises() -> None:
    class Raises(Machine[None, None]):
        @step
        async def fail(self, ctx: Context[None]) -> Outcome[None]:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_step(Raises().fail, None)


def test_run_step_rejects_a_non_outcome() -> None:
    class Forgets(Machine[None, None]):
        @step
        def forget(self, ctx: Context[None]) -> Any: ...

    with pytest.raises(OutcomeError, match="step 'forget' of machine 'Forgets' returned None"):
        run_step(Forgets().forget, None)


def test_handle_is_called_with_a_context() -> None:
    assert Checkout().handle(ValueError("no"), context(Order(42))) == Stop("ValueError: no")


def test_run_step_is_typed() -> None:
    assert_type(run_step(Checkout().ship, Order(42)), Outcome[Receipt])
    assert_type(context(Order(42)), Context[Order])


class Pages(Machine[int, int]):
    @step(checkpoint=Order)
    async def crawl(self, ctx: Context[int]) -> Outcome[int]:
        last: Order | None = ctx.last_checkpoint
        for page in range(0 if last is None else last.id, ctx.state):
            ctx.progress(page + 1, ctx.state)
            await ctx.checkpoint(Order(page + 1))
        return Done(0 if last is None else last.id)

    @step(checkpoint=int)
    def count(self, ctx: Context[int]) -> Outcome[int]:
        ctx.checkpoint_sync(ctx.state)
        return Done(ctx.last_checkpoint)

    @step(checkpoint=int)
    async def misfit(self, ctx: Context[int]) -> Outcome[int]:
        await ctx.checkpoint("1")
        return Done(0)


def test_step_runs_with_a_checkpoint() -> None:
    assert run_step(Pages().crawl, 3, checkpoint=Order(2)) == Done(2)
    assert run_step(Pages().count, 3) == Done(3)


async def test_test_reads_checkpoint_and_progress_of_a_step() -> None:
    ctx = context(3, checkpoint=Order(1))
    await Pages().crawl(ctx)
    assert ctx.last_checkpoint == Order(3)
    assert [str(each) for each in reported_progress(ctx)] == ["2 of 3 (66%)", "3 of 3 (100%)"]


def test_checkpoint_that_does_not_fit_its_type_raises_in_a_test() -> None:
    with pytest.raises(EncodeError, match="the checkpoint cannot be stored as int"):
        run_step(Pages().misfit, 1)


def test_progress_is_read_only_of_contexts_of_tests(durable: Harness) -> None:
    class Reads(Machine[None, None]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            with pytest.raises(UsageError, match=r"belongs to a worker; read `instance\.progress`"):
                reported_progress(ctx)
            return Done()

    durable.use(Reads)
    ref = durable.insert(Reads, None)
    durable.drain()
    durable.assert_done(ref)
