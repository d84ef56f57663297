"""The comparison of `./run bench --peers` measures this engine on a real server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.peers.program import AdapterError
from bench.peers.server import Server
from bench.peers.systems import OURS, SYSTEMS
from bench.peers.workloads import WORKLOADS, Bench

SYSTEM = next(system for system in SYSTEMS if system.name == OURS)
WORKLOAD = {workload.name: workload for workload in WORKLOADS}
JOBS = 200


@pytest.fixture
def bench(direct_dsn: str, tmp_path: Path) -> Iterator[Bench]:
    prefix = f"bench_{os.getpid()}_"
    with Server(direct_dsn) as server:
        bench = Bench(server, tmp_path, scale=JOBS / SYSTEM.jobs, rows=1000, prefix=prefix)
        bench.prepare(SYSTEM)
        yield bench
        for name in server.databases():
            if name.startswith(prefix):
                server.drop(name)


@pytest.mark.parametrize("name", ["noop", "insert_batch", "chain", "fan_out", "failures", "noop4", "rows"])
def test_workload_yields_a_rate_and_processor_time(bench: Bench, name: str) -> None:
    found = WORKLOAD[name].measure(bench, SYSTEM)
    assert found is not None
    assert min(found[key] for key in ("per_second", "worker_us", "server_us")) > 0
    assert found["total_us"] == found["worker_us"] + found["server_us"]


def test_latency_is_measured_between_processes(bench: Bench) -> None:
    found = WORKLOAD["latency"].measure(bench, SYSTEM)
    assert found is not None
    assert 0 < found["p50_ms"] <= found["p99_ms"]


def test_error_of_an_adapter_is_reported(bench: Bench) -> None:
    with bench.opened(SYSTEM) as run, pytest.raises(AdapterError, match="no-such-task"):
        run.producer.ask("insert", task="no-such-task", count=1)
