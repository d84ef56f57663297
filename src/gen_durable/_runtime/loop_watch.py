"""Find steps that block the event loop of the worker, from the thread of the heartbeat."""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import Context
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeAlias

import msgspec

from .._checks import duration_text
from .._core.model import Execution
from .._running import Running, running
from ..telemetry import LoopBlocked
from .in_flight import InFlight, Phase
from .worker_context import WorkerContext

__all__ = ["LoopWatch"]

_log: Final = logging.getLogger("gen_durable.worker")
_ENGINE: Final = str(Path(__file__).parent)
_MAX_FRAMES: Final = 20

# A step is logged again when it blocks the event loop this many times longer than the longest block that was logged.
_LONGER: Final = 10
# If a check is late, the thread of the event loop held the interpreter lock if it has computed for at least this part
# of the threshold, and of the time since the last check: other processes may use the processors, too.
_COMPUTED: Final = 0.75
_BUSY: Final = 0.1
_ADVICE: Final = "Use a plain `def` step or asyncio.to_thread for blocking code"
# A thread that holds the interpreter lock blocks the event loop as well. A call of C code releases the lock when it
# returns, and the thread of the heartbeat waits for it: if no other thread is first, the stack ends with that call.
# faulthandler could write the stack earlier, but it reads the frames of running threads without the lock, so it could
# crash a process that was suspended.
_HELD_ADVICE: Final = (
    'It held the interpreter lock, as regular expressions do; {}. Use @step(pool="process") for such code'
)
_STACK_READ: Final = "its stack was read when the lock was released"
_NO_STACK: Final = "it ended before its stack was read"

_Key: TypeAlias = tuple[str, int, str]
"""Machine, version and step; of other code, the name of its coroutine."""


class _Block(msgspec.Struct):
    """What has blocked the event loop since the callback was posted."""

    step: Running | None
    key: _Key
    where: str
    is_logged: bool = False


