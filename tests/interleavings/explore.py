"""Runs a scenario in every order of its sessions' steps, on real PostgreSQL.

At every point an order may give the next step to any session that does not wait for a lock. Exploring all of these
choices runs every merge of the sessions: a merge that asks a waiting session for its next step is the same run as the
one that asks it as soon as it can go on. An order is explored by running it from the start up to the point where it
parts from another, so it is one list of names, and can be run alone.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable
from math import factorial, prod
from typing import Final, Self

import msgspec

from gen_durable._db.plan import in_schema
from tests.interleavings.bench import Bench, Pins
from tests.interleavings.order import Order
from tests.interleavings.product import Change, Product
from tests.interleavings.scenario import Broken, Choices, Scenario
from tests.interleavings.world import World, look, reset

SEED: Final = 20_251
MOST_OF_THREE: Final = 2_000
_WANTS_ALL: Final = os.environ.get("GEN_DURABLE_TEST_INTERLEAVINGS") == "all"

# Rows of other scenarios would slow down every snapshot.
_VACUUM: Final = (
    "vacuum gen_durable.gen_durable, gen_durable.executions, gen_durable.signals, gen_durable.audit_events"
)


def sample(scenario: Scenario) -> int | None:
    """The number of orders to run. GEN_DURABLE_TEST_INTERLEAVINGS=all runs all orders of all scenarios."""
    return None if _WANTS_ALL else scenario.sample


class Verdict(msgspec.Struct):
    """The results of the orders of a scenario."""

    scenario: str
    orders: int = 0
    is_complete: bool = False
    merges: int = 0
    """How many ways there are to merge the sessions, had each always its largest number of steps."""
    waits: int = 0
    detours: int = 0
    """Orders that PostgreSQL would not follow: it decides which of two sessions goes on that one commit wakes."""
    refusals: Counter[str] = msgspec.field(default_factory=Counter)
    broken: list[Broken] = msgspec.field(default_factory=list)

    def __str__(self) -> str:
        share = f"stand for {self.merges} merges" if self.is_complete else f"seed {SEED}, not all"
        text = f"{self.scenario}: {self.orders} orders ({share}), {self.waits} with a wait, {len(self.broken)} broken"
        if self.detours:
            text += f", {self.detours} decided by PostgreSQL"
        if self.refusals:
            text += ", retried " + ", ".join(f"{n} × {state}" for state, n in sorted(self.refusals.items()))
        return "\n  ".join((text, *map(str, self.broken[:3])))

    def reasons(self) -> Counter[str]:
        return Counter(broken.reason for broken in self.broken)


async def explore(
    bench: Bench,
    scenario: Scenario,
    pins: Pins,
    *,
    changes: Iterable[Change] = (),
    until: str | None = None,
    most: int | None = None,
) -> Verdict:
    """Run the orders of a scenario: all of them, or a sample if three sessions have very many.

    Args:
        changes: mutations of the engine's SQL.
        until: the prefix of a reason: stop at the first order that fails for it.
        most: the maximum number of orders.
    """
    if most is None and len(scenario.sessions) > 2:
        most = MOST_OF_THREE
    stage = await PreparedScenario.set(bench, scenario, pins, changes)
    verdict = Verdict(scenario.name)
    steps: Counter[str] = Counter()
    chance = random.Random(SEED)
    frontier: list[Choices] = [()]
    while frontier and (most is None or verdict.orders < most):
        # Chosen at random, so that a sample covers the whole tree.
        place = chance.randrange(len(frontier))
        frontier[place], frontier[-1] = frontier[-1], frontier[place]
        order = await stage.run(frontier.pop(), chance)
        frontier += order.untaken
        steps |= order.steps()
        verdict.orders += 1
        verdict.waits += any(session.has_waited for session in order.sessions.values())
        verdict.detours += order.is_detour
        verdict.refusals.update(state for session in order.sessions.values() for state in session.refusals)
        if order.broken is not None:
            verdict.broken.append(order.broken)
            if until is not None and order.broken.reason.startswith(until):
                return verdict
    verdict.is_complete = not frontier
    verdict.merges = factorial(steps.total()) // prod(map(factorial, steps.values()))
    return verdict


class PreparedScenario(msgspec.Struct, frozen=True):
    """A prepared scenario."""

    bench: Bench
    scenario: Scenario
    pins: Pins
    product: Product
    setup: str
    before: World

    @classmethod
    async def set(cls, bench: Bench, scenario: Scenario, pins: Pins, changes: Iterable[Change] = ()) -> Self:
        product = await bench.install((*scenario.pauses, *changes))
        await bench.admin.execute(
            in_schema(reset(await bench.tables(product), scenario.setup), product.schema)
        )
        await bench.admin.execute(in_schema(_VACUUM, product.schema))
        setup = in_schema("select gen_durable.set_up()", product.schema)
        await bench.admin.fetch(setup)
        return cls(bench, scenario, pins, product, setup, await look(bench.admin, product.schema))

    async def run(self, given: Choices, chance: random.Random, kind: type[Order] = Order) -> Order:
        """Run one order: the given choices, then random ones."""
        await self.bench.admin.fetch(self.setup)
        order = kind(self.bench, self.product, self.scenario, self.pins, chance)
        await order.run(given, self.before)
        return order
