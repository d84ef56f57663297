"""A worker in several processes, for tests that kill them.

`python -m tests.workers.supervised_worker DSN SETTINGS-AS-JSON PROCESSES`. Prints what happens, one JSON object per line.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from gen_durable import Context, Done, Machine, Outcome, Settings, Worker, step

__all__ = ["Sleeper", "print_json"]


def print_json(**what: Any) -> None:
    # One write per line, so that lines of several processes do not mix.
    os.write(1, (json.dumps({"pid": os.getpid(), "parent": os.getppid(), **what}) + "\n").encode())


class Sleeper(Machine[str, int]):
    """Runs until the file named by its state exists."""

    @step
    async def sleep(self, ctx: Context[str]) -> Outcome[int]:
        print_json(begun=ctx.id, attempt=ctx.attempt)
        while not Path(ctx.state).exists():
            await asyncio.sleep(0.01)
        return Done(os.getpid())

    @step
    async def hang(self, ctx: Context[str]) -> Outcome[int]:
        """Blocks the event loop, so that the process cannot react to commands."""
        print_json(begun=ctx.id, attempt=ctx.attempt)
        signal.pause()
        return Done(0)


def main(dsn: str, settings: str, processes: str) -> None:
    logging.basicConfig(level=logging.INFO)
    worker = Worker([Sleeper], dsn=dsn, settings=msgspec.json.decode(settings, type=Settings))
    worker.run(processes=int(processes), on_ready=lambda: print_json(ready=True))
    print_json(ended=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
