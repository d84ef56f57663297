"""Several worker processes from one command: started together, restarted after a crash, stopped together.

A child process runs the same command, with a socket to its supervisor and its worker name in the environment. The
supervisor sends commands through the socket instead of signals: a process manager may signal the whole process group,
and a child must not count that as a second signal. If either end dies, the other one reads the end of the stream.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ..._backoff import backoff_seconds
from ..._db import lease as leases
from ..._db.failures import StatementError
from ..._db.pool import Database
from ...config import SUPERVISED, Settings
from ...telemetry import ReaperReaped, Telemetry
from .. import shutdown_timeouts
from ..clock import DatabaseClock
from ..step_counts import StepCounts
from .exit_status import exit_status

__all__ = ["CrashedWorkers", "Supervisor", "SupervisorLink", "WorkerProcess"]

_log: Final = logging.getLogger("gen_durable.worker")
_READY: Final = b"r"
_DRAIN: Final = b"d"
_SKIP_DRAIN: Final = b"h"
# Seconds between a crash and the restart: doubled with each crash in a row.
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
# A process that ran this long started well: its crash counts as the first in a row.
_HEALTHY_AFTER: Final = 60.0
# When to take back the leases and the registration of a dead child. More than once: a pick or a registration that it
# sent may arrive after its death.
_REAP_DELAYS: Final = (0.0, 1.0, 5.0)


class SupervisorLink:
    """The child's end of the socket to its supervisor."""

    def __init__(self, channel: socket.socket, worker: str) -> None:
        self.worker = worker
        """The name that the supervisor has given to this worker."""
        self._channel = channel

    @classmethod
    def from_environment(cls) -> SupervisorLink | None:
        """Return the link if a supervisor started this process. Only the first call returns it."""
        # Removed, so that processes started by this one do not inherit it.
        given = os.environ.pop(SUPERVISED, None)
        if given is None:
            return None
        number, _, worker = given.partition(" ")
        return cls(socket.socket(fileno=int(number)), worker)

    def report_ready(self) -> None:
        """Tell the supervisor that this worker has started."""
        with suppress(OSError):  # the supervisor has died; the listening thread handles that
            self._channel.send(_READY)

    def follow(self, drain: Callable[[], None], skip_drain: Callable[[], None]) -> None:
        """Call these on this event loop when the supervisor commands it. If the supervisor dies, exit."""
        loop = asyncio.get_running_loop()

        def call(command: Callable[[], None]) -> None:
            with suppress(RuntimeError):  # the loop is closed: the worker has ended
                loop.call_soon_threadsafe(command)

        def listen() -> None:
            while received := self._receive():
                call(skip_drain if _SKIP_DRAIN in received else drain)
            # The supervisor has died: nothing would restart or stop this process. Release its executions and exit.
            call(skip_drain)
            time.sleep(shutdown_timeouts.ORPHANED_WORKER)
            os._exit(1)

        # A thread: a step that blocks the event loop must not keep an orphan alive.
        threading.Thread(target=listen, name="gen_durable supervisor link", daemon=True).start()

    def _receive(self) -> bytes:
        try:
            return self._channel.recv(16)
        except OSError:
            return b""


