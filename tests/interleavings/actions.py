"""Actions of sessions, shared by scenarios."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from gen_durable._core.model import CommitEntry, NewInstance
from gen_durable._db import admission, control, lease, pick
from gen_durable._db import commit as commits
from gen_durable._db.insert import insert
from gen_durable._db.plan import Plan, Statement
from gen_durable._db.signals import deliver
from tests.interleavings.session import (
    RECORDER,
    EditAnswer,
    Flushed,
    Session,
    Work,
    autocommit,
    commit,
    commit_plain,
    transaction,
)
from tests.interleavings.world import LEASE, MACHINES, QUEUE, WORKER, outcome

CRASH_LIMIT = 20
_EFFECT = Statement("effect", "insert into gen_durable.effects values (:id::bigint)")
_PLAIN_DELETE = Statement(
    "plain_delete",
    "update gen_durable.gen_durable set deleted_at = statement_timestamp(), delete_reason = 'obsolete'"
    " where id = any (:ids::bigint[])",
)
_UNDO = Statement("undo", "delete from gen_durable.effects where instance_id = :id::bigint")


def send(target: int | str = 1, name: str = "go", dedup_key: str | None = None) -> Work:
    return autocommit(lambda _: deliver(target, name, "{}", dedup_key))


def put(*rows: NewInstance) -> Work:
    return autocommit(lambda _: insert(rows, autocommit=True))


def reap() -> Work:
    # The grace after a server start is one lease: 1 ms.
    return transaction(
        lambda _: lease.reap(timedelta(milliseconds=1), lease.CrashPolicy(CRASH_LIMIT, RECORDER.level))
    )


def reap_worker(worker: str = WORKER) -> Work:
    return transaction(lambda _: lease.reap_worker(worker, lease.CrashPolicy(CRASH_LIMIT, RECORDER.level)))


def reap_execution(id: int, lease_token: int, step_seq: int = 0) -> Work:
    return transaction(
        lambda _: lease.reap_execution(
            (id, lease_token), step_seq, lease.CrashPolicy(CRASH_LIMIT, RECORDER.level)
        )
    )


def lease_some(token: int, demand: int = 10, worker: str = WORKER, *, admits: bool = False) -> Work:
    """A pick; by default by the worker whose leases expired, with a new token.

    With `admits`, without the statement for rows that need no admission.
    """
    choose = pick.pick_with_admission if admits else pick.pick

    def plan() -> Plan[pick.Picked]:
        picked = yield from choose(
            QUEUE, pick.PickRequest(MACHINES, demand, token, worker, pick.Leases(LEASE))
        )
        loaded = yield from pick.load(picked.executions)
        return msgspec.structs.replace(picked, executions=loaded)

    return autocommit(lambda _: plan())


def admit_some(token: int, demand: int = 10) -> Work:
    """A pick from a queue that is known to have keys or limits."""
    return lease_some(token, demand, admits=True)


def commit_picked(kind: Any) -> Work:
    """Commit an outcome of each row that this session picked."""

    def make(session: Session) -> Plan[Any] | None:
        picked: pick.Picked = session.result
        entries = [
            outcome(execution.id, kind, lease_token=execution.lease_token, step_seq=execution.step_seq)
            for execution in picked.executions
        ]
        return commit_plain(entries) if entries else None

    return autocommit(make)


def flush_with_effect(entry: CommitEntry) -> Work:
    """Commit an outcome with its effect, as the engine does: run the effect, and undo it if the lease is lost."""

    def plan() -> Plan[Flushed]:
        yield _EFFECT(id=entry.id)
        if not (yield from commits.lock_for_effect(entry)).still_owns_lease:
            yield _UNDO(id=entry.id)
        return (yield from commit([entry]))

    return transaction(lambda _: plan())


def cancel(*ids: int, force: bool = False) -> Work:
    return autocommit(lambda _: control.cancel(ids, "no longer wanted", "ann", force=force))


def delete(*ids: int) -> Work:
    return autocommit(lambda _: control.delete(ids, "obsolete", "ben"))


def plain_delete(*ids: int) -> Work:
    """A plain update of deleted_at."""

    def plan() -> Plan[None]:
        yield _PLAIN_DELETE(ids=ids)

    return autocommit(lambda _: plan())


def end_deleted() -> Work:
    return transaction(lambda _: lease.end_deleted(500))


def restore(*ids: int) -> Work:
    return autocommit(lambda _: control.restore(ids, None, "ben"))


def retry(*ids: int, state: str | None = None) -> Work:
    return autocommit(lambda _: control.retry(ids, state, "mended", "eve"))


def edit(id: int, *, expected_seq: int | None = None, step: str | None = None, wake: bool = False) -> Work:
    """Set the state to {"edited": true}."""

    def plan() -> Plan[EditAnswer]:
        answer = yield from control.edit(
            id,
            '{"edited": true}',
            step,
            expected_seq=expected_seq,
            expected_version=1,
            wake=wake,
            reason="mended",
            actor="eve",
        )
        assert answer is not None
        return EditAnswer(answer["id"], answer["refusal"])

    return autocommit(lambda _: plan())


def fork(id: int, at: int | None = None) -> Work:
    """A new instance after a transition of another one; `None` if that is gone."""
    return autocommit(lambda _: control.fork(id, at, None, None, reason="again", actor="eve"))


def flush_picked(kind: Any, **fields: Any) -> Work:
    """The same with the long commit statement."""

    def make(session: Session) -> Plan[Any] | None:
        picked: pick.Picked = session.result
        entries = [
            outcome(
                execution.id, kind, lease_token=execution.lease_token, step_seq=execution.step_seq, **fields
            )
            for execution in picked.executions
        ]
        return commit(entries) if entries else None

    return transaction(make)


def join_picked(kind: Any, **fields: Any) -> Work:
    """Commit this outcome of each picked row; a row with a live child goes back to its barrier."""

    def make(session: Session) -> Plan[Any] | None:
        picked: pick.Picked = session.result
        entries = [
            outcome(
                execution.id,
                "rejoin" if execution.live_children else kind,
                lease_token=execution.lease_token,
                step_seq=execution.step_seq,
                held_key=execution.concurrency_key,
                **fields,
            )
            for execution in picked.executions
        ]
        return commit(entries) if entries else None

    return transaction(make)


def gate(*keys: str) -> Work:
    return transaction(lambda _: admission.gate(keys))
