"""Group commit: the outcomes of many executions in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from .._core.model import (
    ENDED,
    CommitEntry,
    CommitResult,
    Committed,
    EventRow,
    Execution,
    Lease,
    SignalRow,
    Stale,
)
from .._core.new_rows import alert
from ..config import RecordLevel
from . import admission, outbox, pick
from .insert import dead_letter_failed, insert_children, insert_dead_letters
from .plan import Call, Plan, Row, Rows, statements
from .signals import sweep

__all__ = [
    "FIRST_PAGE",
    "CommitReport",
    "EffectLock",
    "Page",
    "Recorder",
    "commit",
    "commit_plain",
    "commit_status",
    "finish",
    "finish_abandoned",
    "in_lock_order",
    "is_one_statement",
    "lock_for_effect",
    "still_owns_lease",
    "unlocked",
]

_SQL = statements("commit.sql")
# How many executions one round of finish_abandoned looks at; the number stands in commit.sql.
_PAGE: Final = 500


class Recorder(msgspec.Struct, frozen=True, gc=False):
    """Who commits, and which executions leave a record."""

    worker: str
    level: RecordLevel
    grace: timedelta = timedelta(seconds=10)
    """How long the lease of a chained step lasts at least: until the next heartbeat, were its row locked before."""
    alerts: str | None = None
    """The sink that is told of instances that fail."""

    def events(self, entry: CommitEntry) -> tuple[EventRow, ...]:
        """What goes into the outbox with an outcome: what it emits, and behind that the alert if it is a failure."""
        if self.alerts is None or entry.kind != "stop":
            return entry.events
        return (*entry.events, alert(entry, self.alerts))


class CommitReport(msgspec.Struct, frozen=True, gc=False):
    """What became of each entry, in their order, and which queues have something to do now."""

    results: list[CommitResult]
    queues: set[str]


class EffectLock(msgspec.Struct, frozen=True, gc=False):
    """What was found between an effect and its outcome."""

    in_effect_transaction: bool
    """Whether it is still the transaction that the effect was given."""
    isolation: str
    still_owns_lease: bool
    """Whether this execution has its lease, and keeps it now; never under another isolation level than ours."""


def in_lock_order(entries: Iterable[CommitEntry]) -> list[CommitEntry]:
    """Entries in the order in which every transaction takes row locks: ids descending, children before parents."""
    return sorted(entries, key=lambda entry: -entry.id)


def is_one_statement(entries: Sequence[CommitEntry]) -> bool:
    """Whether `commit_plain` will do, which needs no transaction around it."""
    return all(entry.is_plain for entry in entries)


def commit_plain(entries: Sequence[CommitEntry], recorder: Recorder) -> Plan[CommitReport]:
    """Commit plain outcomes: one statement, and at most two more if there are signals that nobody knew of."""
    rows = _by_lease((yield _plain_call(entries, recorder)))
    yield from _sweep(rows.values())
    inbox = yield from _inbox_of_kept(rows)
    return _report(entries, rows, inbox, set())


def commit(entries: Sequence[CommitEntry], recorder: Recorder) -> Plan[CommitReport]:
    """Commit any outcomes: one statement, and at most eleven more, each only if needed. Needs a transaction."""
    if limited := [entry for entry in entries if entry.rate_limit is not None]:
        yield _SQL["check_limits"](
            rate_limits=[entry.rate_limit for entry in limited], weights=[entry.weight for entry in limited]
        )
    rows = _by_lease((yield _full_call(entries, recorder)))
    queues, refused = yield from _insert_children(entries, rows)
    queues |= yield from _rejoin(entries, rows)
    queues |= yield from _insert_dead_letters(entries, rows)
    yield from _emit(entries, rows, recorder)
    parked = [row["id"] for row in rows.values() if row["status"] == "awaiting_signal" and row["has_signals"]]
    if parked:
        queues |= {row["queue"] for row in (yield _SQL["recheck"](ids=parked))}
    yield from _sweep(rows.values())
    freed = [
        key
        for entry in entries
        if (key := entry.execution.concurrency_key) is not None
        and (row := rows.get(entry.lease)) is not None
        and row["status"] != "executing"
    ]
    if freed:
        queues |= yield from admission.ungate(freed)
    inbox = yield from _inbox_of_kept(rows)
    return _report(entries, rows, inbox, queues, refused)


def lock_for_effect(entry: CommitEntry) -> Plan[EffectLock]:
    """Lock the row of an outcome whose effect has run; whether the effect may stand."""
    (row,) = yield _SQL["lock_for_effect"](**_guard(entry.execution))
    return EffectLock(row["in_effect_transaction"], row["isolation"], row["id"] is not None)


def still_owns_lease(entry: CommitEntry) -> Plan[bool]:
    """Whether this execution still has its lease, and nobody wants its instance cancelled."""
    rows = yield _SQL["still_owns_lease"](**_guard(entry.execution))
    return bool(rows)


def _guard(execution: Execution) -> dict[str, int]:
    return {
        "id": execution.id,
        "lease_token": execution.lease_token,
        "step_seq": execution.step_seq,
    }


def finish(entries: Sequence[CommitEntry]) -> Plan[None]:
    """Nothing is left to do for these committed executions: COMMITTED becomes DONE."""
    yield _SQL["finish"](
        ids=[entry.id for entry in entries], step_seqs=[entry.execution.step_seq + 1 for entry in entries]
    )


class Page(msgspec.Struct, frozen=True):
    """How far `finish_abandoned` has come: the last execution that it looked at."""

    finished_at: datetime
    instance_id: int
    step_seq: int


FIRST_PAGE: Final = Page(datetime(1, 1, 2, tzinfo=UTC), 0, 0)


def finish_abandoned(lease: timedelta, after: Page = FIRST_PAGE) -> Plan[tuple[int, Page]]:
    """The same for executions whose worker died in between; how many, and where the next call goes on."""
    (row,) = yield _SQL["finish_abandoned"](
        lease=lease, after_at=after.finished_at, after_id=after.instance_id, after_seq=after.step_seq
    )
    if row["seen"] < _PAGE:
        return row["finished"], FIRST_PAGE
    return row["finished"], Page(row["finished_at"], row["instance_id"], row["step_seq"])


def unlocked(entries: Sequence[CommitEntry]) -> Plan[tuple[list[CommitEntry], list[CommitEntry]]]:
    """Tell entries whose rows are free from those for which somebody's open transaction holds a row."""
    parents = {entry.execution.parent_id for entry in entries} - {None}
    ids = parents | {entry.id for entry in entries}
    free = {row["id"] for row in (yield _SQL["unlocked"](ids=sorted(ids)))}
    can: list[CommitEntry] = []
    must_wait: list[CommitEntry] = []
    for entry in entries:
        parent = entry.execution.parent_id
        is_free = entry.id in free and (parent is None or parent in free)
        (can if is_free else must_wait).append(entry)
    return can, must_wait


