"""Health checks: `/healthz` and `/readyz`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import pytest

from gen_durable import SettingsError, UsageError, Worker
from gen_durable._db.failures import StatementError
from gen_durable._runtime import health as module
from gen_durable._runtime.database_status import DatabaseRetry
from gen_durable._runtime.health import Health
from gen_durable.config import health_address
from tests.support.machines import Plain, Sitter
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, happens, holds


async def ask(port: int, request: bytes) -> bytes:
    async with asyncio.timeout(PATIENCE.total_seconds()):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
    return answer


async def get(worker: Worker, path: str) -> tuple[int, str]:
    assert worker.health is not None
    answer = await ask(worker.health.port, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head, _, body = answer.decode().partition("\r\n\r\n")
    return int(head.split(" ")[1]), body.strip()


@pytest.mark.clause("OPS-6")
async def test_worker_is_alive_and_ready(durable_dsn: str) -> None:
    async with Worker([Plain], dsn=durable_dsn, settings=CALM, health="127.0.0.1:0") as worker:
        assert await get(worker, "/healthz") == (200, "alive")
        assert await get(worker, "/readyz?verbose=1") == (200, "ready")
        assert await get(worker, "/nothing") == (404, "not found; available: /healthz, /readyz")
        running = worker.health
    assert running is not None
    with pytest.raises(OSError, match=r"Connect call failed|refused"):
        await asyncio.open_connection("127.0.0.1", running._port or 1)


@pytest.mark.clause("OPS-6")
async def test_draining_worker_is_alive_and_not_ready(db: Any, durable_dsn: str) -> None:
    machine = Sitter()
    async with Worker([machine], dsn=durable_dsn, settings=CALM, health="127.0.0.1:0") as worker:
        await worker.insert(machine, "", step=Sitter.deaf)
        await happens(machine.is_there)
        closing = asyncio.get_running_loop().create_task(worker._close())
        await holds(db, "select is_draining from gen_durable.workers")
        assert await get(worker, "/readyz") == (503, "draining")
        assert await get(worker, "/healthz") == (200, "alive")
        machine.may_go.set()
        await closing


@pytest.mark.clause("OPS-6")
async def test_worker_without_database_is_not_ready(durable_dsn: str) -> None:
    async with Worker([Plain], dsn=durable_dsn, settings=CALM, health="127.0.0.1:0") as worker:
        engine = worker._engine
        assert engine is not None
        retry = DatabaseRetry("test", engine._database_status)
        engine._database_status.unreachable(retry, StatementError("08006", "gone"))
        status, reason = await get(worker, "/readyz")
        if status != 200:  # a service may have reached the database again
            assert (status, reason[:26]) == (503, "no reply from the database")
        engine._database_status._last_reply -= 60
        engine._database_status.reached = lambda recovered: None  # type: ignore[method-assign]
        status, reason = await get(worker, "/readyz")
        assert status == 503
        assert reason.startswith("no reply from the database for 6")


PAGES = {"/x": lambda: (HTTPStatus.OK, "yes")}
GARBAGE: list[tuple[bytes, bytes]] = [
    (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"400"),
    (b"\r\n\r\n", b"400"),
    (b"GET\r\n\r\n", b"400"),
    (b"GET /x SMTP/1.0\r\n\r\n", b"400"),
    (b"GET /x HTTP/1.1 more\r\n\r\n", b"400"),
    (b"x" * 100_000 + b"\r\n\r\n", b"400"),
    (b"POST /x HTTP/1.1\r\n\r\n", b"405"),
    (b"GET /../../etc/passwd HTTP/1.1\r\n\r\n", b"404"),
    (b"GET http://x/x HTTP/1.1\r\n\r\n", b"404"),
    (b"GET /x HTTP/1.0\r\n\r\n", b"200"),
]


@pytest.mark.clause("OPS-7")
async def test_invalid_requests_get_an_error() -> None:
    health = Health("127.0.0.1", 0, PAGES)
    await health.open()
    for request, code in GARBAGE:
        try:
            answer = await ask(health.port, request)
        except ConnectionError:
            continue  # the server closed the connection while we were sending
        assert answer == b"" or answer.startswith(b"HTTP/1.1 " + code), (request[:40], answer)
    head = await ask(health.port, b"HEAD /x HTTP/1.1\r\n\r\n")
    assert head.endswith(b"\r\n\r\n")
    assert b"Content-Length: 4" in head
    health.close()


@pytest.mark.clause("OPS-7")
async def test_slow_clients_are_disconnected_and_block_no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TIMEOUT", 0.3)
    monkeypatch.setattr(module, "_MAX_CLIENTS", 5)
    health = Health("127.0.0.1", 0, PAGES)
    await health.open()
    slow = [await asyncio.open_connection("127.0.0.1", health.port) for _ in range(5)]
    for _, writer in slow:
        writer.write(b"GET /x HT")
    assert b"200" in await ask(health.port, b"GET /x HTTP/1.1\r\n\r\n")
    for reader, writer in slow:
        async with asyncio.timeout(PATIENCE.total_seconds()):
            with suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
    assert b"200" in await ask(health.port, b"GET /x HTTP/1.1\r\n\r\n")
    health.close()


@pytest.mark.clause("OPS-7")
async def test_idle_connections_do_not_keep_probes_out() -> None:
    health = Health("127.0.0.1", 0, PAGES)
    await health.open()
    idle = [await asyncio.open_connection("127.0.0.1", health.port) for _ in range(40)]
    for _ in range(3):
        assert b"200" in await ask(health.port, b"GET /x HTTP/1.1\r\n\r\n")
    reader, _ = idle[0]
    async with asyncio.timeout(PATIENCE.total_seconds()):
        with suppress(ConnectionError):
            assert await reader.read() == b"", "the oldest connection is closed"
    health.close()
    for _, writer in idle:
        writer.close()


async def test_port_in_use_is_an_error(durable_dsn: str) -> None:
    health = Health("127.0.0.1", 0, PAGES)
    await health.open()
    with pytest.raises(
        UsageError,
        match=rf"cannot listen for health checks on 127.0.0.1:{health.port}: .*; give another port",
    ):
        async with Worker([Plain], dsn=durable_dsn, settings=CALM, health=f"127.0.0.1:{health.port}"):
            pass
    health.close()


def test_health_address() -> None:
    assert health_address(8080) == ("127.0.0.1", 8080)
    assert health_address(":8080") == ("127.0.0.1", 8080)
    assert health_address("8080") == ("127.0.0.1", 8080)
    assert health_address("0.0.0.0:8080") == ("0.0.0.0", 8080)
    assert health_address("127.0.0.1:80") == ("127.0.0.1", 80)
    assert health_address("[::1]:80") == ("::1", 80)
    for wrong in ("", "x", "host:", "host:-1", 70_000, -1, True):
        with pytest.raises(SettingsError, match="health must be a port or host:port"):
            health_address(wrong)
