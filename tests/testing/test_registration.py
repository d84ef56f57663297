"""The harness registers machines as a worker does when it starts, and `load` puts instances in place."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gen_durable import (
    Await,
    Cancelled,
    CancelRequested,
    Context,
    Done,
    Machine,
    Outcome,
    ScheduleChildren,
    Spec,
    UsageError,
    step,
)
from gen_durable.testing import AsyncHarness, Harness


class Sale(Machine[None, str], name="sale"):
    @step(on_cancel="refund")
    async def offer(self, ctx: Context[None]) -> Outcome[str]:
        return Done("timed out") if ctx.timed_out else Await("paid", then=self.offer)

    @step
    async def refund(self, ctx: Context[None]) -> Outcome[str]:
        return Done("refunded")


class Sales(Machine[None, None]):
    @step
    async def begin(self, ctx: Context[None]) -> Outcome[None]:
        return ScheduleChildren([Spec(Sale)], then=self.end)

    @step
    async def end(self, ctx: Context[None]) -> Outcome[None]:
        return Done(None)


@pytest.mark.parametrize("place", ["insert", "insert_all", "load", "use"])
def test_cancel_before_the_first_drain_reacts(durable: Harness, place: str) -> None:
    ref: Any
    match place:
        case "insert":
            ref = durable.insert(Sale)
        case "insert_all":
            (ref,) = durable.insert_all([Spec(Sale)])
        case "load":
            ref = durable.load(Sale, state=None, awaits=["paid"])
        case _:
            durable.use(Sale())
            ref = durable.insert(Sale)
    assert isinstance(durable.cancel(ref), CancelRequested)
    durable.drain()
    durable.assert_done(ref, "refunded")


async def test_cancel_before_the_first_drain_reacts_async(async_durable: AsyncHarness) -> None:
    ref = await async_durable.insert(Sale)
    assert await async_durable.cancel(ref) == CancelRequested(ref.id)
    await async_durable.drain()
    async_durable.assert_done(ref, "refunded")


def test_cancel_of_a_child_reacts_after_the_drain_that_inserted_it(durable: Harness) -> None:
    parent = durable.insert(Sales)
    durable.drain()
    (child,) = durable.children(parent)
    assert durable.cancel(child.id) == CancelRequested(child.id)


def test_replaced_machine_decides_about_a_cancel(durable: Harness) -> None:
    class Plain(Machine[None, str], name="sale"):
        @step
        async def offer(self, ctx: Context[None]) -> Outcome[str]:
            return Await("paid", then=self.offer)

    ref = durable.insert(Sale)
    durable.use(Plain)
    assert durable.cancel(ref.id) == Cancelled(ref.id)


def test_loaded_instance_has_a_deadline(durable: Harness) -> None:
    waiting = durable.load(Sale, state=None, awaits=["paid"], timeout=timedelta(hours=1))
    sleeping = durable.load(Sale, state=None, timeout=timedelta(hours=2))
    durable.advance(hours=1)
    durable.drain()
    durable.assert_done(waiting, "timed out")
    durable.assert_awaiting(sleeping)
    assert durable.fire_timeouts() == 1
    durable.drain()
    durable.assert_done(sleeping, "timed out")


def test_load_refuses_a_version_that_the_machine_does_not_run(durable: Harness) -> None:
    refusal = "load got version 2, which machine 'sale' version 1 does not run; .*, or one that it upgrades$"
    with pytest.raises(UsageError, match=refusal):
        durable.load(Sale, version=2, state=None)


def test_load_refuses_one_signal_in_place_of_a_list(durable: Harness) -> None:
    with pytest.raises(UsageError, match=r"awaits= is not a list of signals; write awaits=\['paid'\]"):
        durable.load(Sale, state=None, awaits="paid")
