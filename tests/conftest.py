"""Fixtures and scheduling for all tests.

`GEN_DURABLE_POOLER=transaction pytest …` runs all tests behind PgBouncer; tests whose settings have a pooler always do.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final
from urllib.parse import urlsplit

import asyncpg
import pytest
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from gen_durable import AsyncClient, Client, Settings
from gen_durable._db.pool import Database
from gen_durable.testing._databases import Databases
from tests.pooler.bouncer import MISSING, PROGRAM, Bouncer
from tests.support.clients import Awaitable
from tests.support.rows import SqlConnection

# The duration of an example depends on the machine.
hypothesis_settings.register_profile(
    "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
hypothesis_settings.load_profile("patient")

# The tests of each of these folders run in one process, because they share an expensive fixture: 200,000 rows, a run
# of a type checker, a server, the syntax trees of all tests, the tables of Django.
TOGETHER: Final = (
    "tests/adapters/",
    "tests/plans/",
    "tests/typing/",
    "tests/interleavings/",
    "tests/architecture/",
)


class Scheduling(LoadScopeScheduling):
    """Distributes tests one by one, but keeps the folders of TOGETHER in one process."""

    def _split_scope(self, nodeid: str) -> str:
        return next((folder for folder in TOGETHER if nodeid.startswith(folder)), nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    return Scheduling(config, log)


@pytest.fixture(scope="session")
def bouncer(durable_databases: Databases) -> Iterator[Bouncer]:
    """One PgBouncer per test process; it serves every test database."""
    if PROGRAM is None:
        pytest.skip(MISSING)
    with Bouncer(durable_databases.dsn_of("postgres")) as started:
        yield started


@pytest.fixture
def durable_dsn(durable_dsn: str, durable_settings: Settings, request: pytest.FixtureRequest) -> str:
    """The DSN of the test's own database, direct or through PgBouncer."""
    if durable_settings.pooler == "none":
        return durable_dsn
    bouncer: Bouncer = request.getfixturevalue("bouncer")
    return bouncer.in_front_of(durable_dsn)


@pytest.fixture
def direct_dsn(durable_dsn: str, durable_databases: Databases) -> str:
    """The direct DSN of the test's own database."""
    return durable_databases.dsn_of(urlsplit(durable_dsn).path.removeprefix("/"))


@pytest.fixture
async def db(direct_dsn: str) -> AsyncIterator[Any]:
    """A plain asyncpg connection to the test's own database."""
    connection = await asyncpg.connect(direct_dsn)
    yield connection
    await connection.close(timeout=5)


@pytest.fixture
def sql(direct_dsn: str) -> Iterator[SqlConnection]:
    """A blocking connection to the test's own database, for tests that do not await."""
    opened = SqlConnection(direct_dsn)
    yield opened
    opened.conn.close()


@pytest.fixture
async def database(durable_dsn: str, durable_settings: Settings) -> AsyncIterator[Database]:
    """A pool of the engine, for tests that run its plans one by one."""
    pooler = durable_settings.pooler
    async with await Database.open(durable_dsn, "gen_durable", size=4, pooler=pooler) as opened:
        yield opened


@pytest.fixture(params=["AsyncClient", "Client"])
async def client(request: pytest.FixtureRequest, durable_dsn: str) -> AsyncIterator[Any]:
    """Each of the two clients in turn: both must give the same answers."""
    if request.param == "AsyncClient":
        async with AsyncClient(durable_dsn) as opened:
            yield opened
    else:
        with Client(durable_dsn) as blocking:
            yield Awaitable(blocking)


def pytest_configure() -> None:
    gc.disable()
    # Shells ignore SIGINT in background jobs; programs that tests start would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Exclude everything that collection created from garbage collection; it lives until the end."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests with long waits first and quick ones last, so that no process waits at the end."""
    items.sort(key=lambda item: item.nodeid.startswith(("tests/unit/", "tests/architecture/")))
    items.sort(key=lambda item: not item.nodeid.startswith("tests/workers/"))
