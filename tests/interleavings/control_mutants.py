"""Mutants of cancel, delete, restore and retry."""

from __future__ import annotations

from gen_durable._core.model import CommitEntry
from gen_durable._db import commit as commits
from gen_durable._db.insert import insert_children
from gen_durable._db.plan import Plan, Statement
from gen_durable.outcome import Sql
from tests.interleavings.actions import CRASH_LIMIT, flush_picked, lease_some
from tests.interleavings.mutants import Mutant, with_sessions
from tests.interleavings.product import SCHEMA, Change
from tests.interleavings.scenarios import cancels, deletes, retries
from tests.interleavings.session import RECORDER, Flushed, transaction
from tests.interleavings.world import outcome

_COUNT = Statement(
    "count",
    "select count(*)::int as pending from gen_durable.gen_durable c"
    " where c.parent_id = 1 and c.status not in ('done', 'failed', 'cancelled')",
)
_SET = Statement(
    "set",
    "update gen_durable.gen_durable g set children_pending = :pending::int, status ="
    " case when :pending::int = 0 then 'runnable'::gen_durable.durable_status else g.status end where g.id = 1",
)
_JUDGED_CANCELLED = "case when orphaned.is_cancelled then 'cancelled' when"
_STATUS = "set status = case when g.cancel_requested_at is null then o.status else 'cancelled' end"
_LOCK_TARGETS = (
    "perform from gen_durable.gen_durable g where g.id = any (target_ids)"
    " order by g.id desc for no key update;"
)
_NO_TRIGGER = Change(SCHEMA, "perform gen_durable.end_deleted(null, session_user);", "")
_LIVE = "g.status not in ('done', 'failed', 'cancelled')"
_LOCK_PARENTS = """ union
                  select child.parent_id from gen_durable.gen_durable child
                   where child.id = any (target_ids) and child.parent_id is not null);"""
_LOCK_FAMILY = (
    "perform from gen_durable.gen_durable g where g.id = any (family) order by g.id desc for no key update;"
)
_ENDED_CHILDREN = "where g.id = any (ending) and g.parent_id is not null"
_WAITING_AS_LOCKED = (
    "p.status = 'awaiting_children' and p.spawn_round = ended.parent_round as is_waiting\n"
    "        from ended join gen_durable.gen_durable p on p.id = ended.parent_id order by"
)
_WAITING_AS_SEEN = (
    "true as is_waiting\n"
    "        from ended join gen_durable.gen_durable p on p.id = ended.parent_id and p.spawn_round = ended.parent_round\n"
    "       where p.status = 'awaiting_children' order by"
)


_COUNTED = """(select count(*)::int from gen_durable.gen_durable child
                                where child.parent_id = parent.id and child.parent_round = parent.spawn_round
                                  and child.status not in ('done', 'failed', 'cancelled')) as pending"""


def _rejoin_with_an_old_count() -> Plan[Flushed]:
    """Count first, then lock: a child that ends in between is still waited for."""
    count = (yield _COUNT())[0]["pending"]
    entry = retries.REJOIN
    groups = yield commits._full_call([entry], RECORDER)
    if groups:
        yield _SET(pending=count)
    return Flushed([entry], commits._report([entry], groups, {}, set()))


def _spawn_regardless(entry: CommitEntry) -> Plan[Flushed]:
    groups = yield commits._full_call([entry], RECORDER)
    if groups:
        yield from insert_children(entry.children, [1, 1], [1, 1])
    return Flushed([entry], commits._report([entry], groups, {}, set()))


