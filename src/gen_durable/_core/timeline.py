"""Build the timeline of an instance from its row and the records of what happened to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from ..instance import Status
from ..timeline import TimelineEntry, TimelineKind
from .model import RecordedSignal

__all__ = ["timeline_of"]

_ORDER: Final[Sequence[TimelineKind]] = ("insert", "audit", "signal", "child", "execution", "wait", "end")
# A shorter wait for a worker is not shown.
_SHORT: Final = timedelta(seconds=1)
# The audit event of a signal is written in its transaction; with an actor or a reason, by a later statement.
_SAME_TRANSACTION: Final = timedelta(seconds=1)
# Without a next step these outcomes end the instance.
_ENDS: Final = frozenset({"done", "stop", "undone", "cancelled", "poison"})
_WAITS: Final = {
    "await": "signal",
    "schedule_children": "children",
    "rejoin": "children",
    "retry": "retry",
    "lease": "retry",
}


def timeline_of(
    row: Mapping[str, Any], records: Sequence[Mapping[str, Any]], now: datetime
) -> list[TimelineEntry]:
    """Return all entries, oldest first.

    Args:
        row: the snapshot of the instance.
        records: the rows of the statement `timeline`.
        now: the clock of the database.
    """
    # By number: a call may write several at one time.
    audits = sorted((each for each in records if each["kind"] == "audit"), key=lambda each: each["number"])
    acted = {each["leased_at"] for each in audits}
    executions = sorted(
        (each for each in records if each["kind"] == "execution"), key=lambda each: each["number"]
    )
    entries = [
        _inserted(row, audits),
        *(_audit(each) for each in audits if each["outcome"] not in ("created", "signalled")),
        *_signals(
            [*_recorded_signals(executions), *(each for each in records if each["kind"] == "signal")],
            [each for each in audits if each["outcome"] == "signalled"],
        ),
        *(_child(each, now) for each in records if each["kind"] == "child"),
        # A verb that ends an execution without a lease has an audit event, which names the caller.
        *(
            _execution(each, now)
            for each in executions
            if each["worker"] is not None or each["finished_at"] not in acted
        ),
        *_waits(row, executions, [each["leased_at"] for each in audits if each["outcome"] == "retried"], now),
        *_ended(row, executions, acted),
    ]
    return sorted(entries, key=lambda entry: (entry.at, _ORDER.index(entry.kind), entry.number or 0))


def _inserted(row: Mapping[str, Any], audits: Sequence[Mapping[str, Any]]) -> TimelineEntry:
    for each in audits:
        if each["outcome"] == "created":
            return TimelineEntry(
                at=row["inserted_at"],
                kind="insert",
                actor=each["actor"],
                login=each["login"],
                reason=each["error"],
            )
    return TimelineEntry(at=row["inserted_at"], kind="insert")


def _recorded_signals(executions: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The signals that executions have consumed, or that the end of the instance has deleted unread."""
    for execution in executions:
        for each in _signals_of(execution):
            yield {
                "number": each.id,
                "name": each.name,
                "leased_at": each.at,
                "outcome": "unread" if each.unread else "consumed",
            }


def _signals_of(execution: Mapping[str, Any]) -> list[RecordedSignal]:
    text = execution["signals"]
    return [] if text is None else msgspec.json.decode(text, type=list[RecordedSignal])


def _signals(
    rows: Sequence[Mapping[str, Any]], audits: Sequence[Mapping[str, Any]]
) -> Iterator[TimelineEntry]:
    """Signals, with the callers that their audit events name. A signal without a row was consumed."""
    # By id: a signal with a dedup_key stays stored after a record names it.
    left = [each for _, each in sorted({each["number"]: each for each in rows}.items())]
    for audit in sorted(audits, key=lambda each: each["number"]):
        at = audit["leased_at"]
        found = next(
            (
                each
                for each in left
                if each["name"] == audit["name"]
                and timedelta(0) <= at - each["leased_at"] <= _SAME_TRANSACTION
            ),
            None,
        )
        if found is not None:
            left.remove(found)
        yield TimelineEntry(
            at=at if found is None else found["leased_at"],
            kind="signal",
            name=audit["name"] or "",
            outcome="consumed" if found is None else found["outcome"],
            number=None if found is None else found["number"],
            actor=audit["actor"],
            login=audit["login"],
            reason=audit["error"],
        )
    for each in left:
        yield TimelineEntry(
            at=each["leased_at"],
            kind="signal",
            name=each["name"],
            outcome=each["outcome"],
            number=each["number"],
        )


