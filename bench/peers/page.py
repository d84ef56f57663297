"""docs/performance.md: the published comparison, generated from docs/performance/results.json."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from .charts import CHARTS, charts
from .report import columns, rows_of, verdicts
from .results import Results
from .systems import OURS, ROOT
from .workloads import TIMEOUT, WORKLOADS, Workload

__all__ = ["PAGE", "RESULTS", "files", "publish"]

PAGE: Final = ROOT / "docs" / "performance.md"
RESULTS: Final = ROOT / "docs" / "performance" / "results.json"

_CLEAR: Final = 1.05
"""A peer is better if it differs by more than that; less is noise."""


def publish(results: Results) -> None:
    """Write the results, the charts and the page."""
    results.write(RESULTS)
    for path, text in files(results):
        path.write_text(text, encoding="utf-8")


def files(results: Results) -> Iterator[tuple[Path, str]]:
    """Yield the path and the text of the page and of every chart."""
    yield PAGE, page(results)
    for name, text in charts(results):
        yield RESULTS.with_name(name), text


def page(results: Results) -> str:
    """Return the whole page."""
    parts = [
        "# Performance next to other systems",
        "The same work on gen_durable and on other job queues and workflow engines for PostgreSQL: same server, same "
        "machine, one run. [PERFORMANCE.md](../PERFORMANCE.md) explains where the time of this engine goes.",
        "<!-- Written by ./run bench --peers from docs/performance/results.json; do not edit. -->",
        *(_picture(chart.name, chart.title) for chart in CHARTS),
        "## How it is measured",
        _METHOD + _deviations(results),
        _machine(results),
        "Every system runs in the fastest durable configuration that its documentation describes, with its log off:",
        _table(
            ("system", "version", "settings"),
            ((one["title"], one["version"], one["settings"]) for one in results.systems.values()),
        ),
        *(f"{title} was skipped: {reason}." for title, reason in results.skipped.items()),
        _DIFFERENCES,
        "## Figures",
        "*Worker* is processor time of the worker processes, or of the inserting process; *PostgreSQL* is that of the "
        "whole server. Each figure is the median of the rounds, the sum too, so the parts need not add up to it. "
        "Systems that are missing in a table cannot do that work. `bare loop` runs only the pick and commit "
        "statements of gen_durable, and keeps its rows; that is why `keep=False`, which deletes them, can be faster.",
        *_workloads(results),
        "## Where a peer is better",
        "This compares the first row of each table, gen_durable with its default settings for rows and records.",
        "\n".join(f"- {line}" for line in better(results)) or "Nowhere in this run.",
        _TRADE_OFFS,
        "## Targets",
        "Ratios within a round, then the median of the rounds.",
        _table(("target", "bound", "measured", ""), verdicts(results)),
    ]
    return "\n\n".join(parts) + "\n"


_METHOD: Final = """\
`./run bench --peers` runs all systems and workloads in turn, in several rounds, and writes this page. `--quick` prints
one round of the main workloads in less than 3 minutes.

Each measurement has a fresh database. The worker processes start, run a few jobs to warm up, and are stopped by a
signal while another process inserts the backlog. Then PostgreSQL vacuums and writes a checkpoint, and the workers
continue. The measurement ends when every job is committed. Processor time is read from outside, in the same way for all
systems.

"""

_DIFFERENCES: Final = """\
The systems do not promise the same:

- graphile-worker and PgQueuer delete a finished job, and Procrastinate is set to do so. DBOS, Absurd, pg-boss and
  gen_durable keep it with its result; gen_durable also keeps a record of each execution. Its variant with `keep=False`
  and without records compares like with like.
