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
# How many executions one call of finish_abandoned reads; the same number is in commit.sql.
_PAGE: Final = 500
# Between JSON texts; JSON escapes control characters in strings and has none elsewhere but whitespace.
_SEPARATOR: Final = "\x1e"


class Recorder(msgspec.Struct, frozen=True, gc=False):
    """The worker that commits, and what it records."""

    worker: str
    level: RecordLevel
    grace: timedelta = timedelta(seconds=10)
    """The least remaining lease of a chained step, so that it lasts until the next heartbeat."""
    alerts: str | None = None
    """The sink for alerts about failed instances."""

    def events(self, entry: CommitEntry) -> tuple[EventRow, ...]:
        """The events of an outcome: those that the step emits, then the alert if it fails the instance."""
        if self.alerts is None or entry.kind != "stop":
            return entry.events
        return (*entry.events, alert(entry, self.alerts))


class CommitReport(msgspec.Struct, frozen=True, gc=False):
    """The result of each entry, in their order, and the queues that have work now."""

    results: list[CommitResult]
    queues: set[str]


class EffectLock(msgspec.Struct, frozen=True, gc=False):
    """The state of the transaction after the effect and before the outcome."""

    in_effect_transaction: bool
    """Whether this is still the transaction in which the effect began."""
    isolation: str
    still_owns_lease: bool
    """Whether the execution still owns its lease, which is now locked. False if the isolation level was changed."""


def in_lock_order(entries: Iterable[CommitEntry]) -> list[CommitEntry]:
    """Sort entries in the lock order of all transactions: ids descending, so children before parents."""
    return sorted(entries, key=lambda entry: -entry.id)


def is_one_statement(entries: Sequence[CommitEntry]) -> bool:
    """Whether `commit_plain` can commit these, without a transaction around it."""
    return all(entry.is_plain for entry in entries)


def commit_plain(entries: Sequence[CommitEntry], recorder: Recorder) -> Plan[CommitReport]:
    """Commit plain outcomes: one statement, and at most two more if signals have arrived meanwhile."""
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
    """Lock the row of an outcome after its effect; report whether the effect may commit."""
    (row,) = yield _SQL["lock_for_effect"](**_guard(entry.execution))
    return EffectLock(row["in_effect_transaction"], row["isolation"], row["id"] is not None)


def still_owns_lease(entry: CommitEntry) -> Plan[bool]:
    """Whether the execution still owns its lease, and its instance has no cancel request."""
    rows = yield _SQL["still_owns_lease"](**_guard(entry.execution))
    return bool(rows)


def _guard(execution: Execution) -> dict[str, int]:
    return {
        "id": execution.id,
        "lease_token": execution.lease_token,
        "step_seq": execution.step_seq,
    }


def finish(entries: Sequence[CommitEntry]) -> Plan[None]:
    """Mark committed executions as finished: COMMITTED becomes DONE."""
    yield _SQL["finish"](
        ids=[entry.id for entry in entries], step_seqs=[entry.execution.step_seq + 1 for entry in entries]
    )


class Page(msgspec.Struct, frozen=True):
    """The last execution that `finish_abandoned` has read."""

    finished_at: datetime
    instance_id: int
    step_seq: int


FIRST_PAGE: Final = Page(datetime(1, 1, 2, tzinfo=UTC), 0, 0)


def finish_abandoned(lease: timedelta, after: Page = FIRST_PAGE) -> Plan[tuple[int, Page]]:
    """Finish executions whose worker died after COMMITTED; return how many, and where the next call continues."""
    (row,) = yield _SQL["finish_abandoned"](
        lease=lease, after_at=after.finished_at, after_id=after.instance_id, after_seq=after.step_seq
    )
    if row["seen"] < _PAGE:
        return row["finished"], FIRST_PAGE
    return row["finished"], Page(row["finished_at"], row["instance_id"], row["step_seq"])


def unlocked(entries: Sequence[CommitEntry]) -> Plan[tuple[list[CommitEntry], list[CommitEntry]]]:
    """Split entries: those whose rows are unlocked, and those of which another transaction has locked a row."""
    parents = {entry.execution.parent_id for entry in entries} - {None}
    ids = parents | {entry.id for entry in entries}
    free = {row["id"] for row in (yield _SQL["unlocked"](ids=sorted(ids)))}
    free_entries: list[CommitEntry] = []
    locked_entries: list[CommitEntry] = []
    for entry in entries:
        parent = entry.execution.parent_id
        is_free = entry.id in free and (parent is None or parent in free)
        (free_entries if is_free else locked_entries).append(entry)
    return free_entries, locked_entries


