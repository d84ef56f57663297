"""A machine that tells its fire time, and looks at what schedules have done."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from gen_durable import Await, Context, Done, Machine, Outcome, Schedule, Signal, Spec, step

A_SECOND: Final = timedelta(seconds=1)


class Report(Machine[str, str]):
    """Ends with its fire time."""

    @step
    async def write(self, ctx: Context[str]) -> Outcome[str]:
        return Done(f"{ctx.state} {ctx.fire_time}")


class Sleeper(Machine[None, None]):
    """Lives until it is woken."""

    wake = Signal("wake")

    @step
    async def sleep(self, ctx: Context[None]) -> Outcome[None]:
        return Await(self.wake, then=self.end)

    @step
    async def end(self, ctx: Context[None]) -> Outcome[None]:
        return Done(None)


def hourly(name: str = "hourly", **options: Any) -> Schedule:
    """A report at every full hour."""
    return Schedule(name, Spec(Report, "all"), cron="0 * * * *", **options)


def fire_times(instances: Any) -> list[datetime | None]:
    """For which fire times these were inserted, oldest first."""
    return sorted(instance.fire_time for instance in instances)
