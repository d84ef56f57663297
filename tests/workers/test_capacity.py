"""Capacity of a queue, and the budget that queues share by weight. Without database and worker."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from gen_durable._runtime.capacity import Budget, Capacity, SharedCapacity


class Feeder:
    """A queue that always has work, as a picker sees it. `end_one` ends one of its steps."""

    def __init__(self, budget: Budget, limit: int, weight: int) -> None:
        self.capacity = SharedCapacity(limit, budget, weight)
        self.capacity.on_offer = self.wake
        self.is_woken = False
        self.has_work = True
        self.running = 0
        self.begun = 0

    def wake(self) -> None:
        self.is_woken = True

    def tick(self) -> None:
        self.is_woken = False
        reserved = self.capacity.reserve()
        if not self.has_work:
            self.capacity.unreserve(reserved)
            self.capacity.withdraw()
            return
        for _ in range(reserved):
            assert self.capacity.acquire(self)
        self.running += reserved
        self.begun += reserved

    def end_one(self) -> None:
        self.running -= 1
        self.capacity.release()


def rounds(feeders: list[Feeder], count: int) -> None:
    """End `count` steps, of the busiest queue first. After each one, woken queues pick."""
    for feeder in feeders:
        feeder.tick()
    for _ in range(count):
        max(feeders, key=lambda feeder: feeder.running).end_one()
        while woken := [feeder for feeder in feeders if feeder.is_woken]:
            for feeder in woken:
                feeder.tick()


@pytest.mark.clause("FED-4")
@pytest.mark.parametrize("limit", [1, 4, 10])
def test_capacity_is_shared_by_weight(limit: int) -> None:
    budget = Budget(limit)
    heavy, light = Feeder(budget, 100, 3), Feeder(budget, 100, 1)
    rounds([heavy, light], 400)
    assert heavy.running + light.running == limit
    assert abs(heavy.begun - 3 * light.begun) <= 4 * limit


def test_idle_queue_leaves_its_share_to_others() -> None:
    budget = Budget(4)
    idle, busy = Feeder(budget, 10, 100), Feeder(budget, 10, 1)
    idle.has_work = False
    rounds([idle, busy], 50)
    assert (idle.begun, busy.running) == (0, 4)
    idle.has_work = True
    rounds([idle, busy], 40)
    assert idle.begun >= 30, "its unused share is neither saved up nor lost"
    assert busy.begun >= 50


def test_queue_at_its_limit_does_not_block_others() -> None:
    budget = Budget(4)
    small, big = Feeder(budget, 1, 100), Feeder(budget, 10, 1)
    rounds([small, big], 100)
    assert (small.running, big.running) == (1, 3)


def test_waiting_executions_go_before_new_picks() -> None:
    feeder, granted = Feeder(Budget(1), 5, 1), list[object]()
    feeder.capacity.on_granted = granted.append
    feeder.tick()
    assert not feeder.capacity.acquire("waiting")
    assert feeder.capacity.waiting == 1
    feeder.end_one()
    assert feeder.capacity.reserve() == 0
    assert granted == ["waiting"]


def test_execution_that_stops_waiting_gets_no_capacity() -> None:
    for capacity in (Capacity(1), SharedCapacity(1, Budget(1), 1)):
        granted: list[object] = []
        capacity.on_granted = granted.append
        assert capacity.reserve() == 1
        assert [capacity.acquire(name) for name in ("running", "first", "second")] == [True, False, False]
        assert capacity.waiting == 2
        capacity.leave("first")
        capacity.release()
        assert granted == ["second"]
        assert capacity.reserve() == 0
        capacity.release()
        assert capacity.reserve() == 1


def test_chained_step_uses_capacity_that_a_pick_has_reserved() -> None:
    """A step that is chained during a pick takes reserved capacity, and the pick returns no row."""
    budget = Budget(3)
    capacity = SharedCapacity(2, budget, 1)
    reserved = capacity.reserve()
    assert reserved == 2
    assert capacity.acquire("chained")
    capacity.unreserve(reserved)
    assert budget.free == 2
    assert [capacity.acquire(name) for name in ("second", "third")] == [True, False]
    capacity.leave("third")
    capacity.release()
    capacity.release()
    assert budget.free == 3


async def test_budget_is_conserved() -> None:
    """Steps of three queues acquire and release in any order: never more than the budget, and all run."""
    budget = Budget(3)
    counts: Counter[str] = Counter()
    queues = [SharedCapacity(2, budget, weight) for weight in (1, 2, 5)]
    for capacity in queues:
        capacity.on_granted = lambda granted: granted.set_result(None)

    async def step(capacity: SharedCapacity, number: int) -> None:
        granted = asyncio.get_running_loop().create_future()
        if not capacity.acquire(granted):
            if number % 7 == 0:
                capacity.leave(granted)
                return
            await granted
        counts["running"] += 1
        assert counts["running"] <= 3
        await asyncio.sleep(0.0001 * (number % 3))
        counts["running"] -= 1
        counts["ended"] += 1
        capacity.release()

    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        for number in range(300):
            group.create_task(step(queues[number % 3], number))
    assert 200 < counts["ended"] < 300
    assert budget.free == 3
