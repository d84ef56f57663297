"""Start the worker programs of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from gen_durable import Settings
from tests.support.worker_process import WorkerProcess, program


@asynccontextmanager
async def naive(dsn: str, name: str, stalled_until: Path | None = None) -> AsyncIterator[WorkerProcess]:
    """The naive worker; it runs one job and ends."""
    more = () if stalled_until is None else (str(stalled_until),)
    async with program("tests.engine.effects.naive_worker", dsn, name, *more) as process:
        yield process


@asynccontextmanager
async def victim(
    dsn: str, settings: Settings, point: str = "nowhere", stalled_until: Path | None = None
) -> AsyncIterator[WorkerProcess]:
    """A worker that kills itself at this point, or stalls."""
    options = msgspec.json.encode(settings).decode()
    async with program(
        "tests.engine.effects.crashing_payment", dsn, options, point, str(stalled_until or "")
    ) as process:
        yield process
