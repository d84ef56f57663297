"""A server that is kept running, and its stop: with kills of each process."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from gen_durable.embedded import EmbeddedPostgres, binaries, control
from gen_durable.embedded import home as homes
from gen_durable.embedded.keeper import KEPT, STOPPED, Keeper, KeeperConfig
from gen_durable.embedded.waiting import has_keeper
from gen_durable.errors import UnreachableError
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

AT_ONCE = timedelta(0)

pytestmark = pytest.mark.timeout(50)


@pytest.fixture
def kept(home: Path) -> Iterator[str]:
    """The DSN of a kept server that would stop at once without its mode."""
    server = EmbeddedPostgres(home, idle_stop=AT_ONCE)
    dsn = server.keep()
    server.close()
    yield dsn
    homes.locate(home).set_mode(None)


def server_of(home: Path) -> EmbeddedPostgres:
    return EmbeddedPostgres(home, idle_stop=AT_ONCE)


@pytest.mark.clause("EMB-1")
def test_kept_server_runs_without_clients(home: Path, kept: str) -> None:
    (pid,) = postmasters(home)
    time.sleep(0.8)
    assert postmasters(home) == [pid]
    assert query(kept, "select 1") == 1
    found = server_of(home).status()
    assert (found.is_running, found.is_kept, found.clients) == (True, True, [])


@pytest.mark.clause("EMB-1")
def test_keeper_reads_the_mode_after_the_last_client_has_left(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client sets the mode and leaves while the keeper looks for clients."""
    home = homes.locate(base / "home")
    home.make()
    keeper = Keeper.__new__(Keeper)
    keeper._home, keeper._stop_requested = home.path, False
    keeper._config = KeeperConfig("", str(home.clients_lock), str(binaries.find().directory), "", 0, {}, None)
    keeper._clients = os.open(home.clients_lock, os.O_RDWR | os.O_CREAT, 0o600)
    server = subprocess.Popen(["sleep", "60"])

    def lock_out_clients(self: Keeper) -> bool:
        home.set_mode(KEPT)
        return True

    monkeypatch.setattr(Keeper, "_lock_out_clients", lock_out_clients)

    def wait(self: Keeper, seconds: float) -> None:
        server.kill()
        server.wait()

    monkeypatch.setattr(Keeper, "_wait", wait)
    assert not keeper._monitor(server), "the server has exited, it was not idle"
    os.close(keeper._clients)
    assert server.wait() == -signal.SIGKILL


@pytest.mark.clause("EMB-1")
def test_kept_server_survives_the_process_that_started_it(home: Path, spawn: Spawn) -> None:
    starter = spawn(home, idle_stop=0, manner="keeps")
    dsn = starter.says()
    assert starter.says() == "kept"
    starter.kill()
    time.sleep(0.8)
    assert query(dsn, "select 1") == 1
    assert server_of(home).stop().has_stopped


def test_starter_killed_during_initdb_leaves_nothing_that_keeps_the_server(
    empty_home: Path, spawn: Spawn
) -> None:
    starter = spawn(empty_home, idle_stop=0, manner="keeps")
    assert holds_within(20, lambda: bool(initdbs(empty_home)))
    starter.kill()
    assert holds_within(20, lambda: not is_running(empty_home))
    assert not server_of(empty_home).status().is_kept


@pytest.mark.clause("EMB-1")
def test_killed_server_is_restarted_and_stays_kept(home: Path, kept: str) -> None:
    query(kept, KEEP)
    (former,) = postmasters(home)
    kill(former)
    assert holds_within(10, lambda: postmasters(home) not in ([], [former]))
    assert holds_within(10, lambda: server_of(home).status().is_running)
    time.sleep(0.5)
    assert query(kept, "select answer from kept") == 42


