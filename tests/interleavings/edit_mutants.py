"""Mutants of edits."""

from __future__ import annotations

from tests.interleavings.mutants import Mutant
from tests.interleavings.product import SCHEMA, Change
from tests.interleavings.scenarios import edits

_MOVED = Change(SCHEMA, "and child.id <> all (family))", "and false)")
_LOCK = Change(
    SCHEMA,
    "perform from gen_durable.gen_durable g where g.id = any (family) order by g.id desc for no key update;",
    "",
)

MUTANTS = [
    Mutant(
        name="an edit takes an executing instance",
        scenario=edits.edit_and_pick(),
        reason="an execution lost its lease to an edit",
        changes=[Change(SCHEMA, "when g.status = 'executing' then 'executing'\n", "")],
    ),
    Mutant(
        name="an edit of an execution makes its outcome stale",
        scenario=edits.edit_and_commit(),
        reason="the outcome was lost",
        changes=[Change(SCHEMA, "when g.status = 'executing' then 'executing'\n", "")],
    ),
    Mutant(
        name="an edit is not a transition",
        scenario=edits.edit_and_edit(),
        reason="error: duplicate key value",
        changes=[
            Change(
                SCHEMA,
                "step = coalesce(new_step, g.step), step_seq = g.step_seq + 1,",
                "step = coalesce(new_step, g.step),",
            )
        ],
    ),
    Mutant(
        name="an edit compares before it locks",
        scenario=edits.edit_and_edit(),
        reason="error: duplicate key value",
        changes=[_LOCK],
    ),
    Mutant(
        name="an edit writes the status that it has seen before the lock",
        scenario=edits.edit_and_deliver(),
        reason="lost wake-up",
        changes=[
            _LOCK,
            Change(
                SCHEMA,
                "status = case when leaves then 'runnable' else g.status end",
                "status = case when leaves then 'runnable' else found_row.status end",
            ),
        ],
    ),
    Mutant(
        name="an edit leaves the children in their round",
        scenario=edits.edit_and_end_of_child(wake=False),
        reason="barrier counts wrong",
        changes=[
            Change(
                SCHEMA, "set parent_round = child.parent_round + 1", "set parent_round = child.parent_round"
            )
        ],
    ),
    Mutant(
        name="an edit locks the parent before its children",
        scenario=edits.edit_and_end_of_child(wake=False),
        reason="deadlock",
        changes=[
            Change(
                SCHEMA,
                """array(select target union
                  select child.id""",
                """array(select target union
                  select null::bigint where false and exists (select child.id""",
            ),
            Change(
                SCHEMA,
                "                   where p.id = target);",
                "                   where p.id = target));",
            ),
            _MOVED,
        ],
    ),
    Mutant(
        name="an edit moves children that it has not locked before their parent",
        scenario=edits.edit_and_spawn(),
        reason="deadlock",
        changes=[_MOVED],
    ),
    Mutant(
        name="a woken parent keeps its barrier",
        scenario=edits.edit_and_end_of_child(wake=True),
        reason="a barrier without a waiting parent",
        changes=[
            Change(
                SCHEMA,
                "children_pending = case when leaves then 0 else g.children_pending end",
                "children_pending = g.children_pending",
            )
        ],
    ),
    Mutant(
        name="a retry overlooks the record of the end behind an edit",
        scenario=edits.edit_and_retry(),
        reason="the state of a job is not that of its instance",
        changes=[
            Change(
                SCHEMA,
                """e.step_seq = (select max(last.step_seq) from gen_durable.executions last
                        where last.instance_id = g.id and last.status in ('COMMITTED', 'DONE') and last.outcome <> 'edit')""",
                "e.step_seq = g.step_seq",
            )
        ],
    ),
]
