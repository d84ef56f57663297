"""Start, kill, stop and watch worker processes."""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from gen_durable import Settings
from tests.chaos.journal import lines_of
from tests.chaos.worker import Orders
from tests.support.forkserver import Child, launch

__all__ = ["CHAOS", "PATIENCE", "PATIENT", "Process", "Workers", "happens"]

# Short leases.
CHAOS: Final = Settings(
    lease=timedelta(seconds=1),
    heartbeat=timedelta(milliseconds=300),
    poll_interval=timedelta(milliseconds=300),
    min_poll_interval=timedelta(milliseconds=100),
    reap_interval=timedelta(milliseconds=300),
    drain_timeout=timedelta(seconds=5),
    crash_limit=1000,
)
# For tests without kills: leases must not expire on a busy machine.
PATIENT: Final = msgspec.structs.replace(
    CHAOS, lease=timedelta(seconds=2), heartbeat=timedelta(milliseconds=500)
)
# Long enough for a busy machine; a test that gets here has failed.
PATIENCE: Final = 25.0


class Process:
    """One worker."""

    def __init__(self, child: Child, log: Path) -> None:
        self._child = child
        self.pid = child.pid
        self.log = log
        self.is_stopped = False

    @property
    def exit_code(self) -> int | None:
        return self._child.exit_code

    def kill(self) -> None:
        self._child.kill()

    def stop(self) -> None:
        self._child.send(signal.SIGSTOP)
        self.is_stopped = True

    def resume(self) -> None:
        self._child.send(signal.SIGCONT)
        self.is_stopped = False

    def terminate(self) -> None:
        self._child.send(signal.SIGTERM)

    async def ends(self) -> int:
        await happens(lambda: self.exit_code is not None, f"worker {self.pid} does not end")
        assert self.exit_code is not None
        return self.exit_code

    def count_lines(self, text: str) -> int:
        """Count a text in its log."""
        return self.log.read_text(encoding="utf-8").count(text)


class Workers:
    """All worker processes of a test, and their journal."""

    def __init__(self, dsn: str, directory: Path, settings: Settings = CHAOS) -> None:
        self.dsn = dsn
        self.settings = settings
        self.journal = directory / "journal"
        self._directory = directory
        self._numbers = itertools.count(1)
        self.processes: list[Process] = []

    @classmethod
    @contextmanager
    def open(cls, dsn: str, directory: Path, settings: Settings = CHAOS) -> Iterator[Workers]:
        """Kill all workers at the end of the block; fail if one ended by itself."""
        workers = cls(dsn, directory, settings)
        try:
            yield workers
        finally:
            # A worker that found no server at its start may exit; its supervisor restarts it.
            started = {line["pid"] for line in workers.lines(what="ready")}
            broken = [
                process
                for process in workers.processes
                if (process.exit_code not in (None, 0, -9) and process.pid in started)
                or process.count_lines("should not happen")
            ]
            for process in workers.processes:
                if process.exit_code is None:
                    process.kill()
        assert not broken, "\n".join(process.log.read_text(encoding="utf-8")[-4000:] for process in broken)

    def launch(
        self,
        dsn: str | None = None,
        *,
        queues: dict[str, int] | None = None,
        settings: Settings | None = None,
        release: str = "",
    ) -> Process:
        """Start a worker, and do not wait for it."""
        orders = Orders(
            dsn=dsn or self.dsn,
            journal=str(self.journal),
            settings=settings or self.settings,
            queues=queues or {"default": 10},
            release=release,
        )
        log = self._directory / f"worker-{next(self._numbers)}.log"
        with log.open("wb") as output:
            text = msgspec.json.encode(orders).decode()
            process = Process(launch("tests.chaos.worker", text, output=output.fileno()), log)
        self.processes.append(process)
        return process

    async def start(self, dsn: str | None = None, **orders: Any) -> Process:
        """Start a worker, and wait for its first pick."""
        process = self.launch(dsn, **orders)
        await self.wait_for(what="ready", pid=process.pid)
        return process

    async def wait_for(self, *, count: int = 1, **wanted: Any) -> list[dict[str, Any]]:
        """Wait until the journal has `count` matching lines."""
        found: list[dict[str, Any]] = []

        def is_there() -> bool:
            found[:] = self.lines(**wanted)
            return len(found) >= count

        await happens(is_there, f"the journal does not have {count} × {wanted}", self._story)
        return found

    def lines(self, **wanted: Any) -> list[dict[str, Any]]:
        """The matching lines of the journal."""
        return [
            line
            for line in lines_of(self.journal)
            if all(name in line and value in (..., line[name]) for name, value in wanted.items())
        ]

    async def dismiss(self) -> None:
        """Stop all running workers gracefully."""
        living = [process for process in self.processes if process.exit_code is None]
        for process in living:
            process.terminate()
        for process in living:
            assert await process.ends() == 0, process.log.read_text(encoding="utf-8")[-4000:]

    def _story(self) -> str:
        logs = "\n".join(process.log.read_text(encoding="utf-8")[-2000:] for process in self.processes)
        return f"{self.lines()[-30:]}\n{logs}"


async def happens(
    fact: Callable[[], bool], otherwise: str, story: Callable[[], str] = str, within: float = PATIENCE
) -> None:
    """Poll until `fact` is true."""
    give_up = time.monotonic() + within
    while not fact():
        assert time.monotonic() < give_up, f"{otherwise}\n{story()}"
        await asyncio.sleep(0.03)