CANCELS = [
    Mutant(
        name="an outcome does not ask for a cancel",
        scenario=cancels.cancel_and_commit(outcome(1, "done")),
        reason="step_seq differs from the acknowledged commits",
        changes=[Change("commit_plain", _STATUS, "set status = o.status")],
    ),
    Mutant(
        name="an outcome does not ask for a cancel, in the long statement",
        scenario=cancels.cancel_and_commit(outcome(1, "await", awaits=("go",))),
        reason="asleep, and nothing can wake it",
        changes=[Change("commit", _STATUS, "set status = o.status")],
    ),
    Mutant(
        name="a cancelled outcome is a transition",
        scenario=cancels.cancel_and_commit(outcome(1, "next")),
        reason="step_seq differs from the acknowledged commits",
        changes=[
            Change(
                "commit_plain",
                "g.step_seq + case when g.cancel_requested_at is null then o.advance else 0 end",
                "g.step_seq + o.advance",
            )
        ],
    ),
    Mutant(
        name="a cancelled outcome leaves the step that searches read",
        scenario=cancels.cancel_and_commit(outcome(1, "next")),
        reason="a search by step does not find a resting row",
        changes=[
            Change(
                "commit_plain",
                "rest_step = case when g.cancel_requested_at is not null then g.step",
                "rest_step = case when g.cancel_requested_at is not null then g.rest_step",
            )
        ],
    ),
    Mutant(
        name="a cancelled outcome moves its instance",
        scenario=cancels.cancel_and_commit(outcome(1, "next")),
        reason="it changed its instance",
        changes=[
            Change(
                "commit_plain",
                "step = case when g.cancel_requested_at is null and o.step is not null",
                "step = case when o.step is not null",
            )
        ],
    ),
    Mutant(
        name="a cancelled step keeps its lease",
        scenario=cancels.cancel_and_commit(outcome(1, "continue")),
        reason="error: new row for relation",
        changes=[
            Change(
                "commit_plain",
                "lease_token = case when g.cancel_requested_at is null and o.status = 'executing'",
                "lease_token = case when o.status = 'executing'",
            )
        ],
    ),
    Mutant(
        name="the effect of an outcome does not ask for a cancel",
        scenario=cancels.cancel_and_commit(outcome(1, "next", effect=Sql("select 1"))),
        reason="the effect of a cancelled execution",
        changes=[
            Change(SCHEMA, "and g.step_seq = seq and g.cancel_requested_at is null", "and g.step_seq = seq")
        ],
    ),
    Mutant(
        name="children of a cancelled outcome",
        scenario=with_sessions(
            cancels.cancel_and_commit(cancels.SPAWN),
            F=[transaction(lambda _: _spawn_regardless(cancels.SPAWN))],
        ),
        reason="spawned by a cancelled execution",
    ),
    Mutant(
        name="cancel does not lock the row that it reads",
        scenario=cancels.cancel_pick_and_commit("done"),
        reason="a terminal row changed",
        changes=[Change(SCHEMA, _LOCK_TARGETS, "")],
    ),
    Mutant(
        name="cancel does not lock the row that it reads (park)",
        scenario=cancels.cancel_park_and_deliver(),
        reason="an acknowledged cancel did not win",
        changes=[Change(SCHEMA, _LOCK_TARGETS, "")],
    ),
    Mutant(
        name="cancel locks in the order given",
        scenario=cancels.cancel_family_and_end_of_child(),
        reason="deadlock",
        changes=[Change(SCHEMA, _LOCK_TARGETS, _LOCK_TARGETS.replace("order by g.id desc", "order by g.id"))],
    ),
    Mutant(
        name="cancel does not ungate the next row",
        scenario=cancels.cancel_first_in_line(),
        reason="the key is free, but its rows are gated",
        changes=[Change(SCHEMA, "array(select gen_durable.ungate(live.keys))", "'{}'::text[]")],
    ),
    Mutant(
        name="cancel skips the next row of a key if it is locked",
        scenario=cancels.cancel_first_in_line(),
        reason="the key is free, but its rows are gated",
        changes=[Change(SCHEMA, "for no key update) gated", "for no key update skip locked) gated")],
    ),
    Mutant(
        name="a cancelled child is waited for",
        scenario=cancels.cancel_child_and_end_of_sibling(),
        reason="barrier counts wrong",
        changes=[Change(SCHEMA, _ENDED_CHILDREN, f"{_ENDED_CHILDREN} and false")],
    ),
    Mutant(
        name="a child that is asked to end is not waited for",
        scenario=cancels.cancel_executing_child_and_end_of_both(),
        reason="barrier counts wrong",
        changes=[
            Change(SCHEMA, _ENDED_CHILDREN, _ENDED_CHILDREN.replace("ending", "live.ids")),
        ],
    ),
    Mutant(
        name="a barrier is counted down without a lock",
        scenario=cancels.cancel_parent_and_end_of_children(),
        reason="a terminal row changed",
        changes=[
            Change(SCHEMA, _WAITING_AS_LOCKED, _WAITING_AS_SEEN),
            Change(SCHEMA, "for no key update of p\n", "\n"),
        ],
    ),
    Mutant(
        name="the reaper does not ask for a cancel",
        scenario=cancels.cancel_and_reap(),
        reason="an acknowledged cancel did not win",
        changes=[
            Change("reap", _JUDGED_CANCELLED, "case when"),
        ],
    ),
    Mutant(
        name="the reaper takes the cancelled for poison",
        scenario=cancels.cancel_and_reap(crash_count=CRASH_LIMIT - 1),
        reason="failed after its cancel was acknowledged",
        changes=[
            Change("reap", _JUDGED_CANCELLED, "case when"),
        ],
    ),
    Mutant(
        name="the reaper moves the cancelled to on_failure",
        scenario=cancels.cancel_and_reap(crash_count=CRASH_LIMIT - 1, on_failure="t"),
        reason="an acknowledged cancel did not win",
        changes=[Change("reap", _JUDGED_CANCELLED, "case when")],
    ),
    Mutant(
        name="force asks, too",
        scenario=cancels.force_commit_and_reap("retry"),
        reason="the zombie or the reaper had its way",
        changes=[Change(SCHEMA, "where force or g.status <> 'executing'", "where g.status <> 'executing'")],
    ),
    Mutant(
        name="cancel leaves the inbox",
        scenario=cancels.cancel_and_deliver(),
        reason="the inbox of the ended is left",
        changes=[
            Change(
                SCHEMA,
                "delete from gen_durable.signals s",
                "delete from gen_durable.signals s using (select where false) as none",
            )
        ],
    ),
]

