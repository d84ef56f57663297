"""The tables of a run: the same cells for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterator

from .results import TARGETS, Results
from .workloads import WORKLOADS, Workload

__all__ = ["rows_of", "terminal", "verdicts"]

COST = ("per second", "slowest to fastest round", "worker µs", "PostgreSQL µs", "sum µs")
LATENCY = ("p50 ms", "p99 ms")
LATENCY_BOTH = ("p50 ms", "p99 ms", "same process p50", "p99")


def columns(workload: Workload) -> tuple[str, ...]:
    """Return the titles of the columns of figures."""
    if workload.unit:
        return COST
    return {"latency": LATENCY_BOTH, "latency_load": (*LATENCY, "load per second")}.get(
        workload.name, ("seconds",)
    )


def rows_of(results: Results, workload: Workload) -> Iterator[tuple[str, ...]]:
    """Yield the title of each system that ran the workload, and its cells."""
    for system, about in results.systems.items():
        median = results.median(workload.name, system)
        if median:
            cells = [_cell(name, value) for name, value in median.items()]
            if spread := results.spread(workload.name, system, "per_second"):
                cells.insert(1, " to ".join(f"{rate:,.0f}" for rate in spread))
            yield (about["title"], *cells)
        elif results.failure(workload.name, system):
            yield (about["title"], "failed", *("" for _ in columns(workload)[1:]))


def _cell(name: str, value: float) -> str:
    if name in ("per_second", "load"):
        return f"{value:,.0f}"
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def verdicts(results: Results) -> Iterator[tuple[str, str, str, str]]:
    """Yield each target: its title, its bound, what was measured, and whether it is met."""
    for target in TARGETS:
        verdict = target.verdict(results)
        yield target.title, verdict.bound, verdict.measured, verdict.word


def terminal(results: Results) -> str:
    """Return all tables as text."""
    parts = []
    for workload in WORKLOADS:
        rows = list(rows_of(results, workload))
        if rows:
            title = f"{workload.title} ({workload.unit})" if workload.unit else workload.title
            parts.append(_text((title, *columns(workload)), rows))
    parts.append(_text(("target", "bound", "measured", ""), list(verdicts(results))))
    parts += [f"skipped: {name}: {reason}" for name, reason in results.skipped.items()]
    return "\n\n".join(parts)


def _text(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[index]) for row in [head, *rows]) for index in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [head, *rows]
    )