def commit_status(entries: Sequence[CommitEntry]) -> Plan[list[CommitResult | None]]:
    """After a COMMIT whose answer was lost: which of these are durable? `None`: not committed, send it again."""
    rows = {row["id"]: row for row in (yield _SQL["commit_status"](ids=[entry.id for entry in entries]))}
    # `commit_plain` sweeps after it has committed: the connection may have been lost in between.
    yield from _sweep(rows.values())
    inbox: Mapping[int, tuple[SignalRow, ...]] = {}
    if kept := [entry.id for entry in entries if entry.kind == "continue" and entry.id in rows]:
        inbox = yield from pick.inboxes(kept)
    return [_result_of(entry, rows.get(entry.id), inbox) for entry in entries]


def _result_of(
    entry: CommitEntry, row: Row | None, inbox: Mapping[int, tuple[SignalRow, ...]]
) -> CommitResult | None:
    if row is None:
        return Stale()
    lease_token, step_seq = entry.execution.lease_token, entry.execution.step_seq
    if row["lease_token"] == lease_token and row["step_seq"] == step_seq:
        return None
    if entry.kind == "continue":
        is_ours = row["lease_token"] == lease_token and row["step_seq"] == step_seq + 1
        return Committed("executing", inbox.get(entry.id, ()), row["leased_at"]) if is_ours else Stale()
    # The lease is gone. If the transition is there, it was ours or that of whoever took the lease over; for an
    # execution that ends here both mean the same: this transition is committed, once.
    advanced = 0 if entry.kind in ("retry", "release", "rejoin", "cancel") else 1
    return Committed(row["status"]) if row["step_seq"] >= step_seq + advanced else Stale()


