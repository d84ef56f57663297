"""Find steps that block the event loop of the worker, from the thread of the heartbeat."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeAlias

from .._checks import duration_text
from .._running import Running, running
from ..telemetry import LoopBlocked
from .in_flight import InFlight, Phase
from .worker_context import WorkerContext

__all__ = ["LoopWatch"]

_log: Final = logging.getLogger("gen_durable.worker")
_ENGINE: Final = str(Path(__file__).parent)
_MAX_FRAMES: Final = 20

_Key: TypeAlias = tuple[int, int]
"""Id of the instance and number of the execution."""


class LoopWatch:
    """Posts callbacks to the event loop, and looks whether they ran.

    Steps pay nothing for it: only when a callback is late, it looks which task runs, and where.
    """

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._after = context.settings.loop_blocked_after.total_seconds()
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._sent_at = self._checked_at = time.monotonic()
        self._ran_at: float | None = 0.0
        # The steps that are reported since the callback was posted.
        self._reported: list[Running | None] = []
        # The executions in flight of which a block was logged: a step that blocks again and again is logged once.
        self._logged: set[_Key] = set()

    @property
    def interval(self) -> float | None:
        """Seconds between two checks, so that a block is found before half its threshold again; `None`: turned off."""
        return min(self._after / 2, 0.5) if self._after else None

    @property
    def blocked(self) -> tuple[Running | None, float] | None:
        """The step that blocks the event loop, if one is known, and for how many seconds; `None`: nothing blocks it."""
        if not self._reported or self._ran_at is not None:
            return None
        return self._reported[-1], time.monotonic() - self._sent_at

    def check(self, in_flight: Iterable[InFlight]) -> None:
        """Report a blocked event loop, once per step, and when it is free again."""
        now = time.monotonic()
        is_late, self._checked_at = now - self._checked_at > self._after, now
        if is_late:
            # This thread did not run either: the process was suspended.
            self._sent_at = now
        if self._ran_at is None:
            task = asyncio.current_task(self._loop)
            # Without a task, the event loop waits for the processor, or for threads that compute.
            if task is not None and now - self._sent_at >= self._after:
                self._report(_step_of(task, in_flight), now - self._sent_at, in_flight)
            return
        if self._reported:
            self._report_end(self._ran_at - self._sent_at)
        self._sent_at, self._ran_at = now, None
        with suppress(RuntimeError):  # the worker's loop is closed
            self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        self._ran_at = time.monotonic()

    def _report(self, step: Running | None, seconds: float, in_flight: Iterable[InFlight]) -> None:
        if any(step is each for each in self._reported):
            return
        self._reported.append(step)
        if step is not None:
            if _key(step) in self._logged:
                return
            self._logged &= {_key(one.execution) for one in in_flight}
            self._logged.add(_key(step))
        _log.warning(
            "event loop blocked: %s, for %s so far (worker %s); no other `async def` step runs meanwhile. Use a plain "
            "`def` step or asyncio.to_thread for blocking code\n%s",
            _where(step),
            duration_text(timedelta(seconds=round(seconds, 1))),
            self._context.name,
            self._stack(),
        )

    def _report_end(self, seconds: float) -> None:
        reported, self._reported = self._reported, []
        for step in reported:
            _log.info(
                "event loop free: blocked for %s by %s (worker %s)",
                duration_text(timedelta(seconds=round(seconds, 1))),
                _where(step),
                self._context.name,
            )
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


def _step_of(task: asyncio.Task[Any], in_flight: Iterable[InFlight]) -> Running | None:
    """Return the execution whose code this task runs; `None` if it is not that of a step."""
    for one in in_flight:
        if one.task is task and one.phase is Phase.IN_STEP:
            return one.execution
    # A task that a step has started. Before Python 3.12 a task does not tell its context.
    variables: Any = getattr(task, "get_context", dict)()
    step: Running | None = variables.get(running)
    return step


def _key(step: Running) -> _Key:
    return step.id, step.number


def _where(step: Running | None) -> str:
    return "no step of the worker" if step is None else f"{step.fsm} {step.id}, step {step.step}"
