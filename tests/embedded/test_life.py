"""The life of the embedded server, from the first start to the last client."""

from __future__ import annotations

import os
import shutil
import stat
import time
from datetime import timedelta
from pathlib import Path

import asyncpg
import pytest

from gen_durable.embedded import EmbeddedPostgres, binaries
from gen_durable.embedded import home as homes
from gen_durable.errors import UsageError
from tests.embedded.conftest import furnish
from tests.embedded.processes import (
    KEEP,
    Spawn,
    end_everything,
    holds_within,
    is_running,
    kill,
    postmasters,
    query,
)

SHORT = timedelta(seconds=0.2)

pytestmark = pytest.mark.timeout(40)


def test_committed_data_survives_a_restart(home: Path) -> None:
    with EmbeddedPostgres(home, idle_stop=timedelta(0)) as server:
        query(server.ensure(), KEEP)
    assert holds_within(10, lambda: not is_running(home))

    with EmbeddedPostgres(home, idle_stop=timedelta(0)) as server:
        assert query(server.ensure(), "select answer from kept") == 42


def test_server_settings_are_durable_private_and_portable(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "PGPORT": "1",
        "PGDATESTYLE": "German",
        "LC_ALL": "tr_TR.UTF-8",
        "TZ": "Asia/Tokyo",
    }.items():
        monkeypatch.setenv(name, value)
    wanted = {
        "fsync": "on",
        "synchronous_commit": "on",
        "full_page_writes": "on",
        "listen_addresses": "",
        "server_encoding": "UTF8",
        "lc_messages": "C",
        "DateStyle": "ISO, MDY",
        "TimeZone": "UTC",
        "max_connections": "200",
        "work_mem": "5MB",
    }
    with EmbeddedPostgres(home, idle_stop=SHORT, options={"work_mem": "5MB"}) as server:
        dsn = server.ensure()
        monkeypatch.delenv("PGDATESTYLE")
        monkeypatch.delenv("TZ")
        assert {name: query(dsn, f"show {name}") for name in wanted} == wanted
        assert query(dsn, "select datcollate from pg_database where datname = 'postgres'") == "C"
    assert stat.S_IMODE((home / "run").stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ['ho me "x" 50%&é=1', "ho,me"])
async def test_both_drivers_accept_the_dsn_of_an_unusual_path(
    empty_home: Path, data: Path, name: str
) -> None:
    strange = empty_home.with_name(name)
    empty_home.symlink_to(strange)
    if name == "ho,me":  # unusual for drivers only; the other path is unusual for initdb too
        furnish(strange, data)
    try:
        with EmbeddedPostgres(empty_home, idle_stop=timedelta(0)) as server:
            dsn = server.ensure()
            assert server.home == strange
            assert query(dsn, "select 1") == 1
            connection = await asyncpg.connect(dsn)
            assert await connection.fetchval("select 2") == 2
            await connection.close()
    finally:
        end_everything(strange)
        shutil.rmtree(homes.locate(strange).socket_directory)


def test_second_client_attaches_quickly(home: Path) -> None:
    with EmbeddedPostgres(home, idle_stop=SHORT) as first:
        began = time.monotonic()
        with EmbeddedPostgres(home) as second:
            assert second.ensure() == first.ensure()
        # 3 ms on an idle machine.
        assert time.monotonic() - began < 1
        assert len(postmasters(home)) == 1


def test_server_runs_until_the_last_client_leaves(home: Path, spawn: Spawn) -> None:
    stays, leaves = spawn(home, idle_stop=0), spawn(home, idle_stop=0)
    dsn = stays.says()
    assert leaves.says() == dsn
    (pid,) = postmasters(home)

    leaves.kill()
    time.sleep(0.5)

    assert query(dsn, "select 1") == 1
    assert postmasters(home) == [pid]


def test_server_stops_after_its_only_client_was_killed(home: Path, spawn: Spawn) -> None:
    only = spawn(home)
    only.says()
    only.kill()
    assert holds_within(10, lambda: not is_running(home))
    assert "database system is shut down" in (home / "server.log").read_text()


def test_garbage_collected_object_keeps_its_lease(home: Path, spawn: Spawn) -> None:
    careless = spawn(home, idle_stop=0, manner="drops the object")
    dsn = careless.says()
    assert careless.says() == "dropped"
    time.sleep(0.5)
    assert query(dsn, "select 1") == 1


def test_child_processes_do_not_keep_the_server_running(home: Path, spawn: Spawn) -> None:
    parent = spawn(home, manner="has children")
    parent.says()
    children = [int(pid) for pid in parent.says().split()]
    try:
        parent.kill()
        assert holds_within(10, lambda: not is_running(home))
        for child in children:
            os.kill(child, 0)
    finally:
        kill(*children)


def test_forked_child_can_take_its_own_lease(home: Path, spawn: Spawn) -> None:
    parent = spawn(home, idle_stop=0, manner="has a child that is a client")
    parent.says()
    dsn, child = parent.says().split()
    try:
        parent.kill()
        time.sleep(0.5)
        assert query(dsn, "select 1") == 1
    finally:
        kill(int(child))
    assert holds_within(10, lambda: not is_running(home))


def test_short_uses_keep_the_server_running(home: Path) -> None:
    for _ in range(3):
        with EmbeddedPostgres(home, idle_stop=timedelta(seconds=1.5)):
            pass
        time.sleep(0.9)
    assert len(postmasters(home)) == 1
    assert (home / "server.log").read_text().count("starting PostgreSQL") == 1


def test_server_stops_when_its_home_is_removed(base: Path, made: Path) -> None:
    with EmbeddedPostgres(made):
        made.rename(base / "elsewhere")
        assert holds_within(10, lambda: not is_running(made))


def test_server_with_removed_binaries_is_replaced(
    base: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = binaries.find().directory
    gone = base / "bin"
    gone.symlink_to(found)
    monkeypatch.setenv("GEN_DURABLE_PG_BIN", str(gone))
    with EmbeddedPostgres(made) as server:
        query(server.ensure(), KEEP)
        gone.unlink()
        assert holds_within(10, lambda: not is_running(made))
        monkeypatch.setenv("GEN_DURABLE_PG_BIN", str(found))
        assert query(server.ensure(), "select answer from kept") == 42


def test_negative_idle_stop_is_rejected() -> None:
    with pytest.raises(UsageError, match="idle_stop"):
        EmbeddedPostgres(idle_stop=timedelta(seconds=-1))
