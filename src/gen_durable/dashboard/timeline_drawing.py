"""The timeline of an instance as rows of bars, placed on two time axes: true to time, and with idle times folded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias

import msgspec

from ..instance import Instance
from ..timeline import TimelineEntry

__all__ = ["TimelineDrawing", "draw"]

BarKind: TypeAlias = Literal["run", "done", "fail", "wait", "kids", "retry", "due", "cancel"]
Span: TypeAlias = tuple[float, float]
"""Begin and end on an axis from 0 to 1."""

_ZERO: Final = timedelta(0)
_WAITS: Final[dict[str | None, tuple[BarKind, str]]] = {
    "signal": ("wait", "waits for a signal"),
    "children": ("kids", "waits for children"),
    "retry": ("retry", "waits for the next attempt"),
}
_STARTS: Final[tuple[BarKind, str]] = ("due", "waits for its time or a worker")
_LEGEND: Final[tuple[tuple[BarKind, str], ...]] = (
    ("run", "run"),
    ("done", "end"),
    ("fail", "error"),
    *_WAITS.values(),
    _STARTS,
)
_CHILDREN: Final[dict[str | None, BarKind]] = {
    "done": "done",
    "failed": "fail",
    "cancelled": "cancel",
    "executing": "run",
    "awaiting_signal": "wait",
    "awaiting_children": "kids",
}
# Times without execution are folded if they are longer than this part of all executions, and than this.
_FOLDED_PART: Final = 0.3
_FOLDED: Final = 0.1
# How much of a fold stays visible at both of its ends, and how wide a fold and all folds are at most.
_EDGE: Final = 0.12
_WIDTH: Final = 0.1
_WIDTHS: Final = 0.5
# Rows of children after the step that waits for them.
_CHILDREN_SHOWN: Final = 8


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """An execution, a wait, or the life of a child."""

    kind: BarKind
    text: str
    is_wait: bool
    """Whether no step ran."""
    at: datetime
    duration: timedelta
    true: Span
    folded: Span


class TimelineRow(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive executions of one step with the waits before them, or a child."""

    name: str
    """The step, the machine of the child, or how many children there are besides."""
    first: int | None = None
    """The transition that the first execution committed; `None` for a child."""
    last: int | None = None
    times: int = 1
    """How many transitions the executions committed, or tried to."""
    child: int | None = None
    status: str | None = None
    """Of the child."""
    duration: timedelta
    bars: tuple[Bar, ...]


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """A signal, or a change by a person."""

    kind: Literal["wait", "due"]
    text: str
    at: datetime
    true: float
    folded: float


class Fold(msgspec.Struct, frozen=True, kw_only=True):
    """A time in which no step ran."""

    duration: timedelta
    folded: Span


class TimelineDrawing(msgspec.Struct, frozen=True, kw_only=True):
    """Where to draw what."""

    at: datetime
    """The begin of both axes."""
    duration: timedelta
    """Between the ends of the axes."""
    running: timedelta
    """How long steps ran."""
    rows: tuple[TimelineRow, ...]
    marks: tuple[Mark, ...]
    folds: tuple[Fold, ...]
    legend: tuple[tuple[BarKind, str], ...]
    """The kinds of the bars of steps, in words."""


class _Row:
    def __init__(self, name: str, first: int | None = None, entries: Iterable[TimelineEntry] = ()) -> None:
        self.name = name
        self.first = self.last = first
        self.child: TimelineEntry | None = None
        self.entries = list(entries)


def draw(entries: Sequence[TimelineEntry], one: Instance[Any, Any], now: datetime) -> TimelineDrawing:
    """Place the entries of a timeline, which are sorted by time."""
    begin = min((entry.at for entry in entries), default=one.inserted_at)
    end = max(one.finished_at or now, begin + timedelta(milliseconds=1))
    rows = list(_rows(entries, one))
    ran = [_span(entry) for row in rows for entry in row.entries if entry.kind == "execution"]
    running = sum((to - since for since, to in ran), _ZERO)
    axis = _Axis(begin, end, _folds(ran, begin, end, running) if ran else [])
    kinds = {_kind(entry) for row in rows for entry in row.entries if entry.kind != "child"}
    return TimelineDrawing(
        at=begin,
        duration=end - begin,
        running=running,
        rows=tuple(_drawn(row, axis) for row in rows),
        marks=tuple(
            Mark(
                kind="wait" if entry.kind == "signal" else "due",
                text=_words(entry),
                at=entry.at,
                true=axis.true(entry.at),
                folded=axis.folded(entry.at),
            )
            for entry in entries
            if entry.kind in ("signal", "audit")
        ),
        folds=tuple(
            Fold(duration=to - since, folded=(axis.folded(since), axis.folded(to)))
            for since, to in axis.folds
        ),
        legend=tuple(entry for entry in _LEGEND if entry[0] in kinds),
    )


