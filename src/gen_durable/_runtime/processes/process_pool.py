"""The process pool: runs CPU-bound steps (`pool="process"`) in other processes."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Any, Final

from ..._core.hydration import StepChannel
from ..._core.model import CommitEntry, Execution
from ..._core.registry import Registry
from ..._core.settle import Bounds
from ...errors import DatabaseError, OptionError, StepTimeoutError, UsageError
from .. import shutdown_timeouts
from .exit_status import exit_status
from .import_path import ImportPath, machine_path
from .wire import (
    Answer,
    Call,
    Checkpoint,
    Fetch,
    FromStep,
    Hello,
    Items,
    Ready,
    Reply,
    Report,
    Request,
    decoded,
    encoded,
    entry_of,
)

__all__ = ["ProcessDiedError", "ProcessPool", "hello_for"]

_log: Final = logging.getLogger("gen_durable.worker")
# The process imports modules from where the worker does, and modules that read the command line see the same one.
_PROGRAM: Final = """\
import sys
sys.path[:], sys.argv[:] = {path!r}, {argv!r}
from gen_durable._runtime.processes.child import main
main({number})"""


class ProcessDiedError(Exception):
    """The process of a step died. Only that execution has crashed; the worker continues."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    def __str__(self) -> str:
        return f"its process {exit_status(self.code)}"


def hello_for(registry: Registry, bounds: Bounds) -> Hello | None:
    """Build the first message to processes of the pool; `None` if no step uses the pool.

    Raises:
        OptionError: another process cannot import a machine that uses the pool.
    """
    machines: list[tuple[str, int, ImportPath]] = []
    first: list[tuple[str, int]] = []
    for key in zip(*registry.keys, strict=True):
        registered = registry.find(*key)
        uses_pool = any(step.pool == "process" for step in registered.definition.steps.values())
        try:
            machines.append((*key, machine_path(registered)))
        except OptionError:
            if uses_pool:
                raise
        if uses_pool:
            first.append(key)
    return Hello(machines, first, bounds) if first else None


class ProcessPool:
    """At most `limit` processes, started on demand and reused. Bound to one event loop."""

    def __init__(self, limit: int, hello: Hello) -> None:
        self._hello = hello
        self._free = asyncio.Semaphore(limit)
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._exiting: set[asyncio.Task[None]] = set()

    async def run(
        self,
        execution: Execution,
        *,
        may_chain: bool,
        timeout: StepTimeoutError | None,
        channel: StepChannel | None = None,
    ) -> tuple[CommitEntry, str | None]:
        """Run a step. Returns the outcome to commit, and what the step raised.

        The step talks to the worker through `channel`. If this call ends without a reply, by a timeout or a
        cancellation, the process is killed.

        Raises:
            ProcessDiedError: the process died.
            StepTimeoutError: the step ran for too long.
        """
        async with self._free:
            process = self._take_idle() or await self._started()
            is_good = False
            try:
                answer = await self._ask(process, Request(execution, may_chain), timeout, channel)
                is_good = True
            finally:
                if is_good:
                    self._idle.append(process)
                else:
                    self._discard(process)
        for level, message in answer.logged:
            _log.log(level, "%s", message)
        return entry_of(answer, execution), answer.raised

    async def close(self) -> None:
        """Kill all processes and wait for their exit: the tasks that wait for them belong to this event loop."""
        for process in list(self._all):
            self._discard(process)
        self._idle.clear()
        if self._exiting:
            await asyncio.wait(self._exiting, timeout=shutdown_timeouts.KILLED_PROCESSES)

    def _take_idle(self) -> _Process | None:
        """Take an idle process. One that has died meanwhile, for example by the OOM killer, is discarded."""
        while self._idle:
            process = self._idle.pop()
            if process.is_alive:
                return process
            _log.warning(
                "an idle process of the pool died (pid %s); the next step gets a new one", process.pid
            )
            self._discard(process)
        return None

    async def _started(self) -> _Process:
        process = await _Process.start()
        self._all.add(process)
        try:
            ready: Ready = await process.ask(self._hello, Ready)
        except BaseException:
            self._discard(process)
            raise
        if ready.error is not None:
            self._discard(process)
            raise UsageError(ready.error, "make its module importable on its own")
        return process

    async def _ask(
        self,
        process: _Process,
        request: Request,
        timeout: StepTimeoutError | None,
        channel: StepChannel | None,
    ) -> Answer:
        timer = asyncio.timeout(None if timeout is None else timeout.timeout.total_seconds())
        try:
            async with timer:
                message: FromStep = await process.ask(request, FromStep)
                while not isinstance(message, Answer):
                    if isinstance(message, Report | Items):
                        if channel is not None:
                            await _pass_on(message, request.execution, channel)
                        message = await process.receive(FromStep)
                    else:
                        reply = await _reply(message, request.execution, channel)
                        message = await process.ask(reply, FromStep)
                return message
        except TimeoutError:
            if timeout is None or not timer.expired():
                raise
            raise timeout from None

    def _discard(self, process: _Process) -> None:
        self._all.discard(process)
        exiting = asyncio.get_running_loop().create_task(process.kill())
        self._exiting.add(exiting)
        exiting.add_done_callback(self._exiting.discard)


