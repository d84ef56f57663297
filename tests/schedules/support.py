"""Machines and helpers of the schedule tests."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from gen_durable import Await, Context, Done, Machine, Outcome, Schedule, Signal, Spec, step

A_SECOND: Final = timedelta(seconds=1)


class Report(Machine[str, str]):
    """Its result is its fire time."""

    @step
    async def write(self, ctx: Context[str]) -> Outcome[str]:
        return Done(f"{ctx.state} {ctx.fire_time}")


class Sleeper(Machine[None, None]):
    """Waits for a signal."""

    wake = Signal("wake")

    @step
    async def sleep(self, ctx: Context[None]) -> Outcome[None]:
        return Await(self.wake, then=self.end)

    @step
    async def end(self, ctx: Context[None]) -> Outcome[None]:
        return Done(None)


def hourly(name: str = "hourly", **options: Any) -> Schedule:
    """An hourly schedule."""
    return Schedule(name, Spec(Report, "all"), cron="0 * * * *", **options)


def fire_times(instances: Any) -> list[datetime | None]:
    """Return the fire times of these instances, oldest first."""
    return sorted(instance.fire_time for instance in instances)
