"""A worker process, and the JSON lines it prints."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from gen_durable import Settings
from tests.support.forkserver import Child, launch
from tests.support.waiting import PATIENCE

_LONGEST_LINE = 2**20


class WorkerProcess:
    def __init__(self, child: Child, output: asyncio.StreamReader) -> None:
        self._child = child
        self.pid = child.pid
        self._output = output
        self.lines: list[dict[str, Any]] = []
        self.log: list[str] = []

    async def wait_for(self, **wanted: Any) -> dict[str, Any]:
        """Wait for the next line with these values; `...` matches any value."""
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while line := await self._line():
                if all(name in line and value in (..., line[name]) for name, value in wanted.items()):
                    return line
        raise AssertionError(f"it ended without printing {wanted}: {self.lines} {self.log}")

    def send(self, number: signal.Signals) -> None:
        self._child.send(number)

    async def ends(self) -> int:
        """Wait for its end, and return its exit code; `lines` then has all lines."""
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while await self._line():
                pass
            return await self._child.ends()

    async def kill(self) -> None:
        self.send(signal.SIGKILL)
        await self.ends()

    async def _line(self) -> dict[str, Any] | None:
        while text := await self._output.readline():
            if text.startswith(b"{"):
                line: dict[str, Any] = json.loads(text)
                self.lines.append(line)
                return line
            self.log.append(text.decode().rstrip())
        return None


@asynccontextmanager
async def program(module: str, *arguments: str) -> AsyncIterator[WorkerProcess]:
    """Run `python -m MODULE ARGUMENTS…`; kill it at the end of the block."""
    reader, output = os.pipe()
    child = launch(module, *arguments, output=output)
    os.close(output)
    stream = asyncio.StreamReader(limit=_LONGEST_LINE)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reader, "rb", buffering=0)
    )
    process = WorkerProcess(child, stream)
    try:
        yield process
    finally:
        await process.kill()
        transport.close()


@asynccontextmanager
async def worker_process(dsn: str, settings: Settings) -> AsyncIterator[WorkerProcess]:
    """Run a worker with the machines of `crashing_workers`."""
    async with program(
        "tests.support.crashing_workers", dsn, msgspec.json.encode(settings).decode()
    ) as process:
        yield process
