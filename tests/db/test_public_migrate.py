"""`gen_durable.migrate` on a connection and in a transaction of the caller."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from gen_durable import AsyncClient, Settings, migrate, migrate_async
from gen_durable._db.migrate import LATEST, up
from gen_durable.errors import SettingsError, UsageError
from gen_durable.testing._databases import Databases
from tests.upgrades.next_version import finish_copies

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "deploying.md"
COUNT = "select count(*) from pg_class where relnamespace = to_regnamespace('elsewhere')"
KINDS = [
    "asyncpg",
    "psycopg",
    "psycopg async",
    "session",
    "scoped session",
    "connection",
    "async session",
    "async session on psycopg",
]


def url(dsn: str, driver: str) -> str:
    return dsn.replace("postgresql:", f"postgresql+{driver}:")


async def done(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


async def opened(kind: str, dsn: str, stack: AsyncExitStack) -> Any:
    """A connection of the caller, in a transaction or before one."""
    if kind == "asyncpg":
        conn: Any = await asyncpg.connect(dsn)
        stack.push_async_callback(conn.close, timeout=5)
    elif kind == "psycopg":
        conn = stack.enter_context(psycopg.connect(dsn))
    elif kind == "psycopg async":
        conn = await stack.enter_async_context(await psycopg.AsyncConnection.connect(dsn))
    elif kind.startswith("async session"):
        engine = create_async_engine(url(dsn, "psycopg_async" if "psycopg" in kind else "asyncpg"))
        stack.push_async_callback(engine.dispose)
        conn = await stack.enter_async_context(AsyncSession(engine))
    else:
        blocking = create_engine(url(dsn, "psycopg"))
        stack.callback(blocking.dispose)
        if kind == "scoped session":
            conn = scoped_session(sessionmaker(blocking))
            stack.callback(conn.remove)
        else:
            conn = stack.enter_context(Session(blocking) if kind == "session" else blocking.connect())
    return conn


def function_for(conn: Any) -> Callable[..., Any]:
    kind = type(conn)
    is_async = kind.__module__.startswith("asyncpg") or "Async" in kind.__name__
    return migrate_async if is_async else migrate


@pytest.mark.clause("SCH-14")
@pytest.mark.parametrize("kind", KINDS)
async def test_migrate_is_part_of_the_callers_transaction(durable_dsn: str, db: Any, kind: str) -> None:
    async with AsyncExitStack() as stack:
        conn = await opened(kind, durable_dsn, stack)
        for how in ("rollback", "commit"):
            if kind == "asyncpg":
                await conn.execute("begin")
            assert await done(function_for(conn)(conn, schema="elsewhere")) == LATEST
            assert await db.fetchval(COUNT) == 0
            await done(conn.execute(how) if kind == "asyncpg" else getattr(conn, how)())
            assert (await db.fetchval(COUNT) > 0) is (how == "commit")
        assert await done(function_for(conn)(conn, schema="elsewhere", version=1)) == 1
        assert await done(function_for(conn)(conn, schema="elsewhere", version=0)) == 0
        if kind != "asyncpg":
            await done(conn.commit())
    assert await db.fetchval(COUNT) == 0


@pytest.mark.parametrize("kind", ["asyncpg", "psycopg", "psycopg async"])
async def test_migrate_outside_a_transaction_is_its_own(
    durable_dsn: str, durable_databases: Databases, db: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        conn = await opened(kind, durable_dsn, stack)
        if kind != "asyncpg":
            await done(conn.set_autocommit(True))
        await done(conn.execute("set search_path = mine, public"))
        finish_copies(durable_databases)
        with monkeypatch.context() as patched:
            patched.setattr("gen_durable._db.migrate.up", lambda version: f"{up(version)}; select 1 / 0")
            with pytest.raises(Exception, match="division by zero"):
                await done(function_for(conn)(conn, schema="elsewhere"))
        assert await db.fetchval(COUNT) == 0
        assert await done(function_for(conn)(conn, schema="elsewhere")) == LATEST
        assert await db.fetchval(COUNT) > 0
        if kind == "asyncpg":
            assert not conn.is_in_transaction()
            assert await conn.fetchval("show search_path") == "mine, public"


async def test_migrate_by_dsn(durable_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert migrate(durable_dsn, schema="elsewhere", version=1) == 1  # although a loop runs in this thread
    assert await migrate_async(durable_dsn, schema="elsewhere") == LATEST
    assert migrate(lambda: durable_dsn, schema="elsewhere") == LATEST
    monkeypatch.setenv("GEN_DURABLE_DSN", durable_dsn)
    monkeypatch.setenv("GEN_DURABLE_SCHEMA", "elsewhere")
    assert await asyncio.to_thread(migrate, version=0) == 0
    assert await migrate_async() == LATEST
    async with AsyncClient(durable_dsn, settings=Settings(schema="elsewhere")) as client:
        assert await client.count() == 0


def test_invalid_arguments_are_refused(durable_dsn: str) -> None:
    with pytest.raises(UsageError, match="schema version 99 does not exist"):
        migrate(durable_dsn, version=99)
    bad: Any = "9"
    with pytest.raises(UsageError, match="version= must be an int, got str"):
        migrate(durable_dsn, version=bad)
    with pytest.raises(SettingsError, match="schema"):
        migrate(durable_dsn, schema='a"b')
    neither: Any = 42
    with pytest.raises(UsageError, match="builtins int"):
        migrate(neither)


ENV = """
from alembic import context
from sqlalchemy import NullPool, create_engine

engine = create_engine(context.config.get_main_option("sqlalchemy.url"), poolclass=NullPool)
with engine.connect() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()
"""
ASYNC_ENV = """
import asyncio
from alembic import context
from sqlalchemy.ext.asyncio import create_async_engine

def work(connection):
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()

async def main():
    engine = create_async_engine(context.config.get_main_option("sqlalchemy.url"))
    async with engine.connect() as connection:
        await connection.run_sync(work)
    await engine.dispose()

asyncio.run(main())
"""


@pytest.mark.clause("SCH-14")
@pytest.mark.parametrize(
    ("driver", "env"), [("psycopg", ENV), ("asyncpg", ASYNC_ENV), ("psycopg_async", ASYNC_ENV)]
)
def test_alembic_revision_of_the_guide(durable_dsn: str, tmp_path: Path, driver: str, env: str) -> None:
    ((name, revision),) = re.findall(
        r'^```python title="(gen_durable_\d+\.py)"\n(.*?)^```$',
        PAGE.read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
    assert f"version={LATEST}" in revision
    migrate(durable_dsn, version=0)
    (tmp_path / "versions").mkdir()
    (tmp_path / "versions" / name).write_text(revision, encoding="utf-8")
    (tmp_path / "env.py").write_text(env, encoding="utf-8")
    (tmp_path / "script.py.mako").write_text("", encoding="utf-8")
    config = Config()
    config.set_main_option("script_location", str(tmp_path))
    config.set_main_option("sqlalchemy.url", url(durable_dsn, driver).replace("%", "%%"))
    command.upgrade(config, "head")
    with psycopg.connect(durable_dsn) as conn:
        assert conn.execute("select max(version) from gen_durable.migrations").fetchone() == (LATEST,)
        # In the same transaction, on the search_path of the caller.
        assert conn.execute("select version_num from public.alembic_version").fetchone() == (
            f"gen_durable_{LATEST}",
        )
    command.downgrade(config, "base")
    with psycopg.connect(durable_dsn) as conn:
        assert conn.execute("select to_regclass('gen_durable.migrations')").fetchone() == (None,)
