"""`./run bench --peers`: install the systems, run all workloads in interleaved rounds, and write the results."""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psycopg

from gen_durable.embedded import EmbeddedPostgres

from .page import PAGE, publish
from .program import AdapterError
from .report import terminal
from .results import Results
from .server import SETTINGS, Server
from .systems import ROOT, SYSTEMS, System, UnavailableError, install
from .workloads import WORKLOADS, Bench, Workload

__all__ = ["Options", "compare"]


@dataclass(frozen=True)
class Options:
    """What to run. A quick run has one round of the core workloads with fewer jobs, and publishes nothing."""

    rounds: int = 3
    is_quick: bool = False
    is_resumed: bool = False
    systems: tuple[str, ...] = ()
    """Names; empty means all."""
    workloads: tuple[str, ...] = ()
    rows: int = 5_000_000

    @property
    def is_published(self) -> bool:
        return not (self.is_quick or self.systems or self.workloads)


def compare(home: Path, options: Options) -> Results:
    """Run the comparison and print its tables. Interrupted, it continues with `is_resumed`."""
    # End through the context managers: a worker that is paused would stay behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    saved = home / ("quick.json" if options.is_quick else "results.json")
    results = Results.read(saved) if options.is_resumed and saved.exists() else Results()
    home.mkdir(parents=True, exist_ok=True)
    with (
        EmbeddedPostgres(home / "server", idle_stop=timedelta(seconds=1), options=SETTINGS) as embedded,
        Server(embedded.ensure()) as server,
    ):
        bench = Bench(server, home, scale=0.2 if options.is_quick else 1.0, rows=options.rows)
        systems = _prepare(bench, home, options, results)
        results.about = _about(server, options)
        _remove_old_databases(server, systems, bench)
        _Run(bench, results, saved, options, systems).all_rounds()
    print(terminal(results))
    if options.is_published:
        publish(results)
        print(f"wrote {PAGE}", file=sys.stderr)
    return results


def _prepare(bench: Bench, home: Path, options: Options, results: Results) -> list[System]:
    """Install the systems; return those that work here."""
    found = []
    results.skipped = {}
    for system in SYSTEMS:
        if options.systems and system.name not in options.systems:
            continue
        try:
            install(system, home)
            bench.prepare(system)
        except (UnavailableError, AdapterError) as error:
            results.skipped[system.title] = str(error)
            print(f"skipped {system.title}: {error}", file=sys.stderr)
            continue
        about = bench.about[system.name]
        results.systems[system.name] = {
            "title": system.title,
            "version": about["version"],
            "settings": about["settings"],
            "is_ours": system.is_ours,
        }
        found.append(system)
    return found


def _about(server: Server, options: Options) -> dict[str, object]:
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "processor": cpu,
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
        "postgresql": server.version,
        "settings": SETTINGS,
        "rounds": 1 if options.is_quick else options.rounds,
        "rows": options.rows,
        "load": os.getloadavg()[0],
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def _remove_old_databases(server: Server, systems: list[System], bench: Bench) -> None:
    """Remove databases of many rows that belong to another version."""
    wanted = {bench.name_of_filled(system) for system in systems}
    for name in server.databases():
        if name.startswith("rows_") and name not in wanted:
            server.drop(name)


class _Run:
    def __init__(
        self, bench: Bench, results: Results, saved: Path, options: Options, systems: list[System]
    ) -> None:
        self._bench = bench
        self._results = results
        self._saved = saved
        self._rounds = 1 if options.is_quick else options.rounds
        self._plan = [
            (number, workload, system)
            for number in range(1, self._rounds + 1)
            for workload in WORKLOADS
            if _is_wanted(workload, options)
            for system in systems
            if system.only is None or workload.name in system.only
            if not results.has(workload.name, system.name, number)
        ]
        for system in systems:
            if median := results.median("noop", system.name):
                bench.rates[system.name] = median["per_second"]
        self._durations = _Durations(saved.with_name(f"{saved.stem}-durations.json"))

    def all_rounds(self) -> None:
        """Measure everything that has no result yet. Systems alternate within a workload, so drift hits all alike."""
        for index, (number, workload, system) in enumerate(self._plan):
            left = sum(self._durations.of(each.name, other.name) for _, each, other in self._plan[index:])
            print(
                f"round {number}/{self._rounds} [{index + 1}/{len(self._plan)}, about {left / 60:.0f} min left] "
                f"{workload.title}: {system.title}",
                file=sys.stderr,
            )
            begun = time.monotonic()
            try:
                figures: dict[str, float] | str | None = workload.measure(self._bench, system)
            except (AdapterError, OSError, psycopg.Error) as error:  # a dead process, or a refused statement
                figures = str(error)
                print(f"  failed: {error}", file=sys.stderr)
            self._durations.record(workload.name, system.name, time.monotonic() - begun)
            self._results.add(workload.name, system.name, number, figures)
            self._results.write(self._saved)
            if isinstance(figures, dict):
                print(
                    "  " + "  ".join(f"{name} {value:,.1f}" for name, value in figures.items()),
                    file=sys.stderr,
                )


def _is_wanted(workload: Workload, options: Options) -> bool:
    if options.workloads:
        return workload.name in options.workloads
    return workload.is_core or not options.is_quick


class _Durations:
    """How long each measurement took, in this run or the previous one, to tell how much time is left."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}

    def of(self, workload: str, system: str) -> float:
        return self._seconds.get(f"{workload} {system}", 5.0)

    def record(self, workload: str, system: str, seconds: float) -> None:
        self._seconds[f"{workload} {system}"] = seconds
        self._path.write_text(json.dumps(self._seconds, indent=1))
