"""A process of the pool: runs one step at a time, and exits with its worker.

Steps run in the main thread. An event loop in another thread talks to the worker and notices its exit.
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
from ..._core.settle import Bounds
from ...errors import DatabaseError, StepTimeoutError, UnknownMachineError, UsageError
from ...outcome import reason_text
from ...progress import Progress
from ..executor import Executor
from ..step_channel import BaseChannel
from ..threads import Threads
from .import_path import ImportPath
from .malloc import return_large_buffers
from .wire import (
    Answer,
    Call,
    Checkpoint,
    Fetch,
    Hello,
    Items,
    Ready,
    Reply,
    Report,
    Request,
    answer_of,
    decoded,
    encoded,
)

__all__ = ["IS_CHILD", "main"]

_log: Final = logging.getLogger("gen_durable")
# Seconds between two reports of progress to the worker, which stores them once per second.
_REPORT_INTERVAL: Final = 0.5
# Characters of items that are not sent yet: while the worker does not read them, the step waits.
_MAX_FRAME: Final = 256 * 1024
IS_CHILD: Final = threading.Event()
"""Set in a process of the pool, where no worker may start."""


class _Machines(Registry):
    """The machines of the worker, imported on demand."""

    def __init__(self, hello: Hello) -> None:
        super().__init__()
        self._paths: dict[tuple[str, int], ImportPath] = {
            (fsm, version): path for fsm, version, path in hello.machines
        }
        # By the version of a row. An older version may be a machine of its own that is not imported yet.
        self._imported: dict[tuple[str, int], Registered] = {}

    def get(self, fsm: str, version: int) -> Registered | None:
        known = self._imported.get((fsm, version))
        if known is not None or (fsm, version) not in self._paths:
            return known
        try:
            return self.find(fsm, version)
        except Exception:  # noqa: BLE001 - any error of the import; only the type of a child's result needs it
            del self._paths[fsm, version]
            return None

    def find(self, fsm: str, version: int) -> Registered:
        known = self._imported.get((fsm, version))
        if known is None:
            path = self._paths.get((fsm, version))
            if path is None:
                raise UnknownMachineError(fsm, version, tuple(self._paths))
            known = self.add(path.load())
            if known.definition.name != fsm or not known.definition.can_read(version):
                raise UsageError(
                    f"{path.module}.{path.name} is not '{fsm}' v{version}",
                    "assign the job to the name of its function",
                )
            self._imported[fsm, version] = known
        return known


class _MainThread(Threads):
    """Runs user code in the main thread. The worker enforces timeouts."""

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
            except BaseException as raised:  # noqa: BLE001 - raised where the future is awaited
                error = raised
            future.get_loop().call_soon_threadsafe(self._settle, future, result, error)


class _Executor(Executor):
    """Records what the step raised."""

    raised: str | None = None

    async def _handle(
        self, failure: Exception, execution: Execution, registered: Registered, *, may_chain: bool
    ) -> CommitEntry:
        self.raised = reason_text(failure)
        return await super()._handle(failure, execution, registered, may_chain=may_chain)


class _LogCapture(logging.Handler):
    """Collects log lines of the engine for the log of the worker."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.levelno, record.getMessage()))


class _NoResources:
    """Stands in for `ctx.resources`."""

    def __getattr__(self, name: str) -> NoReturn:
        raise UsageError(
            f'ctx.resources.{name} is not available in a step with pool="process": lifespan runs in the worker process',
            "create what the step needs at the top level of a module",
        )


