"""Compare stored instances with the machines of some code: which ones can it not run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias, TypeVar

from .._core.compatibility import Code, LiveMachine
from .._core.registry import Registry
from ..findings import Finding
from .plan import Plan, Rows, statements

__all__ = ["KnownSteps", "compare", "known_steps", "live_machines"]

T = TypeVar("T")
# By machine and version.
KnownSteps: TypeAlias = Mapping[tuple[str, int], set[str]]

_SQL = statements("compatibility.sql")
# The most instances that are counted per group.
_MAX_COUNT: Final = 10_000
# The most runnable instances that are read per machine, queue and version to find their steps.
_MAX_STEPS: Final = 1000
# The most unread signals that are read per instance.
_MAX_SIGNALS: Final = 100
_CHUNK: Final = 500


def compare(registry: Registry, *, sample: int | None, is_worker: bool = False) -> Plan[list[Finding]]:
    """Find live instances that these machines cannot run.

    Args:
        registry: the machines.
        sample: how many instances per group are read; `None`: all, and the groups are counted without a limit.
        is_worker: see `Code`.
    """
    every = sample is None
    parked = yield _SQL["parked"](most=None if every else _MAX_COUNT)
    waiting = yield _SQL["waiting"](most=None if every else _MAX_STEPS)
    code = Code(registry, (yield from live_machines()), is_worker=is_worker)
    counts: defaultdict[tuple[str, int, str], int] = defaultdict(int)
    for row in (*parked, *waiting):
        counts[row["fsm"], row["fsm_version"], row["step"]] += row["count"]
    found = [*code.groups(counts, None if every else _MAX_STEPS)]
    ids = yield from _ids(code, parked, waiting, sample)
    for chunk in _chunks(ids):
        yield from _check(code, chunk, None if every else _MAX_SIGNALS)
    return [*found, *code.findings()]


def live_machines() -> Plan[list[LiveMachine]]:
    """Read the machines of live workers."""
    rows = yield _SQL["live_machines"]()
    return [LiveMachine(row["name"], row["fsm"], row["fsm_version"], tuple(row["steps"])) for row in rows]


def known_steps() -> Plan[KnownSteps]:
    """Read the steps that live workers have."""
    found: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
    for each in (yield from live_machines()):
        found[each.fsm, each.version].update(each.steps)
    return found


def _ids(code: Code, parked: Rows, waiting: Rows, sample: int | None) -> Plan[list[int]]:
    """Read the ids of the instances to check: some of each group, or all."""
    groups = [row for row in parked if code.runs(row["fsm"], row["fsm_version"])]
    found: list[int] = []
    if groups:
        rows = yield _SQL["parked_ids"](
            fsms=[row["fsm"] for row in groups],
            queues=[row["queue"] for row in groups],
            versions=[row["fsm_version"] for row in groups],
            statuses=[row["status"] for row in groups],
            steps=[row["step"] for row in groups],
            most=sample,
        )
        found += [row["id"] for row in rows]
    for row in waiting:
        if code.runs(row["fsm"], row["fsm_version"]):
            found += row["ids"][:sample]
    return [*dict.fromkeys(found)]


def _check(code: Code, ids: list[int], signals: int | None) -> Plan[None]:
    rows = yield _SQL["states"](ids=ids)
    by_id = {row["id"]: row for row in rows}
    for row in rows:
        code.instance(row)
    if signalled := [row["id"] for row in rows if row["has_signals"]]:
        for signal in (yield _SQL["payloads"](ids=signalled, most=signals)):
            target = by_id[signal["target_id"]]
            code.payload(
                target["id"], target["fsm"], target["fsm_version"], signal["name"], signal["payload"]
            )
    if parents := [row["id"] for row in rows if row["status"] == "awaiting_children"]:
        for child in (yield _SQL["children"](ids=parents)):
            code.child(child["parent"], child["fsm"], child["fsm_version"], child["count"])


def _chunks(items: Sequence[T]) -> Iterator[list[T]]:
    rest: Any = iter(items)
    while chunk := [*islice(rest, _CHUNK)]:
        yield chunk
