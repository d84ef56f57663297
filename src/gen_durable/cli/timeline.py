"""The timeline of an instance as lines of text."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import Final

import click
from rich.cells import cell_len, set_cell_size

from ..instance import Status
from ..timeline import TimelineEntry
from .rows import STYLES, age_text, by_text, clean
from .terminal import open_console

__all__ = ["timeline_lines"]

_OUTCOMES: Final = {
    "done": "green",
    "stop": "red",
    "poison": "red",
    "lease": "red",
    "retry": "yellow",
    "cancelled": "yellow",
}
_WAITS: Final = {
    "children": "waiting for children",
    "retry": "waiting for the next attempt",
    "start": "waiting to start",
}
# Outcomes of executions that no step has returned.
_EXPLAINED: Final = {
    "lease": "crashed (its process died, or its lease expired)",
    "poison": "crashed once too often (crash_limit)",
    "unknown_step": "left to other workers (this worker does not have the step)",
    "shutdown": "given back (the worker shut down)",
    "rejoin": "waits again (a child was retried)",
    "undo": "starts undo",
}
# Of the lines of `show`.
_INDENT: Final = 2
# Children of one round that are shown one by one.
_MAX_CHILDREN: Final = 3


def timeline_lines(entries: Sequence[TimelineEntry]) -> Iterator[str]:
    """Format entries: time, duration, what. A line has the date where it changes.

    On a terminal, an error that does not fit is on a line of its own, cut to the width.
    """
    width = open_console().width - _INDENT if sys.stdout.isatty() else None
    day = ""
    for group in _grouped(entries):
        first = group[0]
        at = first.at.astimezone()
        if (date := f"{at:%Y-%m-%d}") != day:
            day = date
            yield date
        head = f"{at:%H:%M:%S}.{at.microsecond // 1000:03} {_duration(group):>10}  "
        what, why = _text(group), _why(group)
        style = partial(
            click.style, fg=_colour(first), dim=(first.kind == "wait" and not first.is_open) or None
        )
        line = f"{head}{what}{f': {why}' if why else ''}"
        if width is None or cell_len(line) <= width:
            yield style(line)
            continue
        yield style(_cut(f"{head}{what}", width))
        if why:
            yield style(_cut(" " * len(head) + why, width))


def _cut(line: str, width: int) -> str:
    return line if cell_len(line) <= width else set_cell_size(line, width - 1).rstrip() + "…"


def _grouped(entries: Sequence[TimelineEntry]) -> Iterator[list[TimelineEntry]]:
    """Children that were inserted together are one line, if they are many."""
    for (kind, _, _), group in groupby(entries, key=lambda entry: (entry.kind, entry.at, entry.name)):
        found = list(group)
        if kind == "child" and len(found) > _MAX_CHILDREN:
            yield found
        else:
            yield from ([entry] for entry in found)


def _duration(group: Sequence[TimelineEntry]) -> str:
    durations = [entry.duration for entry in group if entry.duration is not None]
    if not durations:
        return ""
    return _short(max(durations)) + ("…" if any(entry.is_open for entry in group) else "")


def _short(duration: timedelta) -> str:
    seconds = duration.total_seconds()
    return f"{seconds:.3f} s" if seconds < 10 else age_text(duration)


def _text(group: Sequence[TimelineEntry]) -> str:
    entry = group[0]
    name, outcome = clean(entry.name), entry.outcome or ""
    match entry.kind:
        case "insert":
            what = "inserted"
        case "wait" if outcome == "signal":
            what = f"waiting for signal {name}" if name else "waiting for a signal or a deadline"
        case "wait":
            what = _WAITS[outcome]
        case "signal":
            what = f"signal {name}" + (" (unread)" if outcome == "unread" else "")
        case "child" if len(group) > 1:
            statuses = [each.outcome or "" for each in group]
            counts = ", ".join(f"{statuses.count(each)} {each}" for each in dict.fromkeys(sorted(statuses)))
            what = f"{len(group)} children {name}: {counts}"
        case "child":
            what = f"child {entry.number} {name}: {outcome}"
        case "end":
            what = outcome
        case "audit":
            what = name.replace("_", " ")
        case _:
            what = _execution(entry)
    return what + "".join(_facts(entry) if len(group) == 1 else ())


def _why(group: Sequence[TimelineEntry]) -> str:
    """Return the error or the reason; of many children that of the first one that has one."""
    return next((clean(why) for entry in group if (why := entry.error or entry.reason)), "")


def _execution(entry: TimelineEntry) -> str:
    attempt = f", attempt {entry.attempt + 1}" if entry.attempt else ""
    outcome = entry.outcome or "executing"
    return f"{clean(entry.name)}{attempt}: {_EXPLAINED.get(outcome, outcome)}"


def _facts(entry: TimelineEntry) -> Iterator[str]:
    if entry.signals:
        yield f", consumed {', '.join(map(clean, entry.signals))}"
    if entry.worker is not None:
        yield f", on {clean(entry.worker)}"
    if entry.actor is not None:
        yield f" {by_text(entry.actor, entry.login)}"


def _colour(entry: TimelineEntry) -> str | None:
    if entry.kind == "execution":
        return _OUTCOMES.get(entry.outcome or "", None if entry.outcome else STYLES[Status.EXECUTING])
    if entry.kind in ("child", "end") and entry.outcome in (Status.FAILED, Status.CANCELLED):
        return STYLES[entry.outcome]
    return None
