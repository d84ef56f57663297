"""`Board`: what the endpoints of the dashboard use."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Final, Self, TypeVar

import msgspec

from .. import _verbs
from .._db.plan import Plan
from .._db.pool import Database
from ..async_client import AsyncClient
from ..findings import Finding
from .access import Access
from .batch_runner import BatchRunner
from .live import Live
from .pace import pause_after
from .redaction import Redact, shown

__all__ = ["Board", "Options"]

T = TypeVar("T")

# The dashboard cannot slow the engine: few connections, and short statements.
_CONNECTIONS: Final = 2
# Transactions of the client that requests with an Idempotency-Key may have open at a time. A worker as client has 5
# connections, and a cascade takes another one.
_TRANSACTIONS: Final = 2
_STATEMENT_TIMEOUT: Final = timedelta(seconds=1)
# Answers that are kept for other readers.
_MAX_CACHED: Final = 200
# Part of the interval in which pages ask again: a page that asks alone gets a new answer each time.
_SHARED: Final = 0.9


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How a dashboard was configured."""

    allowed_hosts: tuple[str, ...] | None
    """Names under which browsers may reach it; `None`: any."""
    read_only: bool
    max_streams: int
    environment: str
    """A word that is shown beside the logo, for example `production`."""
    login_url: str
    """The login page of the host application; empty if unknown."""


class Board:
    """The database and the settings of one dashboard."""

    def __init__(self, client: AsyncClient, access: Access, options: Options, redact: Redact) -> None:
        self.client = client
        """For changes. It belongs to the application."""
        self.unbound = client
        """The same, also on a board of `transaction`: for a change that must not be one transaction."""
        self.transactions = asyncio.Semaphore(_TRANSACTIONS)
        self.access = access
        self.options = options
        self.redact = partial(shown, redact)
        self.live = Live(self.read, options.max_streams, self.redact)
        self.batches = BatchRunner(client, self.read)
        self._database: Database | None = None
        self._opening = asyncio.Lock()
        self._cached: dict[str, tuple[float, asyncio.Future[Any]]] = {}

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        """Continue batches whose process has died; close the connections at the end. The first read opens them."""
        if not self.options.read_only:
            self.batches.watch()
        try:
            yield
        finally:
            await self.close()

    async def close(self) -> None:
        """Stop polling and running batches, and close the connections."""
        await self.live.close()
        await self.batches.close()
        database, self._database = self._database, None
        if database is not None:
            await database.close()

    async def read(self, plan: Plan[T]) -> T:
        """Run a plan of reads on a connection of the dashboard."""
        return await (await self._reader()).run(plan)

    async def snapshot(self, plan: Plan[T]) -> T:
        """Run a plan of reads that all see the same moment."""
        return await (await self._reader()).run_snapshot(plan)

    async def change(self, plan: Plan[T]) -> T:
        """Run a plan that changes something, as one transaction of the client."""
        return await self.client._database.run_in_transaction(plan)  # noqa: SLF001 - the verb has no public form

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Self]:
        """Begin a transaction; yield a board whose `client` and `change` make changes in it."""
        await self._reader()  # shared by the two boards
        bound = copy.copy(self)
        async with self.client._transaction() as bound.client:  # noqa: SLF001 - for this
            yield bound

    async def cached(self, key: str, seconds: float, plan: Callable[[], Plan[T]]) -> T:
        """Run a plan at most once in this time, for all readers that ask with the same key; a slow one less often."""
        return await self._once(key, seconds, lambda: self.read(plan()))

    async def _once(self, key: str, seconds: float, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        now = time.monotonic()
        until, answer = self._cached.get(key, (0.0, None))
        if answer is None or now >= until:
            self._forget(now)
            # Not cancelled with the request that came first: others wait for it as well.
            answer = asyncio.get_running_loop().create_task(make())
            answer.add_done_callback(lambda done: self._settle(key, done, now, seconds))
            self._cached[key] = now + seconds, answer
        return await asyncio.shield(answer)

    async def shared(self, key: str, every: float, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return an answer that pages request every `every` seconds; it is made once in that time for all of them."""
        return await self._once(key, every * _SHARED, make)

    async def findings(self) -> Sequence[Finding]:
        """Run the checks of `doctor`, at most once in 10 seconds for all pages."""
        return await self.cached("doctor", 10.0, lambda: _verbs.doctor(self.client.settings))

    def forget(self) -> None:
        """Drop cached answers: a change was made, and its sender reads next."""
        self._cached.clear()

    def _settle(self, key: str, done: asyncio.Future[Any], began: float, seconds: float) -> None:
        # An error is not kept. Reading it also marks it as retrieved.
        has_failed = done.cancelled() or done.exception() is not None
        if self._cached.get(key, (0.0, None))[1] is not done:
            return
        if has_failed:
            del self._cached[key]
        else:
            now = time.monotonic()
            self._cached[key] = began + pause_after(now - began, seconds), done

    def _forget(self, now: float) -> None:
        if len(self._cached) >= _MAX_CACHED:
            self._cached = {key: kept for key, kept in self._cached.items() if kept[0] > now}
        while len(self._cached) >= _MAX_CACHED:
            del self._cached[next(iter(self._cached))]

    async def _reader(self) -> Database:
        async with self._opening:
            if self._database is None:
                client = self.client
                self._database = await Database.open(
                    client._given_dsn or client.dsn,  # noqa: SLF001 - a function that returns the DSN has no public name
                    client.settings.schema,
                    name="dashboard",
                    connect_now=False,
                    size=_CONNECTIONS,
                    pooler=client.settings.pooler,
                    only_reads_for=_STATEMENT_TIMEOUT,
                )
            return self._database
