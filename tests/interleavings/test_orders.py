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

SCENARIOS = [
    scenario
    for area in (
        *(
            signals,
            leases,
            keys,
            limits,
            children,
            inserts,
            mixtures,
            cancels,
            deletes,
            retries,
            events,
            schedules,
            collecting,
        ),
    )
    for scenario in area.SCENARIOS
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
@pytest.mark.parametrize("pins", [READ_COMMITTED, REPEATABLE_READ], ids=["read committed", "repeatable read"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name.replace("×", "x"))
async def test_every_order_ends_well(bench: Bench, scenario: Scenario, pins: Pins) -> None:
    verdict = await explore(bench, scenario, pins)
    print(verdict)  # noqa: T201 - with its seed, for pytest -s
    assert not verdict.broken, str(verdict)
