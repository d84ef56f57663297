"""The bare loop of bench/bare.py: pick and commit statements in batches, without user code or guarantees."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bench.bare import bare_inserts, bare_loop
from bench.machines import Chain, One
from gen_durable import AsyncClient, Spec
from gen_durable._core.new_rows import new_instance
from gen_durable._db.pool import Database
from gen_durable._version import VERSION

from .adapter import STEPS, Adapter, main, progress
from .gen_durable import GenDurable


class Bare(Adapter):
    """An upper bound for the statements of this engine."""

    version = VERSION
    settings = "batches of 500, two connections"
    tasks = ("noop", "chain")
    pending = GenDurable.pending
    fill = GenDurable.fill

    async def install(self) -> None:
        async with AsyncClient(self.dsn):
            pass

    async def open(self) -> None:
        self._database = await Database.open(self.dsn, "gen_durable", size=2)

    async def insert(self, task: str, values: Sequence[float]) -> None:
        machine = Chain if task == "chain" else One
        await bare_inserts(
            self._database, [new_instance(Spec(machine, int(value)), 2**20) for value in values]
        )

    async def insert_one(self, task: str, value: float) -> None:
        await self.insert(task, [value])

    async def work(self, task: str) -> None:
        machine, steps = (Chain, STEPS) if task == "chain" else (One, 1)
        await self.open()
        while True:
            progress.done += await bare_loop(self._database, machine.__name__, "default", steps)
            await asyncio.sleep(0.01)


if __name__ == "__main__":
    main(Bare)
