"""Every order of the sessions of every scenario ends well."""

from __future__ import annotations

import pytest

from tests.interleavings.bench import READ_COMMITTED, REPEATABLE_READ, Bench, Pins
from tests.interleavings.explore import explore
from tests.interleavings.scenario import Scenario
from tests.interleavings.scenarios import (
    cancels,
    children,
    collecting,
    deletes,
    events,
    inserts,
    keys,
    leases,
    limits,
    mixtures,
    retries,
    schedules,
    signals,
)

# The heart, under whatever isolation the database defaults to; the rest rides on the same transactions.
HEART = (signals, leases, keys, children, inserts)
REST = (limits, mixtures, cancels, deletes, retries, events, schedules, collecting)
# Of three sessions outside of the heart so many orders, drawn by the seed.
SAMPLE = 300
CASES = [
    *(
        pytest.param(scenario, pins, None, id=f"{scenario.name.replace('×', 'x')}-{name}")
        for area in HEART
        for scenario in area.SCENARIOS
        for pins, name in ((READ_COMMITTED, "read committed"), (REPEATABLE_READ, "repeatable read"))
    ),
    *(
        pytest.param(
            scenario,
            READ_COMMITTED,
            SAMPLE if len(scenario.sessions) > 2 else None,
            id=scenario.name.replace("×", "x"),
        )
        for area in REST
        for scenario in area.SCENARIOS
    ),
]

pytestmark = pytest.mark.asyncio(loop_scope="module")


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
)
@pytest.mark.parametrize(("scenario", "pins", "most"), CASES)
async def test_every_order_ends_well(bench: Bench, scenario: Scenario, pins: Pins, most: int | None) -> None:
    verdict = await explore(bench, scenario, pins, most=most)
    print(verdict)  # noqa: T201 - with its seed, for pytest -s
    assert not verdict.broken, str(verdict)
