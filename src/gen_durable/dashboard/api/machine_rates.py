"""What a machine has executed, by step and transition."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from ... import _verbs
from ..._db import rollups
from ..._db.machines import StoredGraph
from ..._db.plan import Plan
from ..._graph.model import CANCELLED, DONE, FAILED, HANDLE, Graph
from ..._graph.picture import START
from ...rates import EdgeRates, RatePoint, TimeRange
from ..board import Board
from ..endpoints import get
from ..pictures import graph_of
from ..problems import ProblemError
from .overview import intervals, per_minute

__all__ = ["chosen", "machine_rates", "transitions", "unread"]

# The node that an outcome without a next step leads to. An attempt that is repeated leads to its own step.
_ENDS: Final[Mapping[str, str]] = {"done": DONE, "stop": FAILED, "cancelled": CANCELLED}
_REPEATED: Final = frozenset({"retry", "lease"})


class StepFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The executions of a step."""

    executions: int
    raised: int
    """Executions that failed by an exception, a timeout, or a crash."""
    stopped: int
    """Executions in which the code said so: `Stop`, `Discard`."""
    share: float
    """Of `raised` in `executions`."""
    p50: timedelta | None
    """How long they took."""
    p95: timedelta | None
    p99: timedelta | None
    run: Sequence[int]
    """The histogram of it, as in `Latency`."""


class Flow(msgspec.Struct, frozen=True, kw_only=True):
    """The transitions of one edge of the picture."""

    count: int
    part: float
    """Of all transitions of the step that it begins at."""
    share: float | None
    """Of those that leave the step; null: it leads to the same step."""


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """What was executed per minute, in each interval; the oldest first."""

    started: Sequence[float]
    done: Sequence[float]
    failed: Sequence[float]


class MachineFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a version of a machine has executed in a range of time."""

    at: datetime
    period: timedelta
    total: RatePoint
    series: Series
    steps: Mapping[str, StepFigures]
    flow: Mapping[str, Flow]
    """Transitions by edge: `source>target`; the most frequent first."""
    history: Sequence[float]
    """Executions of the given step per minute; empty without a step."""


@get("/machines/{name}/rates", every=5, summary="What a machine executed, by step and transition")
async def machine_rates(
    board: Board, name: str, *, range: TimeRange = "15m", version: int | None = None, step: str = ""
) -> MachineFigures:
    """Return figures of a version of a machine, by default the newest."""
    found = await board.cached(f"graphs:{name}", 10.0, lambda: _verbs.stored_graphs(name))
    one = chosen(found, name, version)
    key = f"rates:{name}:{range}:{one.version}:{step}"
    return await board.cached(key, 3.0, lambda: _rates(name, range, one, step))


def _rates(name: str, range_: TimeRange, one: StoredGraph, step: str) -> Plan[MachineFigures]:
    total = yield from _verbs.rates(range_, name, one.version)
    by_step = yield from _verbs.step_rates(name, range_, one.version)
    edges = [edge for edge in by_step.edges if edge.version == one.version]
    graph = None if one.graph is None else graph_of(one.graph)
    flow = transitions(edges, graph)
    started = sum(edge.started for edge in edges)
    if graph is not None and started:
        flow[f"{START}>{graph.initial}"] = started
    shown = intervals(total)
    history: dict[datetime, int] = {}
    if step:
        rows = yield from rollups.step_series(name, one.version, step, by_step.period, total.width)
        history = {row["at"]: row["executions"] for row in rows}
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for edge in edges:
        kind = "stopped" if edge.cause == "stop" else "raised" if edge.cause else "went"
        counts[edge.step][kind] += edge.executions
    return MachineFigures(
        at=total.at,
        period=by_step.period,
        total=total.total,
        series=Series(
            started=per_minute(total, shown, {point.at: point.started for point in total.points}),
            done=per_minute(total, shown, {point.at: point.done for point in total.points}),
            failed=per_minute(total, shown, {point.at: point.failed for point in total.points}),
        ),
        steps={
            each.step: StepFigures(
                executions=counts[each.step].total(),
                raised=counts[each.step]["raised"],
                stopped=counts[each.step]["stopped"],
                share=counts[each.step]["raised"] / counts[each.step].total(),
                p50=each.run.p50,
                p95=each.run.p95,
                p99=each.run.p99,
                run=each.run.histogram,
            )
            for each in by_step.steps
            if each.step in counts
        },
        flow=_shares(flow),
        history=per_minute(total, shown, history) if step else [],
    )


def _shares(flow: Mapping[str, int]) -> dict[str, Flow]:
    every: Counter[str] = Counter()
    leaving: Counter[str] = Counter()
    for key, count in flow.items():
        source, target = key.split(">")
        every[source] += count
        leaving[source] += count if source != target else 0
    found = {}
    for key, count in sorted(flow.items(), key=lambda one: -one[1]):
        source, target = key.split(">")
        share = None if source == target else count / leaving[source]
        found[key] = Flow(count=count, part=count / every[source], share=share)
    return found


def transitions(edges: Iterable[EdgeRates], graph: Graph | None) -> dict[str, int]:
    """Count transitions by edge of the picture: `source>target`. Those of `handle` begin at its own node.

    An undo step begins after any step, but its edge begins at the step that it undoes. So its executions are counted,
    unless several steps share it.
    """
    known = set() if graph is None else {(edge.source, edge.target) for edge in graph.edges}
    undone: defaultdict[str, list[str]] = defaultdict(list)
    for drawn in graph.edges if graph is not None else ():
        if drawn.kind == "undo":
            undone[drawn.target].append(drawn.source)
    flow: Counter[str] = Counter()
    for edge in edges:
        if len(undone[edge.step]) == 1 and edge.outcome not in _REPEATED:
            flow[f"{undone[edge.step][0]}>{edge.step}"] += edge.executions
        target = edge.to_step or (edge.step if edge.outcome in _REPEATED else _ENDS.get(edge.outcome))
        if target is not None:
            is_handled = (edge.step, target) not in known and (HANDLE, target) in known
            flow[f"{HANDLE if is_handled else edge.step}>{target}"] += edge.executions
    return dict(flow)


def unread(graph: Graph | None, version: int, edges: Iterable[EdgeRates]) -> tuple[tuple[str, str], ...]:
    """Return the committed transitions of a version that its graph lacks."""
    if graph is None:
        return ()
    known = {(edge.source, edge.target) for edge in graph.edges}
    by_handle = {target for source, target in known if source == HANDLE}
    seen = {(one.step, one.to_step or "") for one in edges if one.version == version and one.to_step}
    return tuple(sorted((step, to) for step, to in seen - known if to not in by_handle))


def chosen(found: Sequence[StoredGraph], name: str, version: int | None) -> StoredGraph:
    """Return one of the versions of a machine, by default the newest."""
    matching = [one for one in found if version in (None, one.version)]
    if not matching:
        which = f"version {version} of machine {name!r}" if version and found else f"machine {name!r}"
        raise ProblemError(
            404,
            "This machine is not registered",
            f"No worker has registered {which}.",
            "Start a worker that has it. Its instances are listed by the search machine:NAME.",
        )
    return matching[-1]