async def _pass_on(message: Report | Items, execution: Execution, channel: StepChannel) -> None:
    """Pass on what a step reports, without a reply."""
    if isinstance(message, Report):
        channel.report(execution, message.progress)
        return
    for stream, items in message.items.items():
        for item in items:
            while not channel.add_item(execution, stream, item):
                await channel.room(execution)


async def _reply(call: Call, execution: Execution, channel: StepChannel | None) -> Reply:
    """Make a call of the step, and return the reply to it."""
    if channel is None:
        return Reply(error="this pool has no channel to a worker")
    try:
        match call:
            case Fetch(what="signals"):
                return Reply(signals=dict(await channel.signals(execution, call.ids)))
            case Fetch():
                return Reply(children=dict(await channel.children(execution, call.ids)))
            case Checkpoint():
                return Reply(is_lost=not await channel.store_checkpoint(execution, call.text))
    except DatabaseError as error:
        return Reply(error=str(error))


class _Process:
    """One process, and the socket to it."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._ending = asyncio.get_running_loop().create_task(self._close_after_exit())

    @classmethod
    async def start(cls) -> _Process:
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                *(
                    sys.executable,
                    "-c",
                    _PROGRAM.format(path=sys.path, argv=sys.argv, number=theirs.fileno()),
                ),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                # Its own process group: Ctrl-C does not reach it, and killing the group kills what it started.
                process_group=0,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return cls(process, *await asyncio.open_connection(sock=ours))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the process has not exited. Asks the system: asyncio may not have noticed the exit yet."""
        if self._process.returncode is not None or self._reader.at_eof():
            return False
        if not hasattr(os, "waitid"):  # macOS, before Python 3.13
            return True
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    async def ask(self, message: Any, kind: Any) -> Any:
        """Send a message and return the reply."""
        try:
            self._writer.write(encoded(message))
            await self._writer.drain()
        except ConnectionError:
            raise ProcessDiedError(await self._process.wait()) from None
        return await self.receive(kind)

    async def receive(self, kind: Any) -> Any:
        """Return the next message."""
        try:
            length = int.from_bytes(await self._reader.readexactly(4), "big")
            return decoded(await self._reader.readexactly(length), kind)
        except (EOFError, ConnectionError):
            raise ProcessDiedError(await self._process.wait()) from None

    async def kill(self) -> None:
        self._writer.close()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._ending

    async def _close_after_exit(self) -> None:
        """Shut down the socket when the process exits: a process that it forked may hold the other end open.

        Data that was sent before is still read.
        """
        await self._process.wait()
        with suppress(OSError):
            self._writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
