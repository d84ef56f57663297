"""Instances on their way to the screen: as JSON, and as the few words that fit into a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import click

from ..instance import Status
from .json_text import raw

__all__ = [
    "STYLES",
    "age_text",
    "by_text",
    "clean",
    "instance_json",
    "key_text",
    "note",
    "print_columns",
    "waits",
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
    """A snapshot under the names of the Python API; state, result and error are the database's own text."""
    named = dict(row)
    given = {
        "id": named.pop("id"),
        "machine": named.pop("fsm"),
        "version": named.pop("fsm_version"),
        **named,
    }
    given["state"], given["result"], given["error"] = raw(row["state"]), raw(row["result"]), raw(row["error"])
    given["unique_key"] = key_text(row["unique_key"])
    return given


def by_text(actor: str, login: str | None) -> str:
    """Who did something: the claimed actor, and the role that was logged in if that is another name."""
    by = f"by {clean(actor)}"
    return by if login in (None, actor) else f"{by} (login {clean(login)})"


def key_text(key: bytes | None) -> str | None:
    """A unique key as text; bytes that are none are escaped."""
    return None if key is None else key.decode(errors="backslashreplace")


def note(row: Mapping[str, Any], now: datetime) -> str:
    """What else there is to say about an instance, in a line: what it waits for, and what went wrong."""
    match row["status"]:
        case Status.DONE:
            why = None
        case Status.CANCELLED:
            why = row["cancel_reason"]
        case _:
            why = row["last_error"]
    return "; ".join(filter(None, [waits(row, now), clean(why or "")]))


def waits(row: Mapping[str, Any], now: datetime) -> str:
    """What an instance waits for, or who has it."""
    said = []
    if row["deleted_at"] is not None:
        said.append("deleted")
    match row["status"]:
        case Status.RUNNABLE if row["eligible_at"] > now:
            said.append(f"in {age_text(row['eligible_at'] - now)}")
        case Status.AWAITING_SIGNAL:
            said.append(f"for {', '.join(row['awaits'] or ())}")
        case Status.AWAITING_CHILDREN:
            said.append(f"for {row['children_pending']} children")
        case Status.EXECUTING:
            said.append(f"by {row['locked_by']}")
        case _:
            pass
    return clean("; ".join(said))


def age_text(age: timedelta) -> str:
    """A duration in its two largest units: `3d4h`, `12s`."""
    seconds = max(0, int(age.total_seconds()))
    parts = []
    for unit, size in _UNITS:
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts[:2]) or "0s"


def print_columns(lines: Sequence[Sequence[str]]) -> None:
    """A heading and lines, each cell below the one above it."""
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    for line in lines:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def clean(text: str) -> str:
    """One line without control characters: what users store must not move the cursor of whoever looks at it."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
