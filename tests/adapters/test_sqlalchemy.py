"""SQLAlchemy sessions and connections as `conn=`: calls join their transaction."""

from __future__ import annotations

import importlib
import inspect
import itertools
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from gen_durable import AsyncClient, Client, Spec
from gen_durable.errors import NoTargetError, UsageError
from tests.clients.machines import Checkout, Number, Order, Payment

# Importing SQLAlchemy is slow, so tests import it locally.
if TYPE_CHECKING:
    from sqlalchemy import Engine
    from sqlalchemy.orm import Session

KEYS = (f"order:{n}" for n in itertools.count())
COUNT = (
    "select (select count(*) from gen_durable.gen_durable where correlation_key like '{0}%'), "
    "(select count(*) from gen_durable.signals s join gen_durable.gen_durable g on g.id = s.target_id "
    "where g.correlation_key = '{0}'), "
    "(select count(*) from gen_durable.gen_durable where correlation_key = '{0}:1' and status = 'cancelled')"
)


async def _done(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


class Caller:
    """A SQLAlchemy session, blocking or async, and a client that uses it."""

    def __init__(self, session: Any, *, blocks: bool) -> None:
        self.session = session
        # Not opened: with conn= the client needs no connection of its own.
        self.client: Any = Client("postgresql://nowhere") if blocks else AsyncClient("postgresql://nowhere")

    async def work(self, key: str) -> None:
        """Call the client before any statement of the caller."""
        await _done(
            self.client.insert(Checkout, Order(1), correlation_key=key, conn=self.session),
        )
        await _done(
            self.client.insert_all(
                [Spec(Number, n, correlation_key=f"{key}:{n}") for n in range(2)], conn=self.session
            )
        )
        await _done(self.client.signal(key, Checkout.payment, Payment(1), conn=self.session))
        await _done(self.client.cancel(f"{key}:1", conn=self.session))

    async def end(self, how: str) -> None:
        await _done(getattr(self.session, how)())

    async def execute(self, statement: str) -> Any:
        from sqlalchemy import text

        return await _done(self.session.execute(text(statement)))


def opened_async(kind: str, engine: Any) -> Any:
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker

    match kind:
        case "session":
            return AsyncSession(engine)
        case "scoped session":
            return async_scoped_session(async_sessionmaker(engine), scopefunc=lambda: 1)
        case _:
            return engine.connect()


def opened_blocking(kind: str, engine: Any) -> Any:
    from sqlalchemy.orm import Session, scoped_session, sessionmaker

    match kind:
        case "session":
            return Session(engine)
        case "scoped session":
            return scoped_session(sessionmaker(engine))
        case _:
            return engine.connect()


KINDS = list(
    itertools.product(("asyncpg", "psycopg_async", "psycopg"), ("session", "scoped session", "connection"))
)


@pytest.fixture(scope="module")
def blocking(dsn: str) -> Iterator[Engine]:
    from sqlalchemy import create_engine

    engine = create_engine(dsn.replace("postgresql:", "postgresql+psycopg:"))
    yield engine
    engine.dispose()


@pytest.fixture(params=KINDS, ids=" ".join)
async def caller(request: pytest.FixtureRequest, dsn: str, blocking: Engine) -> AsyncIterator[Caller]:
    driver, kind = request.param
    if driver == "psycopg":
        session = opened_blocking(kind, blocking)
        yield Caller(session, blocks=True)
        session.close()
        return
    from sqlalchemy.ext.asyncio import create_async_engine

    async with AsyncExitStack() as stack:
        engine = create_async_engine(dsn.replace("postgresql:", f"postgresql+{driver}:"))
        stack.push_async_callback(engine.dispose)
        session = opened_async(kind, engine)
        if kind == "connection":
            await session.start()
        stack.push_async_callback(session.close)
        yield Caller(session, blocks=False)


def seen(engine: Engine, key: str) -> tuple[int, ...]:
    """What other connections see: instances, signals, cancelled instances."""
    from sqlalchemy import text

    with engine.connect() as conn:
        return tuple(conn.execute(text(COUNT.format(key))).one())


@pytest.mark.clause("ADAPT-1", "ADAPT-2")
async def test_insert_commits_or_rolls_back_with_the_session(caller: Caller, blocking: Engine) -> None:
    key = next(KEYS)
    await caller.work(key)
    assert seen(blocking, key) == (0, 0, 0)
    await caller.end("rollback")
    assert seen(blocking, key) == (0, 0, 0)
    await caller.work(key)
    await caller.end("commit")
    assert seen(blocking, key) == (3, 1, 1)


@pytest.mark.clause("ADAPT-1")
async def test_closing_without_commit_rolls_back(caller: Caller, blocking: Engine) -> None:
    key = next(KEYS)
    await caller.work(key)
    await caller.end("close")
    assert seen(blocking, key) == (0, 0, 0)


@pytest.mark.clause("ADAPT-1")
async def test_savepoint_rolls_back_only_its_inserts(caller: Caller, blocking: Engine) -> None:
    key, other = next(KEYS), next(KEYS)
    await caller.work(key)
    nested = await _done(caller.session.begin_nested())
    await caller.work(other)
    await _done(nested.rollback())
    with pytest.raises(NoTargetError):
        await _done(caller.client.signal(other, "payment", conn=caller.session))
    await caller.end("commit")
    assert seen(blocking, key) == (3, 1, 1)
    assert seen(blocking, other) == (0, 0, 0)


@pytest.mark.clause("ADAPT-2")
async def test_calls_see_uncommitted_changes_of_the_session(caller: Caller, blocking: Engine) -> None:
    key = next(KEYS)
    await caller.execute("set local statement_timeout = '59s'")
    await caller.work(key)
    assert (await caller.execute(COUNT.format(key))).one() == (3, 1, 1)
    assert (await caller.execute("show statement_timeout")).scalar() == "59s"
    await caller.end("commit")
    assert seen(blocking, key) == (3, 1, 1)


@pytest.mark.clause("ADAPT-3")
async def test_autocommit_runs_each_call_in_its_own_transaction(dsn: str, blocking: Engine) -> None:
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
    from sqlalchemy.orm import Session

    key, other = next(KEYS), next(KEYS)
    with Session(blocking.execution_options(isolation_level="AUTOCOMMIT")) as session:
        await Caller(session, blocks=True).work(key)
        assert seen(blocking, key) == (3, 1, 1)
    engine = create_async_engine(
        dsn.replace("postgresql:", "postgresql+asyncpg:"), isolation_level="AUTOCOMMIT"
    )
    async with AsyncSession(engine) as apart:
        await Caller(apart, blocks=False).work(other)
        assert seen(blocking, other) == (3, 1, 1)
    await engine.dispose()


@pytest.mark.clause("ADAPT-4")
async def test_unsuitable_connections_are_refused(dsn: str, blocking: Engine) -> None:
    from sqlalchemy import create_mock_engine
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
    from sqlalchemy.orm import Session

    engine = create_async_engine(dsn.replace("postgresql:", "postgresql+asyncpg:"))
    client, async_client = Client(dsn), AsyncClient(dsn)

    async with AsyncSession(engine) as apart:
        with Session(blocking) as session:
            for conn, error in (
                (engine, "a sqlalchemy AsyncEngine; an engine has no transaction of yours: pass a session"),
                (session, "a sqlalchemy Session; pass an asyncpg Connection"),
            ):
                with pytest.raises(UsageError, match=f"conn= is {error}"):
                    await async_client.insert(Number, 1, conn=conn)  # type: ignore[call-overload]
        for other, error in (
            (blocking, "a sqlalchemy Engine; an engine has no transaction of yours"),
            (create_mock_engine(dsn, print), "a sqlalchemy MockConnection; it does not run statements"),
            (
                apart,
                r"a sqlalchemy AsyncSession; pass a psycopg Connection \(an asyncpg or async one goes to",
            ),
        ):
            with pytest.raises(UsageError, match=f"conn= is {error}"):
                client.insert(Number, 1, conn=other)  # type: ignore[call-overload]
    await engine.dispose()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg_async"])
async def test_blocking_call_in_run_sync_joins_the_transaction(dsn: str, driver: str) -> None:
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    engine = create_async_engine(dsn.replace("postgresql:", f"postgresql+{driver}:"))
    client, key = Client("postgresql://nowhere"), next(KEYS)

    def work(session: Session) -> int:
        client.insert(Number, 1, correlation_key=key, conn=session)
        return client.count(correlation_key=key, conn=session)

    for how in ("rollback", "commit"):
        async with AsyncSession(engine) as session:
            assert await session.run_sync(work) == 1
            await getattr(session, how)()
    async with AsyncClient(dsn) as looking:
        assert await looking.count(correlation_key=key) == 1
    await engine.dispose()


@pytest.mark.clause("ADAPT-1", "ADAPT-2")
async def test_example(
    durable_dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GEN_DURABLE_DSN", durable_dsn)
    monkeypatch.delitem(sys.modules, "examples.sqlalchemy_app", raising=False)
    await importlib.import_module("examples.sqlalchemy_app").main()
    assert capsys.readouterr().out.splitlines() == [
        "refused: the price must be at least 1",
        "order 2: 30 charged",
        "in the tables: 1 paid order, 1 instance",
    ]
