"""What a run has measured: all figures of all rounds, their medians, and the ratios that are targets."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from .systems import OURS

__all__ = ["TARGETS", "Figures", "Results", "Target", "Verdict"]

Figures = dict[str, float]


@dataclass
class Results:
    """Figures by workload, system and round. `None`: the system does not do that; text: why it failed."""

    about: dict[str, Any] = field(default_factory=dict)
    """Machine, versions and settings."""
    systems: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Title, version and settings of each system that ran."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Systems that could not be installed, and why."""
    rounds: dict[str, dict[str, dict[str, Figures | str | None]]] = field(default_factory=dict)
    """Workload → system → number of the round → figures."""

    def add(self, workload: str, system: str, number: int, figures: Figures | str | None) -> None:
        self.rounds.setdefault(workload, {}).setdefault(system, {})[str(number)] = figures

    def has(self, workload: str, system: str, number: int) -> bool:
        return str(number) in self.rounds.get(workload, {}).get(system, {})

    def median(self, workload: str, system: str) -> Figures:
        """Return the median of each figure; empty if there is none."""
        found = self._figures(workload, system)
        names = {name: None for figures in found.values() for name in figures}
        return {
            name: statistics.median(figures[name] for figures in found.values() if name in figures)
            for name in names
        }

    def spread(self, workload: str, system: str, name: str) -> tuple[float, float] | None:
        """Return the smallest and the largest value of a figure over the rounds."""
        found = [figures[name] for figures in self._figures(workload, system).values() if name in figures]
        return (min(found), max(found)) if found else None

    def has_outlier(self, workload: str, system: str) -> bool:
        """Whether the rate of the slowest round is less than half of the median."""
        spread = self.spread(workload, system, "per_second")
        return spread is not None and spread[0] < self.median(workload, system)["per_second"] / 2

    def deviations(self, name: str) -> list[float]:
        """Return by how much the round that differs most differs from the median, for each row without an outlier."""
        found = []
        for workload, systems in self.rounds.items():
            for system in systems:
                spread = self.spread(workload, system, name)
                if spread and not self.has_outlier(workload, system):
                    median = self.median(workload, system)[name]
                    found.append(max(spread[1] - median, median - spread[0]) / median)
        return found or [0.0]

    def failure(self, workload: str, system: str) -> str | None:
        """Return why a measurement failed, if one did."""
        found = self.rounds.get(workload, {}).get(system, {}).values()
        return next((each for each in found if isinstance(each, str)), None)

    def ratio(self, name: str, one: tuple[str, str], other: tuple[str, str]) -> float | None:
        """Return the median over the rounds of a figure of one (workload, system) by that of another."""
        these, those = self._figures(*one), self._figures(*other)
        found = [these[number][name] / those[number][name] for number in these if number in those]
        return statistics.median(found) if found else None

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.__dict__, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Results:
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    def _figures(self, workload: str, system: str) -> dict[str, Figures]:
        found = self.rounds.get(workload, {}).get(system, {})
        return {number: figures for number, figures in found.items() if isinstance(figures, dict)}


@dataclass(frozen=True)
class Target:
    """A bound for one figure of a run."""

    title: str
    is_minimum: bool
    bound: float
    measure: Callable[[Results], float | None]
    unit: str = "×"

    def verdict(self, results: Results) -> Verdict:
        return Verdict(self, self.measure(results))


@dataclass(frozen=True)
class Verdict:
    """A target and what was measured; `None` if a system or workload is missing."""

    target: Target
    value: float | None

    @property
    def word(self) -> str:
        if self.value is None:
            return "not measured"
        target = self.target
        is_met = self.value >= target.bound if target.is_minimum else self.value <= target.bound
        return "met" if is_met else "missed"

    @property
    def bound(self) -> str:
        return f"{'≥' if self.target.is_minimum else '≤'} {self.target.bound:g} {self.target.unit}"

    @property
    def measured(self) -> str:
        return "–" if self.value is None else f"{self.value:.3g} {self.target.unit}"


def _rate(system: str, workload: str = "noop", ours: str = OURS) -> Callable[[Results], float | None]:
    return lambda results: results.ratio("per_second", (workload, ours), (workload, system))


def _busy_key(results: Results) -> float | None:
    return results.median("busy_key", OURS).get("start_s")


# What a step that suspends cost in Python before the hot path was rewritten: 87 to 97 µs at commit 18b3668.
_SUSPENDING_BEFORE: Final = 92.0

TARGETS: Final = (
    Target("one job against graphile-worker, throughput", True, 1.5, _rate("graphile_worker")),
    Target(
        "one job against graphile-worker, total processor time",
        False,
        0.7,
        lambda results: results.ratio("total_us", ("noop", OURS), ("noop", "graphile_worker")),
    ),
    Target(
        "one job, keep=False and records off, against graphile-worker, throughput",
        True,
        2.0,
        _rate("graphile_worker", ours="keep_off"),
    ),
    Target("one job against PgQueuer, throughput", True, 2.3, _rate("pgqueuer")),
    Target("one job against Procrastinate, throughput", True, 80.0, _rate("procrastinate")),
    Target("one job against DBOS, throughput", True, 200.0, _rate("dbos")),
    Target("chained steps against steps of DBOS, throughput", True, 250.0, _rate("dbos", "chain")),
    Target("chained steps against the bare loop, throughput", True, 0.85, _rate("bare", "chain")),
    Target("one job against the bare loop, throughput", True, 0.9, _rate("bare")),
    Target(
        "step that suspends, Python, against 92 µs before the rewrite",
        False,
        0.5,
        lambda results: (
            worker_us / _SUSPENDING_BEFORE
            if (worker_us := results.median("suspend", OURS).get("worker_us"))
            else None
        ),
    ),
    Target(
        "batch insert against graphile-worker, throughput",
        True,
        1.0,
        _rate("graphile_worker", "insert_batch"),
    ),
    Target(
        "one job beside 5 million rows against an empty table, total processor time",
        False,
        1.2,
        lambda results: results.ratio("total_us", ("rows", OURS), ("noop", OURS)),
    ),
    Target("start of a job behind 50,000 rows of a busy key", False, 2.0, _busy_key, "s"),
    Target(
        "4 worker processes against one, PostgreSQL processor time per job",
        False,
        1.2,
        lambda results: results.ratio("server_us", ("noop4", OURS), ("noop", OURS)),
    ),
)
