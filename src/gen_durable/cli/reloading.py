"""One worker process that is replaced when source files change, and restarted after a crash."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import click

from .._backoff import backoff_seconds
from .._runtime.processes.exit_status import exit_status
from .._runtime.processes.supervisor import CrashedWorkers, WorkerProcess
from .sources import Scan, Sources, changes, described_changes, forget_bytecode

__all__ = ["BROKEN", "ReloadingWorker"]

T = TypeVar("T")

BROKEN: Final = 64
"""Exit code of a worker process whose machines cannot be loaded: only a change of a file can help."""

# Seconds between a crash and the restart: doubled with each crash in a row.
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
_HEALTHY_AFTER: Final = 60.0
# Seconds beyond the drain that a worker gets to release its executions, and then to exit.
_RELEASING: Final = 1.0
_EXITING: Final = 10.0


class ReloadingWorker:
    """Keeps one worker process running until `stop`.

    Args:
        sources: the files whose change replaces it.
        crashed: takes back the leases of a process that died.
        drain_timeout: seconds that running steps get before the process is replaced.
    """

    def __init__(self, sources: Sources, crashed: CrashedWorkers, drain_timeout: float) -> None:
        self._sources = sources
        self._crashed = crashed
        self._drain_timeout = drain_timeout
        self._stopping = asyncio.Event()
        self._skipping_drain = asyncio.Event()
        self._crashes = 0

    def stop(self) -> None:
        """Stop the process; without its drain if called again."""
        if self._stopping.is_set():
            self._skipping_drain.set()
        self._stopping.set()

    async def run(self) -> None:
        """Run until `stop`."""
        scan = await self._sources.scan()
        try:
            while not self._stopping.is_set():
                before, scan = scan, await self._sources.scan()
                forget_bytecode(changes(before, scan))
                await self._run_one(scan)
        finally:
            self._crashed.close()

    async def _run_one(self, scan: Scan) -> None:
        """Run one process until a file has changed after its end, or after it was due to be restarted."""
        began = time.monotonic()
        process = await WorkerProcess.start(1)
        try:
            changed = await self._first(self._sources.changed(scan), process.process.wait())
            if process.process.returncode is None:
                if changed is not None:
                    click.echo(f"{described_changes(changed)}: restarting the worker")
                await self._end(process)
                self._crashes = 0
                return
        finally:
            if process.process.returncode is None:
                process.process.kill()
            process.close()
        await self._after_end(process, scan, time.monotonic() - began)

    async def _after_end(self, process: WorkerProcess, scan: Scan, seconds: float) -> None:
        """Take back the leases of a process that ended, and wait until the next one may start."""
        code = process.process.returncode or 0
        await self._reap(process)
        if code == BROKEN:
            self._crashes = 0
            click.echo("the worker starts again when a file is saved")
            changed = await self._first(self._sources.changed(scan))
        else:
            if seconds >= _HEALTHY_AFTER:
                self._crashes = 0
            pause = backoff_seconds(self._crashes, base=_FIRST_PAUSE, cap=_LONGEST_PAUSE)
            self._crashes += 1
            click.echo(
                f"the worker (pid {process.process.pid}) {exit_status(code)}: restarting in {pause:.1f} s"
            )
            changed = await self._first(self._sources.changed(scan), asyncio.sleep(pause))
        if changed is not None:
            click.echo(f"{described_changes(changed)}: starting the worker")

    async def _end(self, process: WorkerProcess) -> None:
        """Let a process finish its steps or release them; kill it if it does not end."""
        process.stop()
        if not await self._ends(process, self._drain_timeout + _RELEASING):
            process.stop(skip_drain=True)
            if not await self._ends(process, _EXITING):
                click.echo(f"the worker (pid {process.process.pid}) does not end: killing it")
                process.process.kill()
        if await process.process.wait():
            await self._reap(process)

    async def _ends(self, process: WorkerProcess, seconds: float) -> bool:
        """Wait until it has ended, at most this long; not if `stop` is called again."""
        ended = asyncio.get_running_loop().create_task(process.process.wait())
        tasks: list[asyncio.Task[Any]] = [ended]
        if not self._skipping_drain.is_set():
            tasks.append(asyncio.get_running_loop().create_task(self._skipping_drain.wait()))
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        return ended.done()

    async def _reap(self, process: WorkerProcess) -> None:
        await self._crashed.reap(process.worker)
        self._crashed.reap_late(process.worker)

    async def _first(self, work: Coroutine[Any, Any, T], *others: Coroutine[Any, Any, object]) -> T | None:
        """Run `work` until it or one of the others has ended, or `stop` was called; returns the result of `work`."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)
        tasks: list[asyncio.Task[Any]] = [
            task,
            *(loop.create_task(each) for each in (*others, self._stopping.wait())),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else None
        finally:
            for each in tasks:
                each.cancel()
