"""Read a stream of an instance page by page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Generic

from .._checks import checked_int
from .._core.stream_cursor import StreamCursor
from .._db import streams
from .._db.plan import Plan
from .._dictionary import did_you_mean
from .._typing import ItemT
from ..errors import UsageError
from ..refs import Target
from ..streams import Stream, StreamItem, stream_of
from .common import definition_of_target, resolve

__all__ = ["StreamFollow", "open_stream"]

# Items that one query of a blocking reader reads.
_PAGE: Final = 2000


def open_stream(
    target: Target, stream: Stream[ItemT] | str, after: StreamItem[Any] | int
) -> Plan[StreamCursor[ItemT]]:
    """Return a cursor of a stream."""
    if isinstance(stream, str):
        _check_declared(stream, target)
    stream = stream_of(stream)
    position = after.position if isinstance(after, StreamItem) else after
    checked_int(position, "after", 0, 2**63 - 1)
    return StreamCursor((yield from resolve(target, f"stream '{stream.name}'")), stream, position)


def _check_declared(name: str, target: Target) -> None:
    """Refuse a name that the machine of a reference does not declare. Of an id or a key, the machine is not known."""
    definition = definition_of_target(target)
    if definition is None or not definition.streams or name in definition.streams:
        return
    raise UsageError(
        f"machine '{definition.name}' declares no stream '{name}'{did_you_mean(name, tuple(definition.streams))}",
        f"give a declared stream ({', '.join(definition.streams)}), or Stream({name!r}) for one that is not declared",
    )


class StreamFollow(Generic[ItemT]):
    """Reads one stream, for clients without an event loop."""

    name = "stream"

    def __init__(self, cursor: StreamCursor[ItemT]) -> None:
        self._cursor = cursor

    @property
    def is_over(self) -> bool:
        return self._cursor.is_over

    def plan(self) -> Plan[Iterator[StreamItem[ItemT]]]:
        rows = yield from streams.read([self._cursor], _PAGE)
        return self._cursor.take([row for _, row in rows])
