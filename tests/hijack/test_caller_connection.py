"""Verbs on a caller's connection: no planted object on its search_path runs, and the path is restored."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from gen_durable import AsyncClient, Client, Schedule, Settings, Spec, Status
from gen_durable._db import caller_connection
from gen_durable._db.caller_search_path import on_pinned_path
from gen_durable._db.failures import StatementError
from gen_durable._db.plan import Call, Rows, Script, Statement, only
from gen_durable._db.runner import drive
from gen_durable.errors import NoTargetError
from tests.hijack.traps import caught
from tests.pooler.machines import Chain
from tests.support.wire_proxy import ARRAYS, Wire

KINDS = ["asyncpg", "asyncpg in a transaction", "psycopg", "psycopg autocommit", "psycopg in a pipeline"]
KINDS += ["psycopg async", "session", "async session over asyncpg", "async session over psycopg"]


async def done(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class Caller:
    """A connection or session of the application, and the client for it."""

    def __init__(self, conn: Any, *, blocks: bool) -> None:
        self.conn = conn
        self.make: Any = Client if blocks else AsyncClient
        self._client = self.make("postgresql://nowhere")

    async def use(self, verb: str, *arguments: Any, **options: Any) -> Any:
        return await done(getattr(self._client, verb)(*arguments, conn=self.conn, **options))

    async def path(self) -> str:
        query = "select pg_catalog.current_setting('search_path')"
        if isinstance(self.conn, asyncpg.Connection):
            return str(await self.conn.fetchval(query))
        if isinstance(self.conn, Session | AsyncSession):
            return str((await done(self.conn.execute(text(query)))).scalar())
        cursor = await done(self.conn.execute(query))
        (path,) = await done(cursor.fetchone())
        return str(path)


async def opened(kind: str, dsn: str, stack: AsyncExitStack) -> Caller:
    match kind.split(" over ")[0]:
        case "asyncpg" | "asyncpg in a transaction":
            conn: Any = await asyncpg.connect(dsn)
            await conn.fetch(ARRAYS, *[[]] * 7)
            stack.push_async_callback(conn.close, timeout=5)
            if "transaction" in kind:
                await stack.enter_async_context(conn.transaction())
            return Caller(conn, blocks=False)
        case "psycopg async":
            conn = await stack.enter_async_context(await psycopg.AsyncConnection.connect(dsn))
            return Caller(conn, blocks=False)
        case "session":
            engine = create_engine(dsn.replace("postgresql:", "postgresql+psycopg:"))
            stack.callback(engine.dispose)
            return Caller(stack.enter_context(Session(engine)), blocks=True)
        case "async session":
            driver = "asyncpg" if kind.endswith("asyncpg") else "psycopg_async"
            async_engine = create_async_engine(dsn.replace("postgresql:", f"postgresql+{driver}:"))
            stack.push_async_callback(async_engine.dispose)
            session = await stack.enter_async_context(AsyncSession(async_engine))
            if driver == "asyncpg":
                raw = await (await session.connection()).get_raw_connection()
                driver_connection: Any = raw.driver_connection
                await driver_connection.fetch(ARRAYS, *[[]] * 7)
                await session.rollback()
            return Caller(session, blocks=False)
    conn = stack.enter_context(psycopg.connect(dsn, autocommit=kind != "psycopg"))
    if "pipeline" in kind:
        stack.enter_context(conn.pipeline())
    return Caller(conn, blocks=True)


async def use_all(caller: Caller) -> None:
    """Use every verb that accepts a connection."""
    ref = await caller.use("insert", Chain, 1, correlation_key="c", concurrency_key="k")
    await caller.use("insert_all", [Spec(Chain, 1, unique_key="u"), Spec(Chain, 1, unique_key="u")])
    await caller.use("signal", "c", "note", "x")
    await caller.use("get", ref)
    await caller.use("get", "c")
    await caller.use("list", Chain, status=[Status.RUNNABLE])
    await caller.use("count", Chain)
    await caller.use("children", ref)
    await caller.use("cancel", "c")
    await caller.use("retry", ref)
    await caller.use("soft_delete", ref)
    await caller.use("restore", "c")
    await caller.use("set_audit", "all")
    await caller.use("put_schedule", Schedule("s", Spec(Chain, 1), every=timedelta(hours=1)))
    await caller.use("trigger_schedule", "s")
    await caller.use("pause_schedule", "s")
    await caller.use("resume_schedule", "s")
    await caller.use("delete_schedule", "s")
    await caller.use("pause_queue", "q")
    await caller.use("resume_queue", "q")
    await caller.use("set_queue", "q", concurrency=3)


async def ended(caller: Caller) -> None:
    """Commit the transaction of the caller, so that the table `caught` is visible."""
    if hasattr(caller.conn, "commit"):
        await done(caller.conn.commit())


@pytest.mark.clause("SQL-10")
@pytest.mark.parametrize("kind", KINDS)
async def test_no_planted_object_runs_and_the_path_is_restored(
    trapped: str, db: Any, attacker: str, kind: str
) -> None:
    async with AsyncExitStack() as stack:
        caller = await opened(kind, trapped, stack)
        before = await caller.path()
        await ended(caller)
        await db.execute(
            "truncate public.caught"
        )  # filled by statements of the driver, which are the caller's
        await use_all(caller)
        assert await caller.path() == before
        await ended(caller)
    assert await db.fetchval("select count(*) from gen_durable.gen_durable") > 1
    assert await caught(db, attacker) == set()


@pytest.mark.parametrize("trapped", ["public, pg_catalog"], indirect=True)
async def test_planted_objects_run_without_the_pinned_path(
    trapped: str, db: Any, attacker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves that the test above can fail."""
    monkeypatch.setattr(caller_connection, "on_pinned_path", lambda plan, *_, **__: plan)
    async with AsyncExitStack() as stack:
        caller = await opened("psycopg async", trapped, stack)
        await caller.use("insert", Chain, 1)
        await caller.use("get", 1)
        await ended(caller)
    assert await caught(db, attacker) == {await db.fetchval("select current_user::text")}


