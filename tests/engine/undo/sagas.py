"""A saga with undo steps, and what its tests share."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from gen_durable import (
    Await,
    Backoff,
    Cancel,
    Context,
    Discard,
    Done,
    Machine,
    Next,
    Outcome,
    ScheduleChildren,
    Signal,
    Spec,
    Stop,
    step,
)


class Order(msgspec.Struct):
    ending: str = "done"
    """How the last step ends."""
    loops: int = 1
    log: list[str] = []
    bad_undo: str = ""
    """The undo step that fails."""


class Saga(Machine[Order, str]):
    """reserve (release) → charge (refund), once or several times → wait for `go` → ship."""

    @step
    async def reserve(self, ctx: Context[Order]) -> Outcome[str]:
        ctx.state.log.append("reserve")
        return Next(self.charge)

    @step(initial=True, undo="release")
    async def begin(self, ctx: Context[Order]) -> Outcome[str]:
        ctx.state.log.append("begin")
        return Next(self.charge)

    @step(undo="refund")
    async def charge(self, ctx: Context[Order]) -> Outcome[str]:
        ctx.state.log.append("charge")
        if ctx.state.log.count("charge") < ctx.state.loops:
            return Next(self.charge)
        return Await("go", then=self.ship) if ctx.state.ending == "wait" else Next(self.ship)

    @step(retry=Backoff(max_attempts=2, base=timedelta(seconds=1)))
    async def ship(self, ctx: Context[Order]) -> Outcome[str]:
        match ctx.state.ending:
            case "stop":
                return Stop("no truck")
            case "stop without undo":
                return Stop("no truck", undo=False)
            case "raise":
                raise RuntimeError("truck broke")
            case "discard":
                raise Discard("no truck at all")
            case "cancel":
                raise Cancel("not wanted")
            case "children":
                return ScheduleChildren([Spec(Parcel, Order())], then=self.shipped)
            case _:
                return Done("shipped")

    @step
    async def shipped(self, ctx: Context[Order]) -> Outcome[str]:
        return Done("shipped")

    @step(retry=Backoff(max_attempts=2, base=timedelta(seconds=1)))
    async def refund(self, ctx: Context[Order]) -> Outcome[str]:
        return self._undo(ctx)

    @step(retry=Backoff(max_attempts=2, base=timedelta(seconds=1)))
    async def release(self, ctx: Context[Order]) -> Outcome[str]:
        return self._undo(ctx)

    def _undo(self, ctx: Context[Order]) -> Outcome[str]:
        if ctx.state.bad_undo == ctx.step:
            raise RuntimeError(f"{ctx.step} is impossible")
        return Done("undone")


class Parcel(Machine[Order, str]):
    """A child with an undo step, which waits after it."""

    @step(undo="unload")
    async def load(self, ctx: Context[Order]) -> Outcome[str]:
        return Await("deliver", then=self.deliver)

    @step
    async def deliver(self, ctx: Context[Order]) -> Outcome[str]:
        return Done("delivered")

    @step
    async def unload(self, ctx: Context[Order]) -> Outcome[str]:
        return Done("unloaded")


class Polite(Machine[Order, str]):
    """Its waiting step reacts to a cancel."""

    @step(undo="clean")
    async def prepare(self, ctx: Context[Order]) -> Outcome[str]:
        return Await("go", then=self.work)

    @step(on_cancel="farewell")
    async def work(self, ctx: Context[Order]) -> Outcome[str]:
        return Done("worked")

    @step
    async def farewell(self, ctx: Context[Order]) -> Outcome[str]:
        match ctx.state.ending:
            case "stop":
                return Stop("stopped by farewell")
            case "back":
                return Await("go", then=self.work)
            case "cancel":
                raise Cancel("really")
            case _:
                return Done("left politely")

    @step
    async def clean(self, ctx: Context[Order]) -> Outcome[str]:
        return Done("clean")


class Asking(Machine[Order, str]):
    """Its undo step awaits the same signal as the step that fails."""

    ok = Signal("ok", str)

    @step(undo="refund")
    async def charge(self, ctx: Context[Order]) -> Outcome[str]:
        return Await(self.ok, then=self.ship)

    @step
    async def ship(self, ctx: Context[Order]) -> Outcome[str]:
        match ctx.state.ending:
            case "stop":
                return Stop("declined")
            case "raise" | "handle":
                raise RuntimeError("declined")
            case "discard":
                raise Discard("declined")
            case "cancel":
                raise Cancel("declined")
            case "unstorable":
                return Done("\0")
            case "refused":
                return Next(self.shipped, Order("refused next"))
            case _:
                return Done("shipped")

    @step
    async def shipped(self, ctx: Context[Order]) -> Outcome[str]:
        return Done("shipped")

    @step
    async def refund(self, ctx: Context[Order]) -> Outcome[str]:
        return Await(self.ok, then=self.refunded)

    @step
    async def refunded(self, ctx: Context[Order]) -> Outcome[str]:
        ctx.state.log = [message.payload for message in ctx.awaited]
        return Done("refunded")

    def handle(self, error: Exception, ctx: Context[Order]) -> Outcome[str]:
        return Stop("declined") if ctx.state.ending == "handle" else super().handle(error, ctx)