def _insert_children(
    entries: Sequence[CommitEntry], rows: Mapping[Lease, Row]
) -> Plan[tuple[set[str], Mapping[Lease, int]]]:
    """Children only of parents that the guarded update returned as parked: a stale parent spawns nothing.

    The queues that have work now, and how many children of which parents were refused.
    """
    spawning = [
        entry
        for entry in entries
        if entry.children
        and (row := rows.get(entry.lease)) is not None
        and row["status"] == "awaiting_children"
    ]
    if not spawning:
        return set(), {}
    inserted, queues = yield from insert_children(
        [child for entry in spawning for child in entry.children],
        [entry.id for entry in spawning for _ in entry.children],
        [entry.execution.step_seq + 1 for entry in spawning for _ in entry.children],
    )
    short = [entry for entry in spawning if inserted[entry.id] < len(entry.children)]
    if short:
        queues |= yield from _fix_barriers([entry.id for entry in short])
    refused = {entry.lease: len(entry.children) - inserted[entry.id] for entry in short}
    return queues, refused


def _rejoin(entries: Sequence[CommitEntry], rows: Mapping[Lease, Row]) -> Plan[set[str]]:
    """Count the live children of rows that go back to their barriers; the queues of those that have none left."""
    waiting = [
        entry.id
        for entry in entries
        if entry.kind == "rejoin"
        and (row := rows.get(entry.lease)) is not None
        and row["status"] == "awaiting_children"
    ]
    return (yield from _fix_barriers(waiting)) if waiting else set()


def _fix_barriers(ids: Sequence[int]) -> Plan[set[str]]:
    fixed = yield _SQL["fix_barriers"](ids=ids)
    return {row["queue"] for row in fixed if row["status"] == "runnable"}


def _sweep(rows: Iterable[Row]) -> Plan[None]:
    if ended := [row["id"] for row in rows if row["has_signals"] and row["status"] in ENDED]:
        yield from sweep(ended)


def _by_lease(rows: Rows) -> Mapping[Lease, Row]:
    """Answers by lease: one batch may hold outcomes of a lost and of a live execution of the same instance."""
    return {(row["id"], row["lease_token"]): row for row in rows}


def _insert_dead_letters(entries: Sequence[CommitEntry], rows: Mapping[Lease, Row]) -> Plan[set[str]]:
    """What failed instances leave to somebody; of a stale or cancelled one there is nothing to leave."""
    letters = [
        entry.letter
        for entry in entries
        if entry.letter is not None
        and (row := rows.get(entry.lease)) is not None
        and row["status"] == "failed"
    ]
    unsaid = {
        entry.id: entry.execution.attempt + 1
        for entry in entries
        if entry.leaves_letter and (row := rows.get(entry.lease)) is not None and row["status"] == "failed"
    }
    queues: set[str] = set()
    if letters:
        queues |= yield from insert_dead_letters(letters)
    if unsaid:
        queues |= yield from dead_letter_failed(unsaid)
    return queues


def _emit(entries: Sequence[CommitEntry], rows: Mapping[Lease, Row], recorder: Recorder) -> Plan[None]:
    """Events of outcomes that are durable now; a stale or cancelled one has none."""
    emitting = [
        (entry, events)
        for entry in entries
        if (events := recorder.events(entry))
        and (row := rows.get(entry.lease)) is not None
        and row["status"] != "cancelled"
    ]
    if emitting:
        yield from outbox.emit(emitting)


def _inbox_of_kept(rows: Mapping[Lease, Row]) -> Plan[Mapping[int, tuple[SignalRow, ...]]]:
    """A chained step sees its inbox as a picked one would."""
    kept = [row["id"] for row in rows.values() if row["status"] == "executing" and row["has_signals"]]
    if not kept:
        return {}
    return (yield from pick.inboxes(kept))