@pytest.mark.clause("EMB-1")
def test_next_client_restarts_a_kept_server_whose_keeper_was_killed(home: Path, kept: str) -> None:
    query(kept, KEEP)
    kill(*keepers(home))
    assert holds_within(10, lambda: not is_running(home))
    found = server_of(home).status()
    assert (found.is_running, found.is_kept) == (False, True)
    with server_of(home):
        pass
    time.sleep(0.8)
    assert query(kept, "select answer from kept") == 42


def test_stop_ends_a_kept_server_and_its_mode(home: Path, kept: str) -> None:
    query(kept, KEEP)
    assert server_of(home).stop() == (True, True, [], [])
    assert not is_running(home)
    assert "database system is shut down" in (home / "server.log").read_text()
    with server_of(home) as next_client:
        assert query(next_client.ensure(), "select answer from kept") == 42
    assert holds_within(10, lambda: not is_running(home)), "it is not kept any more"


def test_stop_without_a_server_changes_nothing(empty_home: Path, home: Path) -> None:
    assert server_of(empty_home).stop() == (True, False, (), ())
    assert not empty_home.exists()
    assert server_of(empty_home).status().major is None
    assert not empty_home.exists()
    stopped = server_of(home).stop()
    assert (stopped.has_stopped, stopped.was_running) == (True, False)


def test_stop_of_a_kept_server_that_was_killed_ends_its_mode(home: Path, kept: str) -> None:
    kill(*keepers(home), *postmasters(home))
    assert holds_within(10, lambda: not has_keeper(homes.locate(home)))
    assert server_of(home).stop().has_stopped
    assert not server_of(home).status().is_kept


@pytest.mark.clause("EMB-2")
def test_stop_is_refused_while_a_client_holds_a_lease(home: Path, kept: str, spawn: Spawn) -> None:
    client = spawn(home)
    client.says()
    refused = server_of(home).stop()
    assert (refused.has_stopped, refused.was_running) == (False, True)
    (found,) = refused.clients
    assert found.pid == client.pid
    assert "forkserver" in found.command or "embedded.client" in found.command
    assert query(kept, "select 1") == 1
    assert server_of(home).status().is_kept

    client.kill()
    assert server_of(home).status().clients == [], "the lease of a killed process has ended"
    assert list((home / "leases").iterdir()) == []
    assert server_of(home).stop().has_stopped


@pytest.mark.clause("EMB-2")
def test_stop_is_refused_while_another_program_is_connected(home: Path, kept: str) -> None:
    with closing(psycopg.connect(kept, application_name="psql")):
        refused = server_of(home).stop()
        assert (refused.has_stopped, refused.clients, refused.sessions) == (False, [], [("psql", 1)])
        assert server_of(home).status().is_kept
    assert holds_within(5, lambda: server_of(home).stop().has_stopped)


@pytest.mark.clause("EMB-3")
def test_forced_stop_is_not_undone_by_connected_clients(home: Path, kept: str) -> None:
    with server_of(home) as client:
        forced = server_of(home).stop(force=True)
        assert (forced.has_stopped, len(forced.clients)) == (True, 1)
        assert not is_running(home)
        with pytest.raises(UnreachableError, match="stopped with `gen-durable db stop`") as refused:
            client.ensure()
        assert "gen-durable db start" in refused.value.advice
        assert not is_running(home)
        with server_of(home) as other:
            assert query(other.ensure(), "select 1") == 1
            assert client.ensure() == other.ensure()
    assert holds_within(10, lambda: not is_running(home))


@pytest.mark.clause("EMB-2")
def test_client_that_arrives_before_the_keeper_stops_its_server_waits(home: Path, kept: str) -> None:
    (former,), (keeper,) = postmasters(home), keepers(home)
    client = server_of(home)
    with ThreadPoolExecutor(1) as threads:
        kill(keeper, number=signal.SIGSTOP)
        try:
            homes.locate(home).set_mode(STOPPED)  # and then the stop was killed
            dsn = threads.submit(client.ensure)
            time.sleep(0.3)
            assert not dsn.done()
        finally:
            kill(keeper, number=signal.SIGCONT)
        assert query(dsn.result(), "select 1") == 1
        assert former not in postmasters(home)
        assert not client.status().is_kept
        client.close()


