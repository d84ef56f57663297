"""Where the instances of a machine are, in terms of its picture."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from ... import _verbs
from ..._db.plan import Plan
from ..._graph.picture import Tab
from ...stats import Awaited, CensusGroup, CensusState
from ..board import Board
from ..endpoints import get
from ..live import topic
from ..pictures import graph_of, tabs_of
from .machine_rates import transitions

__all__ = ["machine_census", "placed"]

_VERSION: Final = re.compile(r"(.+)@(\d{1,9})", re.DOTALL)
_LIVE: Final = frozenset(
    ("executing", "due", "later", "retrying", "gated", "awaiting_signal", "awaiting_children")
)
_WAITING: Final = frozenset(("awaiting_signal", "awaiting_children"))


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """The instances of one wait above a step in the picture."""

    count: int = 0
    oldest: timedelta | None = None


class StepNow(msgspec.Struct, frozen=True, kw_only=True):
    """The instances at one step."""

    counts: Mapping[CensusState, int]
    tabs: Sequence[Wait]
    """Instances in the waits above the step, in the order of the picture."""
    others: Mapping[CensusState, int]
    """Those that no wait has."""
    oldest: timedelta | None
    """How long the oldest live instance has been in its state."""
    waiting: timedelta | None
    """How long the oldest has waited for a signal or children."""


class MachineNow(msgspec.Struct, frozen=True, kw_only=True):
    """Where the instances of a version of a machine are, and what has just happened."""

    at: datetime
    live: Mapping[str, int]
    """Live instances by version. A count of 10,000 or more means "at least", here and below."""
    steps: Mapping[str, StepNow]
    """Steps with instances of this version."""
    flow: Mapping[str, int]
    """Transitions of the version that were committed in the current minute, by edge: `source>target`."""


@get("/machines/{name}/census", summary="Where the instances of a machine are")
async def machine_census(board: Board, name: str, *, version: int | None = None) -> MachineNow:
    """Count the instances of a version of a machine, by default the newest."""
    return await board.cached(
        f"census:{name}:{version}", 0.5, lambda: _now(name if version is None else f"{name}@{version}")
    )


@topic("machine", every=1.0, takes=True)
def _now(text: str) -> Plan[MachineNow]:
    """Take the name of a machine, and a version unless it is the newest: `shop.checkout@2`."""
    found = _VERSION.fullmatch(text)
    name, given = (found[1], int(found[2])) if found else (text, None)
    versions = yield from _verbs.stored_graphs(name)
    one = next((each for each in reversed(versions) if given in (None, each.version)), None)
    version = one.version if one is not None else given
    tabs = tabs_of(one.graph if one is not None else None)
    census = yield from _verbs.census(name)
    live: Counter[str] = Counter()
    by_step: defaultdict[str, list[CensusGroup]] = defaultdict(list)
    for group in census.groups:
        if group.state in _LIVE:
            live[str(group.version)] += group.count
        if group.version == version:
            by_step[group.step].append(group)
    # The counts only rise within a minute, so a page sees by how much. A second more: statements have later times.
    minute = timedelta(seconds=census.at.timestamp() % 60 + 1)
    edges = yield from _verbs.edge_rates(name, minute)
    graph = None if one is None or one.graph is None else graph_of(one.graph)
    return MachineNow(
        at=census.at,
        live=live,
        steps={step: placed(groups, tabs.get(step, ())) for step, groups in by_step.items()},
        flow=transitions((edge for edge in edges if edge.version == version), graph),
    )


def placed(groups: Iterable[CensusGroup], tabs: Sequence[Tab]) -> StepNow:
    """Place the instances of a step in the waits above it."""
    counts: Counter[CensusState] = Counter()
    others: Counter[CensusState] = Counter()
    waits = [Wait() for _ in tabs]
    oldest: list[timedelta] = []
    waiting: list[timedelta] = []
    for group in groups:
        counts[group.state] += group.count
        if group.oldest is not None and group.state in _LIVE:
            oldest.append(group.oldest)
            if group.state in _WAITING:
                waiting.append(group.oldest)
        for kind, signals, count in _parts(group):
            place = next((n for n, tab in enumerate(tabs) if _is_at(tab, kind, signals)), None)
            if place is None:
                others[group.state] += count
            else:
                since = max(filter(None, (waits[place].oldest, group.oldest)), default=None)
                waits[place] = Wait(count=waits[place].count + count, oldest=since)
    return StepNow(
        counts=counts,
        tabs=waits,
        others=others,
        oldest=max(oldest, default=None),
        waiting=max(waiting, default=None),
    )


def _parts(group: CensusGroup) -> Iterable[tuple[str, frozenset[str], int]]:
    """Divide instances by the kind of wait and the signals, as the sample does."""
    match group.state:
        case "awaiting_signal":
            awaits = group.awaits or (Awaited(signals=(), sampled=1),)
            sampled = sum(one.sampled for one in awaits)
            for one in awaits:
                kind = "signal" if one.signals else "delay"
                yield kind, frozenset(one.signals), round(group.count * one.sampled / sampled)
        case "awaiting_children":
            yield "children", frozenset(), group.count
        case "later":
            yield "delay", frozenset(), group.count
        case _:
            yield "", frozenset(), group.count


def _is_at(tab: Tab, kind: str, signals: frozenset[str]) -> bool:
    return tab.kind == kind and (kind != "signal" or signals == frozenset(tab.names))
