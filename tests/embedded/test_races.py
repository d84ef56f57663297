"""Concurrent clients."""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from gen_durable.embedded import EmbeddedPostgres
from tests.embedded.processes import keepers, postmasters, query
from tests.support.forkserver import launch

pytestmark = pytest.mark.timeout(50)


def test_twenty_concurrent_clients_start_one_server(empty_home: Path) -> None:
    reader, output = os.pipe()
    racers = [launch("tests.embedded.visitor", str(empty_home), "0.2", output=output) for _ in range(20)]
    os.close(output)
    try:
        with os.fdopen(reader, encoding="utf-8") as lines:
            assert len({lines.readline() for _ in racers}) == 1
        assert {each.exit_code for each in racers} == {None}
        assert (len(keepers(empty_home)), len(postmasters(empty_home))) == (1, 1)
        assert (empty_home / "server.log").read_text().count("starting PostgreSQL") == 1
    finally:
        for each in racers:
            each.kill()


def test_clients_that_race_the_idle_stop_succeed(home: Path) -> None:
    # Each object is a separate client, also within one process: leases belong to open files.
    def visit(pause: float) -> object:
        time.sleep(pause)
        with EmbeddedPostgres(home, idle_stop=timedelta(0)) as server:
            return query(server.ensure(), "select 1")

    # The keeper checks every 20 ms, so some clients arrive at each point of the stop.
    pauses = [random.Random(seed).uniform(0, 0.06) for seed in range(30)]
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(visit, pauses)) == [1] * 30
    assert (home / "server.log").read_text().count("starting PostgreSQL") > 3
