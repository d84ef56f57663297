"""SIGKILL of each process: nothing is lost, and the next call recovers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from gen_durable.embedded import EmbeddedPostgres
from gen_durable.embedded import home as homes
from gen_durable.embedded.waiting import has_keeper
from tests.embedded.processes import (
    KEEP,
    Spawn,
    holds_within,
    initdbs,
    is_running,
    keepers,
    kill,
    postmasters,
    query,
)

SHORT = timedelta(seconds=0.2)

pytestmark = pytest.mark.timeout(40)


def test_next_call_restarts_a_killed_keeper_and_its_server(home: Path) -> None:
    with EmbeddedPostgres(home, idle_stop=SHORT) as server:
        query(server.ensure(), KEEP)
        (former,) = postmasters(home)

        kill(*keepers(home))
        assert holds_within(10, lambda: not has_keeper(homes.locate(home)))
        # At once, while the old server may still be shutting down.
        assert query(server.ensure(), "select answer from kept") == 42

        assert former not in postmasters(home)
        assert (len(postmasters(home)), len(keepers(home))) == (1, 1)


@pytest.mark.skipif(not Path("/proc").exists(), reason="only Linux tells a process of its parent's end")
def test_killed_keeper_leaves_no_server_behind(home: Path) -> None:
    with EmbeddedPostgres(home):
        kill(*keepers(home))
        assert holds_within(10, lambda: not is_running(home))


def test_keeper_restarts_a_killed_server_with_a_busy_session(home: Path) -> None:
    with EmbeddedPostgres(home, idle_stop=SHORT) as server:
        dsn = server.ensure()
        query(dsn, KEEP)
        with closing(psycopg.connect(dsn)) as busy:
            busy.pgconn.send_query(b"select count(*) from generate_series(1, 100000000000)")
            (former,) = postmasters(home)

            kill(former)
            # A client that only reconnects finds it again.
            assert holds_within(10, lambda: _answers(dsn, "select answer from kept", 42))

            assert former not in postmasters(home)
            assert len(postmasters(home)) == 1


def test_next_call_recovers_when_keeper_and_server_are_killed(home: Path) -> None:
    with EmbeddedPostgres(home, idle_stop=SHORT) as server:
        query(server.ensure(), KEEP)
        kill(*keepers(home), *postmasters(home))
        assert holds_within(10, lambda: not has_keeper(homes.locate(home)))
        assert query(server.ensure(), "select answer from kept") == 42


@pytest.mark.parametrize("processes_of", [initdbs, keepers], ids=["initdb", "keeper"])
def test_next_call_recovers_from_a_killed_initdb(
    empty_home: Path, spawn: Spawn, processes_of: Callable[[Path], list[int]]
) -> None:
    starter = spawn(empty_home)
    assert holds_within(20, lambda: bool(initdbs(empty_home)))

    kill(*processes_of(empty_home))

    assert query(starter.says(), "select 1") == 1
    assert list(empty_home.glob("data.new-*")) == []
    assert len(postmasters(empty_home)) == 1


def test_next_call_recovers_when_the_client_dies_during_initdb(empty_home: Path, spawn: Spawn) -> None:
    starter, waiter = spawn(empty_home), spawn(empty_home)
    assert holds_within(20, lambda: bool(initdbs(empty_home)))
    starter.kill()
    assert query(waiter.says(), "select 1") == 1
    assert len(postmasters(empty_home)) == 1


def _answers(dsn: str, text: str, wanted: object) -> bool:
    try:
        return query(dsn, text) == wanted
    except psycopg.OperationalError:
        return False
