"""Each mutant breaks some of the orders that the suite runs."""

from __future__ import annotations

import pytest

from tests.interleavings import (
    audit_mutants,
    batch_mutants,
    collecting_mutants,
    control_mutants,
    edit_mutants,
    event_mutants,
    registration_mutants,
    schedule_mutants,
    step_data_mutants,
    stream_mutants,
    undo_mutants,
    unkept_mutants,
    upgrade_mutants,
    watch_mutants,
)
from tests.interleavings.bench import Bench
from tests.interleavings.explore import explore, sample
from tests.interleavings.mutants import MUTANTS, Mutant

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    "mutant",
    [
        *MUTANTS,
        *batch_mutants.MUTANTS,
        *control_mutants.MUTANTS,
        *edit_mutants.MUTANTS,
        *event_mutants.MUTANTS,
        *audit_mutants.MUTANTS,
        *schedule_mutants.MUTANTS,
        *stream_mutants.MUTANTS,
        *watch_mutants.MUTANTS,
        *collecting_mutants.MUTANTS,
        *undo_mutants.MUTANTS,
        *unkept_mutants.MUTANTS,
        *upgrade_mutants.MUTANTS,
        *step_data_mutants.MUTANTS,
        *registration_mutants.MUTANTS,
    ],
    ids=lambda mutant: mutant.name,
)
async def test_mutant_is_killed(bench: Bench, mutant: Mutant) -> None:
    verdict = await explore(
        bench,
        mutant.scenario,
        mutant.pins,
        changes=mutant.changes,
        until=mutant.reason,
        most=sample(mutant.scenario),
    )
    print(verdict)  # noqa: T201 - for pytest -s
    assert any(reason.startswith(mutant.reason) for reason in verdict.reasons()), str(verdict)
