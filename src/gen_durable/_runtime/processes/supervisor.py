"""Several worker processes from one command: started, restarted when they crash, stopped together.

A child is the same command again, with a socket to its supervisor and a name of its own in the environment. Orders go
through that socket, not by signals: a process manager may well signal all processes of the group by itself, and a child
must not count that twice. Whichever end dies, the other one reads the end of the stream.
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
from datetime import timedelta
from typing import Final

from ..._backoff import backoff_seconds
from ..._db import lease as leases
from ..._db.failures import StatementError
from ..._db.pool import Database
from ...config import SUPERVISED, Settings
from ...telemetry import ReaperReaped, Telemetry

__all__ = ["Orders", "Supervisor"]

_log: Final = logging.getLogger("gen_durable.worker")
_READY: Final = b"r"
_DRAIN: Final = b"d"
_HURRY: Final = b"h"
# Between a crash and the next start, in seconds: doubled with each crash in a row, less up to half by chance.
_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
# A process that lived so long had no trouble starting: what comes next is the first crash again.
_WELL: Final = 60.0
# When the leases of a dead child are taken back, and its presence with them. Again later: a pick of its, or a sign of
# life, may have been on the wire when it died.
_ROUNDS: Final = (0.0, 1.0, 5.0)
# What a child gets beyond its drain before it is killed, and how long an orphan has to give everything back.
_GRACE: Final = timedelta(seconds=15)
_ORPHAN: Final = 10.0


class Orders:
    """A child's end of the line to its supervisor."""

    def __init__(self, channel: socket.socket, worker: str) -> None:
        self.worker = worker
        self._channel = channel

    @classmethod
    def taken(cls) -> Orders | None:
        """Those for this process, if a supervisor started it. Can be asked for once."""
        # Removed, so that processes started by this one do not inherit it.
        given = os.environ.pop(SUPERVISED, None)
        if given is None:
            return None
        number, _, worker = given.partition(" ")
        return cls(socket.socket(fileno=int(number)), worker)

    def is_ready(self) -> None:
        """Tell that this worker works."""
        with suppress(OSError):  # nobody is there to hear it: the listening thread sees to that
            self._channel.send(_READY)

    def follow(self, drain: Callable[[], None], hurry: Callable[[], None]) -> None:
        """Call these when it is ordered, on this event loop; and if the supervisor dies, leave with it."""
        loop = asyncio.get_running_loop()

        def say(what: Callable[[], None]) -> None:
            with suppress(RuntimeError):  # the worker has ended
                loop.call_soon_threadsafe(what)

        def listen() -> None:
            while order := self._hear():
                say(hurry if _HURRY in order else drain)
            # Nobody could restart this process any more, or stop it. What it has begun goes back to the queue.
            say(hurry)
            time.sleep(_ORPHAN)
            os._exit(1)

        # A thread: a step that blocks the event loop must not keep an orphan alive.
        threading.Thread(target=listen, name="gen_durable orders", daemon=True).start()

    def _hear(self) -> bytes:
        try:
            return self._channel.recv(16)
        except OSError:
            return b""


