"""A stream of many items: what publishing and reading cost per item."""

from __future__ import annotations

import time

from gen_durable import Context, Done, Machine, Outcome, Settings, Stream, Worker, step
from gen_durable._db.connector import connect

from .throughput import SCHEMA

__all__ = ["measure_streams"]


class Talk(Machine[int, None]):
    """Publishes as many tokens as its state says."""

    tokens = Stream("tokens", str)

    @step
    async def talk(self, ctx: Context[int]) -> Outcome[None]:
        for _ in range(ctx.state):
            await ctx.publish(self.tokens, "token")
        return Done()


async def measure_streams(dsn: str, items: int, rounds: int) -> None:
    """Print the time per item: of the step until its items are stored, and of a reader that reads them all."""
    conn = await connect(dsn)
    await conn.execute(f'drop schema if exists "{SCHEMA}" cascade')  # it may be of another version
    await conn.close()
    async with Worker([Talk], dsn=dsn, settings=Settings.load(schema=SCHEMA)) as worker:
        await worker.wait(await worker.insert(Talk, 1000))
        for _ in range(rounds):
            began, busy = time.perf_counter(), time.process_time()
            talk = await worker.insert(Talk, items)
            await worker.wait(talk)
            published = _per_item(began, busy, items)
            began, busy = time.perf_counter(), time.process_time()
            count = 0
            async for _item in worker.stream(talk, Talk.tokens):
                count += 1
            if count != items:
                raise RuntimeError(f"read {count} of {items} items")
            print(f"{items} items: publish {published}; read {_per_item(began, busy, items)}")


def _per_item(began: float, busy: float, items: int) -> str:
    elapsed, worked = time.perf_counter() - began, time.process_time() - busy
    return f"{elapsed / items * 1e6:.1f} µs/item ({worked / items * 1e6:.1f} µs of Python)"
