"""The setup of one test: a database, workers, a client, and the check at the end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import asyncpg

from gen_durable import AsyncClient, Settings
from gen_durable._db.driver import Connection
from tests.chaos.checker import Report, check, sealed
from tests.chaos.history import Producer
from tests.chaos.worker_processes import CHAOS, PATIENCE, Workers

__all__ = ["AWAY", "Arena"]

T = TypeVar("T")

# What a plain connection raises when the server is down or has closed it.
AWAY: Final = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)

_UNFINISHED = """
select (select count(*) from gen_durable.gen_durable where status not in ('done', 'failed', 'cancelled'))
     + (select count(*) from gen_durable.executions where status = 'COMMITTED')"""

# After many crashes, the next attempt waits for up to 5 minutes.
_MAKE_DUE = """
update gen_durable.gen_durable set eligible_at = now()
 where status = 'runnable' and crash_count > 4 and eligible_at > now() + interval '10 s'"""


class Arena:
    def __init__(self, dsn: str, workers: Workers, producer: Producer) -> None:
        self.dsn = dsn
        self.workers = workers
        self.producer = producer
        # Id → digest of the row when it was first seen to have ended.
        self.seals: dict[int, str] = {}
        self._conn: Any = None
        self._turn = asyncio.Lock()

    @classmethod
    @asynccontextmanager
    async def open(cls, dsn: str, directory: Path, settings: Settings = CHAOS) -> AsyncIterator[Arena]:
        async with AsyncClient(dsn, settings=settings) as client:
            with Workers.open(dsn, directory, settings) as workers:
                arena = cls(dsn, workers, Producer(client))
                try:
                    yield arena
                finally:
                    arena._hang_up()

    async def ask(self, query: str, *args: Any) -> Any:
        """Query one value."""
        return await self._asked(lambda conn: conn.fetchval(query, *args, timeout=5))

    async def _asked(self, question: Callable[[Any], Awaitable[T]]) -> T:
        """Query on a kept connection; reconnect if it is broken."""
        async with self._turn:
            if self._conn is not None and not self._conn.is_closed():
                try:
                    return await question(self._conn)
                except AWAY:
                    self._hang_up()
            self._conn = await asyncpg.connect(self.dsn, timeout=5, connection_class=Connection)
            return await question(self._conn)

    def _hang_up(self) -> None:
        if self._conn is not None:
            self._conn.terminate()

    async def holds(self, query: str, *args: Any) -> None:
        """Poll a query until it returns true."""
        async with asyncio.timeout(PATIENCE):
            while not await self.ask(query, *args):
                await asyncio.sleep(0.05)

    async def comes_back(self) -> None:
        """Wait until the server has closed our connection and answers again."""
        async with asyncio.timeout(PATIENCE):
            async with self._turn:
                with suppress(*AWAY):
                    while self._conn is not None:
                        await self._conn.fetchval("select 1", timeout=5)
                        await asyncio.sleep(0.01)
            while True:
                try:
                    await self.ask("select 1")
                except AWAY:
                    await asyncio.sleep(0.02)
                else:
                    return

    async def seal(self) -> None:
        """Record which instances have ended: they must not change any more."""
        self.seals |= await self._asked(lambda conn: sealed(conn, self.seals))

    async def finishes(self, within: float = PATIENCE) -> None:
        """Wait until every instance has ended."""
        give_up = time.monotonic() + within
        while left := await self.ask(_UNFINISHED):
            await self.ask(_MAKE_DUE)
            assert time.monotonic() < give_up, f"{left} unfinished\n{await self._leftovers()}"
            await asyncio.sleep(0.1)
            await self.seal()

    async def reckoning(self) -> Report:
        """Wait for the end, stop the workers, and run the checker."""
        await self.finishes()
        await self.workers.dismiss()
        report = await check(self.dsn, self.workers.journal, self.producer.history, self.seals)
        assert not report.breaches, "\n".join([*report.breaches[:20], f"… {len(report.breaches)} in all"])
        return report

    async def reaped(self) -> int:
        """The number of executions that lost their lease."""
        found: int = await self.ask("select count(*) from gen_durable.executions where outcome = 'lease'")
        return found

    async def _leftovers(self) -> str:
        conn = await asyncpg.connect(self.dsn)
        try:
            rows = await conn.fetch(
                """select id, fsm, step, status, step_seq, attempt, crash_count, gated, locked_by,
                          eligible_at - now() as due_in, lease_expires_at - now() as lease_left
                     from gen_durable.gen_durable where status not in ('done', 'failed', 'cancelled') limit 20"""
            )
        finally:
            await conn.close()
        logs = [process.log.read_text(encoding="utf-8")[-1500:] for process in self.workers.processes]
        return "\n".join([*map(str, rows), *logs])