def _report(
    entries: Sequence[CommitEntry],
    rows: Mapping[Lease, Row],
    inbox: Mapping[int, tuple[SignalRow, ...]],
    queues: set[str],
    refused: Mapping[Lease, int] | None = None,
) -> CommitReport:
    results: list[CommitResult] = []
    for entry in entries:
        row = rows.get(entry.lease)
        if row is None:
            results.append(Stale())
            continue
        results.append(
            Committed(
                row["status"],
                inbox.get(entry.id, ()),
                row["continued_at"],
                (refused or {}).get(entry.lease, 0),
            )
        )
        if row["status"] == "runnable":
            queues.add(row["queue"])
        if row["released"]:
            queues.update(row["released"])
    return CommitReport(results, queues)


def _plain_call(entries: Sequence[CommitEntry], recorder: Recorder) -> Call:
    rows = [(entry, n, event) for entry in entries for n, event in enumerate(recorder.events(entry), 1)]
    events: dict[str, Any] = {}
    if rows:
        events = {
            "event_ids": [entry.id for entry, _, _ in rows],
            "event_tokens": [entry.execution.lease_token for entry, _, _ in rows],
            "event_ns": [n for _, n, _ in rows],
            "event_sinks": [event.sink for _, _, event in rows],
            "event_types": [event.type for _, _, event in rows],
            "event_subjects": [event.subject for _, _, event in rows],
            "event_datas": [event.data for _, _, event in rows],
        }
    return _SQL["commit_with_events" if rows else "commit_plain"](
        **events,
        ids=[entry.execution.id for entry in entries],
        lease_tokens=[entry.execution.lease_token for entry in entries],
        step_seqs=[entry.execution.step_seq for entry in entries],
        kinds=[entry.kind for entry in entries],
        steps=[entry.step for entry in entries],
        payloads=[entry.payload for entry in entries],
        errors=[entry.error for entry in entries],
        delays=[entry.delay for entry in entries],
        **_record(entries, recorder),
    )


def _full_call(entries: Sequence[CommitEntry], recorder: Recorder) -> Call:
    return _SQL["commit"](
        ids=[entry.execution.id for entry in entries],
        lease_tokens=[entry.execution.lease_token for entry in entries],
        step_seqs=[entry.execution.step_seq for entry in entries],
        kinds=[entry.kind for entry in entries],
        steps=[entry.step for entry in entries],
        payloads=[entry.payload for entry in entries],
        errors=[entry.error for entry in entries],
        failures=[entry.failure for entry in entries],
        delays=[entry.delay for entry in entries],
        awaits=[None if entry.awaits is None else text_array(entry.awaits) for entry in entries],
        presented=[id_array(entry.presented) for entry in entries],
        timeouts=[entry.timeout for entry in entries],
        deadlines=[entry.deadline for entry in entries],
        children=[len(entry.children) for entry in entries],
        switches_keys=[entry.switches_key for entry in entries],
        concurrency_keys=[entry.concurrency_key for entry in entries],
        consumed=[id_array(entry.consumed) if entry.consumed else None for entry in entries],
        rate_limits=[entry.rate_limit for entry in entries],
        weights=[entry.weight for entry in entries],
        **_record(entries, recorder),
    )


def _record(entries: Sequence[CommitEntry], recorder: Recorder) -> dict[str, Any]:
    """What the record of an execution says beside its outcome."""
    return {
        "worker": recorder.worker,
        "record": recorder.level,
        "grace": recorder.grace,
        "finishes_later": [entry.effect is not None or bool(recorder.events(entry)) for entry in entries],
        "causes": [entry.cause for entry in entries],
        "from_steps": [entry.execution.step for entry in entries],
        "attempts": [entry.execution.attempt for entry in entries],
        "leased_ats": [entry.execution.leased_at for entry in entries],
        "started_ats": [entry.started_at for entry in entries],
    }


def id_array(ids: Iterable[int]) -> str:
    """Ids as the text of a PostgreSQL array: an array of arrays of unequal length does not exist."""
    return "{" + ",".join(map(str, ids)) + "}"


def text_array(names: Iterable[str]) -> str:
    """Names as the text of a PostgreSQL array."""
    quoted = (name.replace("\\", "\\\\").replace('"', '\\"') for name in names)
    return "{" + ",".join(f'"{name}"' for name in quoted) + "}"
