"""Every order of every core scenario passes, and a sample of the others."""

from __future__ import annotations

import pytest

from tests.interleavings.bench import READ_COMMITTED, REPEATABLE_READ, Bench, Pins
from tests.interleavings.explore import explore, sample
from tests.interleavings.scenario import Scenario
from tests.interleavings.scenarios import (
    batches,
    cancels,
    children,
    collecting,
    deletes,
    edits,
    events,
    inserts,
    keys,
    leases,
    limits,
    mixtures,
    registrations,
    retries,
    schedules,
    signals,
    step_data,
    streams,
    undo,
    unkept,
    upgrades,
    watches,
)

AREAS = (
    batches,
    signals,
    step_data,
    leases,
    keys,
    children,
    inserts,
    limits,
    mixtures,
    cancels,
    deletes,
    retries,
    edits,
    events,
    schedules,
    collecting,
    undo,
    unkept,
    upgrades,
    streams,
    watches,
    registrations,
)
# All run with default REPEATABLE READ; these also with READ COMMITTED, and in every order.
HEART = (
    "park × deliver",
    "park × deliver × reap",
    "done × deliver",
    *(f"commit({kind}) × reap" for kind in ("continue", "next", "retry", "done")),
    "spawn × reap",
    "child × child × child",
    "pick × pick × urgent insert, one key",
    "insert(unique) × done",
    "flush × flush, two shared parents",
    *(
        f"{how}(child of an earlier round) × done(child) and pick(parent)"
        for how in ("done", "reap", "cancel")
    ),
    "retry(child), pick and commit(done) × commit(next round of its parent)",
    "retry(parent) × done(child), beside a child of an earlier round",
    "done(child) × reap(child) × pick and commit(child)",
)
CASES = [
    pytest.param(
        scenario,
        pins,
        None if scenario.name in HEART else sample(scenario),
        id=f"{scenario.name.replace('×', 'x')}{note}",
    )
    for area in AREAS
    for scenario in area.SCENARIOS
    for pins, note in ((REPEATABLE_READ, ""), (READ_COMMITTED, "-read committed"))
    if pins is REPEATABLE_READ or scenario.name in HEART
]

# All orders of the largest scenarios take 20 seconds on an idle machine.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]


@pytest.mark.clause(
    "SIG-7",
    "CHD-6",
    "CHD-7",
    "LEASE-3",
    "INV-1",
    "UNQ-10",
    "CON-1",
    "EVT-5",
    "EVT-7",
    "CRON-3",
    "CAN-2",
    "CAN-5",
    "CAN-6",
    "CAN-8",
    "DEL-2",
    "DEL-5",
    "RTY-5",
    "RTY-6",
    "EDT-3",
    "EDT-4",
    "FRK-2",
    "UNDO-1",
    "UNDO-2",
    "UNDO-8",
    "UNDO-9",
    "UNDO-13",
    "STR-3",
    "STR-6",
    "STR-7",
    "STR-12",
    "BAT-2",
    "BAT-3",
    "BAT-4",
    "GRAPH-7",
)
@pytest.mark.parametrize(("scenario", "pins", "most"), CASES)
async def test_every_order_passes(bench: Bench, scenario: Scenario, pins: Pins, most: int | None) -> None:
    verdict = await explore(bench, scenario, pins, most=most)
    print(verdict)  # noqa: T201 - with its seed, for pytest -s
    assert not verdict.broken, str(verdict)


async def test_core_scenarios_exist() -> None:
    assert set(HEART) <= {scenario.name for area in AREAS for scenario in area.SCENARIOS}