class Supervisor:
    """Keeps `count` child processes running until it is stopped."""

    def __init__(
        self,
        count: int,
        settings: Settings,
        database: Database,
        telemetry: Telemetry,
        on_ready: Callable[[], None],
    ) -> None:
        self._count = count
        self._settings = settings
        self._crashed = CrashedWorkers(settings, database, telemetry)
        self._on_ready: Callable[[], None] | None = on_ready
        self._children: dict[int, WorkerProcess] = {}
        self._were_ready: set[int] = set()
        self._stopping = asyncio.Event()
        self._has_failed = False

    async def run(self) -> bool:
        """Run until SIGTERM or SIGINT. Returns whether all children exited with code 0."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        keeping = [loop.create_task(self._keep_running(number)) for number in range(1, self._count + 1)]
        timeout = self._settings.drain_timeout.total_seconds() + shutdown_timeouts.SUPERVISED_WORKER
        try:
            stopping = loop.create_task(self._stopping.wait())
            await asyncio.wait([stopping, *keeping], return_when=asyncio.FIRST_EXCEPTION)
            _, late = await asyncio.wait(keeping, timeout=timeout)
            for child in list(self._children.values()) if late else ():
                _log.error("process killed: %s did not exit within %.0f s", child, timeout)
                child.process.kill()
            await asyncio.wait(keeping)
        finally:
            self._crashed.close()
            for task in keeping:
                task.cancel()
            for child in self._children.values():
                child.process.kill()
        for task in keeping:
            task.result()
        return not self._has_failed

    def _on_signal(self) -> None:
        is_second = self._stopping.is_set()
        self._stopping.set()
        for child in self._children.values():
            child.stop(skip_drain=is_second)

    async def _keep_running(self, number: int) -> None:
        crashes = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            child = await WorkerProcess.start(number)
            self._children[number] = child
            listening = asyncio.get_running_loop().create_task(self._listen(child))
            code = await child.process.wait()
            del self._children[number]
            listening.cancel()
            child.close()
            await self._crashed.reap(child.worker)
            if self._stopping.is_set():
                self._has_failed |= code != 0
                if code:
                    _log.error("process failed during its drain: %s %s", child, exit_status(code))
                return
            self._crashed.reap_late(child.worker)
            crashes = 0 if time.monotonic() - began >= _HEALTHY_AFTER else crashes
            pause = backoff_seconds(crashes, base=_FIRST_PAUSE, cap=_LONGEST_PAUSE)
            crashes += 1
            _log.warning("process ended: %s %s; restarting in %.1f s", child, exit_status(code), pause)
            await self._sleep(pause)

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    async def _listen(self, child: WorkerProcess) -> None:
        if self._stopping.is_set():
            child.stop()  # stopped while the child was starting
        if await child.is_ready():
            _log.info("process ready: %s is worker %s", child, child.worker)
            self._were_ready.add(child.number)
            if len(self._were_ready) == self._count and self._on_ready is not None:
                self._on_ready()
                self._on_ready = None


class CrashedWorkers:
    """Takes back the leases of worker processes that died, without waiting for the leases to expire."""

    def __init__(self, settings: Settings, database: Database, telemetry: Telemetry) -> None:
        self._policy = leases.CrashPolicy.of(settings)
        self._database = database
        self._telemetry = telemetry
        self._counts, self._clock = StepCounts(), DatabaseClock()
        self._pending: set[asyncio.Task[None]] = set()

    async def reap(self, worker: str) -> None:
        """Take back the leases of a worker now."""
        await self._reap(worker, _REAP_DELAYS[0])

    def reap_late(self, worker: str) -> None:
        """Take back the leases that its last statements create later."""
        for delay in _REAP_DELAYS[1:]:
            task = asyncio.get_running_loop().create_task(self._reap(worker, delay))
            self._pending.add(task)
            task.add_done_callback(self._pending.discard)

    def close(self) -> None:
        """Stop."""
        for task in self._pending:
            task.cancel()

    async def _reap(self, worker: str, delay: float) -> None:
        await asyncio.sleep(delay)
        try:
            while True:
                reaped = await self._database.run_in_transaction(leases.reap_worker(worker, self._policy))
                if not reaped.ids:
                    return
                self._counts.crashed(reaped.crashes)
                await self._counts.write(self._database, worker, self._clock)
                _log.warning("leases of a crashed worker reaped: worker %s, ids %s", worker, reaped.ids[:20])
                self._telemetry.emit(
                    ReaperReaped(count=len(reaped.ids), ids=tuple(reaped.ids), capped=tuple(reaped.capped))
                )
        except StatementError as error:
            _log.warning("leases not reaped: worker %s: %s; they will expire", worker, error)


class WorkerProcess:
    """A process that runs the command of this one as a worker, and the socket to it."""

    def __init__(
        self, number: int, worker: str, process: asyncio.subprocess.Process, channel: socket.socket
    ) -> None:
        self.number = number
        self.worker = worker
        self.process = process
        self._channel = channel

    def __str__(self) -> str:
        return f"process {self.number} (pid {self.process.pid})"

    @classmethod
    async def start(cls, number: int) -> WorkerProcess:
        """Start it."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        worker = f"{socket.gethostname()}:{os.getpid()}-{number}:{secrets.token_hex(3)}"
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *sys.orig_argv[1:],
                env={**os.environ, SUPERVISED: f"{theirs.fileno()} {worker}"},
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                # Not in our group: Ctrl-C in a terminal reaches the supervisor alone.
                process_group=0,
            )
        finally:
            theirs.close()
        return cls(number, worker, process, ours)

    def stop(self, *, skip_drain: bool = False) -> None:
        """Command it to stop: to drain, or to release its executions at once."""
        with suppress(OSError):  # it has died
            self._channel.send(_SKIP_DRAIN if skip_drain else _DRAIN)

    async def is_ready(self) -> bool:
        """Wait until it is ready; false if it dies before."""
        try:
            return bool(await asyncio.get_running_loop().sock_recv(self._channel, 1))
        except OSError:
            return False

    def close(self) -> None:
        """Close the socket of a process that has ended."""
        self._channel.close()