class Supervisor:
    """Keeps so many children alive until it is told to stop."""

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
        self._database = database
        self._telemetry = telemetry
        self._on_ready = on_ready
        self._children: dict[int, _Child] = {}
        self._were_ready: set[int] = set()
        self._stopping = asyncio.Event()
        self._is_hurried = False
        self._has_failed = False
        self._later: set[asyncio.Task[None]] = set()

    async def run(self) -> bool:
        """Until SIGTERM or SIGINT; whether all children ended well then."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        keeping = [loop.create_task(self._keep(number)) for number in range(1, self._count + 1)]
        try:
            stopping = loop.create_task(self._stopping.wait())
            await asyncio.wait([stopping, *keeping], return_when=asyncio.FIRST_EXCEPTION)
            _, late = await asyncio.wait(
                keeping, timeout=(self._settings.drain_timeout + _GRACE).total_seconds()
            )
            for child in list(self._children.values()) if late else ():
                _log.error("process %d (pid %d) did not end; it is killed", child.number, child.process.pid)
                child.process.kill()
            await asyncio.wait(keeping)
        finally:
            for task in (*keeping, *self._later):
                task.cancel()
            for child in self._children.values():
                child.process.kill()
        for task in keeping:
            task.result()
        return not self._has_failed

    def _on_signal(self) -> None:
        self._is_hurried = self._stopping.is_set()
        self._stopping.set()
        for child in self._children.values():
            child.order(_HURRY if self._is_hurried else _DRAIN)

    async def _keep(self, number: int) -> None:
        crashes = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            child = await _Child.start(number)
            self._children[number] = child
            listening = asyncio.get_running_loop().create_task(self._listen(child))
            code = await child.process.wait()
            del self._children[number]
            listening.cancel()
            child.close()
            await self._take_back(child.worker, _ROUNDS[0])
            if self._stopping.is_set():
                self._has_failed |= code != 0
                if code:
                    _log.error(
                        "process %d (pid %d) %s while it drained", number, child.process.pid, _said(code)
                    )
                return
            for pause in _ROUNDS[1:]:
                self._take_back_later(child.worker, pause)
            crashes = 0 if time.monotonic() - began >= _WELL else crashes
            pause = _pause(crashes)
            crashes += 1
            _log.warning(
                "process %d (pid %d) %s; it is started again in %.1f s",
                number,
                child.process.pid,
                _said(code),
                pause,
            )
            await self._rest(pause)

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    async def _listen(self, child: _Child) -> None:
        if self._stopping.is_set():
            child.order(_DRAIN)  # the order was given while it was being started
        if await child.hears_of_life():
            _log.info("process %d (pid %d) is worker %s", child.number, child.process.pid, child.worker)
            self._were_ready.add(child.number)
            if len(self._were_ready) == self._count:
                self._on_ready()
                self._on_ready = _nothing

    def _take_back_later(self, worker: str, pause: float) -> None:
        task = asyncio.get_running_loop().create_task(self._take_back(worker, pause))
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _take_back(self, worker: str, pause: float) -> None:
        await asyncio.sleep(pause)
        settings = self._settings
        try:
            while True:
                plan = leases.reap_worker(
                    worker, settings.crash_limit, settings.executions, settings.alerts or None
                )
                reaped = await self._database.run_in_transaction(plan)
                if not reaped.ids:
                    return
                _log.warning("took back executions of worker %s, which is dead: %s", worker, reaped.ids[:20])
                self._telemetry.emit(
                    ReaperReaped(count=len(reaped.ids), ids=tuple(reaped.ids), capped=tuple(reaped.capped))
                )
        except StatementError as error:
            # Their leases run out, as those of any dead worker do.
            _log.warning("cannot take back the executions of worker %s now (%s)", worker, error)


class _Child:
    """One process, and the line to it."""

    def __init__(
        self, number: int, worker: str, process: asyncio.subprocess.Process, line: socket.socket
    ) -> None:
        self.number = number
        self.worker = worker
        self.process = process
        self._line = line

    @classmethod
    async def start(cls, number: int) -> _Child:
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
                # Not in our group: Ctrl-C at a terminal is for the supervisor alone.
                process_group=0,
            )
        finally:
            theirs.close()
        return cls(number, worker, process, ours)

    def order(self, what: bytes) -> None:
        with suppress(OSError):  # it is dead, or about to be
            self._line.send(what)

    async def hears_of_life(self) -> bool:
        try:
            return bool(await asyncio.get_running_loop().sock_recv(self._line, 1))
        except OSError:
            return False

    def close(self) -> None:
        self._line.close()


def _nothing() -> None:
    pass


def _pause(crashes: int) -> float:
    return backoff_seconds(crashes, base=_FIRST_PAUSE, cap=_LONGEST_PAUSE)


def _said(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"died of {signal.Signals(-code).name}"
    except ValueError:
        return f"died of signal {-code}"
