"""Session state behind PgBouncer: every transaction sets what it needs, and leaves nothing behind.

PgBouncer 1.18 (Debian 12) does not support prepared statements in transaction mode, so none are prepared, and each
statement is planned again (0.7 to 1 ms). PgBouncer 1.21 and later can support them (max_prepared_statements above 0,
the default since 1.24). Then asyncpg could keep its statement cache and save two round trips and a plan per statement.
Every BEGIN would still have to set the settings.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import asyncpg
import psycopg
import pytest
from psycopg.rows import dict_row

from gen_durable import AsyncClient, Client, Settings, Spec, Worker
from gen_durable._db.blocking import BlockingDatabase
from gen_durable._db.connector import PINNED
from gen_durable._db.failures import StatementError, is_outage
from gen_durable._db.plan import Plan, Row, Statement, only
from gen_durable._db.pool import Database, _Transaction
from tests.pooler.machines import ALL, Chain, Parent
from tests.support.clients import Awaitable

SCHEMA: Final = "gen_durable"
# Defaults that an administrator may have set.
DEFAULTS: Final = {
    "default_transaction_isolation": "repeatable read",
    "default_transaction_read_only": "on",
    "synchronous_commit": "off",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "jit": "on",
    "plan_cache_mode": "auto",
    "enable_seqscan": "on",
    "datestyle": "SQL, DMY",
    "intervalstyle": "iso_8601",
}


@contextmanager
def blocking_database(dsn: str) -> Iterator[Any]:
    database = BlockingDatabase(dsn, SCHEMA, pooler="transaction")
    try:
        yield Awaitable(database)  # type: ignore[arg-type]  # it wraps whatever has blocking methods
    finally:
        database.close()


@pytest.fixture(params=["asyncpg", "psycopg"])
async def database(request: pytest.FixtureRequest, durable_dsn: str, db: Any) -> Any:
    """A database by each driver, with other defaults than ours."""
    name = await db.fetchval("select current_database()")
    for setting, value in DEFAULTS.items():
        await db.execute(f"alter database {name} set {setting} = '{value}'")
    if request.param == "asyncpg":
        async with await Database.open(durable_dsn, SCHEMA, size=3, pooler="transaction") as opened:
            yield opened
    else:
        with blocking_database(durable_dsn) as blocking:
            yield blocking


def one_row(text: str) -> Plan[Row]:
    rows = yield Statement("text", text)()
    return rows[0]


async def test_every_transaction_has_the_pinned_settings(database: Any) -> None:
    names = [name for name in PINNED if not name.startswith("default_transaction_")]
    columns = ", ".join(f"current_setting('{name}') as {name}" for name in names)
    for run in (database.run, database.run_in_transaction):
        found = dict(await run(one_row(f"select {columns}")))
        assert found.pop("datestyle").startswith("ISO")
        assert found == {name: PINNED[name] for name in names if name != "datestyle"}
        kind = await run(
            one_row(
                "select current_setting('transaction_isolation') as isolation,"
                " current_setting('transaction_read_only') as read_only"
            )
        )
        assert dict(kind) == {"isolation": "read committed", "read_only": "off"}


async def test_plan_can_continue_after_a_failed_statement(database: Any) -> None:
    """Like an insert after a deadlock. Without a pooler each statement is its own transaction as well."""

    def stubborn() -> Plan[int]:
        with pytest.raises(StatementError, match="division by zero"):
            yield Statement("fails", "select 1 / 0")()
        rows = yield Statement("works", "select 42 as answer")()
        answer: int = rows[0]["answer"]
        return answer

    for _ in range(10):
        assert await database.run(stubborn()) == 42


async def test_run_in_transaction_is_one_transaction(database: Any, db: Any) -> None:
    await db.execute("create table noted (what text)")

    def failing() -> Plan[None]:
        yield Statement("works", "insert into public.noted values ('first')")()
        yield Statement("fails", "select 1 / 0")()

    with pytest.raises(StatementError, match="division by zero"):
        await database.run_in_transaction(failing())
    assert await db.fetchval("select count(*) from noted") == 0


async def test_server_connections_are_left_clean(
    durable_dsn: str, direct_dsn: str, durable_settings: Settings
) -> None:
    names = ["role", "search_path", "timezone", *PINNED]
    look = ", ".join(
        f"current_setting('{name}') as \"{name}\"" for name in names if name != "application_name"
    )
    with psycopg.connect(direct_dsn, autocommit=True, row_factory=dict_row) as straight:
        untouched = straight.execute(f"select {look}").fetchone()
    async with Worker(ALL, dsn=durable_dsn, settings=durable_settings) as worker:
        refs: list[Any] = await worker.insert_all([Spec(Chain, 1), Spec(Parent, 10)])

        def wait() -> int:
            with Client(durable_dsn, settings=durable_settings) as client:
                client.wait_all(refs)
                return client.count()

        # On a thread: a blocked loop could not release the server connections that it holds.
        assert await asyncio.to_thread(wait) == 12
    seen: dict[int, Any] = {}
    with ExitStack() as stack:
        for _ in range(4):  # open transactions, so that each has a server connection of its own
            through = stack.enter_context(
                psycopg.connect(durable_dsn, row_factory=dict_row, prepare_threshold=None)
            )
            row: Any = through.execute(
                f"select pg_backend_pid() as pid, (select count(*) from pg_prepared_statements) as prepared, {look}"
            ).fetchone()
            seen[row.pop("pid")] = row
    assert len(seen) == 4
    for row in seen.values():
        assert row == {"prepared": 0, **(untouched or {})}


async def test_cancelled_call_leaves_no_open_transaction(durable_dsn: str, db: Any) -> None:
    """Cancelled at any moment: before the reply to BEGIN, during a statement, or during COMMIT."""
    async with await Database.open(durable_dsn, SCHEMA, size=4, pooler="transaction") as database:

        async def hasty(patience: float) -> None:
            try:
                async with asyncio.timeout(patience):
                    await database.run(one_row("select pg_sleep(0.001)"))
            except TimeoutError:
                pass

        async with asyncio.TaskGroup() as group:
            for _ in range(200):
                group.create_task(hasty(random.uniform(0, 0.05)))
        open_ones = (
            "select count(*) from pg_stat_activity where datname = current_database() and state ~ 'in trans'"
        )
        async with asyncio.timeout(5):
            while await db.fetchval(open_ones):
                await asyncio.sleep(0.02)
        for _ in range(10):
            await database.run(one_row("select 1"))


class Interrupted:
    """A connection that sends BEGIN but does not get its reply."""

    def __init__(self, answer: BaseException) -> None:
        self._answer = answer
        self.statements: list[str] = []

    def get_server_version(self) -> tuple[int, ...]:
        return (18, 0)

    async def execute(self, text: str) -> None:
        self.statements.append(text)
        if text.startswith("begin"):
            raise self._answer


async def test_connection_of_a_cancelled_transaction_is_not_used_again(durable_dsn: str) -> None:
    """Otherwise its next use would continue in the transaction of another call."""
    async with await Database.open(durable_dsn, SCHEMA, size=1, pooler="transaction") as database:
        sleep = Statement("sleep", "select pg_sleep(:seconds::float8)::text as slept")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await database.run_in_transaction(only(sleep(seconds=20.0)))
        assert len(await database.run_in_transaction(only(sleep(seconds=0.0)))) == 1
        assert database.connects == 2


async def test_standby_is_an_outage() -> None:
    """BEGIN READ WRITE fails on a standby with another code than a write."""
    connection = Interrupted(asyncpg.FeatureNotSupportedError("cannot set transaction read-write mode"))
    with pytest.raises(StatementError) as refused:
        async with _Transaction(connection, PINNED):
            pass
    assert is_outage(refused.value)


LOCKS = """
select count(*) from pg_locks
 where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())"""


@pytest.mark.parametrize("kind", ["AsyncClient", "Client"])
async def test_schema_is_installed_through_the_pooler(durable_dsn: str, db: Any, kind: str) -> None:
    """By the first process; the others wait for its transaction lock."""
    settings = Settings(schema="elsewhere", pooler="transaction")

    async def opened() -> None:
        if kind == "AsyncClient":
            async with AsyncClient(durable_dsn, settings=settings) as client:
                await client.insert(Chain, 1)
        else:
            await asyncio.to_thread(inserted)

    def inserted() -> None:
        with Client(durable_dsn, settings=settings) as client:
            client.insert(Chain, 1)

    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(opened())
    assert await db.fetchval("select count(*) from elsewhere.gen_durable") == 5
    assert await db.fetchval(LOCKS) == 0
