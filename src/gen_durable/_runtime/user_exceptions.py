"""Classify what user code raises: a decision, a failure, or the cancellation of our own task."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from .._loading import LiveChildError
from ..outcome import Cancel, Decision, Discard, RetryAfter, reason_text

__all__ = [
    "StepExitError",
    "as_exception",
    "current_task",
    "decision_in",
    "found_live_child",
    "is_task_cancelled",
]


class StepExitError(Exception):
    """User code raised sys.exit(), its own CancelledError or another BaseException. It counts as a failure."""


def is_task_cancelled(error: BaseException, task: asyncio.Task[Any] | None) -> bool:
    """Whether `error` cancels or closes the task itself (shutdown, lost lease), as against an error of user code."""
    if isinstance(error, GeneratorExit):
        # Only another task, or none, closes a coroutine. User code that raises GeneratorExit does so in this task.
        return current_task() is not task
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


def current_task() -> asyncio.Task[Any] | None:
    """Return the running task; `None` outside of an event loop."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def as_exception(error: BaseException) -> Exception:
    """Wrap a BaseException of user code, so that it ends this execution and not the process."""
    if isinstance(error, Exception):
        return error
    match error:
        case SystemExit():
            failure = StepExitError(f"called sys.exit({error.code!r})")
        case asyncio.CancelledError():
            failure = StepExitError("raised CancelledError, but its task was not cancelled")
        case _:
            failure = StepExitError(f"raised {reason_text(error)}")
    failure.__cause__ = error
    return failure


def decision_in(error: BaseException) -> Decision | None:
    """Return the decision that a step raised, directly or as the only decision in an exception group.

    A group with several decisions is not a decision: it counts as a failure.
    """
    found = [leaf for leaf in _leaves(error) if isinstance(leaf, Discard | Cancel | RetryAfter)]
    return found[0] if len(found) == 1 else None


def found_live_child(error: BaseException) -> bool:
    """Whether the step loaded a child that was retried meanwhile. A join must not decide on a live child."""
    return any(isinstance(leaf, LiveChildError) for leaf in _leaves(error))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
