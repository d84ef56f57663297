"""Mutants of reads of changes."""

from __future__ import annotations

from tests.interleavings.mutants import Mutant
from tests.interleavings.product import Change
from tests.interleavings.scenarios import watches

MUTANTS = [
    Mutant(
        name="executions are read up to the last one",
        scenario=watches.watch_two_commits(),
        reason="executions that the row does not count",
        changes=[Change("ended_executions", " and c.execution <= reader.until", "")],
    ),
    Mutant(
        name="executions are read again from the first one",
        scenario=watches.watch_two_commits(),
        reason="executions that the row does not count",
        changes=[
            Change("ended_executions", " and c.step_seq > reader.step_seq", ""),
            Change("ended_executions", "c.execution > reader.execution and ", ""),
        ],
    ),
]
