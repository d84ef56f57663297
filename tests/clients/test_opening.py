"""Opening a client: errors for unreachable databases and invalid settings."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest

from gen_durable import AsyncClient, Client, Queue, Settings, Spec, Worker
from gen_durable._db import reply_timeouts
from gen_durable.errors import NotConnectedError, SettingsError, UnreachableError, UsageError
from tests.clients.machines import Number

SECRET = "s3cr3t"


async def refused(dsn: str | None, kind: str) -> str:
    """The error of a client that cannot be opened."""
    with pytest.raises(UnreachableError) as unreachable:
        await open_and_close(dsn, kind)
    message = str(unreachable.value)
    assert isinstance(unreachable.value, ConnectionError)
    assert len(message.splitlines()) <= 4
    return message


@pytest.fixture
def closed_port() -> int:
    """A port without a listener."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


async def open_and_close(dsn: str | None, kind: str) -> None:
    if kind == "Client":
        with Client(dsn):
            return
    client = Worker([Number], dsn=dsn) if kind == "Worker" else AsyncClient(dsn)
    async with client:
        return


KINDS = pytest.mark.parametrize("kind", ["AsyncClient", "Client", "Worker"])


@KINDS
async def test_refused_connection_names_the_server(kind: str, closed_port: int) -> None:
    message = await refused(f"postgresql://app:{SECRET}@127.0.0.1:{closed_port}/shop", kind)
    assert message.startswith(f"cannot reach PostgreSQL at postgresql://app@127.0.0.1:{closed_port}/shop: ")
    assert message.endswith("\n  check that the server is running; the DSN was given as an argument")
    assert re.search("Connection refused|Connect call failed", message)


@KINDS
async def test_error_says_that_the_environment_gave_the_dsn(
    kind: str, closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEN_DURABLE_DSN", f"postgresql://app:{SECRET}@127.0.0.1:{closed_port}/shop")
    message = await refused(None, kind)
    assert (
        "check that the server is running; the DSN came from GEN_DURABLE_DSN; without it the embedded server is used"
        in message
    )
    assert SECRET not in message


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://app:{}@127.0.0.1:{}/shop",
        "postgresql://app:a:{}:b@127.0.0.1:{}/shop",
        "postgresql://app:%40{}%2F@127.0.0.1:{}/shop",
        "postgresql://app@127.0.0.1:1/shop?password={}&port={}",
        "host=127.0.0.1 user=app password={} port={}",
        "host=127.0.0.1 user=app password='it is {}' port={}",
        "host=127.0.0.1 user=app password = {} port={}",
        "mysql://app:{}@127.0.0.1:{}/shop",
        "postgresql://app:{}@127.0.0.1:port{}/shop",
        "postgresql://app:{}@nowhere.invalid:{}/shop",
        "postgresql://app:{}@127.0.0.1:{}/shop?nonsense=1",
    ],
)
@pytest.mark.parametrize("kind", ["AsyncClient", "Client"])
async def test_password_is_not_shown(kind: str, dsn: str, closed_port: int) -> None:
    message = await refused(dsn.format(SECRET, closed_port), kind)
    assert SECRET not in message


@pytest.mark.parametrize(
    ("kind", "dsn"),
    [
        ("AsyncClient", "postgresql://app:{}/x@127.0.0.1/shop"),
        ("Client", "postgresql://app:x@{}@127.0.0.1/shop"),
    ],
)
async def test_unencoded_password_is_not_shown(kind: str, dsn: str) -> None:
    assert SECRET not in await refused(dsn.format(SECRET), kind)


@KINDS
async def test_malformed_dsn_is_rejected(kind: str) -> None:
    for dsn, problem in [
        ("not a dsn", "neither a URI nor a list of key=value pairs"),
        ("mysql://h/x", "a URI must begin with postgresql://"),
        ("postgresql://127.0.0.1:port/x", "the port after its colon, is not valid"),
        ("postgresql://127.0.0.1:99999/x", "port must be 0-65535|invalid port number"),
        ("postgresql://127.0.0.1:-5/x", "the port after its colon, is not valid"),
        ("postgresql://127.0.0.1/x?sslmode=bogus", "sslmode"),
    ]:
        message = await refused(dsn, kind)
        assert re.search(problem, message)
        assert "\n  write it as postgresql://user:password@host:5432/database; the DSN was given" in message


@KINDS
async def test_advice_depends_on_the_cause(kind: str, direct_dsn: str) -> None:
    database = urlsplit(direct_dsn).path
    for dsn, cause, advice in [
        (direct_dsn.replace(database, "/nodb"), 'database "nodb" does not exist', "create the database"),
        (
            direct_dsn.replace("//", "//unknown@").replace("unknown@postgres@", "unknown@"),
            'role "unknown" does not exist',
            "check user, password",
        ),
        ("postgresql://nowhere.invalid/x", "not known|resolve", "check the host name;"),
    ]:
        message = await refused(dsn, kind)
        assert re.search(cause, message)
        assert f"\n  {advice}" in message


@KINDS
async def test_silent_server_times_out(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply_timeouts, "_LONGEST_CONNECT", 0.2)  # psycopg's minimum is 2 s
    with socket.create_server(("127.0.0.1", 0)) as silent:
        message = await refused(f"postgresql://127.0.0.1:{silent.getsockname()[1]}/x", kind)
    assert re.search("no reply within 2.0 s|timeout expired", message)
    assert "\n  check for a firewall;" in message