def _rows(entries: Iterable[TimelineEntry], one: Instance[Any, Any]) -> Iterator[_Row]:
    """Group the entries. A wait, and children, belong to the step that runs after them."""
    group: list[TimelineEntry] = []
    row: _Row | None = None
    waiting: list[TimelineEntry] = []
    for entry in entries:
        if entry.kind == "wait" and entry.outcome == "retry" and row is not None:
            row.entries.append(entry)
        elif entry.kind in ("wait", "child"):
            waiting.append(entry)
        elif entry.kind == "execution":
            seq = entry.step_seq or 0
            if row is None or row.name != entry.name or seq > (row.last or seq) + 1:
                yield from _with_children(row, group)
                row, group = _Row(entry.name, seq), []
            row.entries += [*_only(waiting, "wait"), entry]
            row.last = seq
            group += waiting
            waiting = []
    if waiting and (row is None or row.name != one.step):
        yield from _with_children(row, group)
        row, group = _Row(one.step, one.step_seq + 1), []
    if row is not None:
        row.entries += _only(waiting, "wait")
        # The last row is where the instance is, or how it ended.
        row.last = one.step_seq + 1
    yield from _with_children(row, group + waiting)


def _with_children(row: _Row | None, waiting: Sequence[TimelineEntry]) -> Iterator[_Row]:
    if row is not None and row.entries:
        yield row
    children = _only(waiting, "child")
    for entry in children[:_CHILDREN_SHOWN]:
        child = _Row(entry.name, entries=[entry])
        child.child = entry
        yield child
    rest = children[_CHILDREN_SHOWN:]
    if rest:
        yield _Row(f"{len(rest)} more", entries=rest)


def _only(entries: Iterable[TimelineEntry], kind: str) -> list[TimelineEntry]:
    return [entry for entry in entries if entry.kind == kind]


def _drawn(row: _Row, axis: _Axis) -> TimelineRow:
    since, to = min(_span(entry)[0] for entry in row.entries), max(_span(entry)[1] for entry in row.entries)
    return TimelineRow(
        name=row.name,
        first=row.first,
        last=row.last,
        times=len({entry.step_seq for entry in row.entries if entry.kind == "execution"}) or 1,
        child=None if row.child is None else row.child.number,
        status=None if row.child is None else row.child.outcome,
        duration=to - since,
        bars=tuple(_bar(entry, axis) for entry in row.entries),
    )


def _bar(entry: TimelineEntry, axis: _Axis) -> Bar:
    since, to = _span(entry)
    return Bar(
        kind=_kind(entry),
        text=_words(entry),
        is_wait=entry.kind != "execution",
        at=since,
        duration=to - since,
        true=(axis.true(since), axis.true(to)),
        folded=(axis.folded(since), axis.folded(to)),
    )


def _kind(entry: TimelineEntry) -> BarKind:
    if entry.kind == "wait":
        return _WAITS.get(entry.outcome, _STARTS)[0]
    if entry.kind == "child":
        return _CHILDREN.get(entry.outcome, "due")
    if entry.error or entry.cause:
        return "fail"
    return "done" if entry.outcome == "done" else "run"


def _words(entry: TimelineEntry) -> str:
    match entry.kind:
        case "wait":
            text = f"waits for {entry.name}" if entry.name else _WAITS.get(entry.outcome, _STARTS)[1]
        case "execution":
            text = f"execution {entry.number} of {entry.name}: {entry.outcome or 'running'}"
        case "child":
            text = f"child {entry.number}, {entry.name}: {entry.outcome}"
        case "signal":
            text = f"signal {entry.name}, {entry.outcome}"
        case _:
            text = entry.name
    by = f", by {entry.actor}" if entry.actor else ""
    return text + by + "".join(f": {more}" for more in (entry.error, entry.reason) if more)


def _span(entry: TimelineEntry) -> tuple[datetime, datetime]:
    return entry.at, entry.at + (entry.duration or _ZERO)


def _folds(
    ran: Iterable[tuple[datetime, datetime]], begin: datetime, end: datetime, running: timedelta
) -> list[tuple[datetime, datetime]]:
    least = max(timedelta(seconds=_FOLDED), running * _FOLDED_PART)
    found = []
    last = begin
    for since, to in sorted([*ran, (end, end)]):
        if since - last > least:
            found.append((last + least * _EDGE, since - least * _EDGE))
        last = max(last, to)
    return found


class _Axis:
    """Places of times, from 0 to 1."""

    def __init__(self, begin: datetime, end: datetime, folds: list[tuple[datetime, datetime]]) -> None:
        self.folds = folds
        self._begin, self._end = begin, end
        self._each = min(_WIDTH, _WIDTHS / len(folds)) if folds else 0.0
        shown = (end - begin) - sum((to - since for since, to in folds), _ZERO)
        self._scale = (1 - self._each * len(folds)) / max(shown.total_seconds(), 1e-6)

    def true(self, at: datetime) -> float:
        return round(min(max((at - self._begin) / (self._end - self._begin), 0.0), 1.0), 5)

    def folded(self, at: datetime) -> float:
        place, last = 0.0, self._begin
        for since, to in self.folds:
            if at <= since:
                break
            place += (since - last).total_seconds() * self._scale
            if at < to:
                return self._rounded(place + self._each * ((at - since) / (to - since)))
            place, last = place + self._each, to
        return self._rounded(place + (at - last).total_seconds() * self._scale)

    @staticmethod
    def _rounded(place: float) -> float:
        return round(min(max(place, 0.0), 1.0), 5)
