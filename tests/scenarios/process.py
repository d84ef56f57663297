"""A worker in a process of its own, and what it told us."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from gen_durable import Settings
from tests.scenarios.support import PATIENCE

_ROOT = Path(__file__).parents[2]


class WorkerProcess:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.told: list[dict[str, Any]] = []
        self.log: list[str] = []

    async def hears(self, **wanted: Any) -> dict[str, Any]:
        """The next thing it tells that looks like this; `...` stands for any value."""
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while line := await self._line():
                if all(name in line and value in (..., line[name]) for name, value in wanted.items()):
                    return line
        raise AssertionError(f"it ended without telling {wanted}: {self.told} {self.log}")

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def ends(self) -> int:
        """Its exit code; everything that it told before its end is in `told`."""
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while await self._line():
                pass
            return await self._process.wait()

    async def kill(self) -> None:
        if self._process.returncode is None:
            self.send(signal.SIGKILL)
        await self.ends()

    async def _line(self) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        while text := await self._process.stdout.readline():
            if text.startswith(b"{"):
                line: dict[str, Any] = json.loads(text)
                self.told.append(line)
                return line
            self.log.append(text.decode().rstrip())
        return None


@asynccontextmanager
async def worker_process(dsn: str, settings: Settings) -> AsyncIterator[WorkerProcess]:
    """A worker that has looked for work; it does not outlive the block."""
    process = WorkerProcess(
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.scenarios.victims", dsn, msgspec.json.encode(settings).decode()),
            cwd=_ROOT,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    )
    try:
        yield process
    finally:
        await process.kill()
