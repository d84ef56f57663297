"""`gen-durable show`: everything that the tables hold about one instance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import click
import msgspec

from .._core.hydration import compensation_of, is_cancel_handled, progress_of
from .._core.timeline import timeline_of
from .._db import snapshots
from .._db import timeline as timelines
from .._db.compatibility import KnownSteps, known_steps
from .._db.plan import Plan, Row
from ..instance import Status
from ..refs import target_value
from ..timeline import TimelineEntry
from .connection import DatabaseOptions, database_options
from .failure import no_instance
from .json_text import json_option, print_json, raw, readable
from .options import target
from .rows import STYLES, activity, age_text, clean, instance_json, key_text, moment_text
from .timeline import timeline_lines

__all__ = ["show"]

_MAX_LINES: Final = 20  # of one list; --json prints all


class InstanceDetails(msgspec.Struct, frozen=True, kw_only=True):
    """All rows that belong to one instance."""

    now: datetime
    row: Row
    steps: KnownSteps
    details: Row
    inbox: Sequence[Row]
    children: Sequence[Row]
    executions: Sequence[Row]
    audit: Sequence[Row]
    timeline: Sequence[TimelineEntry]
    most: int
    """The maximum number of timeline entries."""


@click.command()
@click.argument("to", metavar="TARGET", type=target)
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    metavar="N",
    default=50,
    show_default=True,
    help="Maximum number of timeline entries; the newest ones are shown.",
)
@json_option
@database_options()
def show(db: DatabaseOptions, to: int | str, limit: int, as_json: bool) -> None:
    """Show everything about an instance, even if it is deleted.

    The timeline has executions, waits, signals, children and audit events in order: begin, duration, what, worker. A
    duration with … has not ended.

    TARGET is an id or a correlation key.

    Attempts count from 1. JSON has the values of the tables and of ctx.attempt, which count from 0.
    """
    found = db.run(_details(target_value(to), limit))
    if as_json:
        print_json(_json(found))
    else:
        for line in _lines(found):
            click.echo(line)


def _details(to: int | str, limit: int) -> Plan[InstanceDetails]:
    row = yield from snapshots.get(to)
    details = None if row is None else (yield from snapshots.details(row["id"]))
    if row is None or details is None:
        raise no_instance(to)
    id = row["id"]
    now = yield from snapshots.now()
    records = yield from timelines.timeline(id, limit)
    return InstanceDetails(
        now=now,
        timeline=timeline_of(row, records, now),
        most=limit,
        row=row,
        steps=(yield from known_steps()),
        details=details,
        inbox=(yield from snapshots.inbox(id)),
        children=(yield from snapshots.children_summary(id)),
        executions=(yield from snapshots.executions(id)),
        audit=(yield from snapshots.audit(id)),
    )


def _json(found: InstanceDetails) -> dict[str, Any]:
    return {
        **instance_json(found.row),
        **found.details,
        "inbox": [dict(row) for row in found.inbox],
        "children": [_renamed(row) for row in found.children],
        "executions": [dict(row) for row in found.executions],
        "timeline": [_entry(each) for each in found.timeline[-found.most :]],
        "audit_events": [{**row, "data": raw(row["data"])} for row in found.audit],
    }


def _entry(entry: TimelineEntry) -> dict[str, Any]:
    fields = msgspec.structs.asdict(entry)
    return {**fields, "duration": None if entry.duration is None else entry.duration.total_seconds()}


def _renamed(row: Row) -> dict[str, Any]:
    child = dict(row)
    return {"id": child.pop("id"), "machine": child.pop("fsm"), **child}


def _lines(found: InstanceDetails) -> Iterator[str]:
    row = found.row
    version = f" v{row['fsm_version']}" if row["fsm_version"] > 1 else ""
    yield _bold(f"{clean(row['fsm'])}{version} {row['id']}") + "  " + _status(row["status"])
    for name, value in _facts(found):
        if value is not None:
            yield f"  {name + ':':<18}" + value.replace("\n", "\n" + " " * 20)
    for name, texts in _lists(found):
        yield ""
        yield _bold(name)
        yield from (f"  {text}" for text in texts[-_MAX_LINES:])
        if len(texts) > _MAX_LINES:
            yield f"  … {len(texts) - _MAX_LINES} earlier ones: --json"
    yield ""
    yield _bold(f"timeline{_left_out(found)}")
    yield from (f"  {text}" for text in timeline_lines(found.timeline[-found.most :]))


def _left_out(found: InstanceDetails) -> str:
    """Say that earlier entries are not shown. Each source was read up to the limit, so their number is not known."""
    if len(found.timeline) <= found.most:
        return ""
    count = found.details["execution"]
    return f": the last {found.most} entries; {count} executions in total; more: --limit N"


def _facts(found: InstanceDetails) -> Iterator[tuple[str, str | None]]:
    row, details, now = found.row, found.details, found.now
    yield "step", ", ".join(filter(None, [clean(row["step"]), _tries(found)]))
    yield "now", activity(row, now, found.steps) or None
    yield "queue", f"{clean(row['queue'])}, priority {row['priority']}"
    for name in ("correlation_key", "concurrency_key"):
        yield name.replace("_", " "), None if row[name] is None else clean(row[name])
    key = key_text(row["unique_key"])
    yield "unique key", None if key is None else clean(key)
    yield "parent", None if row["parent_id"] is None else str(row["parent_id"])
    forked = f"{row['forked_from']}, after transition {row['forked_seq']}"
    yield "forked from", None if row["forked_from"] is None else forked
    yield "inserted", _when(row["inserted_at"], now)
    yield "updated", _when(row["updated_at"], now)
    yield "due", _when(row["eligible_at"], now) if row["status"] == Status.RUNNABLE else None
    yield "deadline", _when(row["await_deadline"], now)
    yield "ended", _when(row["finished_at"], now)
    yield "lease", _when(details["lease_expires_at"], now) if row["status"] == Status.EXECUTING else None
    yield from _cancel(row, now)
    yield "deleted", _action(row["deleted_at"], None, details["delete_reason"], now)
    yield "undo", _undo(row)
    yield "progress", _progress(row, now)
    yield "checkpoint", None if row["checkpoint"] is None else readable(row["checkpoint"])
    yield "crashes", str(row["crash_count"]) if row["crash_count"] else None
    removed = _when(row["collected_at"], now)
    yield "removed", None if removed is None else f"state and result, {removed}; the row still occupies a key"
    yield "state", readable(row["state"]) if removed is None else None
    yield "result", None if row["result"] is None else readable(row["result"])
    yield "last error", None if row["last_error"] is None else clean(row["last_error"])
    yield "error", None if row["error"] is None else _error(row["error"])


def _lists(found: InstanceDetails) -> Iterator[tuple[str, list[str]]]:
    now = found.now
    if found.inbox:
        count, size = (sum(row[total] for row in found.inbox) for total in ("count", "bytes"))
        named = [
            f"{clean(row['name'])} × {row['count']}, {_when(row['oldest_at'], now)}" for row in found.inbox
        ]
        yield f"inbox: {count} unconsumed, {size:,} bytes", named
    if found.children:
        counts = Counter(row["status"] for row in found.children)
        summary = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        yield f"children: {summary}", [_child(row) for row in found.children]


def _child(row: Row) -> str:
    error = f": {clean(row['last_error'])}" if row["last_error"] else ""
    return f"{row['id']} {clean(row['fsm'])} {clean(row['step'])} {_status(row['status'])}{error}"


def _bold(text: str) -> str:
    return click.style(text, bold=True)


def _status(status: str) -> str:
    return click.style(status, fg=STYLES[status])


def _tries(found: InstanceDetails) -> str | None:
    """Return the current attempt at the step, counted from 1; for an ended instance also its number of executions."""
    row, details = found.row, found.details
    limit = "" if details["max_attempts"] is None else f" of {details['max_attempts']}"
    this = f"attempt {row['attempt'] + 1}{limit}"
    if row["finished_at"] is not None:
        count = details["execution"] - sum(not _has_run(each) for each in found.executions)
        total = f"{count} execution{'s' * (count != 1)} in total"
        return f"{this}, {total}" if row["attempt"] else total
    if row["status"] == Status.EXECUTING:
        return this
    return f"{this} is next" if row["attempt"] else None


def _has_run(execution: Row) -> bool:
    """Return whether a step ran. The record of a cancel while waiting has no lease."""
    return execution["lease_owner"] is not None


def _when(moment: datetime | None, now: datetime) -> str | None:
    if moment is None:
        return None
    distance = f"in {age_text(moment - now)}" if moment > now else f"{age_text(now - moment)} ago"
    return f"{moment_text(moment)} ({distance})"


def _action(at: datetime | None, actor: str | None, reason: str | None, now: datetime) -> str | None:
    if at is None:
        return None
    by = f" by {clean(actor)}" if actor else ""
    return f"{_when(at, now)}{by}{': ' + clean(reason) if reason else ''}"


def _progress(row: Row, now: datetime) -> str | None:
    progress = progress_of(row["progress"])
    return None if progress is None else f"{clean(str(progress))}, {_when(progress.at, now)}"


def _cancel(row: Row, now: datetime) -> Iterator[tuple[str, str | None]]:
    undo = compensation_of(row["compensation"], row["undo_steps"])
    at, actor, reason = row["cancel_requested_at"], row["cancelled_by"], row["cancel_reason"]
    if at is None and undo is not None and undo.status is Status.CANCELLED:
        at = undo.since
    is_live = row["finished_at"] is None
    if is_cancel_handled(row):
        by = f"by {clean(actor)}" if actor else ""
        yield "cancelled", ": ".join(filter(None, [by, clean(reason or "")])) + "; went to its on_cancel step"
    elif row["cancel_requested_at"] is not None and is_live:
        yield "cancel requested", _action(at, actor, reason, now)
    else:
        yield "cancelled", _action(at, actor, reason, now)


def _undo(row: Row) -> str | None:
    undo = compensation_of(row["compensation"], row["undo_steps"])
    if undo is None:
        if row["undo_steps"] is None or row["finished_at"] is None:
            return None
        steps = [step for step, _ in reversed(msgspec.json.decode(row["undo_steps"]))]
        return f"skipped; not undone: {', '.join(map(clean, steps))}"
    why = f": {clean(undo.reason)}" if undo.reason else ""
    undone, pending = (", ".join(map(clean, names)) for names in (undo.undone, undo.pending))
    lines = [f"{undo.status} at step {clean(undo.step)}{why}"]
    lines += [f"undone: {undone}"] if undone else []
    if row["finished_at"] is None and undo.pending and row["step"] != undo.pending[0]:
        lines.append(f"undo step {clean(undo.pending[0])} continues at step {clean(row['step'])}")
        pending = ", ".join(map(clean, undo.pending[1:]))
    lines += [f"undo steps left: {pending}"] if pending else []
    return "\n".join(lines)


def _error(text: str) -> str:
    """Format the error of a step. People count attempts from 1."""
    error = msgspec.json.decode(text)
    if isinstance(error, dict) and isinstance(error.get("attempt"), int):
        return readable(msgspec.json.encode({**error, "attempt": error["attempt"] + 1}).decode())
    return readable(text)
