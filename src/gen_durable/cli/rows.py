"""Instances as JSON and as short texts for one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import click

from .._core.hydration import compensation_of, is_cancel_handled, progress_of
from .._db.compatibility import KnownSteps
from ..instance import Status
from .json_text import raw

__all__ = [
    "STYLES",
    "activity",
    "age_text",
    "by_text",
    "clean",
    "instance_json",
    "key_text",
    "moment_text",
    "note",
    "print_columns",
    "removed_text",
]

STYLES: Final[Mapping[str, str]] = {
    Status.RUNNABLE: "blue",
    Status.EXECUTING: "cyan",
    Status.AWAITING_SIGNAL: "magenta",
    Status.AWAITING_CHILDREN: "magenta",
    Status.DONE: "green",
    Status.FAILED: "red",
    Status.CANCELLED: "yellow",
}
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def instance_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row under the names of the Python API. State, result and error are the JSON text of the database."""
    # `read_…` are columns of a statement for readers of changes.
    named = {name: value for name, value in row.items() if not name.startswith("read_")}
    given = {
        "id": named.pop("id"),
        "machine": named.pop("fsm"),
        "version": named.pop("fsm_version"),
        **named,
    }
    given["state"], given["result"], given["error"] = raw(row["state"]), raw(row["result"]), raw(row["error"])
    given["undo_steps"] = raw(row["undo_steps"])
    given["compensation"] = compensation_of(row["compensation"], row["undo_steps"])
    given["progress"], given["checkpoint"] = raw(row["progress"]), raw(row["checkpoint"])
    given["unique_key"] = key_text(row["unique_key"])
    return given


def by_text(actor: str, login: str | None) -> str:
    """Name the actor, and the login role if it differs."""
    by = f"by {clean(actor)}"
    return by if login in (None, actor) else f"{by} (login {clean(login)})"


def key_text(key: bytes | None) -> str | None:
    """Decode a unique key; escape bytes that are not UTF-8."""
    return None if key is None else key.decode(errors="backslashreplace")


def removed_text(row: Mapping[str, Any]) -> str:
    """Say when state and result of a row that still occupies a key were removed."""
    return f"state and result were removed at {moment_text(row['collected_at'])}"


def moment_text(at: datetime) -> str:
    """Format a moment in the local time zone: `2030-01-01 09:00:00+00:00`."""
    return at.astimezone().isoformat(sep=" ", timespec="seconds")


def note(row: Mapping[str, Any], now: datetime, steps: KnownSteps | None = None) -> str:
    """Summarize what an instance waits for, and its last error or the reason of its cancel.

    Args:
        row: its snapshot.
        now: the current time.
        steps: the steps that live workers have, if they are known.
    """
    match row["status"]:
        case Status.DONE:
            why = None
        case Status.CANCELLED:
            why = row["cancel_reason"]
        case _:
            why = row["last_error"]
    return "; ".join(filter(None, [activity(row, now, steps), clean(why or "")]))


def activity(row: Mapping[str, Any], now: datetime, steps: KnownSteps | None = None) -> str:
    """Name what an instance waits for, or the worker that runs it. Arguments: see `note`."""
    parts = []
    if row["deleted_at"] is not None:
        parts.append("deleted")
    if row["finished_at"] is None and (undo := compensation_of(row["compensation"], row["undo_steps"])):
        parts.append(f"compensating, ends as {undo.status}")
    if is_cancel_handled(row):
        parts.append("cancelled, went to its on_cancel step")
    if row["finished_at"] is None and row["cancel_requested_at"] is not None:
        parts.append("cancel requested")
    match row["status"]:
        case Status.RUNNABLE:
            parts += _runnable(row, now, steps or {})
        case Status.AWAITING_SIGNAL:
            parts.append(f"waiting for signal {', '.join(row['awaits'] or ())}")
        case Status.AWAITING_CHILDREN:
            count = row["children_pending"]
            parts.append(f"waiting for {count} {'child' if count == 1 else 'children'}")
        case Status.EXECUTING:
            parts += _execution(row, now)
        case _:
            pass
    return clean("; ".join(parts))


def _runnable(row: Mapping[str, Any], now: datetime, steps: KnownSteps) -> Iterator[str]:
    known = steps.get((row["fsm"], row["fsm_version"]))
    if known and row["step"] not in known:
        yield "no live worker has its step"
    if row["eligible_at"] > now:
        yield f"due in {age_text(row['eligible_at'] - now)}"


def _execution(row: Mapping[str, Any], now: datetime) -> Iterator[str]:
    if row["lease_expires_at"] < now:
        yield f"lease of worker {row['locked_by']} expired {age_text(now - row['lease_expires_at'])} ago"
        return
    yield f"running on {row['locked_by']}"
    if (progress := progress_of(row["progress"])) is not None:
        yield str(progress)


def age_text(age: timedelta) -> str:
    """Format a duration with its two largest units: `3d4h`, `12s`."""
    seconds = max(0, int(age.total_seconds()))
    parts = []
    for unit, size in _UNITS:
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"


def print_columns(lines: Sequence[Sequence[str]]) -> None:
    """Print a heading and lines in aligned columns."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def clean(text: str) -> str:
    """Escape control characters: stored text must not control the terminal."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