DELETES = [
    Mutant(
        name="a delete cancels nothing",
        scenario=deletes.delete_pick_and_commit("done"),
        reason="deleted, and waits for work",
        changes=[
            Change(
                SCHEMA,
                "gen_durable.cancel_rows(target_ids, reason, actor, false, false)",
                "gen_durable.cancel_rows('{}', reason, actor, false, false)",
            ),
            _NO_TRIGGER,
        ],
    ),
    Mutant(
        name="a deleted child is waited for",
        scenario=deletes.delete_child_and_end_of_sibling(),
        reason="deleted, and waits for work",
        changes=[
            Change(
                SCHEMA,
                "gen_durable.cancel_rows(target_ids, reason, actor, false, false)",
                "gen_durable.cancel_rows('{}', reason, actor, false, false)",
            ),
            _NO_TRIGGER,
        ],
    ),
    Mutant(
        name="the deleted give up their keys while they execute",
        scenario=deletes.delete_executing_insert_and_commit("next"),
        reason="two live runs of one key",
        changes=[
            Change(SCHEMA, "and (deleted_at is null or status = 'executing')", "and deleted_at is null")
        ],
    ),
    Mutant(
        name="the deleted keep their keys",
        scenario=deletes.delete_and_insert(),
        reason="a key of the deleted is still taken",
        changes=[
            Change(SCHEMA, "and (deleted_at is null or status = 'executing')", ""),
            Change(SCHEMA, "and (g.deleted_at is null or g.status = 'executing')", ""),
        ],
    ),
    Mutant(
        name="signals to the deleted",
        scenario=deletes.delete_and_deliver(1),
        reason="a signal to the deleted was accepted",
        changes=[
            Change(
                SCHEMA,
                f"where g.id = target_id and {_LIVE} and g.deleted_at is null",
                f"where g.id = target_id and {_LIVE}",
            )
        ],
    ),
    Mutant(
        name="signals to the deleted, by key",
        scenario=deletes.delete_and_deliver("c"),
        reason="a signal to the deleted was accepted",
        changes=[
            Change(
                SCHEMA,
                f"\n         and {_LIVE} and g.deleted_at is null",
                f"\n         and {_LIVE}",
            )
        ],
    ),
    *(
        Mutant(
            name=f"a plain delete ends nothing: {scenario.name.replace('×', 'x')}",
            scenario=scenario,
            reason=reason,
            changes=[_NO_TRIGGER],
        )
        for scenario, reason in (
            (deletes.plain_delete_pick_and_commit("continue"), "deleted, and "),
            (deletes.plain_delete_and_chained_commits(), "deleted, but it continues"),
            (deletes.plain_delete_and_deliver(1), "deleted, and waits for work"),
            (deletes.plain_delete_child_and_end_of_sibling(), "deleted, and waits for work"),
            (deletes.plain_delete_first_in_line(), "deleted, and waits for work"),
        )
    ),
    Mutant(
        name="a plain delete ignores an execution leased before it",
        scenario=deletes.plain_delete_pick_and_commit("continue"),
        reason="deleted, but it continues",
        changes=[
            Change(
                SCHEMA,
                "where g.deleted_at is not null and g.finished_at is null and g.cancel_requested_at is null",
                "where g.deleted_at is not null and g.finished_at is null and g.status <> 'executing'",
            )
        ],
    ),
    Mutant(
        name="signals to an instance after a plain delete",
        scenario=deletes.plain_delete_and_deliver(1),
        reason="a signal to the deleted was accepted",
        changes=[
            _NO_TRIGGER,
            Change(
                SCHEMA,
                f"where g.id = target_id and {_LIVE} and g.deleted_at is null",
                f"where g.id = target_id and {_LIVE}",
            ),
        ],
    ),
    Mutant(
        name="a pick does not ask for deleted_at",
        scenario=deletes.pick_and_end_of_what_no_trigger_saw(),
        reason="leased though it was deleted",
        changes=[Change("pick", "and g.deleted_at is null", "")],
    ),
    Mutant(
        name="a reaper waits for another that ends deleted rows",
        scenario=deletes.pick_and_end_of_what_no_trigger_saw(),
        reason="waited for a lock",
        changes=[Change(SCHEMA, "for no key update skip locked) found", ") found")],
    ),
    Mutant(
        name="a second delete counts",
        scenario=deletes.delete_and_delete(),
        reason="deleted twice",
        changes=[
            Change(
                SCHEMA,
                "where g.id = any (target_ids) and g.deleted_at is null;\n  return query",
                "where g.id = any (target_ids);\n  return query",
            )
        ],
    ),
]

