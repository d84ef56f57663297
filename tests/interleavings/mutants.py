"""Mutants: the first draft of the engine's SQL, and its current SQL with a rule removed.

Each breaks some order of its scenario, for the given reason.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gen_durable._core.model import CommitEntry, CommitResult, Committed, Execution
from gen_durable._db import commit as commits
from gen_durable._db.admission import ungate
from gen_durable._db.insert import insert_children
from gen_durable._db.pick import Picked
from gen_durable._db.plan import Plan, Statement
from gen_durable._db.signals import Delivery, sweep
from tests.interleavings.bench import READ_COMMITTED, Pins
from tests.interleavings.product import SCHEMA, Change, number
from tests.interleavings.scenario import Scenario
from tests.interleavings.scenarios import children, inserts, keys, leases, limits, signals
from tests.interleavings.session import RECORDER, Flushed, Session, Work, autocommit, commit, transaction
from tests.interleavings.world import QUEUE, TOKEN, outcome


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """A mutation, and the violation it causes."""

    name: str
    scenario: Scenario
    reason: str
    """How the reason of a broken order begins."""
    changes: Sequence[Change] = ()
    pins: Pins = READ_COMMITTED


def with_sessions(scenario: Scenario, **sessions: Sequence[Work]) -> Scenario:
    """The scenario, with other actions for some sessions."""
    assert sessions.keys() <= scenario.sessions.keys()
    return msgspec.structs.replace(scenario, sessions={**scenario.sessions, **sessions})


# ---------------------------------------------------------------- the first draft of the engine, fitted to its columns

_AWAIT = Statement(
    "draft_await",
    """update gen_durable.gen_durable
          set step = 't', awaits = '{go}', eligible_at = now(), step_seq = step_seq + 1,
              status = (case when exists (select 1 from gen_durable.signals where target_id = 1 and name = 'go')
                             then 'runnable' else 'awaiting_signal' end)::gen_durable.durable_status,
              lease_token = null, locked_by = null, lease_expires_at = null
        where id = 1""",
)
_INSERT_SIGNAL = Statement(
    "draft_insert_signal", "insert into gen_durable.signals (target_id, name) values (1, 'go') returning id"
)
_WAKE = Statement(
    "draft_wake",
    """update gen_durable.gen_durable set status = 'runnable', eligible_at = now()
        where id = 1 and status = 'awaiting_signal' and 'go' = any (awaits) returning id""",
)
_DELETE_CONSUMED = Statement(
    "draft_delete_consumed", "delete from gen_durable.signals where target_id = 1 and id = 1"
)
_RENEW = Statement(
    "draft_renew",
    """update gen_durable.gen_durable set lease_expires_at = now() + interval '1 minute'
        where id = 1 and locked_by = 'w1' returning id""",
)
_END = """update gen_durable.gen_durable
              set status = 'done', step_seq = step_seq + 1, lease_token = null, locked_by = null, lease_expires_at = null
            where id = :id::bigint"""
_END_CHILD = Statement("end_child", f"{_END} and lease_token = :lease_token::bigint")
_END_BY_ID = Statement("draft_end", _END)
_END_BY_WORKER = Statement("draft_end", f"{_END} and locked_by = 'w1'")
_JOIN = Statement(
    "draft_join",
    """update gen_durable.gen_durable p
          set children_pending = p.children_pending - 1,
              status = case when p.children_pending - 1 <= 0 and p.status = 'awaiting_children'
                            then 'runnable' else p.status end,
              eligible_at = case when p.children_pending - 1 <= 0 and p.status = 'awaiting_children'
                                 then now() else p.eligible_at end
         from gen_durable.gen_durable c
        where c.id = :id::bigint and c.parent_id = p.id""",
)
# The trigger on ended rows would report a second end before the parent counts it.
_UNWATCHED = Statement("unwatched", "select set_config('session_replication_role', 'replica', true)")
# A slot per row, so that only the lock decides which row runs.
_PICK = Statement(
    "draft_pick",
    """with picked as (
         select id from gen_durable.gen_durable
          where status = 'runnable' and eligible_at <= now() and queue = 'default'
          order by priority, eligible_at, id
            for update skip locked
          limit 1)
       update gen_durable.gen_durable g
          set status = 'executing', locked_by = 'w1', lease_expires_at = now() + interval '1 minute',
              lease_token = :lease_token::bigint, concurrency_slot = g.id, execution = g.execution + 1
         from picked where g.id = picked.id
       returning g.id, g.concurrency_key""",
)
_LOCK_KEY = Statement(
    "draft_lock_key", "select pg_try_advisory_lock(hashtext(:concurrency_key::text)) as is_mine"
)
_HAND_BACK = Statement(
    "draft_hand_back",
    """update gen_durable.gen_durable
          set status = 'runnable', locked_by = null, lease_expires_at = null, lease_token = null,
              concurrency_slot = null, execution = execution - 1
        where id = :id::bigint""",
)
# As the server does when a connection ends.
_BREAK = Statement("connection_breaks", "select pg_advisory_unlock_all()")
_COUNT_SIBLINGS = Statement(
    "count_siblings",
    """update gen_durable.gen_durable p
          set children_pending = live.count,
              status = case when live.count = 0 then 'runnable'::gen_durable.durable_status else p.status end
         from (select count(*) from gen_durable.gen_durable
                where parent_id = 1 and status not in ('done', 'failed', 'cancelled')) live
        where p.id = 1""",
)


def _believed(entry: CommitEntry, *statements: Statement) -> Plan[Flushed]:
    """Run these statements without checking their row counts, as the first draft did."""
    for statement in statements:
        yield statement(**{name: getattr(entry.execution, name) for name in statement.parameters})
    return Flushed([entry], commits.CommitReport([Committed("believed")], set()))


def _end_and_count(id: int) -> Work:
    return transaction(lambda _: _believed(outcome(id, "done"), _END_CHILD, _COUNT_SIBLINGS))


def _end_and_join(id: int, *statements: Statement) -> Work:
    return transaction(lambda _: _believed(outcome(id, "done"), *statements, _JOIN))


def _pick_then_lock(lease_token: int) -> Work:
    """In one transaction, so no session sees the row as leased."""

    def plan() -> Plan[Picked]:
        (row,) = yield _PICK(lease_token=lease_token)
        (answer,) = yield _LOCK_KEY(concurrency_key=row["concurrency_key"])
        if answer["is_mine"]:
            return Picked([Execution(row["id"], lease_token, "F", 1, "s", 0, 0, "{}", QUEUE)], [])
        yield _HAND_BACK(id=row["id"])
        return Picked([], [])

    return Work(lambda _: plan(), in_transaction=True, locks_session=True)


def _lose_connection(session: Session) -> Plan[Picked]:
    """The picked steps continue on their leases."""
    yield _BREAK()
    picked: Picked = session.result
    return picked


def _insert_then_wake() -> Plan[Delivery]:
    yield _INSERT_SIGNAL()
    woken = yield _WAKE()
    return Delivery(1, True, bool(woken), QUEUE)


def _delete_then_lock() -> Plan[Flushed]:
    entry = outcome(1, "next", was_awaiting=True)
    yield _DELETE_CONSUMED()
    return (yield from commit([entry]))


def _renew_by_name() -> Plan[set[tuple[int, int]]]:
    rows = yield _RENEW()
    return set() if rows else {(1, TOKEN)}


def _spawn_regardless(entry: CommitEntry) -> Plan[Flushed]:
    groups = yield commits._full_call([entry], RECORDER)
    yield from insert_children(entry.children, [1, 1], [1, 1])
    return Flushed([entry], commits._report([entry], groups, {}, set()))


def _sweep_regardless(entry: CommitEntry) -> Plan[Flushed]:
    groups = yield commits._full_call([entry], RECORDER)
    yield from sweep([entry.id])
    return Flushed([entry], commits._report([entry], groups, {}, set()))


def _ungate_first(entry: CommitEntry) -> Plan[Flushed]:
    yield from ungate(["k"])
    groups = yield commits._full_call([entry], RECORDER)
    return Flushed([entry], commits._report([entry], groups, {}, set()))


def _one_by_one(entries: list[CommitEntry]) -> Plan[Flushed]:
    """Commit outcomes in order of arrival, one statement each."""
    results: list[CommitResult] = []
    for entry in entries:
        results += (yield from commit([entry])).report.results
    return Flushed(entries, commits.CommitReport(results, set()))


_DRAFT_PARK = transaction(lambda _: _believed(signals.PARK, _AWAIT))
_DRAFT_DELIVER = transaction(lambda _: _insert_then_wake())

FIRST_DRAFT = [
    Mutant(
        name="await looks for its signal in the statement that parks",
        scenario=with_sessions(signals.park_and_deliver(), P=[_DRAFT_PARK]),
        reason="lost wake-up",
    ),
    Mutant(
        name="deliver inserts, then wakes whom it sees parked",
        scenario=with_sessions(signals.park_and_two_senders(), D=[_DRAFT_DELIVER]),
        reason="lost wake-up",
    ),
    Mutant(
        name="that await and that deliver",
        scenario=with_sessions(signals.park_and_deliver(), P=[_DRAFT_PARK], D=[_DRAFT_DELIVER]),
        reason="lost wake-up",
    ),
    Mutant(
        name="consumed signals are deleted before the row is locked",
        scenario=with_sessions(
            signals.consume_and_redeliver(), F=[transaction(lambda _: _delete_then_lock())]
        ),
        reason="deadlock",
    ),
    Mutant(
        name="a heartbeat is guarded by the worker's name",
        scenario=with_sessions(leases.renew_reap_and_pick(), H=[autocommit(lambda _: _renew_by_name())]),
        reason="renewed a lease that was another's",
    ),
    Mutant(
        name="the last child is found by counting its siblings",
        scenario=with_sessions(
            children.three_children(),
            A=[_end_and_count(11)],
            B=[_end_and_count(12)],
            C=[_end_and_count(13)],
        ),
        reason="barrier counts wrong",
    ),
    Mutant(
        name="a barrier is counted down by any child of this parent",
        scenario=with_sessions(children.late_child("done"), A=[_end_and_join(11, _END_CHILD)]),
        reason="barrier released early",
    ),
    Mutant(
        name="the end of a child and its join are guarded by the id alone",
        scenario=with_sessions(children.zombie_child(), F=[_end_and_join(11, _UNWATCHED, _END_BY_ID)]),
        reason="barrier released early",
    ),
    Mutant(
        name="the end of a child is guarded by the worker, its join by the id",
        scenario=with_sessions(children.zombie_child(), F=[_end_and_join(11, _END_BY_WORKER)]),
        reason="barrier counts wrong",
    ),
    Mutant(
        name="children whether or not their parent was parked",
        scenario=with_sessions(
            children.spawn_and_reap(), F=[transaction(lambda _: _spawn_regardless(children.SPAWN))]
        ),
        reason="children of a lost execution",
    ),
    Mutant(
        name="parents locked in the order of arrival",
        scenario=with_sessions(
            children.flushes_with_two_parents(),
            A=[
                transaction(
                    lambda _: _one_by_one([children.child(11, "done", 1), children.child(21, "stop", 2)])
                )
            ],
            B=[
                transaction(
                    lambda _: _one_by_one([children.child(22, "done", 2), children.child(12, "done", 1)])
                )
            ],
        ),
        reason="deadlock",
    ),
    Mutant(
        name="ungate runs before the key is free",
        scenario=with_sessions(
            keys.gate_and_release("done"),
            F=[transaction(lambda _: _ungate_first(outcome(1, "done", held_key="k")))],
        ),
        reason="the key is free, but its rows are gated",
    ),
    Mutant(
        name="a key is locked after the pick",
        scenario=with_sessions(
            keys.pick_pick_and_urgent_insert(), A=[_pick_then_lock(8)], B=[_pick_then_lock(9)]
        ),
        reason="not the first row of its key",
    ),
    Mutant(
        name="a key is locked by a connection",
        scenario=with_sessions(
            keys.pick_pick_and_urgent_insert(),
            A=[_pick_then_lock(8), transaction(_lose_connection)],
            B=[_pick_then_lock(9)],
        ),
        reason="two executions of one key",
    ),
]

# ------------------------------------------------------------------------------------ the engine with a rule left out

_GUARD = "g.id = any (array[o.id]) and g.lease_token = o.lease_token and g.step_seq = o.step_seq"
_BY_ID = "g.id = o.id"
_BY_WORKER = "g.id = o.id and g.locked_by = 'w1'"
_BY_TOKEN = "g.id = o.id and g.lease_token = o.lease_token"
_OF_ROUND = " and p.spawn_round = ended.parent_round"
_NOT_PASSED_OVER = (
    "and (g.fsm, g.fsm_version, g.queue)"
    " not in (select p.fsm, p.fsm_version, p.queue from gen_durable.passed_over p)"
)
_CONSUMED = "select unnest(committed.consumed) as id, committed.step_seq from committed where committed.consumed is not null"
_CONSUMED_BY_TARGET = (
    "select s.id, committed.step_seq from committed join gen_durable.signals s on s.target_id = committed.id"
    " where committed.consumed is not null"
)
_ALL_CONSUMED = (
    "select unnest(given.consumed::bigint[]) as id, given.step_seq + 1 as step_seq from unnest("
    f"{number('commit', 'consumed')}::text[], {number('commit', 'step_seqs')}::text::bigint[]) as given (consumed, step_seq)"
)

GUARDS = [
    Mutant(
        name="reap_worker takes the leases of all workers",
        scenario=leases.dead_worker("next"),
        reason="the lease of a live worker was taken",
        changes=[Change("reap_worker", "and g.locked_by = $1::pg_catalog.text", "")],
    ),
    Mutant(
        name="the lease of an expired execution is guarded by the id alone",
        scenario=leases.dead_execution(),
        reason="one crash was counted twice",
        changes=[Change("reap_execution", "g.lease_token = $2::bigint", "$2::bigint is not null")],
    ),
    Mutant(
        name="a step after too many crashes has the number of the crashed one",
        scenario=leases.move_commit_and_pick("retry"),
        reason="step_seq differs from the acknowledged commits",
        changes=[Change("reap", "step_seq = g.step_seq + (judged.verdict = 'moved')::int,", "")],
    ),
    Mutant(
        name="the lost execution commits after its row was moved",
        scenario=leases.move_commit_and_pick("next"),
        reason='error: duplicate key value violates unique constraint "executions_commit"',
        changes=[Change("commit_plain", _GUARD, _BY_ID)],
    ),
    Mutant(
        name="crashes of the step before count for the next one",
        scenario=leases.move_commit_and_pick("retry"),
        reason="the next step starts with the crashes of the one before",
        changes=[
            Change(
                "reap",
                "crash_count = case when judged.verdict = 'moved' then 0 else",
                "crash_count = case when false then 0 else",
            )
        ],
    ),
    Mutant(
        name="outcome guarded by the id alone",
        scenario=leases.zombie("next"),
        reason="outcome and reaper both won",
        changes=[Change("commit_plain", _GUARD, _BY_ID)],
    ),
    Mutant(
        name="outcome guarded by the id alone, in the long statement",
        scenario=leases.zombie("await"),
        reason="outcome and reaper both won",
        changes=[Change("commit", _GUARD, _BY_ID)],
    ),
    Mutant(
        name="outcome guarded by the name of the worker",
        scenario=leases.zombie("next"),
        reason="outcome and reaper both won",
        changes=[Change("commit_plain", _GUARD, _BY_WORKER)],
    ),
    Mutant(
        name="outcome guarded by the name of the worker, in the long statement",
        scenario=leases.zombie("await"),
        reason="outcome and reaper both won",
        changes=[Change("commit", _GUARD, _BY_WORKER)],
    ),
    Mutant(
        name="outcome of a child guarded by the id alone",
        scenario=children.zombie_child(),
        reason="outcome and reaper both won",
        changes=[Change("commit", _GUARD, _BY_ID)],
    ),
    Mutant(
        name="outcome of a child guarded by the name of the worker",
        scenario=children.zombie_child(),
        reason="outcome and reaper both won",
        changes=[Change("commit", _GUARD, _BY_WORKER)],
    ),
    Mutant(
        name="outcome guarded without step_seq",
        scenario=leases.same_keep_twice(),
        reason="error: duplicate key",
        changes=[Change("commit_plain", _GUARD, _BY_TOKEN)],
    ),
    Mutant(
        name="outcome guarded without step_seq, resolved",
        scenario=leases.resolve_while_unanswered("continue"),
        reason="error: duplicate key",
        changes=[Change("commit_plain", _GUARD, _BY_TOKEN)],
    ),
    Mutant(
        name="an end that comes too late empties the inbox",
        scenario=with_sessions(
            signals.done_deliver_and_reap(),
            F=[transaction(lambda _: _sweep_regardless(signals.DONE_WITH_INBOX))],
        ),
        reason="signals lost or doubled",
    ),
    Mutant(
        name="an outcome that comes too late consumes",
        scenario=signals.consume_deliver_and_reap(),
        reason="signals lost or doubled",
        changes=[Change("commit", _CONSUMED, _ALL_CONSUMED)],
    ),
    Mutant(
        name="an effect without a lock on its row",
        scenario=leases.effect_reap_and_pick(),
        reason="not one effect for its transition",
        changes=[
            Change(
                SCHEMA,
                "and g.cancel_requested_at is null\n       for no key update;",
                "and g.cancel_requested_at is null;",
            )
        ],
    ),
    Mutant(
        name="an effect whether or not the lease is held",
        scenario=leases.effect_reap_and_pick(),
        reason="not one effect for its transition",
        changes=[Change(SCHEMA, "g.id = target and g.lease_token = token", "g.id = target")],
    ),
    Mutant(
        name="the record of a reaped execution is from before the lock",
        scenario=leases.commit_and_reap("continue"),
        reason="executions are not numbered in order",
        changes=[Change("reap", "judged.step_seq, judged.execution,", "0 as step_seq, 1 as execution,")],
    ),
    Mutant(
        name="the beginning of a step is recorded for the next one",
        scenario=leases.mark_started_and_commit(),
        reason="recorded for a step that has not begun",
        changes=[Change("mark_started", "and g.step_seq = held.step_seq", "")],
    ),
    Mutant(
        name="a signal after the deadline leaves the await timed out",
        scenario=signals.deadline_deliver_and_pick(),
        reason="woken by the clock or by a signal?",
        changes=[
            Change(
                SCHEMA,
                "timed_out = g.timed_out and not coalesce(name = any (g.awaits), false)",
                "timed_out = g.timed_out",
            )
        ],
    ),
    Mutant(
        name="a signal between pick and load leaves the await timed out",
        scenario=signals.deadline_deliver_and_pick(has_signals=True),
        reason="woken by the clock or by a signal?",
        changes=[Change("inboxes", "g.timed_out", "true as timed_out")],
    ),
    Mutant(
        name="refused children are waited for",
        scenario=children.spawn_and_reap(),
        reason="barrier counts wrong",
        changes=[Change(SCHEMA, "where g.id = barrier.id", "where false and g.id = barrier.id")],
    ),
    Mutant(
        name="a child's end counts in every round",
        scenario=children.late_child("done"),
        reason="barrier released early",
        changes=[Change(SCHEMA, _OF_ROUND, "")],
    ),
    Mutant(
        name="a child's poison counts in every round",
        scenario=children.late_child("reap"),
        reason="barrier released early",
        changes=[Change(SCHEMA, _OF_ROUND, "")],
    ),
    Mutant(
        name="a child's cancel counts in every round",
        scenario=children.late_child("cancel"),
        reason="barrier released early",
        changes=[Change(SCHEMA, _OF_ROUND, "")],
    ),
]

SIGNALS = [
    Mutant(
        name="an id may be claimed twice",
        scenario=signals.receive_and_receive(),
        reason="delivered to two targets",
        changes=[Change(SCHEMA, "message_id      text primary key,", "message_id      text,")],
    ),
    Mutant(
        name="an id that is known is known for any target",
        scenario=signals.receive_and_receive(),
        reason="not refused",
        changes=[Change("claimed_message", " as is_same", " or true as is_same")],
    ),
    Mutant(
        name="no recheck after parking",
        scenario=signals.park_and_two_senders(),
        reason="lost wake-up",
        changes=[Change("recheck", "g.status = 'awaiting_signal'", "false")],
    ),
    Mutant(
        name="recheck counts signals that the step has seen",
        scenario=signals.park_a_pack_and_redeliver(),
        reason="woken by what it had seen",
        changes=[Change("recheck", "s.id <> all (coalesce(g.presented, '{}'))", "true")],
    ),
    Mutant(
        name="recheck counts consumed signals",
        scenario=signals.park_and_redeliver_what_was_consumed(),
        reason="woken by what it had seen",
        changes=[Change("recheck", "and s.consumed_seq is null", "")],
    ),
    Mutant(
        name="recheck counts signals that the step took",
        scenario=signals.take_and_deliver(),
        reason="woken by what it had taken",
        changes=[Change("recheck", "and s.consumed_seq is null", "")],
    ),
    Mutant(
        name="a step consumes signals that arrived after it had read its inbox",
        scenario=signals.take_and_deliver(),
        reason="signals lost or doubled",
        changes=[Change("commit", _CONSUMED, _CONSUMED_BY_TARGET)],
    ),
    Mutant(
        name="deliver does not lock its target (park)",
        scenario=signals.park_and_two_senders(),
        reason="lost wake-up",
        changes=[Change(SCHEMA, "for no key update;", ";")],
    ),
    Mutant(
        name="deliver does not lock its target (end)",
        scenario=signals.done_and_deliver(has_signals=False),
        reason="a terminal row changed",
        changes=[Change(SCHEMA, "for no key update;", ";")],
    ),
    Mutant(
        name="deliver does not lock its target (end, inbox in use)",
        scenario=signals.done_and_deliver(has_signals=True),
        reason="a terminal row changed",
        changes=[Change(SCHEMA, "for no key update;", ";")],
    ),
    Mutant(
        name="a duplicate wakes",
        scenario=signals.park_a_pack_and_redeliver(),
        reason="woken by what it had seen",
        changes=[Change(SCHEMA, "woken := signal_id is not null and ", "woken := ")],
    ),
    Mutant(
        name="the inbox of an ended instance is not deleted",
        scenario=signals.done_and_deliver(has_signals=False),
        reason="the inbox of the ended is left",
        changes=[Change("sweep", "where s.target_id", "where false and s.target_id")],
    ),
    Mutant(
        name="a delivery does not add to the bytes of its inbox",
        scenario=signals.fill_and_consume(),
        reason="the inbox is over its limit",
        changes=[
            Change(
                SCHEMA,
                "inbox_count = new_count, inbox_bytes = new_bytes,\n           timed_out",
                "timed_out",
            )
        ],
    ),
    Mutant(
        name="two deliveries count the same inbox",
        scenario=signals.fill_and_consume(),
        reason="the inbox is over its limit",
        changes=[Change(SCHEMA, "for no key update;", ";")],
    ),
    Mutant(
        name="deliver looks up a key once",
        scenario=signals.pass_a_key_on_and_deliver_by_key(),
        reason="the holder of the key was overlooked",
        changes=[Change(SCHEMA, "for look in 1 .. 2 loop", "for look in 1 .. 1 loop")],
    ),
    Mutant(
        name="a dedup_key is forgotten with its signal",
        scenario=signals.consume_and_redeliver(),
        reason="the same event twice",
        changes=[
            Change("commit", "s.id = consumed.id and s.dedup_key is null", "s.id = consumed.id"),
            Change("commit", "s.id = consumed.id and s.dedup_key is not null", "false"),
        ],
    ),
]

LOCKS = [
    Mutant(
        name="pick takes rows FOR UPDATE",
        scenario=leases.pick_and_foreign_key(),
        reason="a due row was left",
        changes=[Change("pick", "for no key update skip locked", "for update skip locked")],
    ),
    Mutant(
        name="pick waits for rows",
        scenario=leases.pick_and_pick(),
        reason="waited for a lock",
        changes=[Change("pick", "for no key update skip locked", "for no key update")],
    ),
    Mutant(
        name="renew waits for rows",
        scenario=leases.renew_and_commit(),
        reason="waited for a lock",
        changes=[Change("renew", "for no key update of g skip locked", "for no key update of g")],
    ),
    Mutant(
        name="renew treats skipped rows as lost",
        scenario=leases.renew_and_commit(),
        reason="a live lease was taken for lost",
        changes=[Change("still_held", "g.lease_token = held.lease_token", "false")],
    ),
    Mutant(
        name="reap waits for rows",
        scenario=leases.commit_and_reap("next"),
        reason="waited for a lock",
        changes=[Change("reap", "for no key update skip locked", "for no key update")],
    ),
    Mutant(
        name="expire waits for rows",
        scenario=signals.deadline_deliver_and_pick(),
        reason="waited for a lock",
        changes=[Change("expire", "for no key update skip locked", "for no key update")],
    ),
]

KEYS = [
    Mutant(
        name="pick leases rows that need admission",
        scenario=keys.plain_picks(),
        reason="leased without a slot",
        changes=[
            Change("pick", "where not exists (select from candidates where candidates.needs_admission)", "")
        ],
    ),
    Mutant(
        name="no unique index on the slot",
        scenario=keys.pick_pick_and_urgent_insert(),
        reason="two executions in one slot",
        changes=[Change(SCHEMA, "create unique index gen_durable_slot", "create index gen_durable_slot")],
    ),
    Mutant(
        name="pick does not check the number of slots of a key",
        scenario=keys.pick_pick_and_urgent_insert(),
        reason="two executions of one key",
        changes=[Change("pick_with_admission", "limit key_capacity.free) head", "limit 10) head")],
    ),
    Mutant(
        name="gate does not lock the holders",
        scenario=keys.gate_and_release("done"),
        reason="the key is free, but its rows are gated",
        changes=[Change("lock_holders", "for no key update", "")],
    ),
    Mutant(
        name="gate takes rows whose time has not come",
        scenario=keys.gate_and_release("done"),
        reason="the key is free, but its rows are gated",
        changes=[Change("gate", "and g.eligible_at <= statement_timestamp()", "")],
    ),
    Mutant(
        name="gate does not lock the first row of a free key",
        scenario=keys.gate_behind_and_cancel(),
        reason="the key is free, but its rows are gated",
        changes=[
            Change(
                "gate_behind",
                "limit 32767\n           for no key update skip locked) free",
                "limit 32767) free",
            )
        ],
    ),
    Mutant(
        name="ungate admits any row",
        scenario=keys.gate_and_release("done"),
        reason="the key is free, but its rows are gated",
        changes=[
            Change(
                SCHEMA,
                "order by g.priority, g.eligible_at, g.id limit 32767\n           for no key update) gated",
                "order by g.id desc limit 32767 for no key update) gated",
            )
        ],
    ),
    Mutant(
        name="ungate skips locked rows",
        scenario=keys.release_and_deliver_to_the_next(),
        reason="the key is free, but its rows are gated",
        changes=[Change(SCHEMA, "for no key update) gated", "for no key update skip locked) gated")],
    ),
]

UNSERVED = [
    Mutant(
        name="a row that no worker can start counts in the order of its key",
        scenario=keys.gate_and_pick_behind_an_unserved_row(),
        reason="not the next row that a worker can start",
        changes=[Change("pick_with_admission", _NOT_PASSED_OVER.replace("and (", "and ((", 1), "and (true")],
    ),
    Mutant(
        name="gate keeps a row that no worker can start as the first of its key",
        scenario=keys.gate_and_pick_behind_an_unserved_row(),
        reason="the key is free, but its rows are gated",
        changes=[Change("gate_behind", _NOT_PASSED_OVER, "")],
    ),
    Mutant(
        name="a row that no worker can start covers a free slot",
        scenario=keys.release_behind_an_unserved_row(gated=False),
        reason="the key is free, but its rows are gated",
        changes=[
            Change(
                SCHEMA,
                f"{_NOT_PASSED_OVER}\n         order by g.priority, g.eligible_at, g.id limit 32767) due",
                "order by g.priority, g.eligible_at, g.id limit 32767) due",
            )
        ],
    ),
    Mutant(
        name="ungate takes a row that no worker can start",
        scenario=keys.release_behind_an_unserved_row(gated=True),
        reason="the key is free, but its rows are gated",
        changes=[
            Change(
                SCHEMA,
                f"{_NOT_PASSED_OVER}\n         order by g.priority, g.eligible_at, g.id limit 32767\n"
                "           for no key update) gated",
                "order by g.priority, g.eligible_at, g.id limit 32767 for no key update) gated",
            )
        ],
    ),
]

LIMITS = [
    Mutant(
        name="a limit changes without waiting for transactions that gate",
        scenario=limits.gate_and_raise(is_new=True),
        reason="the key is free, but its rows are gated",
        changes=[Change(SCHEMA, "lock table gen_durable.limits in exclusive mode;", "")],
    ),
    Mutant(
        name="gate does not lock the limits",
        scenario=limits.gate_and_raise(is_new=False),
        reason="the key is free, but its rows are gated",
        changes=[Change("lock_holders", "for share", "")],
    ),
    Mutant(
        name="a raised limit does not ungate",
        scenario=limits.gate_and_raise(is_new=False),
        reason="the key is free, but its rows are gated",
        changes=[Change(SCHEMA, "if limit_kind = 'concurrency' then", "if false then")],
    ),
    Mutant(
        name="pick takes the first slots, not the free ones",
        scenario=limits.gate_release_and_pick(),
        reason="error: duplicate key value violates unique constraint",
        changes=[
            Change(
                "pick_with_admission",
                "holder.concurrency_slot = series.number limit 1) is null",
                "false limit 1) is null",
            )
        ],
    ),
    Mutant(
        name="pick does not count the surplus of a lowered limit",
        scenario=limits.lower_and_pick(),
        reason="more executions than a limit that was lowered allows",
        changes=[Change("pick_with_admission", "greatest(slots.count - held.count, 0)", "slots.count")],
    ),
    Mutant(
        name="an execution gives back the tokens of a later one",
        scenario=limits.deferred_and_reap(),
        reason="a token was given back twice",
        changes=[
            Change(
                SCHEMA,
                "on g.id = held.id and g.lease_token = held.lease_token and g.step_seq = held.step_seq\n            join",
                "on g.id = held.id\n            join",
            ),
            Change(
                SCHEMA,
                "on g.id = held.id and g.lease_token = held.lease_token and g.step_seq = held.step_seq);",
                "on g.id = held.id);",
            ),
        ],
    ),
    Mutant(
        name="a deferred execution keeps its tokens",
        scenario=limits.deferred_and_reap(),
        reason="a token was not given back",
        changes=[Change(SCHEMA, "set full_at = b.full_at - given.time", "set full_at = b.full_at")],
    ),
    Mutant(
        name="ungate assumes that a waiting row exists",
        scenario=limits.release_and_cancel_of_the_waiting(),
        reason="the key is free, but its rows are gated",
        changes=[
            Change(
                SCHEMA,
                "order by g.id desc for no key update of g skip locked\n  ), next_gated",
                "\n  ), next_gated",
            )
        ],
    ),
    Mutant(
        name="ungate admits one row, however many slots are free",
        scenario=limits.two_releases(),
        reason="the key is free, but its rows are gated",
        changes=[
            Change(
                SCHEMA,
                "limit free_keys.free - (select count(*) from ungated where ungated.key = free_keys.key)",
                "limit 0",
            )
        ],
    ),
    Mutant(
        name="a bucket is not locked while its tokens are counted",
        scenario=limits.two_buckets(),
        reason="a token was spent twice",
        changes=[
            Change(
                SCHEMA,
                "   order by given.key\n      on conflict (key) do update set full_at = b.full_at where false;",
                "     and not exists (select from gen_durable.buckets b where b.key = given.key)"
                " on conflict do nothing;",
            )
        ],
    ),
    Mutant(
        name="deferring does not ungate the next row of the key",
        scenario=limits.defer_and_release(),
        reason="the key is free, but its rows are gated",
        changes=[Change(SCHEMA, "perform gen_durable.ungate(keys_of_deferred);", "null;")],
    ),
    Mutant(
        name="a row stalls without a lock on the limits",
        scenario=limits.stall_and_set(),
        reason="a row stalls although its limit is set",
        changes=[Change(SCHEMA, "lock table gen_durable.limits in row share mode nowait;", "null;")],
    ),
    Mutant(
        name="a row that stalls during a change of limits waits for a day",
        scenario=limits.stall_and_set(),
        reason="a row stalls although its limit is set",
        changes=[
            Change(
                SCHEMA, "stalled          interval := '1 second';", "stalled          interval := '1 day';"
            )
        ],
    ),
    Mutant(
        name="rate turns are assigned without a lock on the bucket",
        scenario=limits.defer_and_raise(),
        reason="a row stalls although its limit is set",
        changes=[
            Change(SCHEMA, "select one.key\n     where exists", "select one.key\n     where false and exists")
        ],
    ),
]

INSERTS = [
    Mutant(
        name="no unique index on the key",
        scenario=inserts.same_keys_in_opposite_order(),
        reason="two holders of one key",
        changes=[Change(SCHEMA, "create unique index gen_durable_unique", "create index gen_durable_unique")],
    ),
    Mutant(
        name="a key is occupied in every status",
        scenario=inserts.insert_and_done("unique"),
        reason="a free key was refused",
        changes=[
            Change(
                SCHEMA, "unique_key is not null and status = any (unique_scope)", "unique_key is not null"
            ),
            Change(SCHEMA, "and g.status = any (g.unique_scope)", ""),
        ],
    ),
    Mutant(
        name="a scope with a gap",
        scenario=inserts.insert_and_reap(scope=("runnable",)),
        reason="error: duplicate key value violates unique constraint",
        changes=[
            Change(
                SCHEMA,
                "or unique_scope @> '{runnable,executing,awaiting_signal,awaiting_children}'",
                "or true",
            )
        ],
    ),
    Mutant(
        name="keys are inserted in the order given",
        scenario=inserts.same_keys_in_opposite_order(),
        reason="deadlock",
        changes=[
            Change(SCHEMA, "order by spec.unique_key, spec.correlation_key, spec.ord", "order by spec.ord")
        ],
    ),
    Mutant(
        name="a holder that has just ended is not tried again",
        scenario=inserts.insert_and_done("unique"),
        reason="no answer",
        changes=[Change(SCHEMA, "todo := todo || ord;", "null;")],
    ),
]

ISOLATION = [
    Mutant(
        name="BEGIN does not pin READ COMMITTED (park)",
        scenario=signals.park_and_two_senders(),
        reason="refused by isolation",
        pins=Pins(begin=False),
    ),
    Mutant(
        name="BEGIN does not pin READ COMMITTED (gate)",
        scenario=keys.gate_and_release("done"),
        reason="the key is free, but its rows are gated",
        pins=Pins(begin=False),
    ),
    Mutant(
        name="connections do not pin READ COMMITTED",
        scenario=leases.same_keep_twice(),
        reason="refused by isolation",
        pins=Pins(connection=False),
    ),
    Mutant(
        name="connections do not pin READ COMMITTED (pick)",
        scenario=leases.zombie("next"),
        reason="refused by isolation",
        pins=Pins(connection=False),
    ),
]

MUTANTS = [*FIRST_DRAFT, *GUARDS, *SIGNALS, *LOCKS, *KEYS, *UNSERVED, *LIMITS, *INSERTS, *ISOLATION]
