"""Mutants of undo and on_cancel."""

from __future__ import annotations

from tests.interleavings.mutants import Mutant
from tests.interleavings.product import SCHEMA, Change
from tests.interleavings.scenarios import undo
from tests.interleavings.world import outcome

_REDIRECTS = (
    "     and not gen_durable.redirects(\n"
    "           g.undo_steps, g.compensation, g.deleted_at is not null, g.cancel_requested_at is not null, o.status)\n"
)

_UNGATED_BEFORE = Change(
    SCHEMA, "  woken := woken || array(select gen_durable.ungate(live.keys));", "  perform 1;"
)
_TO_THE_END = Change(
    SCHEMA,
    "when g.status = 'runnable' then least(g.eligible_at, statement_timestamp()) else",
    "when false then null else",
)

MUTANTS = [
    Mutant(
        name="a cancelled outcome ends an instance that has undo steps",
        scenario=undo.cancel_and_commit(outcome(1, "next", undo='[["s", "undo_s"]]')),
        reason="ended without its undo steps",
        changes=[Change("commit", _REDIRECTS, "")],
    ),
    Mutant(
        name="a cancelled outcome adds its undo step",
        scenario=undo.cancel_and_commit(outcome(1, "next", undo='[["s", "undo_s"]]')),
        reason="another list",
        changes=[
            Change(
                SCHEMA, "  steps := old.undo_steps;", '  steps := old.undo_steps || \'[["s", "undo_s"]]\';'
            )
        ],
    ),
    Mutant(
        name="a cancel starts the undo again",
        scenario=undo.cancel_and_cancel(),
        reason="step_seq differs from the acknowledged commits",
        changes=[
            Change(SCHEMA, "and g.compensation ? 'end' and undo and not force\n", "and false\n"),
            Change(SCHEMA, "     and (not undo or force or (g.compensation ? 'end') is not true);", ";"),
        ],
    ),
    Mutant(
        name="a redirect keeps the request to cancel",
        scenario=undo.cancel_leads_to_on_cancel("next"),
        reason="cancelled again by its next outcome",
        changes=[Change(SCHEMA, "compensation = plan, cancel_requested_at = null,", "compensation = plan,")],
    ),
    Mutant(
        name="an undo step is ended by an outcome of another lease",
        scenario=undo.undone_twice(),
        reason="undone twice",
        changes=[
            Change(
                "unwind",
                " and g.lease_token = $2::bigint and g.step_seq = $3::bigint",
                " and ($2::bigint, $3::bigint) is not null",
            )
        ],
    ),
    Mutant(
        name="the reaper ends an instance that has undo steps",
        scenario=undo.crash_and_commit("stop"),
        reason="ended without its undo steps",
        changes=[
            Change(
                "reap",
                "g.undo_steps, g.compensation, g.deleted_at is not null, judged.is_cancelled",
                "null, null, g.deleted_at is not null, judged.is_cancelled",
            )
        ],
    ),
    Mutant(
        name="a parent is undone while its children run",
        scenario=undo.cancel_parent_and_end_of_child(),
        reason="undone before its child",
        changes=[
            Change(
                SCHEMA,
                "case when g.spawn_round is null then 'runnable'::gen_durable.durable_status else 'awaiting_children' end",
                "'runnable'::gen_durable.durable_status",
            )
        ],
    ),
    Mutant(
        name="a child that runs its undo steps counts as ended",
        scenario=undo.undo_of_child_and_end_of_sibling(),
        reason="barrier counts wrong",
        changes=[
            Change(
                SCHEMA,
                "  if old.spawn_round is not null then\n",
                "  perform gen_durable.join_parents(array[old.parent_id], array[old.parent_round]);\n"
                "  if old.spawn_round is not null then\n",
            )
        ],
    ),
    Mutant(
        name="a deleted instance goes to its on_cancel step",
        scenario=undo.delete_of_a_cancelled_execution(plain=True),
        reason="deleted, and goes to another step",
        changes=[Change(SCHEMA, "when is_cancel and is_deleted then false", "when false then false")],
    ),
    Mutant(
        name="a delete between a commit and its redirect makes the outcome stale",
        scenario=undo.delete_of_a_cancelled_execution(plain=False),
        reason="deleted, and goes to another step",
        changes=[Change("unwind", "  left join lateral", "  join lateral")],
    ),
    Mutant(
        name="an undo step goes to the end of the rows of its key, and the next row stays gated",
        scenario=undo.cancel_and_gate(waits=False),
        reason="the key is free, but its rows are gated",
        changes=[_UNGATED_BEFORE, _TO_THE_END],
    ),
    Mutant(
        name="a parent leaves the rows of its key, and the next row stays gated",
        scenario=undo.cancel_and_gate(waits=True),
        reason="the key is free, but its rows are gated",
        changes=[_UNGATED_BEFORE],
    ),
    Mutant(
        name="an edit takes another step from an undo",
        scenario=undo.edit_and_end("cancel"),
        reason="not the last undo step",
        changes=[
            Change(
                SCHEMA, "when new_step is not null and g.compensation ? 'end' then 'compensating' end", "end"
            )
        ],
    ),
    Mutant(
        name="an end that leads to an undo step consumes nothing",
        scenario=undo.stop_and_deliver(),
        reason="signals lost or doubled",
        changes=[
            Change(SCHEMA, "  if cardinality(consumed) > 0 then\n", "  consumed := null;\n  if false then\n")
        ],
    ),
    Mutant(
        name="an end that leads to an undo step consumes signals by name",
        scenario=undo.stop_and_deliver(),
        reason="signals lost or doubled",
        changes=[
            Change(
                SCHEMA,
                "  delete from gen_durable.signals s where s.id = any (consumed) and s.dedup_key is null;",
                "  delete from gen_durable.signals s where s.target_id = target and s.name = 'go';",
            )
        ],
    ),
    Mutant(
        name="a retried parent is undone while its child runs",
        scenario=undo.retry_and_end_of_child(),
        reason="undone before its child",
        changes=[Change(SCHEMA, "p.compensation ? 'end' and p.status = 'runnable'", "false")],
    ),
]
