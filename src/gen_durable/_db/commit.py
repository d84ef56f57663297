"""Group commit: the outcomes of many executions in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Final

import msgspec

from .._core.model import (
    ENDED,
    CommitEntry,
    CommitResult,
    Committed,
    EventRow,
    Execution,
    Kind,
    Lease,
    RecordedSignal,
    Redirect,
    SignalRow,
    Stale,
)
from .._core.new_rows import alert
from .._core.settle import TRANSITIONS, released, undone
from ..config import RecordLevel
from . import admission, collect, outbox, pick
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
    "deletable",
    "delete_done",
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
_MAX_INT: Final = 2**31 - 1
_NO_DELAY: Final = timedelta(0)
_STALE: Final = Stale()
_DELETED: Final = Committed("done")
# Only ended instances are deleted. So this execution or a later one has ended the instance, and no execution follows.
_GONE: Final = Committed("gone")
_WITHOUT_LEASE: Final = frozenset({"runnable", "awaiting_signal", "awaiting_children", *ENDED})
_NOT_CANCELLED: Final = (_WITHOUT_LEASE | {"executing"}) - {"cancelled"}
_ENCODER: Final = msgspec.json.Encoder()
# Signals that one record names.
_MOST_SIGNALS: Final = 100
# Columns of the outcomes that `commit_plain` commits: null for all of them.
_RARE: Final = ("presented", "deadlines", "concurrency_keys", "consumed", "signals")
# Columns that are sent once per profile, in the order of `_resolved`.
_PROFILE: Final = (
    *("statuses", "names", "advances", "repeats", "keeps_crashes", "next_attempts", "steps", "errors"),
    *("delays", "from_steps", "attempts", "leased_ats", "finishes_later", "causes"),
    *(
        "awaits",
        "timeouts",
        "children",
        "switches_keys",
        "rate_limits",
        "weights",
        "versions",
        "undos",
        "expires",
    ),
    "versions_before",
)
# Between JSON texts; JSON escapes control characters in strings and has none elsewhere but whitespace.
_SEPARATOR: Final = "\x1e"
_ID: Final = attrgetter("execution.id")


class Recorder(msgspec.Struct, frozen=True, gc=False):
    """The worker that commits, and what it records."""

    worker: str
    level: RecordLevel
    grace: timedelta = timedelta(seconds=10)
    """The least remaining lease of a chained step, so that it lasts until the next heartbeat."""
    alerts: str | None = None
    """The sink for alerts about failed instances."""
    keeps_done: bool = True
    """Whether done instances are kept; `False` if `settings.retention_done` is 0."""
    is_awaited: Callable[[int], bool] = lambda _: False
    """Whether a client of this process waits for an instance. That client then reads and deletes it."""
    histories: frozenset[str] = frozenset()
    """The machines whose transitions keep their states."""

    def may_delete(self, entry: CommitEntry) -> bool:
        """Whether the instance is not kept, if it is done by this outcome. A child is kept: its parent reads it."""
        return (
            entry.kind == "done"
            and not (entry.keep and (self.keeps_done or entry.expires))
            and entry.execution.parent_id is None
        )

    def deletes(self, entry: CommitEntry) -> bool:
        """Whether the commit deletes the instance, if it is done by this outcome."""
        return self.may_delete(entry) and not self.is_awaited(entry.id)

    def events(self, entry: CommitEntry) -> tuple[EventRow, ...]:
        """The events of an outcome: those that the step emits, then the alert if it fails the instance."""
        if self.alerts is None or entry.kind not in ("stop", "undone_failed"):
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
    return sorted(entries, key=_ID, reverse=True)


def is_one_statement(entries: Sequence[CommitEntry], recorder: Recorder) -> bool:
    """Whether `commit_plain` can commit these, without a transaction around it."""
    keeps_done = recorder.keeps_done
    for entry in entries:
        # `deletes` is called for few: most outcomes are kept.
        if not entry.is_plain or (
            not (entry.keep and (keeps_done or entry.expires)) and recorder.deletes(entry)
        ):
            return False
    return True


def deletable(entries: Iterable[CommitEntry], recorder: Recorder) -> list[CommitEntry]:
    """Return the entries that `delete_done` can commit."""
    keeps_done = recorder.keeps_done
    return [
        entry
        for entry in entries
        if not (entry.keep and (keeps_done or entry.expires))
        and recorder.deletes(entry)
        and entry.is_plain
        and not entry.events
    ]


def delete_done(entries: Sequence[CommitEntry]) -> Plan[CommitReport]:
    """Commit `done` outcomes by deleting their rows: one statement, two more if signals have arrived meanwhile.

    A stale result is preliminary: `commit` has to decide.
    """
    numbers = yield from collect.delete_done(**_guards(entries))
    results: list[CommitResult] = [_STALE] * len(entries)
    for index in _indexes(numbers):
        results[index] = _DELETED
    return CommitReport(results, set())


def commit_plain(entries: Sequence[CommitEntry], recorder: Recorder) -> Plan[CommitReport]:
    """Commit plain outcomes: one statement, and at most two more if signals have arrived meanwhile."""
    groups = yield _plain_call(entries, recorder)
    yield from _sweep(entries, groups)
    inbox = yield from _inbox_of_kept(entries, groups)
    return _report(entries, groups, inbox, set())


def commit(entries: Sequence[CommitEntry], recorder: Recorder) -> Plan[CommitReport]:
    """Commit any outcomes: one statement, and at most thirteen more, each only if needed. Needs a transaction.

    A single outcome that the guarded update leaves out may redirect its instance. Of several, such outcomes are stale
    here and have to be committed one by one: redirecting locks the row after the rows of the other outcomes.
    """
    if limited := [entry for entry in entries if entry.rate_limit is not None]:
        yield _SQL["check_limits"](
            rate_limits=[entry.rate_limit for entry in limited], weights=[entry.weight for entry in limited]
        )
    if unstarted := [entry for entry in entries if entry.returns_tokens]:
        yield _SQL["return_tokens"](**_guards(unstarted))
    groups = yield _full_call(entries, recorder)
    redirect: Redirect | None = None
    if not groups and len(entries) == 1:
        entries, groups, redirect = yield from _unwind(entries[0], recorder)
    queues, refused = yield from _insert_children(entries, groups)
    queues |= yield from _rejoin(entries, groups)
    queues |= yield from _insert_dead_letters(entries, groups)
    yield from _emit(entries, groups, recorder)
    if parked := _entries_in(entries, groups, {"awaiting_signal"}, has_signals=True):
        queues |= {row["queue"] for row in (yield _SQL["recheck"](ids=[entry.id for entry in parked]))}
    yield from _sweep(entries, groups)
    freed = _entries_in(entries, groups, _WITHOUT_LEASE)
    if keys := [key for entry in freed if (key := entry.execution.concurrency_key) is not None]:
        queues |= yield from admission.ungate(keys)
    if ended := [entry.id for entry in _entries_in(entries, groups, {"done"}) if recorder.deletes(entry)]:
        yield from collect.collect_done(ended)
    inbox = yield from _inbox_of_kept(entries, groups)
    report = _report(entries, groups, inbox, queues, refused)
    if redirect is not None and isinstance(result := report.results[0], Committed):
        report.results[0] = msgspec.structs.replace(result, redirect=redirect)
    return report


def _unwind(
    entry: CommitEntry, recorder: Recorder
) -> Plan[tuple[Sequence[CommitEntry], Rows, Redirect | None]]:
    """Redirect an instance that would end, or end it after its last undo step.

    Returns what is to be committed, and the rows of the guarded update; no rows if the outcome is stale.
    """
    execution, status = entry.execution, TRANSITIONS[entry.kind].status
    rows = yield _SQL["unwind"](
        **_guard(execution),
        ends_as=status if status in ENDED else None,
        skips_undo=entry.skips_undo,
        reason=entry.error,
        failure=entry.failure,
        cause=entry.cause if status == "failed" else None,
        state=entry.state if entry.kind == "done" else entry.payload if entry.kind == "stop" else None,
        version=entry.version,
        # As a Next does: the signals that woke this step must not wake the undo step. The database drops
        # them if a cancel discards the outcome.
        consumed=sorted({*entry.consumed, *(row.id for row in execution.awaited)}),
        worker=recorder.worker,
        record=recorder.level,
        finishes_later=_finishes_later(entry, recorder),
    )
    if not rows:
        return [entry], (), None
    (row,) = rows
    if row["action"] == "end":
        if row["final"] is not None:
            entry = undone(entry, msgspec.json.decode(row["final"]))
        return [entry], (yield _full_call([entry], recorder)), None
    moved = released(entry) if row["action"] == "cancel" else msgspec.structs.replace(entry, kind="release")
    group = {
        **{name: row[name] for name in ("status", "has_signals", "committed_at")},
        "queue": row["queue"] if row["status"] == "runnable" else None,
        "numbers": "{1}",
        "released": None,
    }
    return [moved], [group], row["redirect"]


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


def commit_status(entries: Sequence[CommitEntry], recorder: Recorder) -> Plan[list[CommitResult | None]]:
    """Find out which entries are durable after a COMMIT without a reply. `None`: not committed, commit it again."""
    rows = {row["id"]: row for row in (yield _SQL["commit_status"](ids=[entry.id for entry in entries]))}
    # `commit_plain` clears inboxes after its commit: the connection may have been lost in between.
    if ended := [row["id"] for row in rows.values() if row["has_signals"] and row["status"] in ENDED]:
        yield from sweep(ended)
    inbox: Mapping[int, tuple[SignalRow, ...]] = {}
    if kept := [entry.id for entry in entries if entry.kind == "continue" and entry.id in rows]:
        inbox = yield from pick.inboxes(kept)
    return [
        _GONE
        if entry.id not in rows and recorder.may_delete(entry)
        else _result_of(entry, rows.get(entry.id), inbox)
        for entry in entries
    ]


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
    advanced = TRANSITIONS[entry.kind].advances
    return Committed(row["status"]) if row["step_seq"] >= step_seq + advanced else Stale()


def _entries_in(
    entries: Sequence[CommitEntry], groups: Rows, statuses: Container[str], *, has_signals: bool = False
) -> list[CommitEntry]:
    """Return the entries whose rows have one of these statuses now; with `has_signals`, only those with signals."""
    return [
        entries[index]
        for group in groups
        if group["status"] in statuses and (group["has_signals"] or not has_signals)
        for index in _indexes(group["numbers"])
    ]


def _indexes(numbers: str) -> list[int]:
    """Convert the text of an array of numbers, which begin at 1, to indexes."""
    return [int(number) - 1 for number in numbers[1:-1].split(",")] if numbers != "{}" else []


def _insert_children(
    entries: Sequence[CommitEntry], groups: Rows
) -> Plan[tuple[set[str], Mapping[Lease, int]]]:
    """Insert children of the parents that the guarded update returned; a stale outcome has none.

    Returns the queues that have work now, and how many children of each parent were refused.
    """
    spawning = [entry for entry in _entries_in(entries, groups, {"awaiting_children"}) if entry.children]
    if not spawning:
        return set(), {}
    inserted, queues = yield from insert_children(
        [child for entry in spawning for child in entry.children],
        [entry.id for entry in spawning for _ in entry.children],
        [entry.execution.step_seq + 1 for entry in spawning for _ in entry.children],
    )
    short = [entry for entry in spawning if inserted[entry.id] < len(entry.children)]
    if short:
        queues |= yield from _fix_barriers(short)
    refused = {entry.lease: len(entry.children) - inserted[entry.id] for entry in short}
    return queues, refused


def _rejoin(entries: Sequence[CommitEntry], groups: Rows) -> Plan[set[str]]:
    """Count the live children of rows that return to their barriers; return the queues of rows without any."""
    waiting = [
        entry for entry in _entries_in(entries, groups, {"awaiting_children"}) if entry.kind == "rejoin"
    ]
    return (yield from _fix_barriers(waiting)) if waiting else set()


def _fix_barriers(entries: Sequence[CommitEntry]) -> Plan[set[str]]:
    fixed = yield _SQL["fix_barriers"](ids=[entry.id for entry in entries])
    return {row["queue"] for row in fixed if row["status"] == "runnable"}


def _sweep(entries: Sequence[CommitEntry], groups: Rows) -> Plan[None]:
    if ended := _entries_in(entries, groups, ENDED, has_signals=True):
        yield from sweep([entry.id for entry in ended])


def _insert_dead_letters(entries: Sequence[CommitEntry], groups: Rows) -> Plan[set[str]]:
    """Insert the dead letters of failed instances; stale and cancelled ones have none."""
    failed = _entries_in(entries, groups, {"failed"})
    queues: set[str] = set()
    if letters := [entry.letter for entry in failed if entry.letter is not None]:
        queues |= yield from insert_dead_letters(letters)
    if unknown := {entry.id: min(entry.attempts, _MAX_INT) for entry in failed if entry.leaves_letter}:
        queues |= yield from dead_letter_failed(unknown)
    return queues


def _emit(entries: Sequence[CommitEntry], groups: Rows, recorder: Recorder) -> Plan[None]:
    """Write the events of outcomes; stale and cancelled ones have none."""
    emitting = [
        (entry, events)
        for entry in _entries_in(entries, groups, _NOT_CANCELLED)
        if (events := recorder.events(entry))
    ]
    if emitting:
        yield from outbox.emit(emitting)


def _inbox_of_kept(entries: Sequence[CommitEntry], groups: Rows) -> Plan[Mapping[int, tuple[SignalRow, ...]]]:
    """Load the inboxes of chained steps, as a pick does."""
    if kept := _entries_in(entries, groups, {"executing"}, has_signals=True):
        return (yield from pick.inboxes([entry.id for entry in kept]))
    return {}


def _report(
    entries: Sequence[CommitEntry],
    groups: Rows,
    inbox: Mapping[int, tuple[SignalRow, ...]],
    queues: set[str],
    refused: Mapping[Lease, int] | None = None,
) -> CommitReport:
    results: list[CommitResult] = [_STALE] * len(entries)
    for group in groups:
        status = group["status"]
        committed = Committed(status, leased_at=group["committed_at"] if status == "executing" else None)
        for index in _indexes(group["numbers"]):
            results[index] = committed
        if group["queue"] is not None:
            queues.add(group["queue"])
        if group["released"]:
            queues.update(group["released"])
    if inbox or refused:
        for index, (entry, result) in enumerate(zip(entries, results, strict=True)):
            if isinstance(result, Committed):
                results[index] = msgspec.structs.replace(
                    result, inbox=inbox.get(entry.id, ()), refused=(refused or {}).get(entry.lease, 0)
                )
    return CommitReport(results, queues)


def _plain_call(entries: Sequence[CommitEntry], recorder: Recorder) -> Call:
    values = _values(entries, recorder, [None] * len(entries))
    values.update(dict.fromkeys(_RARE))
    has_alerts = recorder.alerts is not None
    events = [
        (number, n, event)
        for number, entry in enumerate(entries, 1)
        if entry.events or has_alerts
        for n, event in enumerate(recorder.events(entry), 1)
    ]
    if not events:
        return _SQL["commit_plain"](**values)
    return _SQL["commit_with_events"](
        **values,
        event_numbers=[number for number, _, _ in events],
        event_ns=[n for _, n, _ in events],
        event_sinks=[event.sink for _, _, event in events],
        event_types=[event.type for _, _, event in events],
        event_subjects=[event.subject for _, _, event in events],
        event_datas=[event.data for _, _, event in events],
    )


def _full_call(entries: Sequence[CommitEntry], recorder: Recorder) -> Call:
    return _SQL["commit"](
        **_values(entries, recorder, [_rare(entry) for entry in entries]),
        presented=_column([id_array(entry.presented) if entry.presented else None for entry in entries]),
        deadlines=_column([entry.deadline for entry in entries]),
        concurrency_keys=_column([entry.concurrency_key for entry in entries]),
        consumed=_column([id_array(entry.consumed) if entry.consumed else None for entry in entries]),
        signals=_column([_signals(entry) if entry.execution.inbox else None for entry in entries]),
    )


def _values(
    entries: Sequence[CommitEntry], recorder: Recorder, rare: Sequence[tuple[Any, ...] | None]
) -> dict[str, Any]:
    """The parameters of all commits. Values that many outcomes of a batch have in common are a profile."""
    profiles: dict[tuple[Any, ...], int] = {}
    numbers: list[int] = []
    has_final_states = False
    histories = recorder.histories
    has_alerts = recorder.alerts is not None
    for entry, more in zip(entries, rare, strict=True):
        execution = entry.execution
        profile = (
            entry.kind,
            entry.step,
            entry.error,
            entry.delay,
            execution.step,
            execution.attempt,
            execution.leased_at,
            (has_alerts or entry.events != () or entry.effect is not None)
            and _finishes_later(entry, recorder),
            entry.cause,
            entry.undo,
            entry.expires,
            more,
            execution.version if execution.fsm in histories else None,
        )
        has_final_states |= entry.state is not None
        numbers.append(profiles.setdefault(profile, len(profiles) + 1))
    # Lists: psycopg sends tuples as composite values.
    columns = map(list, zip(*map(_resolved, profiles), strict=True)) if profiles else [[]] * len(_PROFILE)
    return {
        **_guards(entries),
        "profiles": id_array(numbers),
        "payloads": _SEPARATOR.join([entry.payload or "" for entry in entries]),
        "started_ats": _seconds_array(entries),
        "final_states": [entry.state for entry in entries] if has_final_states else None,
        "failures": _column([entry.failure for entry in entries]),
        "states_before": _states_before(entries, histories) if histories else None,
        "worker": recorder.worker,
        "record": recorder.level,
        "grace": recorder.grace,
        **{name: _column(column) for name, column in zip(_PROFILE, columns, strict=True)},
    }


def _guards(entries: Sequence[CommitEntry]) -> dict[str, str]:
    return {
        "ids": id_array([entry.execution.id for entry in entries]),
        "lease_tokens": id_array([entry.execution.lease_token for entry in entries]),
        "step_seqs": id_array([entry.execution.step_seq for entry in entries]),
    }


def _finishes_later(entry: CommitEntry, recorder: Recorder) -> bool:
    """Whether its execution is COMMITTED first: `finish` or the dispatcher makes it DONE."""
    return entry.effect is not None or bool(recorder.events(entry))


def _rare(entry: CommitEntry) -> tuple[Any, ...]:
    return (
        entry.attempt,
        None if entry.awaits is None else text_array(entry.awaits),
        entry.timeout,
        len(entry.children) if entry.kind == "schedule_children" else None,
        entry.switches_key,
        entry.rate_limit,
        entry.weight,
        entry.version,
    )


def _resolved(profile: tuple[Any, ...]) -> tuple[Any, ...]:
    """Resolve a profile to the columns that it sets."""
    kind, step, error, delay, from_step, attempt, leased_at, finishes_later, cause, undo, *more = profile
    expires, rare, version_before = more
    transition = TRANSITIONS[kind]
    status = transition.status
    ended_attempt, awaits, timeout, children, *more = rare or (None,) * 8
    if children == 0:
        status = "runnable"
    return (
        status,
        transition.outcome,
        int(transition.advances),
        transition.repeats,
        transition.keeps_crashes,
        _next_attempt(kind, attempt, ended_attempt),
        step if transition.moves else None,
        error,
        delay or _NO_DELAY if status == "runnable" and kind != "release" else None,
        from_step,
        attempt,
        leased_at,
        finishes_later,
        cause,
        awaits,
        timeout,
        children,
        *more,
        undo,
        # Failures and cancels are rare: the database looks up whether their machine declares a retention.
        expires or status in ("failed", "cancelled") or None,
        version_before,
    )


def _next_attempt(kind: Kind, attempt: int, ended_attempt: int | None) -> int | None:
    """The attempt after the outcome; `None`: unchanged."""
    if kind == "retry":
        return min(attempt, _MAX_INT - 1) + 1
    return (ended_attempt or 0) if TRANSITIONS[kind].moves else None


def _states_before(entries: Sequence[CommitEntry], histories: frozenset[str]) -> list[str | None] | None:
    """The states before the first transitions of machines that keep their history; others are in earlier records."""
    return _column(
        [
            entry.execution.state
            if entry.execution.fsm in histories
            and not entry.execution.step_seq
            and (entry.kind == "retry" or TRANSITIONS[entry.kind].advances)
            else None
            for entry in entries
        ]
    )


def _signals(entry: CommitEntry) -> str | None:
    """The signals that leave the inbox with an outcome, for its record, as JSON: the newest of them."""
    execution, consumed = entry.execution, frozenset(entry.consumed)
    if TRANSITIONS[entry.kind].status in ENDED:
        awaits = execution.awaits or ()
        signals = [
            RecordedSignal(
                row.id, row.name, row.inserted_at, row.id not in consumed and row.name not in awaits
            )
            for row in execution.inbox[-_MOST_SIGNALS:]
        ]
    elif consumed:
        signals = [
            RecordedSignal(row.id, row.name, row.inserted_at) for row in execution.inbox if row.id in consumed
        ][-_MOST_SIGNALS:]
    else:
        return None
    return _ENCODER.encode(signals).decode()


def _column(values: list[Any]) -> list[Any] | None:
    """Return the values of a column, or `None` if all are `None`: the shortest array without a value."""
    return None if values.count(None) == len(values) else values


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
