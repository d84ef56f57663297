"""What sessions do in most scenarios."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from gen_durable._core.model import NewInstance
from gen_durable._db import lease, pick
from gen_durable._db.insert import insert
from gen_durable._db.plan import Plan
from gen_durable._db.signal import deliver
from tests.interleavings.session import RECORDER, Session, Work, autocommit, commit_plain, transaction
from tests.interleavings.world import LEASE, MACHINES, QUEUE, WORKER, outcome

CRASH_LIMIT = 20


def send(target: int | str = 1, name: str = "go", dedup_key: str | None = None) -> Work:
    return autocommit(lambda _: deliver(target, name, "{}", dedup_key))


def put(*rows: NewInstance) -> Work:
    return autocommit(lambda _: insert(rows, is_alone=True))


def reap() -> Work:
    # A lease of a millisecond: the server has been up for longer.
    return transaction(lambda _: lease.reap(timedelta(milliseconds=1), CRASH_LIMIT, RECORDER.level))


def lease_some(token: int, demand: int = 10) -> Work:
    """A pick, by the worker whose leases ran out: same name, new token."""
    return autocommit(lambda _: pick.pick(QUEUE, MACHINES, demand, token, WORKER, LEASE))


def commit_picked(kind: Any) -> Work:
    """Commit an outcome of what this session has just picked, if it got anything."""

    def make(session: Session) -> Plan[Any] | None:
        picked: pick.Picked = session.result
        entries = [
            outcome(execution.id, kind, lease_token=execution.lease_token, step_seq=execution.step_seq)
            for execution in picked.executions
        ]
        return commit_plain(entries) if entries else None

    return autocommit(make)


def gate(*keys: str) -> Work:
    return transaction(lambda _: pick.gate(keys))
