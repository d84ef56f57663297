"""`NatsSink` and `RedisSink` with real servers; skipped if the server is not installed."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gen_durable import Rejected, SinkUnavailable
from gen_durable.errors import UsageError
from gen_durable.sinks import NatsSink, RedisSink
from tests.sinks.cloud_events import event


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def server(program: str, *arguments: str, port: int) -> AsyncIterator[None]:
    if shutil.which(program) is None and not Path(f"/usr/sbin/{program}").exists():
        pytest.skip(f"there is no {program} on this machine")
    found = shutil.which(program) or f"/usr/sbin/{program}"
    process = await asyncio.create_subprocess_exec(
        found, *arguments, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(30):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                except OSError:
                    await asyncio.sleep(0.05)
                else:
                    writer.close()
                    break
        yield
    finally:
        process.kill()
        await process.wait()


async def test_nats_deduplicates_events(tmp_path: Path) -> None:
    port = free_port()
    async with server(
        "nats-server", "-js", "-a", "127.0.0.1", "-p", str(port), "-sd", str(tmp_path), port=port
    ):
        import nats  # dear, and needed only where there is a server

        connection = await nats.connect(f"nats://127.0.0.1:{port}")
        stream = connection.jetstream()
        await stream.add_stream(name="events", subjects=["events.>"])
        sink = NatsSink(f"nats://127.0.0.1:{port}")
        await sink.publish([event(1), event(2)])
        await sink.publish([event(2)])
        await sink.close()
        reader = await stream.pull_subscribe("events.>", "reader")
        messages = await reader.fetch(10, timeout=5)
        await connection.close()
    assert [json.loads(message.data)["id"] for message in messages] == ["7:3:1", "7:3:2"]
    assert messages[0].subject == "events.order.paid.v1"


async def test_redis_stream_is_in_order(tmp_path: Path) -> None:
    port = free_port()
    arguments = ("--bind", "127.0.0.1", "--port", str(port), "--dir", str(tmp_path), "--save", "")
    async with server("redis-server", *arguments, port=port):
        import redis.asyncio

        sink = RedisSink(f"redis://127.0.0.1:{port}")
        await sink.publish([event(1), event(2)])
        await sink.close()
        client = redis.asyncio.from_url(f"redis://127.0.0.1:{port}", decode_responses=True)
        entries: Any = await client.xrange("events")
        await client.aclose()
    assert [fields["id"] for _, fields in entries] == ["7:3:1", "7:3:2"]
    assert json.loads(entries[0][1]["event"])["data"] == {"amount": 100, "to": "Zoë"}


@pytest.mark.parametrize("kind", ["a b", "a\tb", "a\r\nPUB x 0", "a.*", ">", "a..b", ".a", "a.", "a\u2028b"])
async def test_type_that_is_not_a_subject_is_rejected(kind: str) -> None:
    sink = NatsSink("nats://127.0.0.1:1")
    with pytest.raises(Rejected, match="cannot be part of a NATS subject"):
        await sink.publish([event(), event(type=kind)])
    with pytest.raises(UsageError, match="is not a NATS subject"):
        NatsSink("nats://127.0.0.1:1", prefix=kind)


@pytest.mark.parametrize(
    ("kind", "url"),
    [
        (RedisSink, "redis://user:s3c:r3t@host:s3cr3t/0"),
        (RedisSink, "http://user:s3cr3t@host"),
        (NatsSink, "nats://user:s3c@r3t:s3cr3t"),
        (NatsSink, "nats://[s3cr3t"),
    ],
)
def test_refused_url_is_not_shown(kind: Any, url: str) -> None:
    with pytest.raises(UsageError, match="cannot be read") as caught:
        kind(url)
    assert "s3cr3t" not in f"{caught.value!r} {caught.value}"
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("kind", [NatsSink, RedisSink])
async def test_unreachable_server_is_unavailable(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    sink = kind("nats://127.0.0.1:1" if kind is NatsSink else "redis://127.0.0.1:1")
    with pytest.raises(SinkUnavailable, match=r"Connect call failed \('127.0.0.1', 1\)"):
        await sink.publish([event()])
    await sink.close()
    assert caplog.records == []
