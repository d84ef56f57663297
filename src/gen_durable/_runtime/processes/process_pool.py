"""Processes for steps that keep a processor busy: started as they are needed, used again, killed when need be."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Any, Final

from ..._core.hydration import Content
from ..._core.model import CommitEntry, Execution
from ..._core.registry import Registry
from ..._core.settle import Bounds
from ...errors import DatabaseError, OptionError, StepTimeoutError, UsageError
from .wire import (
    Answer,
    Fetch,
    Fetched,
    Hello,
    Place,
    Ready,
    Request,
    decoded,
    encoded,
    entry_of,
    place_of,
)

__all__ = ["ProcessDiedError", "ProcessPool", "hello_for"]

_log: Final = logging.getLogger("gen_durable.worker")
# How long a shutdown waits for processes that it has killed.
_LAST_WORDS: Final = 2.0
# It finds modules where the worker does, and those that read their command line see the same.
_PROGRAM: Final = """\
import sys
sys.path[:], sys.argv[:] = {path!r}, {argv!r}
from gen_durable._runtime.processes.child import main
main({number})"""


class ProcessDiedError(Exception):
    """The process of a step died under it: a crash of that execution, and of nothing else."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code

    def __str__(self) -> str:
        if self.code >= 0:
            return f"its process ended with exit code {self.code}"
        with suppress(ValueError):
            return f"its process died of {signal.Signals(-self.code).name}"
        return f"its process died of signal {-self.code}"


def hello_for(registry: Registry, bounds: Bounds) -> Hello | None:
    """What the processes of a pool have to know, if a step wants one.

    Raises:
        OptionError: a machine with such a step cannot be found from another process.
    """
    machines: list[tuple[str, int, Place]] = []
    first: list[tuple[str, int]] = []
    for machine in registry:
        key, is_wanted = (
            (machine.name, machine.version),
            any(step.pool == "process" for step in machine.steps.values()),
        )
        try:
            machines.append((*key, place_of(registry.find(*key))))
        except OptionError:
            if is_wanted:
                raise
        if is_wanted:
            first.append(key)
    return Hello(machines, first, bounds) if first else None


class ProcessPool:
    """At most `limit` processes, made as they are needed. For one event loop."""

    def __init__(self, limit: int, hello: Hello) -> None:
        self._hello = hello
        self._turns = asyncio.Semaphore(limit)
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._dying: set[asyncio.Task[None]] = set()

    async def run(
        self,
        execution: Execution,
        *,
        may_chain: bool,
        timeout: StepTimeoutError | None,
        content: Content | None = None,
    ) -> tuple[CommitEntry, str | None]:
        """What to commit for this execution, and what its step raised.

        What the step fetches meanwhile comes from `content`.

        However this is left before the answer has come, the process is killed, and with it what it does.

        Raises:
            ProcessDiedError: the process died.
            StepTimeoutError: the step ran for too long.
        """
        async with self._turns:
            process = self._idle.pop() if self._idle else await self._started()
            is_good = False
            try:
                answer = await self._ask(process, Request(execution, may_chain), timeout, content)
                is_good = True
            finally:
                if is_good:
                    self._idle.append(process)
                else:
                    self._discard(process)
        for level, message in answer.told:
            _log.log(level, "%s", message)
        return entry_of(answer, execution), answer.raised

    async def close(self) -> None:
        """Kill all of them, and see them gone: whoever waits for them belongs to this event loop."""
        for process in list(self._all):
            self._discard(process)
        self._idle.clear()
        if self._dying:
            await asyncio.wait(self._dying, timeout=_LAST_WORDS)

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
            raise UsageError(ready.error, "see that its module can be imported by itself")
        return process

    async def _ask(
        self, process: _Process, request: Request, timeout: StepTimeoutError | None, content: Content | None
    ) -> Answer:
        timer = asyncio.timeout(None if timeout is None else timeout.timeout.total_seconds())
        try:
            async with timer:
                reply: Answer | Fetch = await process.ask(request, Answer | Fetch)
                while isinstance(reply, Fetch):
                    fetched = await _fetched(reply, request.execution, content)
                    reply = await process.ask(fetched, Answer | Fetch)
                return reply
        except TimeoutError:
            if timeout is None or not timer.expired():
                raise
            raise timeout from None

    def _discard(self, process: _Process) -> None:
        self._all.discard(process)
        dying = asyncio.get_running_loop().create_task(process.kill())
        self._dying.add(dying)
        dying.add_done_callback(self._dying.discard)


async def _fetched(fetch: Fetch, execution: Execution, content: Content | None) -> Fetched:
    if content is None:
        return Fetched(error="nothing can be loaded here")
    try:
        if fetch.what == "signals":
            return Fetched(signals=dict(await content.signals(execution, fetch.ids)))
        return Fetched(children=dict(await content.children(execution, fetch.ids)))
    except DatabaseError as error:
        return Fetched(error=str(error))


class _Process:
    """One process, and the line to it."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._ending = asyncio.get_running_loop().create_task(self._hang_up_after_its_end())

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
                # A group of its own: Ctrl-C is not for it, and killing it takes along what it started.
                process_group=0,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return cls(process, *await asyncio.open_connection(sock=ours))

    async def ask(self, message: Any, kind: Any) -> Any:
        """Say something and wait for the answer."""
        try:
            self._writer.write(encoded(message))
            await self._writer.drain()
            length = int.from_bytes(await self._reader.readexactly(4), "big")
            return decoded(await self._reader.readexactly(length), kind)
        except (EOFError, ConnectionError):
            raise ProcessDiedError(await self._process.wait()) from None

    async def kill(self) -> None:
        self._writer.close()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._ending

    async def _hang_up_after_its_end(self) -> None:
        """What it forked may hold the other end of the line open. Whatever it said before is read all the same."""
        await self._process.wait()
        with suppress(OSError):
            self._writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
