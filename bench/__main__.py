"""`./run bench`: throughput, or memory (--soak), --operations, --streams, --watches, --dashboard, or --peers."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from gen_durable.embedded import EmbeddedPostgres

from .dashboard.answers import measure_answers
from .dashboard.soak import measure_soak
from .operations import measure_operations
from .peers.compare import Options, compare
from .peers.page import RESULTS, publish
from .peers.results import Results
from .peers.systems import SYSTEMS
from .peers.workloads import WORKLOADS
from .soak import soak
from .streams import measure_streams
from .throughput import MEASUREMENTS, measure
from .watches import measure_watches

HOME = Path(__file__).parents[1] / ".gen_durable" / "bench"


def main() -> None:
    """Run one of the benchmarks on an embedded server, or on the one that --dsn names."""
    given = _parser().parse_args()
    if given.peers and given.render:
        publish(Results.read(RESULTS))
    elif given.peers:
        options = Options(
            rounds=given.rounds,
            is_quick=given.quick,
            is_resumed=given.resume,
            systems=_names(given.systems),
            workloads=_names(given.workloads),
        )
        compare(HOME / "peers", options)
    elif given.soak is not None:
        _with_server(given.dsn, lambda dsn: asyncio.run(soak(dsn, given.soak, HOME / "soak.csv")))
    elif given.dashboard:
        _with_server(
            given.dsn,
            lambda dsn: _check(
                asyncio.run(measure_answers(dsn, is_kept=given.keep, is_recorded=given.record))
            ),
        )
    elif given.dashboard_soak is not None:
        _with_server(
            given.dsn,
            lambda dsn: _check(
                asyncio.run(measure_soak(dsn, given.dashboard_soak, is_recorded=given.record))
            ),
        )
    elif given.operations:
        _with_server(
            given.dsn,
            lambda dsn: asyncio.run(measure_operations(dsn, given.rounds, is_recorded=given.record)),
        )
    elif given.streams is not None:
        _with_server(given.dsn, lambda dsn: asyncio.run(measure_streams(dsn, given.streams, given.rounds)))
    elif given.watches is not None:
        _with_server(given.dsn, lambda dsn: asyncio.run(measure_watches(dsn, given.watches, given.rounds)))
    else:
        names = _measurements(given.only)
        _with_server(given.dsn, lambda dsn: asyncio.run(measure(dsn, given.jobs, given.rounds, names)))


def _measurements(given: str | None) -> tuple[str, ...]:
    names = _names(given) or MEASUREMENTS
    if unknown := [name for name in names if name not in MEASUREMENTS]:
        raise SystemExit(
            f"unknown measurements: {', '.join(unknown)}. Give some of {', '.join(MEASUREMENTS)}."
        )
    return names


def _names(given: str | None) -> tuple[str, ...]:
    return tuple(given.split(",")) if given else ()


def _check(is_met: bool) -> None:
    if not is_met:
        raise SystemExit(1)


def _with_server(dsn: str | None, run: Callable[[str], None]) -> None:
    if dsn is not None:
        run(dsn)
        return
    with EmbeddedPostgres(HOME, idle_stop=timedelta(seconds=1)) as server:
        run(server.ensure())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./run bench", description=__doc__)
    parser.add_argument(
        "--dsn", help="use this server instead of the embedded one; drops its schema gen_durable_bench"
    )
    parser.add_argument(
        "--jobs", type=int, default=20_000, help="jobs of a measurement; default: 20000; not for --peers"
    )
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument(
        "--only", metavar="NAMES", help="only these measurements of throughput, separated by commas"
    )
    parser.add_argument(
        "--soak",
        type=float,
        metavar="MINUTES",
        help="measure memory over time instead, with and without cut connections",
    )
    parser.add_argument(
        "--streams", type=int, metavar="ITEMS", help="measure publishing and reading a stream instead"
    )
    parser.add_argument("--watches", type=int, metavar="INSTANCES", help="measure watched instances instead")
    dashboard = parser.add_argument_group(
        "dashboard", "Needs Chromium, which records what the pages ask for."
    )
    dashboard.add_argument(
        "--dashboard",
        action="store_true",
        help="measure every request and page among a million instances instead; exits with 1 over the limit",
    )
    dashboard.add_argument(
        "--keep", action="store_true", help="use the instances of the last run, if there are any"
    )
    dashboard.add_argument(
        "--dashboard-soak",
        type=float,
        metavar="MINUTES",
        help="measure a worker without and with 50 open pages instead; exits with 1 if they cost more than 5 %% of "
        "its throughput",
    )
    operations = parser.add_argument_group("cost model")
    operations.add_argument(
        "--operations", action="store_true", help="measure single operations and steps instead"
    )
    operations.add_argument(
        "--record",
        action="store_true",
        help="write the figures to PERFORMANCE.md; also of --dashboard and its soak",
    )
    peers = parser.add_argument_group(
        "comparison with other systems",
        "Installs the systems first, the Node.js ones with npm. A full run takes about 25 minutes and 13 GB of disk.",
    )
    peers.add_argument(
        "--peers", action="store_true", help="run it; a full run overwrites docs/performance.md"
    )
    peers.add_argument("--quick", action="store_true", help="one round, fewer jobs; print only")
    peers.add_argument("--resume", action="store_true", help="continue an interrupted run")
    peers.add_argument(
        "--render",
        action="store_true",
        help="only write docs/performance.md again, from the published results",
    )
    peers.add_argument(
        "--systems",
        metavar="NAMES",
        help=f"only these, separated by commas; print only: {', '.join(each.name for each in SYSTEMS)}",
    )
    peers.add_argument(
        "--workloads",
        metavar="NAMES",
        help=f"only these, separated by commas; print only: {', '.join(each.name for each in WORKLOADS)}",
    )
    return parser


if __name__ == "__main__":
    main()