async def test_planted_objects_run_without_the_pin_of_the_functions(
    trapped: str, db: Any, attacker: str
) -> None:
    await db.execute(
        """do $$ declare one regprocedure; begin
             for one in select p.oid from pg_proc p where p.pronamespace = 'gen_durable'::regnamespace loop
               execute format('alter function %s reset search_path', one);
             end loop; end $$"""
    )
    async with AsyncExitStack() as stack:
        caller = await opened("psycopg autocommit", trapped, stack)
        await caller.use("insert", Chain, 1, correlation_key="c")
        await caller.use("signal", "c", "note", "x")
    assert await caught(db, attacker) == {await db.fetchval("select current_user::text")}


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg", "psycopg autocommit", "psycopg async"])
async def test_path_is_restored_after_an_error(durable_dsn: str, kind: str) -> None:
    async with AsyncExitStack() as stack:
        caller = await opened(kind, durable_dsn, stack)
        await done(caller.conn.execute("set search_path = shop, public"))
        await ended(caller)
        with pytest.raises(NoTargetError):
            await caller.use("cancel", "nowhere")
        with pytest.raises(StatementError):  # PostgreSQL refuses it, and the transaction has failed
            client = caller.make("postgresql://nowhere", settings=Settings(schema="nowhere"))
            await done(client.list(conn=caller.conn))
        if hasattr(caller.conn, "rollback"):
            await done(caller.conn.rollback())
        assert await caller.path() == "shop, public"


async def test_path_set_for_one_transaction_ends_with_it(durable_dsn: str) -> None:
    conn = await asyncpg.connect(durable_dsn)
    client = AsyncClient("postgresql://nowhere")
    await conn.execute("set search_path = session_path")
    async with conn.transaction():
        await conn.execute("set local search_path = local_path")
        await client.list(conn=conn)
        assert await conn.fetchval("show search_path") == "local_path"
    assert await conn.fetchval("show search_path") == "session_path"
    with pytest.raises(ZeroDivisionError):
        async with conn.transaction():
            await client.list(conn=conn)
            raise ZeroDivisionError
    assert await conn.fetchval("show search_path") == "session_path"
    assert await conn.fetchval("select source from pg_settings where name = 'search_path'") == "session"
    await conn.close()


async def test_cancelled_statement_leaves_neither_path_nor_transaction(durable_dsn: str, db: Any) -> None:
    conn = await asyncpg.connect(durable_dsn)
    client = AsyncClient("postgresql://nowhere")
    await conn.execute("set search_path = mine")
    async with db.transaction():
        await db.execute("lock table gen_durable.gen_durable")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.list(conn=conn)
    assert not conn.is_in_transaction()
    assert await conn.fetchval("show search_path") == "mine"
    await conn.close()


@pytest.mark.parametrize("is_run", [True, False])
@pytest.mark.parametrize("cancelled", range(3))
async def test_cancel_at_any_statement_restores_the_path_of_an_open_transaction(
    durable_dsn: str, cancelled: int, is_run: bool
) -> None:
    conn = await asyncpg.connect(durable_dsn)
    await conn.execute("set search_path = mine")
    sent: list[Call | Script] = []

    async def execute(call: Call | Script) -> Rows:
        assert isinstance(call, Call)
        is_cancelled = len(sent) == cancelled
        sent.append(call)
        rows: Rows = []
        if is_run or not is_cancelled:
            rows = await conn.fetch(call.statement.text, *call.values)
        if is_cancelled:
            raise asyncio.CancelledError
        return rows

    async with conn.transaction():
        plan = on_pinned_path(only(Statement("one", "select 1")()), conn.is_in_transaction)
        with pytest.raises(asyncio.CancelledError):
            await drive(plan, execute)
        assert await conn.fetchval("show search_path") == "mine"
    await conn.close()


ROUND_TRIPS: dict[str, Callable[[Caller], Any]] = {
    "insert": lambda caller: caller.use("insert", Chain, 1),
    "insert_all": lambda caller: caller.use("insert_all", [Spec(Chain, 1), Spec(Chain, 2)]),
    "signal": lambda caller: caller.use("signal", 1, "note", "x"),
    "cancel": lambda caller: caller.use("cancel", 1),
    "retry": lambda caller: caller.use("retry", 1),
}


@pytest.mark.parametrize("verb", ROUND_TRIPS)
async def test_verb_that_is_a_function_call_needs_no_extra_round_trip(durable_dsn: str, verb: str) -> None:
    with Wire(durable_dsn) as wire:
        conn = await asyncpg.connect(wire.dsn)
        caller = Caller(conn, blocks=False)
        await caller.use("insert", Chain, 1)
        with wire.counted() as sent:
            await ROUND_TRIPS[verb](caller)
        assert [each for each in sent if "TYPEINFO" not in each and "SELECT" not in each] == sent[-1:]
        with wire.counted() as sent:
            await caller.use("get", 1)
        assert (sent[0].split(";")[0], sent[1:]) == ("BEGIN", ["get", "COMMIT"])
        async with conn.transaction():
            with wire.counted() as sent:
                await caller.use("get", 1)
            assert (sent[1], len(sent)) == ("get", 3)
        await conn.close()
