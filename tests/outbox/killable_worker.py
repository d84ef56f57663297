"""A worker process that publishes to a file: `python -m tests.outbox.killable_worker DSN SETTINGS FILE [dies|slow]`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import msgspec

from gen_durable import CloudEvent, Settings, Worker
from tests.outbox.machines import Chatter


async def main(dsn: str, settings: str, file: str, how: str = "") -> None:
    shelf = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    async def publish(event: CloudEvent) -> None:
        # One write per line, so a kill leaves no partial line.
        os.write(shelf, f"{event.id} {os.getpid()}\n".encode())
        if how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(0.05 if how == "slow" else 0.001)

    async with Worker(
        [Chatter], dsn=dsn, sinks=publish, settings=msgspec.json.decode(settings, type=Settings)
    ):
        print('{"what": "up"}', flush=True)  # noqa: T201 - tells that it works
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
