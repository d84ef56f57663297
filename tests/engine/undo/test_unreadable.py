"""A stored state that cannot be upgraded or decoded starts no undo and no on_failure step."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable import (
    Await,
    Backoff,
    Context,
    Discard,
    Done,
    Machine,
    Next,
    Outcome,
    Retry,
    Status,
    Stop,
    step,
    upgrade,
)
from gen_durable.testing import Harness


class Old(Machine[int, str], name="order"):
    @step(undo="release")
    async def reserve(self, ctx: Context[int]) -> Outcome[str]:
        return Await("paid", then="ship")

    @step
    async def ship(self, ctx: Context[int]) -> Outcome[str]:
        return Done("shipped by old code")

    @step
    async def release(self, ctx: Context[int]) -> Outcome[str]:
        return Done("released")


class Renewed(Machine[list[int], str], name="order", version=2):
    """Runs the instances of `Old`."""

    @upgrade(from_version=1)
    @staticmethod
    def wrap(state: int) -> Any:
        return [state]

    @step(undo="release")
    async def reserve(self, ctx: Context[list[int]]) -> Outcome[str]:
        return Await("paid", then=self.ship)

    @step(on_failure="apologize")
    async def ship(self, ctx: Context[list[int]]) -> Outcome[str]:
        return Done(f"shipped {ctx.state}")

    @step
    async def apologize(self, ctx: Context[list[int]]) -> Outcome[str]:
        return Stop("apologized")

    @step
    async def release(self, ctx: Context[list[int]]) -> Outcome[str]:
        return Done("released")


class BrokenUpgrade(Renewed, name="order", version=2):
    @upgrade(from_version=1)
    @staticmethod
    def wrap(state: int) -> Any:
        raise RuntimeError("bad deploy")


class MisfittingUpgrade(Renewed, name="order", version=2):
    @upgrade(from_version=1)
    @staticmethod
    def wrap(state: int) -> Any:
        return {"number": state}


class RaisingHandler(BrokenUpgrade, name="order", version=2):
    def handle(self, error: Exception, ctx: Context[list[int]]) -> Outcome[str]:
        return Next(self.ship, [ctx.state[0]])


class DiscardingHandler(BrokenUpgrade, name="order", version=2):
    def handle(self, error: Exception, ctx: Context[list[int]]) -> Outcome[str]:
        raise Discard("no use")


class StoppingHandler(BrokenUpgrade, name="order", version=2):
    def handle(self, error: Exception, ctx: Context[list[int]]) -> Outcome[str]:
        return Stop("no use")


class Retrying(BrokenUpgrade, name="order", version=2, retry=Backoff(max_attempts=2)):
    pass


def _parked(durable: Harness) -> Any:
    ref = durable.insert(Old, 7)
    durable.drain()
    durable._stepper.registry._machines.pop(("order", 1))
    return ref


@pytest.mark.clause("VER-7", "UNDO-2")
@pytest.mark.parametrize(
    "broken",
    [BrokenUpgrade, MisfittingUpgrade, RaisingHandler, DiscardingHandler, StoppingHandler, Retrying],
)
def test_unreadable_state_fails_the_instance_at_its_step(durable: Harness, broken: Any) -> None:
    ref = _parked(durable)
    durable.use(broken)
    durable.signal(ref, "paid")
    durable.drain()
    failed = durable.assert_failed(ref)
    assert (failed.step, failed.version, failed.state) == ("ship", 1, 7)
    durable.use(Renewed)
    durable.retry(ref)
    # It waits again: its signal was deleted when it failed.
    durable.signal(ref, "paid")
    durable.drain()
    durable.assert_done(ref.id, "shipped [7]")


@pytest.mark.clause("UNDO-2")
def test_unreadable_state_leaves_the_undo_for_a_later_failure(durable: Harness) -> None:
    ref = _parked(durable)
    durable.use(BrokenUpgrade)
    durable.signal(ref, "paid")
    durable.drain()
    durable.use(Renewed)
    durable.retry(ref)
    durable.cancel(ref)
    durable.drain()
    ended = durable.assert_cancelled(ref.id)
    assert ended.compensation is not None
    assert ended.compensation.undone == ("reserve",)


@pytest.mark.clause("UNDO-5")
def test_undo_of_an_unreadable_state_continues_after_a_retry(durable: Harness) -> None:
    ref = _parked(durable)
    durable.use(BrokenUpgrade)
    durable.cancel(ref)
    durable.drain()
    assert (
        durable.assert_failed(ref.id, match="then undo step release failed: UpgradeError").step == "release"
    )
    durable.use(Renewed)
    durable.retry(ref)
    durable.drain()
    durable.assert_cancelled(ref.id)


@pytest.mark.clause("VER-7")
def test_handle_replaces_an_unreadable_state_and_goes_to_on_failure(durable: Harness) -> None:
    class Replacing(BrokenUpgrade, name="order", version=2):
        def handle(self, error: Exception, ctx: Context[list[int]]) -> Outcome[str]:
            return Next(self.apologize, [0]) if ctx.attempt else Retry()

    ref = _parked(durable)
    durable.use(Replacing)
    durable.signal(ref, "paid")
    durable.drain()
    failed = durable.assert_failed(ref.id, match="apologized")
    assert (failed.status, failed.state, failed.version) == (Status.FAILED, [0], 2)
