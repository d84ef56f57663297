"""A process of the pool: it runs steps, one at a time, and ends with its worker.

Steps have the main thread. The loop beside it talks to the worker, and notices its death.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from ..._core.model import ChildContent, CommitEntry, EffectFailed, Execution
from ..._core.registry import Registered, Registry
from ...errors import DatabaseError, StepTimeoutError, UnknownMachineError, UsageError
from ...outcome import reason_text
from ..executor import Executor
from ..threads import Threads
from .malloc import return_large_buffers
from .wire import Answer, Fetch, Fetched, Hello, Place, Ready, Request, answer_of, decoded, encoded

__all__ = ["IS_CHILD", "main"]

_log: Final = logging.getLogger("gen_durable")
IS_CHILD: Final = threading.Event()
"""Set in a process of the pool: no worker may be started there."""


class _Machines(Registry):
    """The machines of the worker, each imported when it is first needed."""

    def __init__(self, hello: Hello) -> None:
        super().__init__()
        self._places: dict[tuple[str, int], Place] = {
            (fsm, version): place for fsm, version, place in hello.machines
        }

    def get(self, fsm: str, version: int) -> Registered | None:
        known = super().get(fsm, version)
        if known is not None or (fsm, version) not in self._places:
            return known
        try:
            return self.find(fsm, version)
        except Exception:  # noqa: BLE001 - whatever its import raises; it is only wanted for the types of a child's result
            del self._places[fsm, version]
            return None

    def find(self, fsm: str, version: int) -> Registered:
        known = super().get(fsm, version)
        if known is None:
            place = self._places.get((fsm, version))
            if place is None:
                raise UnknownMachineError(fsm, version, tuple(self._places))
            known = self.add(place.find())
            if (known.definition.name, known.definition.version) != (fsm, version):
                raise UsageError(
                    f"{place.module}.{place.name} is not '{fsm}' v{version}",
                    "give the job the name of its function",
                )
        return known


class _MainThread(Threads):
    """Runs what a user wrote on the main thread. How long it may take is the worker's affair."""

    def __init__(self) -> None:
        super().__init__(0)
        self._calls: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]]] = queue.SimpleQueue()

    async def run(
        self, function: Callable[..., Any], *args: Any, timeout: StepTimeoutError | None = None
    ) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._busy += 1
        self._calls.put((future, lambda: function(*args)))
        return await self._outcome(future)

    def serve(self) -> NoReturn:
        while True:
            future, call = self._calls.get()
            result, error = None, None
            try:
                result = call()
            except BaseException as raised:  # noqa: BLE001 - carried over to whoever awaits the future
                error = raised
            future.get_loop().call_soon_threadsafe(self._settle, future, result, error)


class _Executor(Executor):
    """Remembers whether the step raised."""

    raised: str | None = None

    async def _handle(
        self, failure: Exception, execution: Execution, registered: Registered, *, may_chain: bool
    ) -> CommitEntry:
        self.raised = reason_text(failure)
        return await super()._handle(failure, execution, registered, may_chain=may_chain)


class _Ear(logging.Handler):
    """Keeps what the engine says, for the log of the worker."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append((record.levelno, record.getMessage()))


class _NoResources:
    """In the place of `ctx.resources`."""

    def __getattr__(self, name: str) -> NoReturn:
        raise UsageError(
            f'ctx.resources.{name} is not there in a step with pool="process"',
            "the worker's lifespan belongs to another process; make what you need at the top of a module",
        )


class _WorkersContent:
    """Lets the worker fetch content: only it has connections. One request at a time, while the step runs."""

    def __init__(self, writer: asyncio.StreamWriter, frames: asyncio.Queue[bytes]) -> None:
        self._writer = writer
        self._frames = frames
        self._lock = asyncio.Lock()
        self.execution: Execution | None = None

    async def signals(self, execution: Execution, ids: Sequence[int]) -> Mapping[int, str]:
        return (await self._fetch(execution, Fetch("signals", list(ids)))).signals

    async def children(self, execution: Execution, ids: Sequence[int]) -> Mapping[int, ChildContent]:
        return (await self._fetch(execution, Fetch("children", list(ids)))).children

    async def _fetch(self, execution: Execution, fetch: Fetch) -> Fetched:
        async with self._lock:
            if execution is not self.execution:
                raise UsageError("the step that loads this has ended", "load it before the step returns")
            self._writer.write(encoded(fetch))
            await self._writer.drain()
            fetched: Fetched = decoded(await self._frames.get(), Fetched)
        if fetched.error is not None:
            raise DatabaseError(fetched.error)
        return fetched


async def _serve(channel: socket.socket, threads: _MainThread) -> None:
    reader, writer = await asyncio.open_connection(sock=channel)
    frames: asyncio.Queue[bytes] = asyncio.Queue()
    listening = asyncio.get_running_loop().create_task(_listen(reader, frames))
    hello: Hello = decoded(await frames.get(), Hello)
    machines, ear = _Machines(hello), _Ear()
    _log.addHandler(ear)
    _log.setLevel(logging.INFO)
    _log.propagate = False
    content = _WorkersContent(writer, frames)
    executor = _Executor(machines, hello.bounds, threads, resources=_NoResources(), content=content)
    ready = await threads.run(_import, machines, hello.first)
    writer.write(encoded(ready))
    while not listening.done():
        request: Request = decoded(await frames.get(), Request)
        content.execution = request.execution
        answer = await _answer(executor, request, ear)
        content.execution = None
        writer.write(encoded(answer))
        await writer.drain()


def _import(machines: _Machines, first: list[tuple[str, int]]) -> Ready:
    for fsm, version in first:
        try:
            machines.find(fsm, version)
        except BaseException as error:  # noqa: BLE001 - whatever a module of the user's raises is for the worker to tell
            return Ready(f"'{fsm}' cannot be imported in another process: {reason_text(error)}")
    return Ready()


async def _answer(executor: _Executor, request: Request, ear: _Ear) -> Answer:
    execution, may_chain = request.execution, request.may_chain
    executor.raised, ear.told = None, []

    async def commit(entry: CommitEntry) -> Answer | EffectFailed:
        try:
            return answer_of(entry, executor.raised, ear.told)
        except UsageError as error:
            return EffectFailed(error)  # the effect cannot leave this process

    entry = await executor.run(execution, may_chain=may_chain)
    answer = await commit(entry)
    if not isinstance(answer, EffectFailed):
        return answer
    _, recovered = await executor.recover(entry, answer, commit, may_chain=may_chain)
    return recovered


async def _listen(reader: asyncio.StreamReader, frames: asyncio.Queue[bytes]) -> None:
    try:
        while True:
            length = int.from_bytes(await reader.readexactly(4), "big")
            frames.put_nowait(await reader.readexactly(length))
    finally:
        _leave()


def _leave() -> NoReturn:
    """The worker is gone, and nobody wants what is being done here, nor by the programs that the step has started."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def main(number: int) -> NoReturn:
    """Serve the worker at the other end of this socket until it is gone."""
    IS_CHILD.set()
    return_large_buffers()
    # The worker kills this process when it has to. Not SIG_IGN: programs that a step starts would inherit that.
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: None)
    threads = _MainThread()
    channel = socket.socket(fileno=number)

    def talk() -> None:
        try:
            asyncio.run(_serve(channel, threads))
        except BaseException:  # noqa: BLE001 - a bug; without this thread nobody would end this process
            traceback.print_exc()
        _leave()

    threading.Thread(target=talk, name="gen_durable worker", daemon=True).start()
    threads.serve()
