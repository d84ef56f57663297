"""The explorer runs all merges, each once, and repeats any order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations

import pytest

from tests.interleavings.bench import READ_COMMITTED, Bench
from tests.interleavings.explore import MOST_OF_THREE, SEED, PreparedScenario, explore
from tests.interleavings.mutants import MUTANTS
from tests.interleavings.order import Order
from tests.interleavings.product import Change, Product
from tests.interleavings.scenario import Choices, Scenario
from tests.interleavings.scenarios import keys, leases, signals

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Merge(Order):
    """Follows a merge exactly; a waiting session takes its step as soon as it can."""

    async def _go(self, given: Choices) -> None:
        owed: list[str] = []
        for name in given:
            owed.append(name)
            while due := next((name for name in owed if name in self.ready()), None):
                owed.remove(due)
                await self._take(due)


def merges(first: str, firsts: int, second: str, seconds: int) -> Iterator[Choices]:
    total = firsts + seconds
    for places in combinations(range(total), firsts):
        yield tuple(first if place in places else second for place in range(total))


@pytest.mark.parametrize(
    ("scenario", "steps"),
    [
        (signals.park_a_pack_and_deliver(), (3, 2)),
        (leases.same_keep_twice(), (2, 2)),
        (keys.gate_and_release("done"), (3, 3)),
        (keys.release_and_deliver_to_the_next(), (3, 2)),
    ],
    ids=lambda value: value.name.replace("×", "x") if isinstance(value, Scenario) else "",
)
async def test_explorer_runs_all_merges(bench: Bench, scenario: Scenario, steps: tuple[int, int]) -> None:
    first, second = scenario.sessions
    stage = await PreparedScenario.set(bench, scenario, READ_COMMITTED)
    chance = random.Random(SEED)
    merged = set()
    for merge in merges(first, steps[0], second, steps[1]):
        order = await stage.run(merge, chance, Merge)
        assert order.broken is None
        merged.add(tuple(order.trace))

    explored = []
    frontier: list[Choices] = [()]
    while frontier:
        order = await stage.run(frontier.pop(), chance)
        explored.append(tuple(order.trace))
        frontier += order.untaken
    assert set(explored) == merged
    assert len(explored) == len(merged)


async def test_order_can_be_repeated(bench: Bench) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "no recheck after parking")
    verdict = await explore(bench, mutant.scenario, mutant.pins, changes=mutant.changes, until=mutant.reason)
    stage = await PreparedScenario.set(bench, mutant.scenario, mutant.pins, mutant.changes)
    again = await stage.run(verdict.broken[-1].choices, random.Random(0))
    assert again.broken == verdict.broken[-1]
    assert again.untaken == []


async def test_large_scenarios_are_sampled(bench: Bench) -> None:
    assert MOST_OF_THREE == 2_000
    verdict = await explore(bench, keys.gate_gate_and_release(), READ_COMMITTED, most=10)
    assert (verdict.orders, verdict.is_complete) == (10, False)
    assert f"seed {SEED}" in str(verdict)


@pytest.mark.parametrize("where", ["pick", "schema"])
async def test_mutation_that_does_not_apply_fails(where: str) -> None:
    with pytest.raises(LookupError, match="no longer says 'for share'"):
        Product("gen_durable", [Change(where, "for share", "")])
