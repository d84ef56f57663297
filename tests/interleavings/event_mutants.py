"""Mutants of the outbox."""

from __future__ import annotations

from tests.interleavings.mutants import Mutant
from tests.interleavings.product import Change
from tests.interleavings.scenarios import events

MUTANTS = [
    Mutant(
        name="whatever is due is published",
        scenario=events.dispatch_and_dispatch(),
        reason="overtaken by a later event",
        changes=[
            Change("lease_events", " and (blocked.id is null or blocked.id > candidates.id)", ""),
            Change("lease_events", " and blocked.id < candidates.id", " and false"),
        ],
    ),
    Mutant(
        name="later events are leased behind a failed one",
        scenario=events.dispatch_behind_a_failure(),
        reason="overtaken by a later event",
        changes=[
            Change("lease_events", " and (blocked.id is null or blocked.id > candidates.id)", ""),
            Change("lease_events", " and blocked.id < candidates.id", " and false"),
        ],
    ),
    Mutant(
        name="an execution is finished without its lock",
        scenario=events.last_marks(),
        reason="not done",
        changes=[Change("lock_executions", " for no key update of e", "")],
    ),
    Mutant(
        name="a mark needs no lease",
        scenario=events.late_mark(),
        reason="a late mark counted",
        changes=[
            Change(
                "mark_events",
                "where o.id = mark.id and o.lease_token = $5::bigint",
                "where o.id = mark.id and $5::bigint > 0",
            )
        ],
    ),
]