def _audit(each: Mapping[str, Any]) -> TimelineEntry:
    is_action = each["actor"] is not None
    return TimelineEntry(
        at=each["leased_at"],
        kind="audit",
        name=each["outcome"],
        worker=each["worker"],
        step_seq=each["step_seq"],
        error=None if is_action else each["error"],
        reason=each["error"] if is_action else None,
        actor=each["actor"],
        login=each["login"],
    )


def _child(each: Mapping[str, Any], now: datetime) -> TimelineEntry:
    is_open = each["finished_at"] is None
    return TimelineEntry(
        at=each["leased_at"],
        kind="child",
        name=each["name"],
        duration=_between(each["leased_at"], now if is_open else each["finished_at"]),
        is_open=is_open,
        outcome=each["outcome"],
        number=each["number"],
        error=each["error"],
    )


def _execution(each: Mapping[str, Any], now: datetime) -> TimelineEntry:
    began, ended = each["started_at"] or each["leased_at"], each["finished_at"]
    return TimelineEntry(
        at=began or ended,
        kind="execution",
        name=each["name"],
        duration=None if began is None else _between(began, ended or now),
        is_open=ended is None,
        outcome=each["outcome"],
        number=each["number"],
        attempt=each["attempt"],
        step_seq=each["step_seq"],
        worker=each["worker"],
        error=each["error"],
        to_step=each["to_step"],
        cause=each["cause"],
        signals=tuple(one.name for one in _signals_of(each) if not one.unread),
    )


def _waits(
    row: Mapping[str, Any],
    executions: Sequence[Mapping[str, Any]],
    retried: Sequence[datetime],
    now: datetime,
) -> Iterator[TimelineEntry]:
    """The times between executions. The last wait lasts, unless the instance executes or has ended.

    An instance that has ended waits only from its retry on.
    """
    before: Mapping[str, Any] | None = None
    for each in executions:
        began = each["leased_at"] or each["finished_at"]
        if before is not None and each["number"] == before["number"] + 1:
            since = before["finished_at"]
            if before["outcome"] in _ENDS and before["to_step"] is None:
                since = max((at for at in retried if since < at < began), default=None)
            yield from _wait(before["outcome"], since, began, before["awaits"])
        elif before is None and each["number"] == 1:
            yield from _wait("insert", row["inserted_at"], began, None)
        before = each
    status = Status(row["status"])
    if status is Status.EXECUTING or status.is_terminal:
        return
    since = row["inserted_at"] if before is None else before["finished_at"]
    if before is not None and before["outcome"] in _ENDS and before["to_step"] is None:
        since = max((at for at in retried if since < at), default=None)
    outcome = {
        Status.AWAITING_SIGNAL: "await",
        Status.AWAITING_CHILDREN: "schedule_children",
    }.get(status, "retry" if row["attempt"] else "next")
    yield from _wait(outcome, since, now, row["awaits"], is_open=True)


def _wait(
    outcome: str | None,
    since: datetime | None,
    until: datetime | None,
    names: Sequence[str] | None,
    *,
    is_open: bool = False,
) -> Iterator[TimelineEntry]:
    reason = _WAITS.get(outcome or "", "start")
    if since is None or until is None or (reason == "start" and not is_open and until - since < _SHORT):
        return
    yield TimelineEntry(
        at=since,
        kind="wait",
        name=", ".join(names or ()) if reason == "signal" else "",
        duration=_between(since, until),
        is_open=is_open,
        outcome=reason,
    )


def _ended(
    row: Mapping[str, Any], executions: Sequence[Mapping[str, Any]], acted: set[datetime]
) -> Iterator[TimelineEntry]:
    """The end, if no record has it: executions are not recorded, or the records are cut off or removed."""
    ended = row["finished_at"]
    if ended is not None and ended not in acted and all(each["finished_at"] != ended for each in executions):
        yield TimelineEntry(at=ended, kind="end", outcome=row["status"], error=row["last_error"])


def _between(began: datetime, ended: datetime) -> timedelta:
    return max(ended - began, timedelta(0))
