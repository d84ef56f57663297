"""Run ready executions in few tasks: a task runs one step after the other, until a step suspends."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

from .._running import running
from .in_flight import InFlight

__all__ = ["StepTasks"]

# Seconds for which steps run before other work of the event loop gets its turn.
_TIME_SLICE: Final = 0.005
_MAX_TASKS: Final = 64


class StepTasks:
    """The executions that are ready to run, and the tasks that run them.

    When a step suspends, its task runs nothing else any more, and new tasks run the other executions. So only steps
    that suspend cost a task, and a step has the same current task from its start to its end.
    """

    def __init__(
        self,
        run: Callable[[InFlight, asyncio.Task[Any]], Awaitable[None]],
        *,
        on_pause: Callable[[], None],
        on_bug: Callable[[BaseException], None],
    ) -> None:
        self._run = run
        self._on_pause = on_pause
        self._on_bug = on_bug
        self._loop = asyncio.get_running_loop()
        # Steps start in a copy of it: they do not see context variables of each other or of the engine's tasks.
        self._contextvars = contextvars.copy_context()
        self._ready: deque[InFlight] = deque()
        # The tasks that have not suspended yet.
        self._tasks: set[asyncio.Task[None]] = set()
        # How many tasks to start at once. Grows while steps suspend.
        self._count = 1

    def add(self, one: InFlight) -> None:
        """Run this execution soon."""
        self._ready.append(one)
        if not self._tasks:
            self._start_tasks()

    def remove(self, one: InFlight) -> None:
        """Do not run this execution, which was added and has not started."""
        self._ready.remove(one)

    def _start_tasks(self) -> None:
        until = time.monotonic() + _TIME_SLICE
        for _ in range(min(self._count, len(self._ready))):
            # Not by the loop's task factory: an eager one would run the steps here, within the caller.
            task = asyncio.Task(self._run_ready(until), loop=self._loop, context=self._contextvars.copy())
            task.add_done_callback(self._on_ended)
            self._tasks.add(task)
            # Called when the task has suspended, or after it has ended.
            self._loop.call_soon(self._on_suspended, task)

    def _on_suspended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.done():
            self._count = min(self._count + 1, _MAX_TASKS)
        if self._ready and not self._tasks:
            self._start_tasks()

    def _on_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_bug(error)

    async def _run_ready(self, until: float) -> None:
        """Run ready executions until a step suspends or the time slice is used up."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this is a coroutine
        try:
            while self._ready:
                one = self._ready.popleft()
                running.set(one.execution)
                variables = contextvars.copy_context()
                await self._run(one, task)
                if task not in self._tasks:
                    return
                self._count = 1
                # The next step must not see what this one has left.
                try:
                    has_left = contextvars.copy_context() != variables
                except Exception:  # noqa: BLE001 - it has set a variable, to a value that cannot be compared
                    return
                if has_left or task.cancelling() or time.monotonic() > until:
                    return
        finally:
            self._on_pause()
