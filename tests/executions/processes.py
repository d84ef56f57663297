"""Programs of this folder, each in a process of its own that does not outlive its test."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from gen_durable import Settings
from tests.scenarios.process import WorkerProcess

_ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def naive(dsn: str, name: str, stalled_until: Path | None = None) -> AsyncIterator[WorkerProcess]:
    """A worker without a commit boundary; it does one job and ends."""
    more = () if stalled_until is None else (str(stalled_until),)
    async with _program("naive", dsn, name, *more) as process:
        yield process


@asynccontextmanager
async def victim(
    dsn: str, settings: Settings, point: str = "nowhere", stalled_until: Path | None = None
) -> AsyncIterator[WorkerProcess]:
    """A worker of ours that dies at this point, or stalls."""
    options = msgspec.json.encode(settings).decode()
    async with _program("victims", dsn, options, point, str(stalled_until or "")) as process:
        yield process


@asynccontextmanager
async def _program(name: str, *arguments: str) -> AsyncIterator[WorkerProcess]:
    process = WorkerProcess(
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", f"tests.executions.{name}", *arguments),
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