class LoopWatch:
    """Posts callbacks to the event loop, and looks whether they ran.

    Steps pay nothing for it: only when a callback is late, it looks which task runs, and where.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._after = context.settings.loop_blocked_after.total_seconds()
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._seconds_computed = _processor_clock(self._loop_thread)
        self._computed = self._seconds_computed()
        self._sent_at = self._checked_at = time.monotonic()
        self._ran_at: float | None = self._sent_at
        # What is reported since the callback was posted.
        self._blocks: list[_Block] = []
        # Long steps that have ended since the last check.
        self._ended: list[Execution] = []
        # Seconds of the longest block that was logged: 10,000 instances of a step are logged once.
        self._logged: dict[_Key, float] = {}
        # Steps that were logged without a stack. The first block with a stack is logged, too.
        self._without_stack: set[_Key] = set()

    @property
    def interval(self) -> float | None:
        """Seconds between two checks, so that a block is found before half its threshold again; `None`: turned off."""
        return min(self._after / 2, 0.5) if self._after else None

    @property
    def blocked(self) -> tuple[Running | None, float] | None:
        """The step that blocks the event loop, if one is known, and for how many seconds; `None`: nothing blocks it."""
        if not self._blocks or self._ran_at is not None:
            return None
        return self._blocks[-1].step, time.monotonic() - self._sent_at

    def check(self, in_flight: Iterable[InFlight]) -> None:
        """Report a blocked event loop, and when it is free again."""
        now, checked_at = time.monotonic(), self._checked_at
        held_lock = self._held_lock(now)
        ended = next(self._take_ended(), None)
        task = asyncio.current_task(self._loop)
        if held_lock and not self._blocks:
            # The event loop may continue before this thread runs. The step that held the lock is the first one to end.
            step = None if task is None else _step_of(task, in_flight, started_before=now - self._after)
            began = self._sent_at if self._ran_at is None else self._block_began(now, checked_at)
            self._report(step or ended, task, now - began, held_lock=True, has_ended=step is None)
            if self._ran_at is not None:
                self._post(began)
            return
        if self._ran_at is None:
            # Without a task, the event loop waits for the processor, or for threads that compute.
            if task is not None and now - self._sent_at >= self._after:
                self._report(_step_of(task, in_flight), task, now - self._sent_at, held_lock=held_lock)
            return
        if self._blocks:
            self._report_end(self._ran_at - self._sent_at)
        self._post(now)

    def _block_began(self, now: float, checked_at: float) -> float:
        """Return when a block began that the last callback did not see: the callback ran before it, or after it."""
        ran_at = max(self._ran_at or 0.0, checked_at)
        return ran_at if now - ran_at >= ran_at - checked_at else checked_at

    def ended(self, execution: Execution, seconds: float) -> None:
        """Note a step that has ended, on the event loop, if it ran for long enough to have blocked it."""
        if self._after and seconds >= self._after * _COMPUTED:
            self._ended.append(execution)

    def _take_ended(self) -> Iterator[Execution]:
        """Take the steps that have ended since the last check, in their order."""
        taken, self._ended = self._ended, []
        return iter(taken)

    def _post(self, sent_at: float) -> None:
        self._sent_at, self._ran_at = sent_at, None
        with suppress(RuntimeError):  # the worker's loop is closed
            self._loop.call_soon_threadsafe(self._run)

    def _held_lock(self, now: float) -> bool:
        """Return whether the event loop held the interpreter lock, so that this thread did not run either.

        If this check is late and the event loop did not compute, the process was suspended: that time does not count.
        """
        computed = self._seconds_computed()
        passed, busy = now - self._checked_at, computed - self._computed
        self._checked_at, self._computed = now, computed
        if passed <= self._after:
            return False
        # Before a suspension, the event loop may have computed for one interval.
        if busy >= max(self._after * _COMPUTED, passed * _BUSY):
            return True
        if self._ran_at is None:
            self._sent_at = now
        return False

    def _run(self) -> None:
        self._ran_at = time.monotonic()

    def _report(
        self,
        step: Running | None,
        task: asyncio.Task[Any] | None,
        seconds: float,
        *,
        held_lock: bool,
        has_ended: bool = False,
    ) -> None:
        """Report a step, or the code that this task runs."""
        if step is not None:
            key, where = (step.fsm, step.version, step.step), f"{step.fsm} {step.id}, step {step.step}"
        else:
            has_ended = False
            name = "" if task is None else getattr(task.get_coro(), "__qualname__", "")
            key, where = ("", 0, name), "code outside of steps"
        block = next((each for each in self._blocks if each.step is step and each.key == key), None)
        if block is None:
            block = _Block(step, key, where)
            self._blocks.append(block)
        self._log(block, seconds, held_lock=held_lock, has_ended=has_ended)

    def _log(self, block: _Block, seconds: float, *, held_lock: bool, has_ended: bool) -> None:
        """Log the first block of a step with its stack, and one that is much longer than those that were logged."""
        lacks_stack = block.key in self._without_stack and not has_ended
        if block.is_logged or (not lacks_stack and seconds < _LONGER * self._logged.get(block.key, 0.0)):
            return
        block.is_logged = True
        (self._without_stack.add if has_ended else self._without_stack.discard)(block.key)
        advice = _HELD_ADVICE.format(_NO_STACK if has_ended else _STACK_READ) if held_lock else _ADVICE
        _log.warning(
            "event loop blocked: %s%s, for %s so far (worker %s); no other `async def` step runs meanwhile. %s%s",
            "" if block.step is not None else "by ",
            block.where,
            _text(seconds),
            self._context.name,
            advice,
            "" if has_ended else f"\n{self._stack()}",
        )

    def _report_end(self, seconds: float) -> None:
        blocks, self._blocks = self._blocks, []
        for block in blocks:
            if block.is_logged:
                self._logged[block.key] = max(seconds, self._logged.get(block.key, 0.0))
                _log.info(
                    "event loop free: blocked for %s by %s (worker %s)",
                    _text(seconds),
                    block.where,
                    self._context.name,
                )
            step = block.step
            event = LoopBlocked(
                duration=timedelta(seconds=seconds),
                id=None if step is None else step.id,
                fsm="" if step is None else step.fsm,
                step="" if step is None else step.step,
            )
            with suppress(RuntimeError):  # the worker's loop is closed
                self._loop.call_soon_threadsafe(self._context.telemetry.emit, event)

    def _stack(self) -> str:
        """Return where the event loop is, up to the call of the step by the engine."""
        frame: FrameType | None = sys._current_frames().get(self._loop_thread)  # noqa: SLF001 - the only way to see another thread
        frames: list[tuple[FrameType, int]] = []
        while (
            frame is not None
            and len(frames) < _MAX_FRAMES
            and not frame.f_code.co_filename.startswith(_ENGINE)
        ):
            frames.append((frame, frame.f_lineno))
            frame = frame.f_back
        return "".join(traceback.StackSummary.extract(reversed(frames)).format()).rstrip()


def _processor_clock(thread: int) -> Callable[[], float]:
    """Return a clock of the processor time of a thread; where the system has none, of the process."""
    if hasattr(time, "pthread_getcpuclockid"):
        return partial(time.clock_gettime, time.pthread_getcpuclockid(thread))
    return time.process_time


def _step_of(
    task: asyncio.Task[Any], in_flight: Iterable[InFlight], *, started_before: float = math.inf
) -> Running | None:
    """Return the execution whose code this task runs; `None` if it is not that of a step that started in time."""
    for one in in_flight:
        if one.task is task and one.phase is Phase.IN_STEP:
            started = one.running
            return one.execution if started is not None and started[1] < started_before else None
    # A task that a step has started.
    for context in _contexts(task):
        step: Running | None = context.get(running)
        if step is not None:
            return step
    return None


def _contexts(task: asyncio.Task[Any]) -> list[Context]:
    """Return the context of a task. Before Python 3.12: the contexts of those that wait for the task."""
    if sys.version_info >= (3, 12):
        return [task.get_context()]
    # Of `await`, gather, wait_for and task groups. A task that nothing waits for has none.
    return [context for _, context in getattr(task, "_callbacks", None) or ()]


def _text(seconds: float) -> str:
    return duration_text(timedelta(seconds=round(seconds, 1)))
