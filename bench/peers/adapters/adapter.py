"""The program around an adapter: take requests as lines of JSON on stdin, reply on stdout.

Only the standard library: it runs in the environment of every system.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

__all__ = ["LIMIT", "STEPS", "Adapter", "is_failing", "main", "progress"]

STEPS = 10
"""Steps of a workflow."""
LIMIT = 10
"""Jobs of a limited queue that may run at once."""


class Progress:
    """What the handlers of this process have done."""

    def __init__(self) -> None:
        self.done = 0
        self.latencies: list[float] = []

    def started(self, sent: float) -> None:
        """Record a probe: milliseconds from the call of insert to the start of the handler, also across processes."""
        self.latencies.append((time.monotonic() - sent) * 1000)
        self.done += 1


progress = Progress()


def is_failing(value: int) -> bool:
    """Whether the first attempt of this `flaky` job fails: 1 % of them do."""
    return value % 100 == 0


class Adapter(ABC):
    """One system under test.

    Tasks: `noop` returns at once, `suspend` yields to the event loop once, `flaky` fails at first if `is_failing`,
    `limited` runs at most LIMIT at once, `chain` runs STEPS durable steps, `fan` starts `value` children and joins
    them, `probe` records its latency.
    """

    version: ClassVar[str]
    settings: ClassVar[str]
    """What differs from the defaults of the system, for the report."""
    tasks: ClassVar[tuple[str, ...]]
    has_batches: ClassVar[bool] = True
    """Whether it can insert many jobs with one call."""
    pending: ClassVar[str]
    """SQL: whether a job is unfinished. It must be cheap among millions of finished rows."""
    fill: ClassVar[str]
    """SQL with the parameter :rows: add that many rows that no worker has to run: finished, or due in a year."""
    busy_key: ClassVar[str] = ""
    """SQL: add 50,000 due rows whose concurrency key is busy; empty if the system has no such keys."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    @abstractmethod
    async def install(self) -> None:
        """Create the tables."""

    @abstractmethod
    async def open(self) -> None:
        """Connect, to insert."""

    @abstractmethod
    async def insert(self, task: str, values: Sequence[float]) -> None:
        """Insert a job per value, as fast as the system can."""

    @abstractmethod
    async def insert_one(self, task: str, value: float) -> None:
        """Insert one job in a transaction of its own."""

    @abstractmethod
    async def work(self, task: str) -> None:
        """Run jobs of `task`, `noop` and `probe` until cancelled. May also return while the workers run on."""


def main(kind: type[Adapter], loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
    """Serve requests for one adapter until stdin is closed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dsn", default="")
    given, _ = parser.parse_known_args()
    replies, sys.stdout = sys.stdout, sys.stderr  # libraries that print must not write among the replies

    async def serve() -> None:
        service = _Service(kind(given.dsn))
        lines = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
        )
        while line := await lines.readline():
            print(json.dumps(await service.reply(json.loads(line))), file=replies, flush=True)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(serve())


class _Service:
    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._working: asyncio.Task[None] | None = None

    async def reply(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = await getattr(self, request.pop("op"))(**request)
        except Exception:  # noqa: BLE001 - the driver reports it
            return {"error": traceback.format_exc()}
        return answer

    async def describe(self) -> dict[str, Any]:
        kind = type(self._adapter)
        names = ("version", "settings", "tasks", "has_batches", "pending", "fill", "busy_key")
        return {name: getattr(kind, name) for name in names}

    async def install(self) -> dict[str, Any]:
        await self._adapter.install()
        return {}

    async def open(self) -> dict[str, Any]:
        await self._adapter.open()
        return {}

    async def insert(self, task: str, count: int, value: float | None = None) -> dict[str, Any]:
        begun = time.monotonic()
        await self._adapter.insert(task, range(count) if value is None else [value] * count)
        return {"seconds": time.monotonic() - begun}

    async def insert_one(self, task: str, count: int) -> dict[str, Any]:
        begun = time.monotonic()
        for number in range(count):
            await self._adapter.insert_one(task, number)
        return {"seconds": time.monotonic() - begun}

    async def send(self, count: int, pause: float) -> dict[str, Any]:
        """Insert probes one by one."""
        for _ in range(count):
            await self._adapter.insert_one("probe", time.monotonic())
            await asyncio.sleep(pause)
        return {}

    async def load(self, rate: float, seconds: float) -> dict[str, Any]:
        """Insert `rate` jobs per second in small batches."""
        tick, begun, sent = 0.05, time.monotonic(), 0
        while (passed := time.monotonic() - begun) < seconds:
            due = int((passed + tick) * rate) - sent
            if due > 0:
                await self._adapter.insert("noop", range(1, due + 1))
                sent += due
            await asyncio.sleep(tick)
        return {"sent": sent}

    async def work(self, task: str = "noop") -> dict[str, Any]:
        self._working = asyncio.get_running_loop().create_task(self._adapter.work(task))
        return {}

    async def progress(self) -> dict[str, Any]:
        if self._working is not None and self._working.done():
            self._working.result()  # raises if the worker failed
        return {"done": progress.done}

    async def latencies(self) -> dict[str, Any]:
        found, progress.latencies = progress.latencies, []
        return {"latencies": found}
