"""`Stream` and its items: values that a step publishes while it runs."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Generic, overload

import msgspec

from ._checks import checked_name
from ._typing import ItemT
from .errors import OptionError, UsageError

__all__ = ["Stream", "StreamItem", "stream_of"]


class Stream(Generic[ItemT]):
    """A stream that the steps of an instance publish to: its name, and the type of its items.

        class Chat(Machine[Conversation]):
            tokens = Stream("tokens", str)

            @step(initial=True)
            async def answer(self, ctx: Context[Conversation]) -> Outcome:
                async for token in model.answer(ctx.state.question):
                    await ctx.publish(self.tokens, token)
                return Done()

        async for item in client.stream(chat, Chat.tokens):
            print(item.value, end="")

    Machines declare streams as class attributes; several machines may share one. The name is explicit, because readers
    in other languages and SQL use it.

    Args:
        name: the name, 1 to 255 bytes.
        item_type: the type of the items; default: any JSON data.
    """

    __slots__ = ("item_type", "name")
    name: str
    item_type: Any

    @overload
    def __init__(self: Stream[Any], name: str) -> None: ...
    @overload
    def __init__(self, name: str, item_type: type[ItemT]) -> None: ...
    def __init__(self, name: str, item_type: Any = Any) -> None:
        self.name = checked_name(name, "the name of a stream", OptionError)
        self.item_type = item_type

    def __repr__(self) -> str:
        if self.item_type is Any:
            return f"Stream({self.name!r})"
        return f"Stream({self.name!r}, {getattr(self.item_type, '__name__', self.item_type)})"


def stream_of(stream: Stream[ItemT] | str) -> Stream[ItemT]:
    """Return a stream given as `Stream`, or by name; its items are then any JSON data."""
    if isinstance(stream, Stream):
        return stream
    if isinstance(stream, str):
        return Stream(checked_name(stream, "the name of a stream"))
    raise UsageError(
        f"a value of type {type(stream).__name__} is not a stream",
        'give a declared Stream or its name: Chat.tokens, or "tokens"',
    )


class StreamItem(msgspec.Struct, Generic[ItemT], frozen=True, kw_only=True):
    """One item of a stream."""

    position: int
    """Its position in the stream, which grows; `after=` continues behind it."""
    value: ItemT
    """What the step published."""
    step: str
    """The step that published it."""
    step_seq: int
    """The number of the transition that the step worked on."""
    attempt: int
    """How many executions of the step were retried or lost before the one that published it; 0 for the first."""
    execution: int
    """The number of the execution that published it. It grows with every attempt at every step of the instance."""
    created_at: datetime
    """When it was stored."""