RETRIES = [
    Mutant(
        name="retry does not lock the row that it reads",
        scenario=retries.retry_and_retry(),
        reason="not retried exactly once",
        changes=[Change(SCHEMA, _LOCK_FAMILY, "")],
    ),
    Mutant(
        name="retry does not lock the row that it reads (barrier)",
        scenario=retries.retry_two_children(),
        reason="barrier counts wrong",
        changes=[Change(SCHEMA, _LOCK_FAMILY, "")],
    ),
    Mutant(
        name="a retried child is not waited for",
        scenario=retries.retry_child_and_end_of_sibling(),
        reason="barrier counts wrong",
        changes=[Change(SCHEMA, "p.children_pending + again.children", "p.children_pending")],
    ),
    Mutant(
        name="a retried child counts for a parent that has gone on",
        scenario=retries.retry_child_and_join("done"),
        reason="a barrier without a waiting parent",
        changes=[
            Change(SCHEMA, "p.spawn_round = again.parent_round and p.status = 'awaiting_children';", "true;"),
        ],
    ),
    Mutant(
        name="a retried child counts in every round",
        scenario=retries.retry_child_and_next_round(),
        reason="barrier counts wrong",
        changes=[Change(SCHEMA, "p.spawn_round = again.parent_round and ", "")],
    ),
    Mutant(
        name="retry of a child and of its parent do not see each other",
        scenario=retries.retry_parent_and_child(),
        reason="a retried child is not waited for",
        changes=[Change(SCHEMA, _LOCK_PARENTS, ");")],
    ),
    Mutant(
        name="a parent that was released does not wait for a retried child",
        scenario=retries.retry_child_of_released(),
        reason="a retried child is not waited for",
        changes=[
            Change(SCHEMA, "child.parent_id = any (retried || parked)", "child.parent_id = any (retried)")
        ],
    ),
    Mutant(
        name="a parent between two tries of its join does not wait for a retried child",
        scenario=retries.retry_child_of_released(attempt=1),
        reason="a retried child is not waited for",
        changes=[
            Change(
                SCHEMA,
                "and p.status = 'runnable' and p.spawn_round = p.step_seq);",
                "and p.status = 'runnable' and p.spawn_round = p.step_seq and p.attempt = 0);",
            )
        ],
    ),
    Mutant(
        name="a barrier counts only the children that are retried now",
        scenario=retries.retry_children_between_tries(),
        reason="barrier counts wrong",
        changes=[
            Change(
                SCHEMA,
                "child.parent_id = any (retried || parked) and child.status not in ('done', 'failed', 'cancelled')",
                "child.parent_id = any (retried || parked) and child.id = any (retried)",
            )
        ],
    ),
    Mutant(
        name="a join does not check for live children",
        scenario=with_sessions(retries.retry_child_and_join("done"), K=[lease_some(8), flush_picked("done")]),
        reason="the join sees a live child",
    ),
    Mutant(
        name="a join that sees a live child runs again at once",
        scenario=retries.retry_child_and_join("done"),
        reason="a live child is not waited for",
        changes=[
            Change(
                "commit",
                "is null then o.status else",
                "is null then case when o.keeps_crashes then 'runnable' else o.status end else",
            )
        ],
    ),
    Mutant(
        name="a rejoin waits for the children that were live when they were loaded",
        scenario=retries.rejoin_and_end_of_child(),
        reason="barrier counts wrong",
        changes=[Change(SCHEMA, _COUNTED, "1 as pending")],
    ),
    Mutant(
        name="a rejoin counts the children before it has the lock of the parent",
        scenario=with_sessions(
            retries.rejoin_and_end_of_child(), P=[transaction(lambda _: _rejoin_with_an_old_count())]
        ),
        reason="barrier counts wrong",
    ),
    Mutant(
        name="a rejoin costs an attempt",
        scenario=retries.rejoin_and_end_of_child(),
        reason="waiting again cost an attempt",
        changes=[
            Change(
                "commit",
                "then o.next_attempt else g.attempt",
                "then o.next_attempt else g.attempt + o.keeps_crashes::int",
            )
        ],
    ),
    Mutant(
        name="a rejoin is not guarded by its lease",
        scenario=retries.rejoin_reap_and_end_of_child(),
        reason="executions are not numbered in order",
        changes=[
            Change(
                "commit",
                "and g.lease_token = o.lease_token and g.step_seq = o.step_seq",
                "and g.step_seq = o.step_seq",
            )
        ],
    ),
    Mutant(
        name="a rejoin does not ask for a cancel",
        scenario=retries.rejoin_and_cancel(cascade=False),
        reason="an acknowledged cancel did not win",
        changes=[Change("commit", _STATUS, "set status = o.status")],
    ),
    Mutant(
        name="a parent that waits again does not ungate the next row",
        scenario=retries.retry_child_of_released(),
        reason="the key is free, but its rows are gated",
        changes=[Change(SCHEMA, "  if parked <> '{}' then", "  if false then")],
    ),
    Mutant(
        name="a retried instance is still to be cancelled",
        scenario=retries.retry_and_cancel(),
        reason="an old cancel stopped a retried instance",
        changes=[
            Change(
                SCHEMA,
                "cancel_requested_at = null, updated_at = statement_timestamp(),\n           cancel_reason",
                "updated_at = statement_timestamp(),\n           cancel_reason",
            )
        ],
    ),
    Mutant(
        name="a retried parent does not wait for its children",
        scenario=retries.retry_parent_and_end_of_child(),
        reason="barrier released early",
        changes=[Change(SCHEMA, "p.id = live.parent_id and p.spawn_round = live.parent_round\n", "false\n")],
    ),
    Mutant(
        name="a retried parent waits for every round",
        scenario=retries.retry_parent_in_its_second_round(),
        reason="barrier counts wrong",
        changes=[
            Change(
                SCHEMA,
                "p.id = live.parent_id and p.spawn_round = live.parent_round\n",
                "p.id = live.parent_id\n",
            )
        ],
    ),
    Mutant(
        name="a child ends while its parent returns to the barrier",
        scenario=retries.rejoin_and_end_of_child(),
        reason="barrier counts wrong",
        changes=[Change(SCHEMA, _WAITING_AS_LOCKED, _WAITING_AS_SEEN)],
    ),
    Mutant(
        name="retry locks a parent before its children",
        scenario=retries.retry_failed_join_and_end_of_child(),
        reason="deadlock",
        changes=[
            Change(SCHEMA, "where g.id = any (family) order by", "where g.id = any (target_ids) order by")
        ],
    ),
    Mutant(
        name="the round of a failed join is lost",
        scenario=retries.retry_failed_join_and_retry_child(),
        reason="the round was lost",
        changes=[
            Change(
                SCHEMA,
                "when g.status = 'failed' and g.crash_count = 0 and g.spawn_round = g.step_seq - 1\n"
                "                              then g.step_seq else g.spawn_round end,",
                "else g.spawn_round end,",
            )
        ],
    ),
    Mutant(
        name="a retried instance does not wait for its signal again",
        scenario=retries.retry_parked_and_deliver(),
        reason="it runs without its signal",
        changes=[
            Change(
                SCHEMA,
                "case when new_step is null and g.awaits is not null and not g.timed_out",
                "case when false",
            )
        ],
    ),
    Mutant(
        name="the record of an end stays one",
        scenario=retries.retry_and_retry(),
        reason="the state of a job is not that of its instance",
        changes=[Change(SCHEMA, "             and e.retried_at is null\n", "")],
    ),
]

MUTANTS = [*CANCELS, *DELETES, *RETRIES]