def commit_status(entries: Sequence[CommitEntry]) -> Plan[list[CommitResult | None]]:
    """Find out which entries are durable after a COMMIT without a reply. `None`: not committed, commit it again."""
    rows = {row["id"]: row for row in (yield _SQL["commit_status"](ids=[entry.id for entry in entries]))}
    # `commit_plain` clears inboxes after its commit: the connection may have been lost in between.
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
    # The lease is gone. If the transition is there, this execution or a later one committed it. Either way it is
    # committed exactly once, and this execution ends.
    advanced = 0 if entry.kind in ("retry", "release", "rejoin", "cancel") else 1
    return Committed(row["status"]) if row["step_seq"] >= step_seq + advanced else Stale()


def _insert_children(
    entries: Sequence[CommitEntry], rows: Mapping[Lease, Row]
) -> Plan[tuple[set[str], Mapping[Lease, int]]]:
    """Insert children of the parents that the guarded update returned; a stale outcome has none.

    Returns the queues that have work now, and how many children of each parent were refused.
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
    """Count the live children of rows that return to their barriers; return the queues of rows without any."""
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
    """Rows by lease: one batch may have outcomes of a stale and of a live execution of the same instance."""
    return {(row["id"], row["lease_token"]): row for row in rows}


def _insert_dead_letters(entries: Sequence[CommitEntry], rows: Mapping[Lease, Row]) -> Plan[set[str]]:
    """Insert the dead letters of failed instances; stale and cancelled ones have none."""
    letters = [
        entry.letter
        for entry in entries
        if entry.letter is not None
        and (row := rows.get(entry.lease)) is not None
        and row["status"] == "failed"
    ]
    receiver_unknown = {
        entry.id: entry.execution.attempt + 1
        for entry in entries
        if entry.leaves_letter and (row := rows.get(entry.lease)) is not None and row["status"] == "failed"
    }
    queues: set[str] = set()
    if letters:
        queues |= yield from insert_dead_letters(letters)
    if receiver_unknown:
        queues |= yield from dead_letter_failed(receiver_unknown)
    return queues


def _emit(entries: Sequence[CommitEntry], rows: Mapping[Lease, Row], recorder: Recorder) -> Plan[None]:
    """Write the events of outcomes; stale and cancelled ones have none."""
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
    """Load the inboxes of chained steps, as a pick does."""
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
    profiles: dict[tuple[Any, ...], int] = {}
    numbers = [profiles.setdefault(_profile(entry, recorder), len(profiles) + 1) for entry in entries]
    # Lists: psycopg sends tuples as composite values.
    kinds, steps, errors, delays, from_steps, attempts, leased_ats, finishes_later, causes = (
        map(list, zip(*profiles, strict=True)) if profiles else [[]] * 9
    )
    return _SQL["commit_with_events" if rows else "commit_plain"](
        **events,
        ids=id_array([entry.execution.id for entry in entries]),
        lease_tokens=id_array([entry.execution.lease_token for entry in entries]),
        step_seqs=id_array([entry.execution.step_seq for entry in entries]),
        profiles=id_array(numbers),
        payloads=_SEPARATOR.join([entry.payload or "" for entry in entries]),
        kinds=kinds,
        steps=steps,
        errors=errors,
        delays=delays,
        from_steps=from_steps,
        attempts=attempts,
        leased_ats=leased_ats,
        started_ats=_seconds_array(entries),
        finishes_later=finishes_later,
        causes=causes,
        worker=recorder.worker,
        record=recorder.level,
        grace=recorder.grace,
    )


def _profile(entry: CommitEntry, recorder: Recorder) -> tuple[Any, ...]:
    """The values of an outcome that many outcomes of a batch have in common."""
    execution = entry.execution
    return (
        entry.kind,
        entry.step,
        entry.error,
        entry.delay,
        execution.step,
        execution.attempt,
        execution.leased_at,
        bool(recorder.events(entry)),
        entry.cause,
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
    """The parameters for the execution records."""
    return {
        "worker": recorder.worker,
        "record": recorder.level,
        "grace": recorder.grace,
        "finishes_later": [entry.effect is not None or bool(recorder.events(entry)) for entry in entries],
        "causes": [entry.cause for entry in entries],
        "from_steps": [entry.execution.step for entry in entries],
        "attempts": [entry.execution.attempt for entry in entries],
        "leased_ats": [entry.execution.leased_at for entry in entries],
        "started_ats": _seconds_array(entries),
    }


def _seconds_array(entries: Sequence[CommitEntry]) -> str:
    moments = ["NULL" if entry.started_at is None else repr(entry.started_at) for entry in entries]
    return "{" + ",".join(moments) + "}"


def id_array(ids: Iterable[int]) -> str:
    """Ids as the text of a PostgreSQL array, because arrays of arrays must have equal lengths."""
    return "{" + ",".join(map(str, ids)) + "}"


def text_array(names: Iterable[str]) -> str:
    """Names as the text of a PostgreSQL array."""
    quoted = (name.replace("\\", "\\\\").replace('"', '\\"') for name in names)
    return "{" + ",".join(f'"{name}"' for name in quoted) + "}"
