"""Mutants of the audit riders."""

from __future__ import annotations

from tests.interleavings.mutants import Mutant
from tests.interleavings.product import SCHEMA, Change
from tests.interleavings.scenarios import cancels
from tests.interleavings.world import outcome

MUTANTS = [
    Mutant(
        name="children without keys are not audited",
        scenario=cancels.cancel_and_commit(cancels.SPAWN),
        reason="created, or not",
        changes=[
            Change(SCHEMA, "    select inserted_rows.id, 'created'", "    select inserted_rows.id, 'leased'")
        ],
    ),
    Mutant(
        name="children without keys have no parent",
        scenario=cancels.cancel_and_commit(cancels.SPAWN),
        reason="barrier counts wrong",
        changes=[
            Change(
                SCHEMA,
                "given.traceparent, given.parent_id, given.parent_round",
                "given.traceparent, null, null",
            )
        ],
    ),
    Mutant(
        name="a cancelled outcome has succeeded",
        scenario=cancels.cancel_and_commit(outcome(1, "done")),
        reason="the audit tells of a transition that was not made",
        changes=[
            Change(
                "commit_plain",
                "case when status = 'cancelled' then 'cancelled' when",
                "case when status = 'cancelled' then 'succeeded' when",
            )
        ],
    ),
    Mutant(
        name="a cancel of an ended instance is audited",
        scenario=cancels.cancel_and_commit(outcome(1, "done")),
        reason="not one audit event for each execution that has ended",
        changes=[
            Change(
                SCHEMA,
                "   where g.id = any (live.ids) and (select s.audit",
                "   where g.id = any (target_ids) and (select s.audit",
            ),
            Change(SCHEMA, "  if live.ids is null then\n    return;\n", "  if false then\n    return;\n"),
            Change(
                SCHEMA,
                "case when g.id = any (ending) then 'cancelled' else 'cancel_requested' end",
                "'cancelled'",
            ),
        ],
    ),
]
