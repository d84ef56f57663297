"""A DSN that names an embedded server: clients keep it running, and `client.dsn` returns it."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from gen_durable import AsyncClient, Client, Worker
from gen_durable._server import Server
from gen_durable.embedded import EmbeddedPostgres
from gen_durable.embedded import home as homes
from gen_durable.errors import DatabaseError, NotConnectedError, UnreachableError
from gen_durable.testing import AsyncHarness
from tests.clients.machines import Number
from tests.embedded.conftest import furnish
from tests.embedded.processes import (
    end_everything,
    holds_within,
    is_running,
    keepers,
    kill,
    postmasters,
    query,
)

AT_ONCE = timedelta(0)
KINDS = pytest.mark.parametrize("kind", ["AsyncClient", "Client", "Worker", "AsyncHarness"])

pytestmark = pytest.mark.timeout(50)


@pytest.fixture
def dsn(home: Path) -> str:
    """The DSN of a server that does not run."""
    (home / "clients.lock").touch(0o600)  # of the first client; `home` is made without one
    return EmbeddedPostgres(home).dsn


@asynccontextmanager
async def opened(kind: str, dsn: Any) -> AsyncIterator[Any]:
    if kind == "Client":
        blocking = Client(dsn)
        await asyncio.to_thread(blocking.__enter__)
        yield blocking
        await asyncio.to_thread(blocking.__exit__, None, None, None)
        return
    made: Any = {"AsyncClient": AsyncClient, "AsyncHarness": AsyncHarness}.get(kind)
    async with Worker([Number], dsn=dsn) if made is None else made(dsn) as client:
        yield client


@pytest.mark.clause("EMB-4")
@KINDS
async def test_client_with_the_dsn_keeps_the_server_running(home: Path, dsn: str, kind: str) -> None:
    server = EmbeddedPostgres(home, idle_stop=AT_ONCE)
    server.ensure()
    async with opened(kind, dsn) as client:
        server.close()
        pid = postmasters(home)
        time.sleep(0.8)
        assert postmasters(home) == pid != []
        assert query(client.dsn, "select 1") == 1
    assert holds_within(10, lambda: not is_running(home))


@pytest.mark.clause("EMB-4")
@pytest.mark.parametrize("kind", ["AsyncClient", "Client"])
async def test_client_with_the_dsn_starts_the_server(home: Path, dsn: str, kind: str) -> None:
    assert not is_running(home)
    async with opened(kind, dsn) as client:
        assert query(client.dsn, "select 1") == 1


@pytest.mark.clause("EMB-4")
async def test_dsn_of_the_environment_and_of_another_database_keep_the_server_running(
    home: Path, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmbeddedPostgres(home, idle_stop=AT_ONCE) as server:
        query(server.ensure(), "create database shop")
        monkeypatch.setenv("GEN_DURABLE_DSN", dsn.replace("@/postgres?", "@/shop?"))
        client = AsyncClient()
        await client.__aenter__()
    try:
        await asyncio.sleep(0.8)
        assert query(client.dsn, "select current_database()") == "shop"
    finally:
        await client.__aexit__(None, None, None)
    with EmbeddedPostgres(home) as server:
        assert holds_within(10, lambda: query(dsn, "drop database if exists shop with (force)") is None)


@pytest.mark.clause("EMB-4")
@pytest.mark.parametrize("kind", ["AsyncClient", "Client"])
@pytest.mark.parametrize("is_async", [False, True])
async def test_function_that_returns_the_dsn_keeps_the_server_running(
    home: Path, dsn: str, kind: str, is_async: bool
) -> None:
    async def find() -> str:
        return dsn

    given: Callable[[], Any] = find if is_async else lambda: dsn
    server = EmbeddedPostgres(home, idle_stop=AT_ONCE)
    server.ensure()
    async with opened(kind, given) as client:
        server.close()
        time.sleep(0.8)
        assert client.dsn == dsn
        assert query(dsn, "select 1") == 1
    assert holds_within(10, lambda: not is_running(home))


@pytest.mark.clause("EMB-4")
async def test_client_with_the_dsn_restarts_a_server_whose_keeper_was_killed(home: Path, dsn: str) -> None:
    async with AsyncClient(dsn) as client, Worker([Number], dsn=dsn):
        kill(*keepers(home), *postmasters(home))
        assert (await client.wait(await _insert(client), timeout=timedelta(seconds=20))).result == 7
        assert (len(keepers(home)), len(postmasters(home))) == (1, 1)


async def test_client_that_is_killed_does_not_keep_the_server_running(home: Path, dsn: str) -> None:
    with EmbeddedPostgres(home, idle_stop=AT_ONCE):
        program = (
            "import signal, sys; from gen_durable import Client; client = Client(sys.argv[1]).__enter__(); "
            "print('up', flush=True); signal.pause()"
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, dsn, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        assert await process.stdout.readline() == b"up\n"
    await asyncio.sleep(0.8)
    assert query(dsn, "select 1") == 1
    assert [each.pid for each in EmbeddedPostgres(home).status().clients] == [process.pid]
    process.kill()
    await process.wait()
    assert holds_within(10, lambda: not is_running(home))


def test_dsn_names_an_embedded_server_by_its_socket(home: Path, dsn: str) -> None:
    sockets = home / "run"
    for same in (
        dsn,
        f"postgresql://app:s3cret@/shop?host={sockets}",
        f"host={sockets} port=5432 dbname=shop",
        f"host='{sockets}'",
    ):
        found = EmbeddedPostgres.at(same)
        assert found is not None, same
        assert found.home == home
    for other in (
        "postgresql://127.0.0.1/shop",
        f"postgresql:///shop?host={sockets}&port=5433",
        f"postgresql:///shop?host={home}",
        f"postgresql:///shop?host={sockets},{sockets}",
        f"postgresql:///shop?host={home.parent}/other/run",
        "postgresql:///shop?host=/var/run/postgresql",
        "not a dsn",
        "",
    ):
        assert EmbeddedPostgres.at(other) is None, other


def test_directory_without_data_or_leases_is_not_an_embedded_server(base: Path) -> None:
    """A server of the user's own may have its socket in a directory of the same name."""
    (base / "home" / "run").mkdir(parents=True)
    dsn = f"postgresql:///x?host={base}/home/run"
    assert EmbeddedPostgres.at(dsn) is None
    (base / "home" / "data").mkdir()
    assert EmbeddedPostgres.at(dsn) is None
    (base / "home" / "clients.lock").touch()
    assert EmbeddedPostgres.at(dsn) is not None
    (base / "home").chmod(0o777)
    assert EmbeddedPostgres.at(dsn) is None, "another account could replace it"


