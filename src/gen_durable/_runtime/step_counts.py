"""Count what a worker executes, and write the counts to the rollups."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias, TypeVar, cast

from .._core.histograms import BUCKETS
from .._core.model import ENDED, CommitEntry, Kind
from .._core.settle import TRANSITIONS
from .._db import rollups, snapshots
from .._db.failures import StatementError, is_outage
from .._db.lease import Crash
from .._db.pool import Database
from .clock import DatabaseClock
from .in_flight import InFlight

__all__ = ["StepCounts"]

_log: Final = logging.getLogger("gen_durable.worker")
# What is counted under one key: executions, first executions of an instance, and two histograms.
_FIRST: Final = 1
_RUN: Final = 2
_WAIT: Final = _RUN + BUCKETS
_WIDTH: Final = _WAIT + BUCKETS
# The same on the hot path, where a histogram has an element per number of bits.
_BITS: Final = 64
_RAW_WAIT: Final = _RUN + _BITS
_RAW_WIDTH: Final = _RAW_WAIT + _BITS
# Seconds after which counts that could not be written are dropped: rows of that age may have been folded.
_MAX_AGE: Final = 3600


_RawKey: TypeAlias = tuple[str, int, str, str, str, str | None, str]


class _Key(NamedTuple):
    """What executions that are counted together have in common. The hot path uses a plain tuple of the same."""

    fsm: str
    version: int
    step: str
    kind: str
    """The kind of the outcome, as a commit entry names it; `stale`, or what the reaper did."""
    to_step: str
    cause: str | None
    became: str
    """Where the instance went instead of ending, or its status."""

    def row(self) -> rollups.StepKey:
        transition = TRANSITIONS.get(cast("Kind", self.kind))
        if transition is None:
            return rollups.StepKey(
                self.fsm, self.version, self.step, self.kind, self.cause or "", self.to_step
            )
        outcome, moves = transition.outcome, transition.moves and self.became not in ENDED
        if self.became in ("undo", "undone", "on_cancel"):
            outcome, moves = self.became, False
        elif self.became == "cancelled" and self.kind != "undone_cancelled":
            outcome = "cancelled"
        elif self.became == "failed" and self.kind == "done":
            outcome = "undone"  # the last undo step
        # The last undo step ends its instance with the cause of another step.
        cause = "" if outcome in ("cancelled", "undone") else self.cause or ""
        return rollups.StepKey(
            self.fsm, self.version, self.step, outcome, cause, self.to_step if moves else ""
        )


_PlaceT = TypeVar("_PlaceT")
_ValueT = TypeVar("_ValueT")


class StepCounts:
    """Counts executions where they are reported, and writes the counts of the current interval.

    The event loop counts: it only adds to integers, and never resets them. The heartbeat writes, on its own thread:
    it compares the counts with those that it saw before. So nothing is locked on the hot path, and nothing is lost.
    A statement has the absolute counts of an interval, so it can be repeated.
    """

    def __init__(self) -> None:
        self._incarnation = secrets.randbits(63)
        self._counts: dict[_RawKey, list[int]] = {}
        # One writer collects at a time: the heartbeat, or the shutdown.
        self._lock = threading.Lock()
        # Guarded by the lock: the counts that were seen, those of the current interval, and those that are not stored.
        self._seen: dict[_RawKey, list[int]] = {}
        self._bucket = 0
        self._steps: dict[rollups.StepKey, list[int]] = {}
        self._totals: dict[rollups.TotalKey, rollups.Total] = {}
        self._unwritten_steps: dict[tuple[int, rollups.StepKey], list[int]] = {}
        self._unwritten_totals: dict[tuple[int, rollups.TotalKey], rollups.Total] = {}
        self._has_failed = False

    def count(self, one: InFlight, entry: CommitEntry, became: str | None) -> None:
        """Count an execution whose outcome was committed; `became` is `None` if it was stale."""
        execution = one.execution
        key: _RawKey
        if became is None:
            key = (execution.fsm, execution.version, execution.step, "stale", "", None, "")
        else:
            key = (
                execution.fsm,
                execution.version,
                execution.step,
                entry.kind,
                entry.step,
                entry.cause,
                became,
            )
        try:
            counts = self._counts[key]
        except KeyError:
            counts = self._counts[key] = [0] * _RAW_WIDTH
        if execution.number == 1:
            counts[_FIRST] += 1
        if entry.started is not None:
            # The number of bits of the milliseconds; the writer adds the long durations to the last bucket.
            counts[_RUN + int(one.seconds * 1000).bit_length()] += 1
            if one.steps == 1 and execution.due_at is not None and entry.started_at is not None:
                waited = entry.started_at - execution.due_at
                counts[_RAW_WAIT + (int(waited * 1000).bit_length() if waited > 0 else 0)] += 1
        counts[0] += 1  # last: the writer compares it, and may copy the counts at any time

    def crashed(self, crashes: Iterable[Crash]) -> None:
        """Count executions that the reaper has found without a worker."""
        for crash in crashes:
            key = (
                crash.fsm,
                crash.version,
                crash.step,
                crash.outcome,
                crash.to_step,
                crash.cause,
                crash.became,
            )
            counts = self._counts.setdefault(key, [0] * _RAW_WIDTH)
            if crash.execution == 1:
                counts[_FIRST] += 1
            counts[0] += 1

    async def write(self, database: Database, worker: str, clock: DatabaseClock) -> None:
        """Write what was counted since the last write; nothing if nothing was. A failure is logged once."""
        if not self._counts:
            return
        try:
            now = clock.seconds_at(time.monotonic())
            if now is None:  # the worker has counted crashes only
                now = (await database.run(snapshots.now())).timestamp()
            with self._lock:
                self._collect(now)
                steps = {place: counts.copy() for place, counts in self._unwritten_steps.items()}
                totals = {place: total.copy() for place, total in self._unwritten_totals.items()}
            if not steps:
                return
            await database.run(rollups.write(worker, self._incarnation, steps, totals))
        except StatementError as error:
            # The heartbeat logs an outage.
            if not self._has_failed and not is_outage(error):
                _log.warning("rollups not stored: %s", error)
            self._has_failed = True
            return
        self._has_failed = False
        with self._lock:
            _remove_equal(self._unwritten_steps, steps)
            _remove_equal(self._unwritten_totals, totals)

    def _collect(self, now: float) -> None:
        """Add what is new to the counts of the current interval."""
        bucket = int(now // rollups.INTERVAL) * rollups.INTERVAL
        if bucket != self._bucket:
            self._bucket, self._steps, self._totals = bucket, {}, {}
            oldest = bucket - _MAX_AGE
            self._unwritten_steps = {
                place: counts for place, counts in self._unwritten_steps.items() if place[0] >= oldest
            }
            self._unwritten_totals = {
                place: total for place, total in self._unwritten_totals.items() if place[0] >= oldest
            }
        for key, counts in self._counts.copy().items():
            seen = self._seen.get(key)
            if seen is not None and seen[0] == counts[0]:
                continue
            current = counts.copy()
            added = current if seen is None else [now - then for now, then in zip(current, seen, strict=True)]
            self._seen[key] = current
            self._add(bucket, _Key(*key), _bounded(added))

    def _add(self, bucket: int, key: _Key, added: list[int]) -> None:
        row = key.row()
        self._unwritten_steps[bucket, row] = _plus(self._steps.setdefault(row, [0] * _WIDTH), added)
        for whole in (rollups.TotalKey(row.fsm, row.version), rollups.TotalKey()):
            total = self._totals.setdefault(
                whole, rollups.Total([0] * _WIDTH, dict.fromkeys(rollups.FIGURES, 0))
            )
            _plus(total.counts, added)
            if key.became in ENDED:
                total.figures[key.became] += added[0]
            if row.outcome in ("retry", "lease"):
                total.figures["retried"] += added[0]
            if row.cause:
                total.figures["stopped" if row.cause == "stop" else "raised"] += added[0]
            self._unwritten_totals[bucket, whole] = total


def _bounded(raw: list[int]) -> list[int]:
    """Add the durations above the last bound to the last bucket."""
    bounded = raw[:_RUN]
    for histogram in (raw[_RUN:_RAW_WAIT], raw[_RAW_WAIT:]):
        bounded += histogram[: BUCKETS - 1]
        bounded.append(sum(histogram[BUCKETS - 1 :]))
    return bounded


def _plus(counts: list[int], added: list[int]) -> list[int]:
    for place, number in enumerate(added):
        if number:
            counts[place] += number
    return counts


def _remove_equal(left: dict[_PlaceT, _ValueT], written: Mapping[_PlaceT, _ValueT]) -> None:
    """Remove what has been written and has not changed since."""
    for place, value in written.items():
        if left.get(place) == value:
            del left[place]
