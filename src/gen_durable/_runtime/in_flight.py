"""One leased execution of this worker, from its pick until it gives up the lease."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from enum import Enum, auto
from typing import Any

import msgspec

from .._core.model import Execution, Lease

__all__ = ["InFlight", "Phase"]


class Phase(Enum):
    """What an execution in flight does, or waits for."""

    WAITING = auto()
    """It waits for capacity."""
    READY = auto()
    """It holds capacity; its step starts when the event loop gets to it."""
    IN_STEP = auto()
    """User code runs: the step, or the handler of its failed effect."""
    COMMITTING = auto()
    """Its outcome waits for the commit."""
    STOPPED = auto()
    """Its lease is lost or released. The step may still run, but cannot commit."""


class InFlight(msgspec.Struct, eq=False):
    """A leased execution. The event loop writes it; the thread of the heartbeat reads it and renews the lease."""

    execution: Execution
    """The current step. Chaining replaces it; the lease stays."""
    lease: Lease
    lease_length: timedelta
    renewed: float
    """When the lease was renewed last (monotonic). Written by the heartbeat."""
    phase: Phase = Phase.WAITING
    running: tuple[int, float] | None = None
    """Step_seq and start (monotonic) of the running step. Replaced as a whole, because another thread reads it."""
    waiting_since: float | None = None
    """Since when the step has waited for capacity (monotonic)."""
    recorded: int | None = None
    """The step_seq of the last step whose start the heartbeat has recorded in the database."""
    task: asyncio.Task[Any] | None = None
    """The task in which the step runs, or in which its effect is committed."""
    granted: asyncio.Future[None] | None = None
    """What a task that needs capacity waits for: the handler of a failed effect. Other steps have no task yet."""
    steps: int = 0
    """Steps started under this lease."""
    busy: float = 0.0
    """Seconds that the steps under this lease have run."""
    seconds: float = 0.0
    """Seconds that the last step has run."""
    is_interrupted: bool = False
    """Whether a cancel has interrupted the step and the step has yet to end."""
    is_lost: bool = False
    """Whether the loss of the lease has been logged."""

    @classmethod
    def of(cls, execution: Execution, lease_length: timedelta) -> InFlight:
        """Wrap an execution that was leased just now."""
        return cls(execution, execution.lease, lease_length, time.monotonic())
