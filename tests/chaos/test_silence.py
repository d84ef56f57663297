"""Silent connections: no data, no FIN, no RST."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import (
    AsyncClient,
    Client,
    Context,
    Done,
    Duplicate,
    Inserted,
    Machine,
    Next,
    Outcome,
    Settings,
    Spec,
    Sql,
    Worker,
    step,
)
from gen_durable._db.blocking import BlockingDatabase
from gen_durable._db.failures import NoReplyError, StatementError
from gen_durable._db.insert import insert
from gen_durable._db.plan import Statement, only
from gen_durable._db.pool import Database
from gen_durable._db.reply_timeouts import ReplyTimeouts
from gen_durable.errors import UnreachableError
from tests.chaos.arena import Arena
from tests.chaos.cluster import Cluster
from tests.chaos.machines import Chain, Work
from tests.chaos.worker_processes import CHAOS
from tests.support.engine_plans import new
from tests.support.tcp_proxy import INSERT, Proxy, Verdict, saying

LEASE = timedelta(seconds=3)
SHORT = Settings(lease=LEASE, poll_interval=timedelta(milliseconds=200), drain_timeout=timedelta(seconds=1))
# With a lease of 3 s a connection is suspect after 1 s; the rest is for a busy machine.
SOON = 12.0
SLEEP = Statement("sleep", "select pg_sleep(:seconds::float8)::text as slept")


class Slow(Machine[int, int]):
    @step
    async def first(self, ctx: Context[int]) -> Outcome[int]:
        await asyncio.sleep(0.5)
        return Next(self.second, ctx.state + 1, effect=Sql("select 1"))

    @step
    async def second(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)


@pytest.fixture
async def proxy(direct_dsn: str) -> AsyncIterator[Proxy]:
    async with Proxy.open(direct_dsn) as opened:
        yield opened


async def within(seconds: float, work: Any) -> Any:
    async with asyncio.timeout(seconds):
        return await work


@pytest.fixture(params=["AsyncClient", "Client"])
async def verbs(request: pytest.FixtureRequest, proxy: Proxy) -> AsyncIterator[Callable[..., Any]]:
    """A call of each client, through the proxy."""
    if request.param == "AsyncClient":
        async with AsyncClient(proxy.dsn, settings=SHORT) as client:
            yield lambda verb, *args, **options: getattr(client, verb)(*args, **options)
        return
    blocking = Client(proxy.dsn, settings=SHORT)
    await asyncio.to_thread(blocking.__enter__)
    try:
        yield lambda verb, *args, **options: asyncio.to_thread(getattr(blocking, verb), *args, **options)
    finally:
        await asyncio.to_thread(blocking.__exit__, None, None, None)


async def test_worker_finishes_work_after_its_connections_fall_silent(
    direct_dsn: str, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with AsyncClient(direct_dsn) as client, Worker([Slow], dsn=proxy.dsn, settings=SHORT):
        before = [await client.insert(Slow, number) for number in range(3)]
        await client.wait(before[0], timeout=timedelta(seconds=SOON))
        during = [await client.insert(Slow, number) for number in range(3)]
        await asyncio.sleep(0.2)
        proxy.swallow()
        after = [await client.insert(Slow, number) for number in range(3)]
        ended = await client.wait_all([*before, *during, *after], timeout=timedelta(seconds=SOON))
    assert [instance.result for instance in ended] == [1, 2, 3] * 3
    silences = [line for line in caplog.messages if line.startswith("connection silent: ")]
    # The heartbeat has its own connection, and detects it separately.
    assert len([line for line in silences if "for the heartbeat" not in line]) == 1, silences
    assert re.search(r"no reply for \d+\.\d s on a connection for", silences[0])


async def test_verb_raises_in_bounded_time_and_may_be_repeated(
    verbs: Callable[..., Any], proxy: Proxy
) -> None:
    await verbs("insert", Chain, Work(), idempotency_key="before")
    proxy.swallow()
    with pytest.raises(NoReplyError, match=r"no reply for \d+\.\d s to statement insert"):
        await within(SOON, verbs("insert", Chain, Work(), idempotency_key="one"))
    assert isinstance(await verbs("insert", Chain, Work(), idempotency_key="one"), Inserted)


async def test_concurrent_calls_fail_when_their_connections_fall_silent(proxy: Proxy) -> None:
    async with AsyncClient(proxy.dsn, settings=SHORT) as client:
        # Each has its own connection.
        orders = await asyncio.gather(*(client.insert(Chain, Work()) for _ in range(4)))
        order = orders[0]
        proxy.swallow()
        calls = client.insert_all([Spec(Chain, Work())]), client.signal(order, "paid"), client.cancel(order)
        ended = await within(SOON, asyncio.gather(*calls, client.get(order), return_exceptions=True))
        assert [type(each) for each in ended] == [NoReplyError] * 4, ended
        assert await client.get(order) is not None


async def test_wait_ends_in_bounded_time(verbs: Callable[..., Any], proxy: Proxy) -> None:
    order = await verbs("insert", Chain, Work())
    proxy.swallow()
    # The blocking client has one connection; the async one polls a last time on another.
    with suppress(NoReplyError):
        await within(SOON, verbs("wait", order, timeout=timedelta(seconds=0.1)))


async def test_repeated_insert_after_a_swallowed_reply_is_a_duplicate(
    verbs: Callable[..., Any], proxy: Proxy
) -> None:
    proxy.on(saying(INSERT), "answered", lambda: Verdict.SILENCE)
    with pytest.raises(NoReplyError):
        await within(SOON, verbs("insert", Chain, Work(), idempotency_key="one"))
    assert isinstance(await verbs("insert", Chain, Work(), idempotency_key="one"), Duplicate)


async def test_transaction_on_a_silent_connection_fails(proxy: Proxy) -> None:
    bounds = ReplyTimeouts.of(LEASE)
    async with await Database.open(proxy.dsn, "gen_durable", reply_timeouts=bounds) as database:
        proxy.swallow()
        with pytest.raises(NoReplyError):
            await within(SOON, database.run_in_transaction(only(SLEEP(seconds=0.0))))
        await database.run_in_transaction(only(SLEEP(seconds=0.0)))
    blocking = BlockingDatabase(proxy.dsn, "gen_durable", lease=LEASE)
    await asyncio.to_thread(blocking.run, only(SLEEP(seconds=0.0)))
    proxy.swallow()
    with pytest.raises(NoReplyError):
        await within(SOON, asyncio.to_thread(blocking.run_in_transaction, only(SLEEP(seconds=0.0))))
    await asyncio.to_thread(blocking.run_in_transaction, only(SLEEP(seconds=0.0)))
    blocking.close()


async def test_slow_statement_is_not_taken_for_a_silent_connection(proxy: Proxy) -> None:
    bounds = ReplyTimeouts.of(LEASE)
    blocking = BlockingDatabase(proxy.dsn, "gen_durable", lease=LEASE)
    async with await Database.open(proxy.dsn, "gen_durable", reply_timeouts=bounds) as database:

        def asleep() -> Any:
            return only(SLEEP(seconds=bounds.suspect * 2.5))

        await asyncio.gather(database.run(asleep()), asyncio.to_thread(blocking.run, asleep()))
        assert database.connects == 1
    blocking.close()


async def test_verb_raises_when_new_connections_are_silent_too(
    verbs: Callable[..., Any], proxy: Proxy
) -> None:
    await verbs("insert", Chain, Work())
    proxy.swallow(new=True)
    with pytest.raises(StatementError):
        await within(SOON, verbs("insert", Chain, Work()))
    with pytest.raises((StatementError, UnreachableError)):
        await within(SOON, verbs("insert", Chain, Work()))


@pytest.mark.parametrize("new", [False, True], ids=["new connections work", "new ones are silent too"])
async def test_sigterm_ends_a_worker_whose_connections_are_silent(arena: Arena, new: bool) -> None:
    async with Proxy.open(arena.dsn) as proxy:
        settings = msgspec.structs.replace(CHAOS, drain_timeout=timedelta(seconds=1))
        process = await arena.workers.start(proxy.dsn, settings=settings)
        await arena.producer.insert_surely("chain", Chain, Work(steps=2, pace=1))
        await asyncio.sleep(0.5)
        proxy.swallow(new=new)
        begun = time.monotonic()
        process.terminate()
        assert await process.ends() == 0
        # The step ends after 1 s at most; the rest is final statements and closing the pools.
        assert time.monotonic() - begun < 16


async def test_hanging_dsn_function_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gen_durable._db.address._DSN_TIMEOUT", 0.2)
    released = threading.Event()

    def dsn() -> str:
        released.wait(30)
        return ""

    def open_client() -> None:
        with Client(dsn):
            pass

    try:
        with pytest.raises(UnreachableError, match=r"did not return within 0\.2 s"):
            await within(SOON, asyncio.to_thread(open_client))
        with pytest.raises(UnreachableError, match=r"did not return within 0\.2 s"):
            async with AsyncClient(dsn):
                pass
    finally:
        released.set()


async def test_next_host_is_tried_when_the_first_does_not_answer(direct_dsn: str) -> None:
    async with Proxy.open(direct_dsn) as proxy:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            mute = f"127.0.0.1:{silent.getsockname()[1]}"
            dsn = proxy.dsn.replace("@127", f"@{mute},127")
            async with await Database.open(
                dsn, "gen_durable", reply_timeouts=ReplyTimeouts.of(LEASE)
            ) as database:
                await database.run(only(SLEEP(seconds=0.0)))
                # The host that did not answer is tried last from now on.
                begun = time.monotonic()
                database._pool.replace_all()
                await database.run(only(SLEEP(seconds=0.0)))
                assert time.monotonic() - begun < 1.5


def test_bounds_follow_the_lease() -> None:
    assert ReplyTimeouts.of(timedelta(seconds=60)) == (10, 10, 40)
    assert ReplyTimeouts.of(timedelta(seconds=6)) == (2, 4, 40)
    assert ReplyTimeouts.of(timedelta(seconds=6), is_pooled=True) == (2, 4, 6)
    assert ReplyTimeouts.of(timedelta(seconds=60), is_pooled=True) == (10, 10, 40)
    assert ReplyTimeouts.of(timedelta(milliseconds=10)) == (1, 2, 40)
    assert ReplyTimeouts.of_heartbeat(timedelta(seconds=60)) == (20, 10, 20)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the platform has no such option")
async def test_sockets_have_keepalive_and_user_timeout(proxy: Proxy) -> None:
    def options(fileno: int) -> list[int]:
        with socket.socket(fileno=os.dup(fileno)) as sock:
            return [
                sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
                *(
                    sock.getsockopt(socket.IPPROTO_TCP, name)
                    for name in (
                        socket.TCP_KEEPIDLE,
                        socket.TCP_KEEPINTVL,
                        socket.TCP_KEEPCNT,
                        socket.TCP_USER_TIMEOUT,
                    )
                ),
            ]

    async def of_async(dsn: str) -> list[int]:
        async with AsyncClient(dsn) as client:
            ((conn, _),) = client._database._pool._idle
            return options(conn._transport.get_extra_info("socket").fileno())

    def blocking(dsn: str) -> list[int]:
        with Client(dsn) as client:
            return options(client._database._conn.fileno())

    own = f"{proxy.dsn}&keepalives_idle=77&tcp_user_timeout=4000"
    for dsn, wanted in ((proxy.dsn, [1, 5, 2, 2, 10_000]), (own, [1, 77, 2, 2, 4_000])):
        assert await of_async(dsn) == wanted
        assert await asyncio.to_thread(blocking, dsn) == wanted


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="the platform has no such option")
async def test_server_ends_sessions_of_clients_that_have_vanished(cluster: Cluster) -> None:
    names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout")
    shown = Statement(
        "shown", "select " + ", ".join(f"current_setting('{name}') as {name}" for name in names)
    )

    async def of_async(dsn: str) -> list[str]:
        async with await Database.open(dsn, "gen_durable") as database:
            (row,) = await database.run(only(shown()))
            return [row[name] for name in names]

    def blocking(dsn: str) -> list[str]:
        database = BlockingDatabase(dsn, "gen_durable")
        (row,) = database.run(only(shown()))
        database.close()
        return [row[name] for name in names]

    own = f"{cluster.dsn}&keepalives_idle=77&tcp_user_timeout=4000"
    for dsn, wanted in ((cluster.dsn, ["5", "2", "2", "10000"]), (own, ["77", "2", "2", "4000"])):
        assert await of_async(dsn) == wanted
        assert await asyncio.to_thread(blocking, dsn) == wanted
    # Without keepalive the server has its own defaults.
    assert await of_async(f"{cluster.dsn}&keepalives=0") == await asyncio.to_thread(
        blocking, f"{cluster.dsn}&keepalives=0"
    )


def test_insert_passes_an_error_on_without_making_it_its_own_cause() -> None:
    plan = insert([new()], autocommit=False)
    next(plan)
    with pytest.raises(StatementError) as raised:
        plan.throw(StatementError("", "the connection was lost"))
    assert raised.value.__cause__ is None