def test_running_server_with_a_short_socket_directory_is_recognized(empty_home: Path, data: Path) -> None:
    path = empty_home / ("long" * 30) / ("longer" * 20)
    furnish(path, data)
    sockets = homes.locate(path).socket_directory
    try:
        with EmbeddedPostgres(path, idle_stop=AT_ONCE) as server:
            assert server.dsn.startswith("postgresql://postgres@/postgres?host=/tmp/gen_durable-")
            found = EmbeddedPostgres.at(server.dsn)
            assert found is not None
            assert found.home == path
            (sockets / ".s.PGSQL.5432.lock").write_text(f"1\n{empty_home}/data\n")
            assert EmbeddedPostgres.at(server.dsn) is None, "the directory is not that of this home"
    finally:
        end_everything(path)
        shutil.rmtree(sockets, ignore_errors=True)


@pytest.mark.clause("EMB-4")
def test_schema_is_upgraded_only_without_a_dsn(home: Path, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEN_DURABLE_DSN", raising=False)
    monkeypatch.setenv("GEN_DURABLE_HOME", str(home))
    found, named = Server.choose(None), Server.choose(dsn)
    assert (found.dsn, found.is_embedded, found.upgrades) == (dsn, True, True)
    assert (named.dsn, named.is_embedded, named.upgrades) == (dsn, True, False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_home_of_another_account_is_not_used(home: Path, dsn: str) -> None:
    before = home.stat()
    os.chown(home, pwd.getpwnam("nobody").pw_uid, -1)
    try:
        assert EmbeddedPostgres.at(dsn) is None
    finally:
        os.chown(home, before.st_uid, before.st_gid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")
@pytest.mark.parametrize("kind", ["AsyncClient", "Client"])
async def test_other_account_is_refused_with_the_reason(home: Path, dsn: str, kind: str) -> None:
    with EmbeddedPostgres(home):
        os.seteuid(pwd.getpwnam("daemon").pw_uid)
        try:
            with pytest.raises(UnreachableError, match="Permission denied") as refused:
                async with opened(kind, dsn):
                    pass
        finally:
            os.seteuid(0)
    assert "an embedded server serves the account that started it, and root" in str(refused.value)


@pytest.mark.clause("EMB-6")
@pytest.mark.parametrize("kind", [AsyncClient, Client])
def test_dsn_before_the_client_is_open(
    home: Path, dsn: str, kind: type[AsyncClient | Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = "postgresql://ada:s3cret@db.local/shop"
    assert kind(given).dsn == given
    monkeypatch.setenv("GEN_DURABLE_DSN", given)
    assert kind().dsn == given
    monkeypatch.delenv("GEN_DURABLE_DSN")
    monkeypatch.setenv("GEN_DURABLE_HOME", str(home))
    assert kind().dsn == dsn
    assert not is_running(home)
    with pytest.raises(NotConnectedError):
        assert kind(lambda: given).dsn


@pytest.mark.clause("EMB-6")
async def test_dsn_of_a_function_is_that_of_the_latest_connect(durable_dsn: str) -> None:
    numbers = iter(range(100))

    def find() -> str:
        return f"{durable_dsn}&application_name=number_{next(numbers)}"

    async with AsyncClient(find) as client:
        first = client.dsn
        assert first.startswith(f"{durable_dsn}&application_name=number_")
    with pytest.raises(NotConnectedError):
        assert client.dsn
    with Client(find) as blocking:
        assert blocking.dsn > first
        with psycopg.connect(blocking.dsn) as conn:
            assert conn.execute("select 1").fetchone() == (1,)


@pytest.mark.clause("EMB-6")
async def test_dsn_does_not_follow_the_environment_of_an_open_client(
    durable_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEN_DURABLE_DSN", durable_dsn)
    async with AsyncClient() as client:
        monkeypatch.setenv("GEN_DURABLE_DSN", "postgresql://elsewhere/shop")
        assert client.dsn == durable_dsn
    assert client.dsn == "postgresql://elsewhere/shop"


async def _insert(client: AsyncClient) -> Any:
    """Insert as soon as the server is back."""
    while True:
        try:
            return await client.insert(Number, 7)
        except DatabaseError:
            await asyncio.sleep(0.05)
