"""What the parts of a running worker share."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property

from .._core.registry import Registry
from .._db.pick import Leases
from ..config import Settings
from ..telemetry import Telemetry
from .clock import DatabaseClock
from .database_status import DatabaseStatus
from .step_counts import StepCounts
from .wake import Wakes

__all__ = ["WorkerContext"]


@dataclass(frozen=True)
class WorkerContext:
    """The identity, settings, machines and shared state of one worker."""

    name: str
    settings: Settings
    registry: Registry
    telemetry: Telemetry
    wakes: Wakes
    database_status: DatabaseStatus
    clock: DatabaseClock = field(default_factory=DatabaseClock)
    counts: StepCounts = field(default_factory=StepCounts)

    @cached_property
    def leases(self) -> Leases:
        """The lease of each step."""
        return Leases(self.settings.lease, self.registry.leases)

    @cached_property
    def shortest_lease(self) -> timedelta:
        """The shortest lease of any step."""
        return min([self.settings.lease, *self.registry.leases.values()])
