"""Mutants of the outbox."""

from __future__ import annotations

from tests.interleavings.mutants import Mutant
from tests.interleavings.product import Change
from tests.interleavings.scenarios import events

# The orders of two commits and a tail: only two of them break.
_ALL = 1680

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
    Mutant(
        name="the tail reads what is visible",
        scenario=events.commits_and_tail(),
        reason="the tail has a gap",
        changes=[
            Change(
                "are_earlier_complete",
                "pg_snapshot_xmin(pg_current_snapshot())::pg_catalog.text::bigint",
                "$1::bigint + 1",
            )
        ],
    ),
    Mutant(
        name="the tail compares with the largest xid that has ended",
        scenario=events.commits_and_tail(sample=_ALL),
        reason="the tail has a gap",
        changes=[
            Change("newest_event", "pg_current_xact_id()", "pg_snapshot_xmax(pg_current_snapshot())"),
            Change("are_earlier_complete", "> $1", ">= $1"),
        ],
    ),
    Mutant(
        name="the tail compares with the xid of the newest event",
        scenario=events.commits_and_tail(sample=_ALL),
        reason="the tail has a gap",
        changes=[
            Change("newest_event", "pg_current_xact_id()::pg_catalog.text::bigint", "newest.xid"),
            Change("newest_event", "(select o.id from", "(select o.id, o.xmin::text::bigint as xid from"),
        ],
    ),
]