@pytest.mark.clause("EMB-2")
def test_client_that_arrives_after_a_stop_has_looked_for_clients_waits(
    home: Path, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_mode, client, waiting = homes.Home.set_mode, server_of(home), threading.Event()

    def set_mode_late(self: homes.Home, mode: str | None) -> None:
        if mode == STOPPED:
            waiting.set()
            time.sleep(0.3)
            assert not dsn.done()
        set_mode(self, mode)

    def arrive() -> str:
        waiting.wait()
        return client.ensure()

    monkeypatch.setattr(homes.Home, "set_mode", set_mode_late)
    (former,) = postmasters(home)
    with ThreadPoolExecutor(1) as threads:
        dsn = threads.submit(arrive)
        assert server_of(home).stop().has_stopped
        assert query(dsn.result(), "select 1") == 1
        assert former not in postmasters(home)
        client.close()


def test_clients_that_race_a_stop_connect_to_a_running_server(home: Path) -> None:
    """A stop waits for a client, or a client waits for the stop: none gets a server that stops."""
    stopping = threading.Event()

    def stop() -> int:
        count = 0
        while not stopping.is_set():
            count += server_of(home).stop().has_stopped
        return count

    def visit(pause: float) -> object:
        time.sleep(pause)
        with EmbeddedPostgres(home, idle_stop=timedelta(seconds=5)) as server:
            return query(server.ensure(), "select 1")

    with ThreadPoolExecutor(3) as threads:
        stops = threads.submit(stop)
        try:
            # A stop takes about 50 ms, so some clients arrive at each point of it.
            pauses = [random.Random(seed).uniform(0.02, 0.2) for seed in range(20)]
            assert list(threads.map(visit, pauses)) == [1] * 20
        finally:
            stopping.set()
    assert stops.result() > 1
    assert (home / "server.log").read_text().count("starting PostgreSQL") > 1


def test_keep_and_forced_stop_in_parallel_leave_a_server_that_can_be_kept(home: Path) -> None:
    def keep() -> str:
        """Return why it failed: a stop after the start, and before the mode was set."""
        with closing(server_of(home)) as server:
            try:
                server.keep()
            except UnreachableError as error:
                return error.cause
        return ""

    with ThreadPoolExecutor(3) as threads:
        keeping = [threads.submit(keep) for _ in range(6)]
        stopping = [threads.submit(server_of(home).stop, force=True) for _ in range(3)]
        assert {each.result() for each in keeping} <= {"", "it was stopped with `gen-durable db stop`"}
        assert all(each.result().has_stopped for each in stopping)
    assert keep() == ""
    found = server_of(home).status()
    assert (found.is_running, found.is_kept) == (True, True)
    assert (len(keepers(home)), len(postmasters(home))) == (1, 1)
    assert server_of(home).stop().has_stopped


def test_server_that_does_not_stop_is_reported(
    home: Path, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_STOP_TIMEOUT_S", 0.3)
    (keeper,) = keepers(home)
    kill(keeper, number=signal.SIGSTOP)
    try:
        with pytest.raises(UnreachableError, match=r"did not stop within") as failed:
            server_of(home).stop()
        assert str(home / "server.log") in failed.value.advice
    finally:
        kill(keeper, number=signal.SIGCONT)
    assert holds_within(10, lambda: not is_running(home)), "the mode stays set"


def test_size_and_version_are_those_of_the_data(home: Path, kept: str) -> None:
    found = server_of(home).status()
    assert found.major == (home / "data" / "PG_VERSION").read_text().strip()
    assert found.size > 20 * 2**20
    assert (found.home, found.dsn, found.log) == (home, kept, home / "server.log")
