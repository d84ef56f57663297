"""The operations of both clients and of the command line. Each is a plan that returns the value for the caller.

Plans of changes return two values: the result, and the queues that have work now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Protocol, TypedDict, TypeVar, get_args

from ._checks import checked_id, checked_int, checked_key, checked_moment, checked_name
from ._core.codec import convert, decode, encode
from ._core.explanation import explanation_of
from ._core.hydration import instance_of
from ._core.model import NewInstance
from ._core.new_rows import new_instance
from ._core.records import record_of
from ._db import audit as audits
from ._db import control, outbox, signals, snapshots
from ._db import doctor as doctors
from ._db import explain as explains
from ._db import insert as inserts
from ._db import limits as stored_limits
from ._db import workers as stored_workers
from ._db.plan import Plan
from ._dictionary import did_you_mean
from ._polling import Pace
from ._tracing import traceparent_of_signal
from ._typing import KEEP
from .audit import AuditEvent
from .config import AuditLevel, Settings
from .definition import MachineDef, StepRef, definition_of, step_name
from .errors import CodecError, KeyTakenError, NoTargetError, PauseTimeoutError, UsageError
from .events import EventRecord, EventState
from .findings import Finding
from .instance import (
    LIVE_STATUSES,
    STATUS_WORDS,
    AlreadyFinished,
    Cancelled,
    CancelRequested,
    CancelResult,
    Deleted,
    Delivered,
    Delivery,
    DuplicateSignal,
    ExecutionRecord,
    Instance,
    JobWord,
    NotRetried,
    Restored,
    Retried,
    RetryResult,
    Status,
    Until,
    statuses_of,
)
from .limits import Limit, LimitKind, checked_limits, limit_name
from .operations import QueueControl, QueueStatus, WorkerInfo
from .outcome import reason_text
from .reasons import Explanation
from .refs import (
    AnySpec,
    Duplicate,
    Insertable,
    Inserted,
    InsertResult,
    Key,
    KeyTaken,
    Ref,
    Target,
    key_text,
    target_value,
)
from .signals import Signal

__all__ = [
    "Filters",
    "PauseConfirmation",
    "Poll",
    "Wait",
    "audit",
    "audit_level",
    "audit_log",
    "cancel",
    "cancel_all",
    "children",
    "count",
    "current",
    "definition_of_target",
    "delete_all",
    "doctor",
    "events",
    "executions",
    "explain",
    "get",
    "insert",
    "insert_all",
    "limits",
    "page",
    "pause_confirmation",
    "pause_queue",
    "queues",
    "remove_limit",
    "replay",
    "resolve",
    "restore",
    "resume_queue",
    "retry",
    "retry_all",
    "set_audit",
    "set_limit",
    "set_queue",
    "signal",
    "soft_delete",
    "workers",
]

T_co = TypeVar("T_co", covariant=True)
_MAX_PAGE: Final = 10_000


class Filters(TypedDict, total=False):
    """Filters of `list`, `count` and the bulk methods. All given filters must match."""

    version: int
    step: StepRef[Any] | str
    status: Status | JobWord | Iterable[Status | JobWord]
    """A status, several, or a word of the job model: `pending`, `leased`, `succeeded`."""
    queue: str
    correlation_key: Key
    unique_key: Key | bytes
    concurrency_key: Key
    parent: Ref[Any, Any] | int
    schedule: str
    """Only instances that this schedule inserted."""
    inserted_after: datetime
    inserted_before: datetime
    with_deleted: bool
    """Also instances that are softly deleted."""


def insert(
    spec: AnySpec, settings: Settings, *, autocommit: bool
) -> Plan[tuple[InsertResult[Any, Any], set[str]]]:
    """Insert one instance."""
    (result,), queues = yield from insert_all([spec], settings, autocommit=autocommit)
    if isinstance(result, KeyTaken):
        raise result.error
    return result, queues


def insert_all(
    specs: Sequence[AnySpec], settings: Settings, *, autocommit: bool
) -> Plan[tuple[list[InsertResult[Any, Any] | KeyTaken[Any, Any]], set[str]]]:
    """Insert instances; the results are in the order of the specs."""
    for spec in specs:
        if not isinstance(spec, AnySpec):
            raise UsageError(
                f"insert_all got a value of type {type(spec).__name__}", "wrap each one: Spec(Machine, state)"
            )
    rows = []
    for number, spec in enumerate(specs, start=1):
        try:
            rows.append(new_instance(spec, settings.max_payload))
        except CodecError as error:
            if len(specs) > 1:
                error.add_note(f"Spec {number} of {len(specs)}; none of them was inserted.")
            raise
    answers = yield from inserts.insert(rows, autocommit=autocommit)
    results = [_insert_result(*one) for one in zip(specs, rows, answers, strict=True)]
    return results, {answer.queue for answer in answers if answer.is_new}


def signal(
    target: Target, signal: Signal[Any] | str, payload: Any, dedup_key: Key | None, settings: Settings
) -> Plan[tuple[Delivery, set[str]]]:
    """Deliver a signal."""
    name = signal.name if isinstance(signal, Signal) else checked_name(signal, "the name of a signal")
    payload_type = signal.payload_type if isinstance(signal, Signal) else Any
    text = encode(payload, payload_type, f"the payload of signal '{name}'", settings.max_payload)
    if dedup_key is not None:
        dedup_key = key_text(dedup_key, "dedup_key")
    value = target_value(target)
    arrival = yield from signals.deliver(
        value, name, text, dedup_key, traceparent_of_signal(), settings.max_inbox
    )
    if arrival is None:
        raise NoTargetError(value, f"signal '{name}'")
    if not arrival.is_new:
        return DuplicateSignal(arrival.id), set()
    return Delivered(arrival.id, arrival.has_woken), {arrival.queue} if arrival.has_woken else set()


def receive(
    message_id: str, key: str, name: str, payload: Any, dedup_key: str, settings: Settings
) -> Plan[tuple[bool, set[str]]]:
    """Deliver an inbound message as a signal, once over all targets; return whether it is new. Needs a transaction.

    Message ids outlive instances: a message that is repeated after its target has ended is recognised.
    """
    checked_name(name, "the name of a signal")
    checked_key(key, "the correlation key")
    checked_key(dedup_key, "the id of a message")
    if not (yield from signals.claim(message_id, key, name)):
        return False, set()
    delivery, queues = yield from signal(key, name, payload, dedup_key, settings)
    return isinstance(delivery, Delivered), queues


def get(target: Target, *, with_deleted: bool = False) -> Plan[Instance[Any, Any] | None]:
    """Return one instance, or `None`."""
    row = yield from snapshots.get(target_value(target))
    if row is None or (row["deleted_at"] is not None and not with_deleted):
        return None
    return read(row, definition_of_target(target))


def resolve(target: Target, verb: str) -> Plan[int]:
    """Return the id of a target; raise NoTargetError if a correlation key has no instance."""
    value = target_value(target)
    if isinstance(value, int):
        return value
    row = yield from snapshots.get(value)
    if row is None:
        raise NoTargetError(value, verb)
    id: int = row["id"]
    return id


def page(
    machine: Insertable[Any, Any] | str | None, limit: int, before: int | None, filters: Mapping[str, Any]
) -> Plan[Sequence[Instance[Any, Any]]]:
    """Return a page of instances, newest first."""
    checked_int(limit, "limit", 1, _MAX_PAGE)
    if before is not None:
        checked_id(before)
    definition = None if machine is None or isinstance(machine, str) else definition_of(machine)
    rows = yield from snapshots.page(_filter(machine, filters), limit, before)
    return [read(row, definition) for row in rows]


def count(machine: Insertable[Any, Any] | str | None, filters: Mapping[str, Any]) -> Plan[int]:
    """Count instances."""
    return (yield from snapshots.count(_filter(machine, filters)))


def children(target: Target, *, every: bool) -> Plan[Sequence[Instance[Any, Any]]]:
    """Return the children of an instance."""
    id = yield from resolve(target, "list the children")
    rows = yield from snapshots.children_of(id, every=every)
    return [read(row, None) for row in rows]


def cancel(
    target: Target, reason: str | None, actor: str | None, *, force: bool, cascade: bool, autocommit: bool
) -> Plan[tuple[CancelResult, set[str]]]:
    """Cancel an instance; with `cascade`, also all descendants."""
    id = yield from resolve(target, "cancel")
    why, who = _reason(reason), _actor(actor)
    rows = yield from control.cancel([id], why, who, force=force, autocommit=autocommit)
    if not rows:
        raise NoTargetError(id, "cancel")
    queues = _woken(rows)
    # One transaction per generation and batch: parents and children in one would be locked in the wrong order. Failed
    # and cancelled descendants are included, because they may have live children.
    parents = [id] if cascade else []
    while parents:
        parents = yield from control.unfinished_children(parents)
        yield from control.in_batches(
            parents,
            lambda batch: control.cancel(batch, why, who, force=force, autocommit=autocommit),
            lambda rows: queues.update(_woken(rows)),
        )
    return _cancel_result(rows[0]), queues


def cancel_all(
    machine: Insertable[Any, Any] | str | None,
    filters: Mapping[str, Any],
    reason: str | None,
    actor: str | None,
    *,
    force: bool,
    autocommit: bool,
) -> Plan[tuple[int, set[str]]]:
    """Cancel all live instances that match; return how many."""
    wanted = _filter(machine, {"status": LIVE_STATUSES, **filters})
    why, who = _reason(reason), _actor(actor)
    count, queues = 0, set[str]()

    def on_changed(rows: Sequence[Mapping[str, Any]]) -> None:
        nonlocal count
        count += sum(not Status(row["was"]).is_terminal for row in rows)
        queues.update(_woken(rows))

    yield from control.in_batches(
        _parents_first((yield from control.matching_ids(wanted))),
        lambda batch: control.cancel(batch, why, who, force=force, autocommit=autocommit),
        on_changed,
    )
    return count, queues


def soft_delete(
    target: Target, reason: str | None, actor: str | None, *, autocommit: bool
) -> Plan[tuple[Deleted, set[str]]]:
    """Soft-delete an instance."""
    id = yield from resolve(target, "delete")
    rows = yield from control.delete([id], _reason(reason), _actor(actor), autocommit=autocommit)
    if not rows:
        raise NoTargetError(id, "delete")
    row = rows[0]
    return Deleted(id, row["deleted_at"], row["status"] == Status.EXECUTING), _woken(rows)


def delete_all(
    machine: Insertable[Any, Any] | str | None,
    filters: Mapping[str, Any],
    reason: str | None,
    actor: str | None,
    *,
    autocommit: bool,
) -> Plan[tuple[int, set[str]]]:
    """Soft-delete all instances that match; return how many."""
    wanted = _filter(machine, filters)
    why, who = _reason(reason), _actor(actor)
    count, queues = 0, set[str]()

    def on_changed(rows: Sequence[Mapping[str, Any]]) -> None:
        nonlocal count
        count += len(rows)
        queues.update(_woken(rows))

    yield from control.in_batches(
        _parents_first((yield from control.matching_ids(wanted))),
        lambda batch: control.delete(batch, why, who, autocommit=autocommit),
        on_changed,
    )
    return count, queues


def restore(
    target: Target, reason: str | None, actor: str | None, *, autocommit: bool
) -> Plan[tuple[Restored, set[str]]]:
    """Undo a soft delete. A key refers to the deleted instance that had it, even if another instance has it now."""
    value = target_value(target)
    id = (yield from control.deleted_with_key(value)) if isinstance(value, str) else value
    if id is None:
        id = yield from resolve(target, "restore")
    rows = yield from control.restore([id], _reason(reason), _actor(actor), autocommit=autocommit)
    if not rows:
        raise NoTargetError(id, "restore")
    return Restored(id, Status(rows[0]["status"])), set()


def retry(
    target: Target,
    state: Any,
    reason: str | None,
    actor: str | None,
    settings: Settings,
    *,
    autocommit: bool,
) -> Plan[tuple[RetryResult, set[str]]]:
    """Continue a failed or cancelled instance where it ended."""
    text = None
    if state is not KEEP:
        definition = definition_of_target(target)
        type_ = definition.state_type if definition else Any
        what = "the new state"
        text = encode(convert(state, type_, what), type_, what, settings.max_payload)
    id = yield from resolve(target, "retry")
    rows = yield from control.retry([id], text, _reason(reason), _actor(actor), autocommit=autocommit)
    if not rows:
        raise NoTargetError(id, "retry")
    row = rows[0]
    if not row["is_retried"]:
        return NotRetried(id, Status(row["status"])), set()
    return Retried(id), {row["queue"]}


def retry_all(
    machine: Insertable[Any, Any] | str | None,
    filters: Mapping[str, Any],
    reason: str | None,
    actor: str | None,
    *,
    autocommit: bool,
) -> Plan[tuple[int, set[str]]]:
    """Retry all failed and cancelled instances that match; return how many.

    Newest first: children before their parents, which then wait for them.
    """
    wanted = _filter(machine, {"status": (Status.FAILED, Status.CANCELLED), **filters})
    why, who = _reason(reason), _actor(actor)
    count, queues = 0, set[str]()

    def on_changed(rows: Sequence[Mapping[str, Any]]) -> None:
        nonlocal count
        retried = [row for row in rows if row["is_retried"]]
        count += len(retried)
        queues.update(row["queue"] for row in retried)

    yield from control.in_batches(
        (yield from control.matching_ids(wanted)),
        lambda batch: control.retry(batch, None, why, who, autocommit=autocommit),
        on_changed,
    )
    return count, queues


def executions(target: Target) -> Plan[Sequence[ExecutionRecord]]:
    """Return the executions of an instance."""
    id = yield from resolve(target, "list the executions")
    rows = yield from snapshots.executions(id)
    return [record_of(row) for row in rows]


def explain(target: Target) -> Plan[Explanation]:
    """Explain why an instance does not run."""
    id = yield from resolve(target, "explain")
    row = yield from explains.facts(id)
    if row is None:
        raise NoTargetError(id, "explain")
    return explanation_of(row)


def doctor(settings: Settings) -> Plan[Sequence[Finding]]:
    """Check the database and its workers for problems."""
    return (yield from doctors.examine(settings))


def workers() -> Plan[Sequence[WorkerInfo]]:
    """Return live workers, and those that died recently."""
    return (yield from stored_workers.list_workers())


def queues() -> Plan[Sequence[QueueStatus]]:
    """Return all queues with their backlog."""
    return (yield from stored_workers.queues())


def pause_queue(name: str, reason: str | None, actor: str | None) -> Plan[tuple[QueueControl, set[str]]]:
    """Pause a queue."""
    checked_name(name, "the queue")
    return (yield from stored_workers.pause_queue(name, _actor(actor), _reason(reason))), set()


def pause_confirmation(
    name: str, *, wait: bool, timeout: timedelta | None, has_conn: bool
) -> PauseConfirmation | None:
    """Return the poll for the confirmations of a pause; `None` without `wait`."""
    if wait:
        return PauseConfirmation(name, timeout, has_conn=has_conn)
    if timeout is not None:
        raise UsageError("timeout= is given without wait=True", "add wait=True or remove timeout")
    return None


class Poll(Protocol[T_co]):
    """A condition to poll."""

    def plan(self) -> Plan[tuple[T_co, float | None]]:
        """Poll once. Returns the value, and the seconds until the next poll; `None` ends the polling."""
        ...


class PauseConfirmation:
    """Polls until every live worker has confirmed the pause of a queue."""

    def __init__(self, name: str, timeout: timedelta | None, *, has_conn: bool) -> None:
        if has_conn:
            raise UsageError(
                "wait=True cannot be used with conn=: workers see the pause only after that transaction has committed",
                "remove one of them",
            )
        self._name = name
        self._pace = Pace(timeout)

    def plan(self) -> Plan[tuple[QueueControl, float | None]]:
        """Poll once: the queue, and the seconds until the next poll; `None` if all workers have confirmed.

        Raises:
            PauseTimeoutError: a live worker has not confirmed in time.
        """
        said, workers = yield from stored_workers.unconfirmed(self._name)
        if not workers or not said.is_paused:
            return said, None
        pause = self._pace.pause()
        if pause is None:
            raise PauseTimeoutError(self._name, workers)
        return said, pause


def resume_queue(name: str, reason: str | None, actor: str | None) -> Plan[tuple[QueueControl, set[str]]]:
    """Resume a queue."""
    checked_name(name, "the queue")
    return (yield from stored_workers.resume_queue(name, _actor(actor), _reason(reason))), {name}


def set_queue(
    name: str, concurrency: int | None, reason: str | None, actor: str | None
) -> Plan[tuple[QueueControl, set[str]]]:
    """Override the concurrency of a queue."""
    if concurrency is not None:
        checked_int(concurrency, "concurrency", 1, 2**31 - 1)
    checked_name(name, "the queue")
    said = yield from stored_workers.set_queue(name, concurrency, _actor(actor), _reason(reason))
    return said, {name}


def definition_of_target(target: Target) -> MachineDef | None:
    """Return the machine of a reference; `None` for an id or a key."""
    return definition_of(target.definition) if isinstance(target, Ref) else None


def read(row: Mapping[str, Any], definition: MachineDef | None) -> Instance[Any, Any]:
    """Build an instance from a row. Raises UsageError if it belongs to another machine."""
    if definition is not None and row["fsm"] != definition.name:
        raise UsageError(
            f"instance {row['id']} is a {row['fsm']}, not a {definition.name}",
            "use the machine that it belongs to",
        )
    # Another version may have another state type, so its state is plain JSON.
    is_known = definition is not None and row["fsm_version"] == definition.version
    return instance_of(row, definition if is_known else None)


def checked_until(until: object) -> bool:
    """Return whether a parked instance ends the wait."""
    if until not in get_args(Until):
        raise UsageError(f"until is {until!r}", "give 'finished' or 'parked'")
    return until == "parked"


def current(target: Target, id: int) -> Plan[Instance[Any, Any]]:
    """Read an instance after a wait for it has timed out."""
    row = yield from snapshots.get(id)
    if row is None:
        raise NoTargetError(id, "wait")
    return read(row, definition_of_target(target))


class Wait:
    """Polls instances until each has ended or, with `until="parked"`, is parked. For clients without an event loop."""

    def __init__(self, targets: Sequence[Target], until: Until, timeout: timedelta | None) -> None:
        self._pace = Pace(timeout)
        self._targets = targets
        self._until_parked = checked_until(until)
        self._ids: list[int] | None = None
        self._open: dict[int, bool] = {}
        self._found: dict[int, Mapping[str, Any]] = {}

    def plan(self) -> Plan[tuple[list[Instance[Any, Any]], float | None]]:
        """Poll once. Returns the instances, and the seconds until the next poll; `None`: the wait is over.

        Raises:
            NoTargetError: one of the instances does not exist.
        """
        if self._ids is None:
            self._ids = []
            for target in self._targets:
                self._ids.append((yield from resolve(target, "wait")))
            self._open = dict.fromkeys(self._ids, self._until_parked)
        if self._open:
            for id, row in (yield from snapshots.finished_or_parked(self._open)).items():
                if row is None:
                    raise NoTargetError(id, "wait")
                self._found[id] = row
                del self._open[id]
        if self._open and (pause := self._pace.pause()) is not None:
            return [], pause
        instances: list[Instance[Any, Any]] = []
        for target, id in zip(self._targets, self._ids, strict=True):
            row = self._found.get(id)
            definition = definition_of_target(target)
            instances.append((yield from current(target, id)) if row is None else read(row, definition))
        return instances, None


def given_state(state: Any, args: Any) -> Any:
    """Return the state of an insert, given as `state` or as `args`."""
    if state is not None and args is not None:
        raise UsageError("both state and args are given", "args is an alias of state: use one of them")
    return args if state is None else state


def _parents_first(newest_first: Sequence[int]) -> Sequence[int]:
    """Order ids so that no cancelled child releases a parent that is cancelled next. Parents have smaller ids."""
    return newest_first[::-1]


def _cancel_result(row: Mapping[str, Any]) -> CancelResult:
    id: int = row["id"]
    if Status(row["was"]).is_terminal:
        return AlreadyFinished(id, Status(row["was"]))
    return Cancelled(id) if row["status"] == Status.CANCELLED else CancelRequested(id)


def _woken(rows: Sequence[Mapping[str, Any]]) -> set[str]:
    return {queue for row in rows for queue in row["queues"] or ()}


def _reason(reason: str | None) -> str | None:
    return None if not reason else reason_text(reason)


def _actor(actor: str | None) -> str | None:
    return None if actor is None else checked_name(actor, "actor")


def _insert_result(
    spec: AnySpec, row: NewInstance, answer: inserts.InsertResult
) -> InsertResult[Any, Any] | KeyTaken[Any, Any]:
    if answer.is_new:
        return Inserted(spec.definition, answer.id)
    kind = answer.key if answer.key in spec.options else "idempotency_key"
    given = spec.options[kind]
    key = key_text(given, kind) if isinstance(given, tuple) else given
    if answer.holder != row.fsm:
        text = key.decode(errors="backslashreplace") if isinstance(key, bytes) else key
        return KeyTaken(spec.definition, KeyTakenError(text, row.fsm, answer.holder, answer.id), kind)
    return Duplicate(spec.definition, answer.id, key, Status(answer.status), kind)


def _filter(machine: Insertable[Any, Any] | str | None, filters: Mapping[str, Any]) -> snapshots.Filter:
    values: dict[str, Any] = {}
    if machine is not None:
        name = machine if isinstance(machine, str) else definition_of(machine).name
        values["fsms"] = [checked_name(name, "the machine")]
    for name, value in filters.items():
        if name not in _FILTERS:
            known = tuple(_FILTERS)
            raise UsageError(
                f"there is no filter '{name}'{did_you_mean(name, known, 'filter')}",
                f"the filters are {', '.join(known)}",
            )
        field, checked = _FILTERS[name]
        values[field] = checked(value)
    return snapshots.Filter(**values)


def _statuses(value: Any) -> list[str]:
    words = [value] if isinstance(value, str) else value
    return [status for word in words for status in _named_statuses(word)]


def _unique_key(value: Any) -> bytes:
    return value if isinstance(value, bytes) else key_text(value, "unique_key").encode()


def _parent_id(parent: Ref[Any, Any] | int) -> int:
    id = parent.target if isinstance(parent, Ref) else parent
    if isinstance(id, str):
        raise UsageError("parent is given by its key", "use its id, or what insert returned")
    return checked_id(id)


def _named_statuses(word: Any) -> tuple[Status, ...]:
    statuses = statuses_of(word)
    if statuses is None:
        hint = did_you_mean(word, STATUS_WORDS, "status") if isinstance(word, str) else ""
        raise UsageError(f"{word!r} is not a status", f"the statuses are {', '.join(STATUS_WORDS)}{hint}")
    return statuses


_FILTERS: Final[Mapping[str, tuple[str, Callable[[Any], object]]]] = {
    "version": ("version", lambda value: checked_int(value, "version", 1, 2**31 - 1)),
    "step": ("steps", lambda value: [step_name(value)]),
    "status": ("statuses", _statuses),
    "queue": ("queue", lambda value: checked_name(value, "queue")),
    "correlation_key": ("correlation_key", lambda value: key_text(value, "correlation_key")),
    "unique_key": ("unique_key", _unique_key),
    "concurrency_key": ("concurrency_key", key_text),
    "parent": ("parent_id", _parent_id),
    "schedule": ("schedule", lambda value: checked_name(value, "schedule")),
    "inserted_after": ("inserted_after", lambda value: checked_moment(value, "inserted_after")),
    "with_deleted": ("with_deleted", bool),
    "inserted_before": ("inserted_before", lambda value: checked_moment(value, "inserted_before")),
}


def events(
    target: Target | None,
    sink: str | None,
    state: EventState | None,
    before: EventRecord | int | None,
    limit: int,
) -> Plan[list[EventRecord]]:
    """Return a page of events of the outbox, newest first."""
    if state not in (None, "pending", "published", "dead"):
        raise UsageError(f"{state!r} is not an event state", "use pending, published or dead")
    checked_int(limit, "the limit of events", 1, _MAX_PAGE)
    instance_id: int | None = None
    if target is not None:
        instance_id = yield from resolve(target, "list events")
    rows = yield from outbox.list_events(
        {
            "instance_id": instance_id,
            "sink": sink,
            "state": state,
            "before": None if before is None else _number(before),
        },
        limit,
    )
    return [
        EventRecord(
            number=row["id"],
            id=f"{row['instance_id']}:{row['step_seq']}:{row['n']}",
            instance_id=row["instance_id"],
            sink=row["sink"],
            type=row["type"],
            subject=row["subject"],
            data=decode(row["data"], Any, f"the data of event '{row['type']}'"),
            state=row["state"],
            attempts=row["attempts"],
            last_error=row["last_error"],
            created_at=row["created_at"],
            next_at=row["next_at"] if row["state"] == "pending" else None,
            published_at=row["published_at"],
        )
        for row in rows
    ]


def audit(target: Target, after: AuditEvent | int | None, limit: int) -> Plan[list[AuditEvent]]:
    """Return the audit events of an instance, oldest first."""
    checked_int(limit, "the limit of audit events", 1, _MAX_PAGE)
    if after is not None and not isinstance(after, AuditEvent):
        after = checked_id(after)
    number = after.number if isinstance(after, AuditEvent) else after or 0
    id = yield from resolve(target, "audit")
    rows = yield from audits.events(id, number, limit)
    if not rows and not number and (yield from snapshots.get(id)) is None:
        raise NoTargetError(id, "audit")
    return [_audit_event(row) for row in rows]


def audit_log(before: AuditEvent | int | None, limit: int) -> Plan[list[AuditEvent]]:
    """Read the latest audit events of everything, newest first."""
    checked_int(limit, "the limit of audit events", 1, _MAX_PAGE)
    if before is not None:
        before = before.number if isinstance(before, AuditEvent) else checked_id(before)
    return [_audit_event(row) for row in (yield from audits.latest(before, limit))]


def _audit_event(row: Mapping[str, Any]) -> AuditEvent:
    return AuditEvent(
        number=row["id"],
        instance_id=row["instance_id"],
        subject=row["subject"],
        event=row["event"],
        actor=row["actor"],
        login=row["login"],
        reason=row["reason"],
        data={} if row["data"] is None else decode(row["data"], dict[str, Any], "an audit event"),
        at=row["created_at"],
    )


def audit_level() -> Plan[AuditLevel]:
    """Return the audit level."""
    return audits.level()


def set_audit(level: AuditLevel, reason: str | None, actor: str | None) -> Plan[tuple[AuditLevel, set[str]]]:
    """Set the audit level; return the previous one."""
    if level not in get_args(AuditLevel):
        raise UsageError(f"{level!r} is not an audit level", f"use one of {', '.join(get_args(AuditLevel))}")
    return (yield from audits.set_level(level, _actor(actor), _reason(reason))), set()


def replay(chosen: Iterable[EventRecord | int], reason: str | None, actor: str | None) -> Plan[int]:
    """Publish events again that were published or are dead; return how many."""
    return (yield from outbox.replay([_number(one) for one in chosen], _reason(reason), _actor(actor)))


def _number(event: EventRecord | int) -> int:
    return event.number if isinstance(event, EventRecord) else checked_id(event)


def limits() -> Plan[list[Limit]]:
    """Return all limits, by name."""
    return stored_limits.list_limits()


def set_limit(limit: Limit, reason: str | None, actor: str | None) -> Plan[None]:
    """Set a limit."""
    (checked,) = checked_limits([limit])
    return stored_limits.put(checked, _reason(reason), _actor(actor))


def remove_limit(name: str, kind: LimitKind | None, reason: str | None, actor: str | None) -> Plan[bool]:
    """Remove a limit, or the limits of both kinds; return whether there was one."""
    if kind not in (None, *get_args(LimitKind)):
        raise UsageError(f"{kind!r} is not a kind of limit", f"use one of {', '.join(get_args(LimitKind))}")
    return stored_limits.remove(limit_name(name), kind, _reason(reason), _actor(actor))