- With pg-boss, the jobs of a batch share one call of the handler and one outcome, except in the workload with failures.
- graphile-worker delays a retry by at least 2.7 s. Its rate with failures shows that."""

_TRADE_OFFS: Final = """\
Systems with LISTEN/NOTIFY start a job of another process at once, whatever their polling interval. gen_durable polls:
`min_poll_interval` (20 ms) after a pick that found work, and less often the longer nothing comes, up to
`poll_interval`: 50 ms in these measurements, 1 s by default. Work that the process of the worker inserts starts at
once."""


def _deviations(results: Results) -> str:
    """Say how much single rounds differ from the median, for the two figures that a table compares."""
    typical, most = zip(
        *(
            (statistics.median(each), max(each))
            for each in map(results.deviations, ("per_second", "total_us"))
        ),
        strict=True,
    )
    return (
        "The machine is shared. In a typical row, the round that is farthest from the median differs from it by "
        f"{typical[0]:.0%} in the rate and {typical[1]:.0%} in processor time; in the worst row by {most[0]:.0%} and "
        f"{most[1]:.0%}, outliers aside. Differences between rows of about that size mean nothing. "
        "[results.json](performance/results.json) has the figures of every round."
    )


def _outliers(results: Results, workload: Workload) -> Iterator[str]:
    for system, about in results.systems.items():
        if results.has_outlier(workload.name, system) and (
            spread := results.spread(workload.name, system, "per_second")
        ):
            yield f"{about['title']}: one round is an outlier, with {spread[0]:,.0f} per second."


def _machine(results: Results) -> str:
    about = results.about
    settings = ", ".join(f"`{name} = {value}`" for name, value in about["settings"].items())
    rounds = f"Medians of {about['rounds']} interleaved rounds" if about["rounds"] > 1 else "A single round"
    return (
        f"Machine: {about['processor']}, {about['cores']} cores, {about['memory_gb']} GB, Linux {about['kernel']}; "
        f"load average before the run {about['load']:.1f}. Python {about['python']}. PostgreSQL {about['postgresql']} "
        f"on the same machine, {settings}. {rounds} on {about['date']}, at "
        f"commit {about['commit']}."
    )


def _picture(name: str, title: str) -> str:
    return "\n".join(
        f"![{title}](performance/{name}-{theme}.svg#gh-{theme}-mode-only)" for theme in ("light", "dark")
    )


def _workloads(results: Results) -> Iterator[str]:
    for workload in WORKLOADS:
        rows = list(rows_of(results, workload))
        if rows:
            yield f"### {workload.title[0].upper()}{workload.title[1:]}"
            yield workload.note
            yield _table(("", *columns(workload)), rows)
            yield from _outliers(results, workload)
            for system, about in results.systems.items():
                if not results.median(workload.name, system) and (
                    reason := results.failure(workload.name, system)
                ):
                    yield f"{about['title']} failed: {reason} (limit: {TIMEOUT:.0f} s)."


def better(results: Results) -> Iterator[str]:
    """Yield a line for each workload and peer that beats this engine in a figure."""
    peers = {name: one["title"] for name, one in results.systems.items() if not one["is_ours"]}
    for workload in WORKLOADS:
        ours = results.median(workload.name, OURS)
        for system, title in peers.items():
            theirs = results.median(workload.name, system)
            found = list(_advantages(workload, ours, theirs)) if ours and theirs else []
            if found:
                yield f"{workload.title}: {title}: {', '.join(found)}"


def _advantages(workload: Workload, ours: dict[str, float], theirs: dict[str, float]) -> Iterator[str]:
    titles = {
        "per_second": "{:,.0f} per second, gen_durable {:,.0f}",
        "total_us": "{:,.0f} µs of processor time, gen_durable {:,.0f}",
        "worker_us": "{:,.0f} µs in the worker, gen_durable {:,.0f}",
        "server_us": "{:,.0f} µs in PostgreSQL, gen_durable {:,.0f}",
        "p50_ms": "p50 {:,.1f} ms, gen_durable {:,.1f}",
        "p99_ms": "p99 {:,.1f} ms, gen_durable {:,.1f}",
        "same_process_p50_ms": "p50 in the same process {:,.1f} ms, gen_durable {:,.1f}",
        "same_process_p99_ms": "p99 in the same process {:,.1f} ms, gen_durable {:,.1f}",
    }
    for name, form in titles.items():
        if name not in ours or name not in theirs:
            continue
        ratio = theirs[name] / ours[name]
        if (ratio if name == "per_second" else 1 / ratio) > _CLEAR:
            yield form.format(theirs[name], ours[name])


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(head)
    lines = [titles, ["---"] + ["---:" if len(titles) > 3 else "---"] * (len(titles) - 1), *map(list, rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
