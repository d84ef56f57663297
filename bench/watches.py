"""Many watched instances: what one poll of them costs, and what a change costs."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from gen_durable import AsyncClient, Context, Done, Machine, Outcome, Settings, Spec, step
from gen_durable._core.change_cursor import ChangeCursor
from gen_durable._db import changes
from gen_durable._db.connector import connect

from .throughput import SCHEMA

__all__ = ["measure_watches"]

_POLLS = 20
_PAGE = 250


class Watched(Machine[int, None]):
    """No worker runs it."""

    @step
    async def only(self, ctx: Context[int]) -> Outcome[None]:
        return Done()


async def measure_watches(dsn: str, count: int, rounds: int) -> None:
    """Print the time of a poll of `count` instances without a change, of reading a change of each, and of a watch."""
    conn = await connect(dsn)
    await conn.execute(f'drop schema if exists "{SCHEMA}" cascade')  # it may be of another version
    async with AsyncClient(dsn, settings=Settings.load(schema=SCHEMA)) as client:
        ids = [ref.id for ref in await client.insert_all([Spec(Watched, n) for n in range(count)])]
        for _ in range(rounds):
            cursors = [ChangeCursor(id) for id in ids]
            reading = _Clock()
            await _read(client, cursors)
            read = reading.per(count, "µs", 1e6)
            idle = _Clock()
            for _ in range(_POLLS):
                await _read(client, cursors)
            print(f"{count} watched: a change {read}; a poll without changes {idle.per(_POLLS, 'ms', 1e3)}")
        await _watch_all(client, conn, ids)
    await conn.close()


async def _read(client: AsyncClient, cursors: list[ChangeCursor]) -> None:
    is_full = True
    while is_full:
        news = await client._database.run(changes.read(cursors, _PAGE))  # noqa: SLF001 - no public name
        for one in news:
            if one.row is not None:
                cursors[one.place].take(one.row, one.executions, most=changes.MOST_EXECUTIONS)
        is_full = len(news) == _PAGE


async def _watch_all(client: AsyncClient, conn: Any, ids: list[int]) -> None:
    """Print the load of the watches themselves, and the time from a change of one instance to its watcher."""
    seen = asyncio.Queue[int]()

    async def watch(id: int) -> None:
        async for change in client.watch(id):
            seen.put_nowait(change.instance.id)

    began = time.perf_counter()
    tasks = [asyncio.get_running_loop().create_task(watch(id)) for id in ids]
    for _ in ids:
        await seen.get()
    print(f"first state of all: {time.perf_counter() - began:.2f} s")
    idle = _Clock()
    await asyncio.sleep(10)
    print(f"10 s without changes: {idle.worked():.2f} s of Python")
    delays = []
    for number in range(30):
        changed = time.perf_counter()
        await conn.execute(
            f'update "{SCHEMA}".gen_durable set priority = $2 where id = $1',  # noqa: S608 - a constant
            ids[number],
            number + 1,
        )
        await seen.get()
        delays.append(time.perf_counter() - changed)
    delays.sort()
    print(
        f"from a commit elsewhere to the watcher: median {delays[15] * 1e3:.0f} ms, longest {delays[-1] * 1e3:.0f} ms"
    )
    for task in tasks:
        task.cancel()


class _Clock:
    def __init__(self) -> None:
        self._began, self._busy = time.perf_counter(), time.process_time()

    def worked(self) -> float:
        return time.process_time() - self._busy

    def per(self, count: int, unit: str, factor: float) -> str:
        elapsed = time.perf_counter() - self._began
        return (
            f"{elapsed / count * factor:.1f} {unit} ({self.worked() / count * factor:.1f} {unit} of Python)"
        )