class _RemoteChannel(BaseChannel):
    """The channel through the worker, which has the connections. One call at a time, only while a step runs."""

    def __init__(
        self,
        registry: Registry,
        bounds: Bounds,
        writer: asyncio.StreamWriter,
        frames: asyncio.Queue[bytes],
    ) -> None:
        super().__init__(registry, bounds)
        self._writer = writer
        self._frames = frames
        self._lock = asyncio.Lock()
        self.execution: Execution | None = None
        # The latest report. The main thread writes it before it reads `_will_send`, and the event loop clears that
        # before it takes the report: so no report stays unsent.
        self._unsent: tuple[Execution, Progress] | None = None
        self._will_send = False
        self._sent_at = 0.0
        # Items that are not sent yet, by stream. The step adds to them in the main thread.
        self._items: dict[str, list[str | None]] = {}
        self._bytes = 0
        self._items_lock = threading.Lock()
        self._sending: set[asyncio.Task[None]] = set()

    def add_item(self, execution: Execution, stream: str, item: str | None) -> bool:
        with self._items_lock:
            # Under the lock: the last flush of a step comes after its end.
            self._check_runs(execution)
            if self._bytes >= _MAX_FRAME:
                return False
            is_first = not self._items
            self._items.setdefault(stream, []).append(item)
            self._bytes += 1 if item is None else len(item) + 1
        if is_first:
            self._loop.call_soon_threadsafe(self._send)
        return True

    async def room(self, execution: Execution) -> None:
        await self.flush()

    def _send(self) -> None:
        task = self._loop.create_task(self.flush())
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def flush(self) -> None:
        """Send the items. While the buffer of the worker is full, this waits."""
        with self._items_lock:
            items, self._items, self._bytes = self._items, {}, 0
        if items:
            self._writer.write(encoded(Items(items)))
        await self._writer.drain()

    async def signals(self, execution: Execution, ids: Sequence[int]) -> Mapping[int, str]:
        return (await self._call(execution, Fetch("signals", list(ids)))).signals

    async def children(self, execution: Execution, ids: Sequence[int]) -> Mapping[int, ChildContent]:
        return (await self._call(execution, Fetch("children", list(ids)))).children

    def report(self, execution: Execution, progress: Progress, /) -> None:
        self._unsent = execution, progress
        if not self._will_send:
            self._will_send = True
            self._loop.call_soon_threadsafe(self._send_report)

    def _send_report(self) -> None:
        """Send the latest report, at most one per interval."""
        now = self._loop.time()
        if now < self._sent_at + _REPORT_INTERVAL:
            self._loop.call_at(self._sent_at + _REPORT_INTERVAL, self._send_report)
            return
        self._will_send = False
        unsent, self._unsent = self._unsent, None
        # After the answer of its step, the worker expects no message.
        if unsent is not None and unsent[0] is self.execution:
            self._sent_at = now
            self._writer.write(encoded(Report(unsent[1])))

    async def store_checkpoint(self, execution: Execution, text: str) -> bool:
        return not (await self._call(execution, Checkpoint(text))).is_lost

    async def _call(self, execution: Execution, call: Call) -> Reply:
        async with self._lock:
            self._check_runs(execution)
            await self.flush()
            self._writer.write(encoded(call))
            await self._writer.drain()
            reply: Reply = decoded(await self._frames.get(), Reply)
        if reply.error is not None:
            raise DatabaseError(reply.error)
        return reply

    def _check_runs(self, execution: Execution) -> None:
        if execution is not self.execution:
            raise UsageError(
                "a method of ctx was called after its step ended", "call it before the step returns"
            )


async def _serve(connection: socket.socket, threads: _MainThread) -> None:
    reader, writer = await asyncio.open_connection(sock=connection)
    frames: asyncio.Queue[bytes] = asyncio.Queue()
    listening = asyncio.get_running_loop().create_task(_listen(reader, frames))
    hello: Hello = decoded(await frames.get(), Hello)
    machines, capture = _Machines(hello), _LogCapture()
    _log.addHandler(capture)
    _log.setLevel(logging.INFO)
    _log.propagate = False
    channel = _RemoteChannel(machines, hello.bounds, writer, frames)
    executor = _Executor(machines, hello.bounds, threads, resources=_NoResources(), channel=channel)
    ready = await threads.run(_import, machines, hello.first)
    writer.write(encoded(ready))
    while not listening.done():
        request: Request = decoded(await frames.get(), Request)
        channel.execution = request.execution
        answer = await _answer(executor, request, capture)
        channel.execution = None
        await channel.flush()
        writer.write(encoded(answer))
        await writer.drain()


def _import(machines: _Machines, first: list[tuple[str, int]]) -> Ready:
    for fsm, version in first:
        try:
            machines.find(fsm, version)
        except BaseException as error:  # noqa: BLE001 - any error of a user's module; the worker reports it
            return Ready(f"cannot import '{fsm}' in another process: {reason_text(error)}")
    return Ready()


async def _answer(executor: _Executor, request: Request, capture: _LogCapture) -> Answer:
    execution, may_chain = request.execution, request.may_chain
    executor.raised, capture.lines = None, []

    async def commit(entry: CommitEntry) -> Answer | EffectFailed:
        try:
            return answer_of(entry, executor.raised, capture.lines)
        except UsageError as error:
            return EffectFailed(error)  # the effect cannot be sent to the worker

    entry = await executor.run(execution, asyncio.current_task(), may_chain=may_chain)
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
        _exit()


def _exit() -> NoReturn:
    """Exit at once, because the worker has exited, and kill the programs that the step has started."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def main(number: int) -> NoReturn:
    """Serve the worker at the other end of the socket with this file descriptor until the worker exits."""
    IS_CHILD.set()
    return_large_buffers()
    # The worker kills this process. Not SIG_IGN, which programs started by a step would inherit.
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda *_: None)
    threads = _MainThread()
    connection = socket.socket(fileno=number)

    def talk() -> None:
        try:
            asyncio.run(_serve(connection, threads))
        except BaseException:  # noqa: BLE001 - a bug; without this thread the process would not exit
            traceback.print_exc()
        _exit()

    threading.Thread(target=talk, name="gen_durable worker", daemon=True).start()
    threads.serve()
