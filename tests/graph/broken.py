"""Broken machines as source, and the findings of `check` for each: code and step."""

from __future__ import annotations

from typing import Final

__all__ = ["BROKEN", "HEADER"]

HEADER: Final = """\
from __future__ import annotations
from datetime import timedelta
from typing import Any
from gen_durable import *

class Child(Machine[int, None], name="child"):
    @step
    async def only(self, ctx): return Done(None)

"""

BROKEN: Final[dict[str, tuple[str, list[tuple[str, str | None]]]]] = {
    "misspelled reference": (
        """
class M(Machine[int, None]):
    @step
    async def first(self, ctx): return Next(self.secnod)
    @step
    async def second(self, ctx): return Done(None)
""",
        [("step.unknown", "first"), ("step.unreachable", "second")],
    ),
    "misspelled name": (
        """
class M(Machine[int, None]):
    @step
    async def first(self, ctx):
        if ctx.state: return Next("secnod")
        return Next("second")
    @step
    async def second(self, ctx): return Done(None)
""",
        [("step.unknown", "first")],
    ),
    "method that is not a step": (
        """
class M(Machine[int, None]):
    @step
    async def first(self, ctx):
        if ctx.state: return Await(then=self.second, timeout=timedelta(1))
        return Done(None)
    async def second(self, ctx): return Done(None)
""",
        [("step.unknown", "first")],
    ),
    "unknown step after children": (
        """
class M(Machine[int, None]):
    @step
    async def first(self, ctx):
        if not ctx.state: return Done(None)
        return ScheduleChildren([Spec(Child, 1)], then=self.join)
""",
        [("step.unknown", "first")],
    ),
    "unknown step in a helper": (
        """
class M(Machine[int, None]):
    @step
    async def first(self, ctx): return self._decide(ctx)
    def _decide(self, ctx):
        return Next(self.gone) if ctx.state else Done(None)
""",
        [("step.unknown", "first")],
    ),
    "unknown step in handle": (
        """
class M(Machine[int, None]):
    @step
    async def first(self, ctx): return Done(None)
    def handle(self, error, ctx): return Next(self.repair)
""",
        [("step.unknown", "handle")],
    ),
    "unknown step in to=": (
        """
class M(Machine[int, None]):
    @step(to=["gone"])
    async def first(self, ctx): return Next(ctx.state)
""",
        [("step.unknown", None)],
    ),
    "target outside to=": (
        """
class M(Machine[int, None]):
    @step(to=["second"])
    async def first(self, ctx): return Next(self.third) if ctx.state else Next(self.second)
    @step
    async def second(self, ctx): return Done(None)
    @step
    async def third(self, ctx): return Done(None)
""",
        [("step.refused", "first")],
    ),
    "unreachable step": (
        """
class M(Machine[int, None]):
    @step
    async def first(self, ctx): return Done(None)
    @step
    async def second(self, ctx): return Done(None)
""",
        [("step.unreachable", "second")],
    ),
    "unreachable island": (
        """
class M(Machine[int, None]):
    @step
    async def first(self, ctx): return Done(None)
    @step
    async def second(self, ctx): return Next(self.third) if ctx.state else Done(None)
    @step
    async def third(self, ctx): return Next(self.second)
""",
        [("step.unreachable", "second"), ("step.unreachable", "third")],
    ),
    "initial step in the middle": (
        """
class M(Machine[int, None]):
    @step
    async def prepare(self, ctx): return Next(self.work)
    @step(initial=True)
    async def work(self, ctx): return Done(None)
""",
        [("step.unreachable", "prepare")],
    ),
    "no end after a wait": (
        """
class M(Machine[int, None]):
    ping = Signal("ping")
    @step
    async def listen(self, ctx): return Await(self.ping, then=self.answer)
    @step
    async def answer(self, ctx): return Next(self.listen)
""",
        [("step.no_end", "listen")],
    ),
    "no outcome": (
        """
class M(Machine[int, None]):
    @step
    async def first(self, ctx): return Next(self.second)
    @step
    async def second(self, ctx):
        ctx.state += 1
""",
        [("step.no_end", "second")],
    ),
    "busy loop of one step": (
        """
class M(Machine[int, None]):
    @step
    async def spin(self, ctx):
        ctx.state += 1
        return Next(self.spin)
""",
        [("loop.busy", "spin")],
    ),
    "busy loop of two steps behind a path": (
        """
class M(Machine[int, None], retry=Backoff(max_attempts=3)):
    @step
    async def first(self, ctx): return Next(self.ping) if ctx.state else Done(None)
    @step
    async def ping(self, ctx): return Next(self.pong)
    @step
    async def pong(self, ctx): return Next(self.ping)
""",
        [("loop.busy", "ping")],
    ),
    "endless retry": (
        """
class M(Machine[int, None]):
    @step
    async def first(self, ctx): return Retry()
""",
        [("loop.busy", "first")],
    ),
    "busy loop with delays and timeouts of zero": (
        """
class M(Machine[int, None]):
    @step
    async def first(self, ctx): return Next(self.second, delay=timedelta(0))
    @step
    async def second(self, ctx):
        return Await(then=self.first, timeout=timedelta()) if ctx.state else Retry(timedelta(seconds=0))
""",
        [("loop.busy", "first")],
    ),
    "busy loop of an undo step": (
        """
class M(Machine[int, None]):
    @step(undo="unbook")
    async def book(self, ctx): return Next(self.end)
    @step
    async def end(self, ctx): return Done(None)
    @step
    async def unbook(self, ctx): return Next(self.unbook)
""",
        [("loop.busy", "unbook")],
    ),
    "undo loop that waits forever": (
        """
class M(Machine[int, None]):
    ping = Signal("ping")
    @step(undo="ask")
    async def book(self, ctx): return Next(self.end)
    @step
    async def end(self, ctx): return Done(None)
    @step
    async def ask(self, ctx): return Await(self.ping, then=self.check)
    @step
    async def check(self, ctx): return Next(self.ask)
""",
        [("step.no_end", "ask")],
    ),
    "undo step that only fails": (
        """
class M(Machine[int, None]):
    @step(undo="unbook")
    async def book(self, ctx): return Next(self.end)
    @step
    async def end(self, ctx): return Done(None)
    @step
    async def unbook(self, ctx): return Next(self.give_up)
    @step
    async def give_up(self, ctx): return Stop("no")
""",
        [("step.no_end", "unbook")],
    ),
    "undeclared signal of an await with an unknown step": (
        """
class M(Machine[int, None]):
    paid = Signal("paid", int)
    @step
    async def first(self, ctx): return Await("payd", then=self.gone)
""",
        [("signal.undeclared", "first"), ("step.unknown", "first")],
    ),
    "undeclared stream by name": (
        """
class M(Machine[int, None]):
    tokens = Stream("tokens", str)
    @step
    async def first(self, ctx):
        await ctx.publish(self.tokens, "a")
        await ctx.publish("tokns", "b")
        return Done(None)
""",
        [("stream.undeclared", "first")],
    ),
    "undeclared stream in a helper": (
        """
OTHER = Stream("other", str)
class M(Machine[int, None]):
    tokens = Stream("tokens", str)
    @step
    def first(self, ctx):
        self.say(ctx)
        return Done(None)
    def say(self, ctx):
        ctx.close_stream_sync(OTHER)
""",
        [("stream.undeclared", "first")],
    ),
    "signal attribute that does not exist": (
        """
class M(Machine[int, None]):
    paid = Signal("paid", int)
    @step
    async def first(self, ctx): return Await(self.payd, then=self.second)
    @step
    async def second(self, ctx): return Done(None)
""",
        [("signal.undeclared", "first")],
    ),
    "undeclared signal by name": (
        """
class M(Machine[int, None]):
    paid = Signal("paid", int)
    @step
    async def first(self, ctx): return Await("payd", then=self.second)
    @step
    async def second(self, ctx): return Done(None)
""",
        [("signal.undeclared", "first")],
    ),
    "signal declared elsewhere": (
        """
PAID = Signal("paid", int)
class M(Machine[int, None]):
    @step
    async def first(self, ctx): return Await(PAID, then=self.second)
    @step
    async def second(self, ctx): return Done(None)
""",
        [("signal.undeclared", "first")],
    ),
    "state that is not JSON": (
        """
class Socket: ...
class M(Machine[Socket, None]):
    @step
    async def first(self, ctx): return Done(None)
""",
        [("state.unstorable", None)],
    ),
    "state of an undefined type": (
        """
import msgspec
class Order(msgspec.Struct):
    customer: Customer
class M(Machine[Order, None]):
    @step
    async def first(self, ctx): return Done(None)
""",
        [("state.unstorable", None)],
    ),
    "calls without await": (
        """
class M(Machine[int, None]):
    lines = Stream("lines", str)
    @step
    async def first(self, ctx):
        ctx.publish(self.lines, "a")
        ctx.checkpoint(1)
        await ctx.publish(self.lines, "b")
        return Next(self.second)
    @step
    def second(self, ctx: Context[int]):
        ctx.publish_sync(self.lines, "a")
        ctx.close_stream(self.lines)
        return self.end(ctx)
    def end(self, context: Context[int]):
        context.publish(self.lines, "c")
        return Done(None)
    async def handle(self, error, ctx):
        ctx.checkpoint(2)
        return Stop("no")
""",
        [("call.unawaited", step) for step in ("first", "first", "second", "second", "handle")],
    ),
    "job that calls without await": (
        """
class M(Machine[int, None]):
    @step
    async def first(self, ctx): return Done(None)
@job("work")
async def work(count: int, context: Context[int]) -> None:
    context.publish("self", 1)
""",
        [("call.unawaited", "run")],
    ),
}
