"""Machines that emit."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from gen_durable import (
    Await,
    Context,
    Done,
    Event,
    Machine,
    Next,
    Outcome,
    Retry,
    ScheduleChildren,
    Signal,
    Spec,
    Sql,
    Stop,
    step,
)


class Teller(Machine[dict[str, Any], str]):
    """Starts at a step that the test chooses, and emits events."""

    go = Signal("go", int)

    @step
    async def several(self, ctx: Context[dict[str, Any]]) -> Outcome[str]:
        ctx.emit(Event("first"))
        ctx.emit(Event("second", {"n": 2}))
        return Next(self.last, emit=[Event("third"), Event("fourth", sink="other")])

    @step
    async def last(self, ctx: Context[dict[str, Any]]) -> Outcome[str]:
        return Done("published", emit=Event("done", subject="the end"))

    @step
    async def awaits(self, ctx: Context[dict[str, Any]]) -> Outcome[str]:
        return Await(self.go, then=self.last, emit=Event("waiting"))

    @step
    async def spawns(self, ctx: Context[dict[str, Any]]) -> Outcome[str]:
        return ScheduleChildren(
            [Spec(Teller, {}, step="last") for _ in range(2)], then=self.last, emit=Event("spawned")
        )

    @step
    async def stops(self, ctx: Context[dict[str, Any]]) -> Outcome[str]:
        return Stop("no", emit=Event("stopped"))

    @step
    async def raises(self, ctx: Context[dict[str, Any]]) -> Outcome[str]:
        ctx.emit(Event("never"))
        raise ValueError("no")

    @step
    async def retries(self, ctx: Context[dict[str, Any]]) -> Outcome[str]:
        ctx.emit(Event(f"attempt {ctx.attempt}"))
        return Retry(timedelta(0)) if ctx.attempt < 2 else Done("")

    @step
    async def acts(self, ctx: Context[dict[str, Any]]) -> Outcome[str]:
        return Done("", effect=Sql("create table acted ()"), emit=Event("acted"))

    @step
    async def fails_to_act(self, ctx: Context[dict[str, Any]]) -> Outcome[str]:
        return Done("", effect=Sql("select 1/0"), emit=Event("never"))

    @step
    async def unstorable(self, ctx: Context[dict[str, Any]]) -> Outcome[str]:
        return Done("", emit=Event("bad", {"x": ctx.state["x"]}))

    def handle(self, error: Exception, ctx: Context[dict[str, Any]]) -> Outcome[str]:
        ctx.emit(Event("handled", type(error).__name__))
        return Stop(error)


class Chatter(Machine[int, int]):
    """Emits one event per step, a given number of times."""

    @step
    async def talk(self, ctx: Context[int]) -> Outcome[int]:
        event = Event("left", {"left": ctx.state})
        return Next(self.talk, ctx.state - 1, emit=event) if ctx.state > 1 else Done(0, emit=event)