@KINDS
async def test_missing_database_role_or_socket_is_named(kind: str, durable_dsn: str) -> None:
    wrong_database = re.sub(r"@/[^?]*", "@/nowhere", durable_dsn)
    assert 'database "nowhere" does not exist' in await refused(wrong_database, kind)
    wrong_role = re.sub(r"//[^@]*@", "//nobody_at_all@", durable_dsn)
    assert 'role "nobody_at_all" does not exist' in await refused(wrong_role, kind)
    wrong_socket = re.sub(r"host=[^&]*", "host=/nowhere", durable_dsn)
    assert "No such file or directory" in await refused(wrong_socket, kind)


async def test_unopened_async_client_says_how_to_open_it(durable_dsn: str) -> None:
    client = AsyncClient(durable_dsn)
    calls: list[Any] = [
        lambda: client.insert(Number, 1),
        lambda: client.insert_all([Spec(Number, 1)]),
        lambda: client.signal(1, "x"),
        lambda: client.get(1),
        lambda: client.list(),
        lambda: client.count(),
        lambda: client.children(1),
        lambda: client.wait(1),
    ]
    for call in calls:
        with pytest.raises(
            NotConnectedError, match=r"this AsyncClient is not open; use it inside `async with AsyncC"
        ):
            await call()
    async with client:
        await client.count()
    with pytest.raises(NotConnectedError, match="this AsyncClient is not open"):
        await client.count()
    async with client:
        assert await client.count() == 0, "it may be opened again"


def test_unopened_client_says_how_to_open_it(durable_dsn: str) -> None:
    client = Client(durable_dsn)
    calls: list[Any] = [
        lambda: client.insert(Number, 1),
        lambda: client.insert_all([Spec(Number, 1)]),
        lambda: client.signal(1, "x"),
        lambda: client.get(1),
        lambda: client.list(),
        lambda: client.count(),
        lambda: client.children(1),
        lambda: client.wait(1),
    ]
    for call in calls:
        with pytest.raises(
            NotConnectedError, match=r"this Client is not open; use it inside `with Client\(...\) as ...:`"
        ):
            call()
    with client:
        client.count()
    with pytest.raises(NotConnectedError):
        client.count()


async def test_unopened_worker_says_how_to_start_it(durable_dsn: str) -> None:
    with pytest.raises(NotConnectedError, match="this Worker is not open; use it inside `async with Worker"):
        await Worker([Number], dsn=durable_dsn).insert(Number, 1)


def test_worker_without_machines_is_rejected() -> None:
    with pytest.raises(
        UsageError, match=r"the worker has no machines; give at least one: Worker\(\[Checkout\]\)"
    ):
        Worker([])


def test_worker_checks_machines_and_queues() -> None:
    with pytest.raises(UsageError, match=r"Number is not a list of machines; write \[Number\]"):
        Worker(Number)  # type: ignore[arg-type]
    with pytest.raises(
        UsageError, match=r"queues= has type list; give the concurrency .* queues=\{.default.: 10\}"
    ):
        Worker([Number], queues=["default"])  # type: ignore[arg-type]


@pytest.mark.parametrize("client", [AsyncClient, Client])
def test_settings_of_another_type_are_rejected(client: Any) -> None:
    with pytest.raises(
        SettingsError, match=r"settings= must be a Settings, got dict; write settings=Settings"
    ):
        client(settings={"lease": 1})


def test_unknown_setting_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match=r"settings\.leese is not a setting; did you mean 'lease'"):
        Settings.load(leese=timedelta(seconds=1))
    with pytest.raises(SettingsError, match=r"settings\.leese is not a setting; did you mean 'lease'"):
        Settings(leese=timedelta(seconds=1))  # type: ignore[call-arg]
    with pytest.raises(SettingsError, match=r"queue\.prefech is not a setting; did you mean 'prefetch'"):
        Queue(prefech=1)  # type: ignore[call-arg]
    monkeypatch.setenv("GEN_DURABLE_HEARTBEET", "1s")
    for client in (AsyncClient, Client):
        with pytest.raises(
            SettingsError,
            match="GEN_DURABLE_HEARTBEET is not a setting; did you mean 'GEN_DURABLE_HEARTBEAT'",
        ):
            client()


def test_invalid_heartbeat_is_rejected_before_connecting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = r"settings.heartbeat must be at most half of settings.lease \(30s\), got 20s"
    with pytest.raises(SettingsError, match=problem):
        Settings(lease=timedelta(seconds=30), heartbeat=timedelta(seconds=20))
    monkeypatch.setenv("GEN_DURABLE_LEASE", "30s")
    monkeypatch.setenv("GEN_DURABLE_HEARTBEAT", "20s")
    with pytest.raises(SettingsError, match=problem):
        Worker([Number])


async def test_open_async_client_cannot_be_opened_again(durable_dsn: str) -> None:
    async with AsyncClient(durable_dsn) as client:
        with pytest.raises(UsageError, match="already open"):
            await client.__aenter__()
        assert await client.count() == 0
    async with client:
        assert await client.count() == 0


def test_open_client_cannot_be_opened_again(durable_dsn: str) -> None:
    with Client(durable_dsn) as client:
        with pytest.raises(UsageError, match="already open"):
            client.__enter__()
        assert client.count() == 0
    with client:
        assert client.count() == 0


async def test_forked_processes_use_their_own_connections(durable_dsn: str, db: Any) -> None:
    program = [sys.executable, "-m", "tests.clients.forking", durable_dsn]
    output = subprocess.run(program, check=True, capture_output=True, text=True, timeout=30).stdout
    ids = {int(state): id for line in output.splitlines() for state, id in json.loads(line).items()}
    rows = await db.fetch("select id, state::text::int as state from gen_durable.gen_durable where id > 1")
    assert ids == {row["state"]: row["id"] for row in rows}
    assert len(ids) == 12
