"""The protocol between a worker and its process pool: JSON messages in frames, never pickles.

Machines and functions are sent as import paths.
"""

from __future__ import annotations

import typing
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID

import msgspec

from ..._core.model import ChildContent, CommitEntry, Execution
from ..._core.settle import Bounds
from ...context import Cancellation
from ...errors import UsageError
from ...outcome import Effect, Sql
from ...progress import Progress
from .import_path import ImportPath, import_path

__all__ = [
    "Answer",
    "Call",
    "Checkpoint",
    "Fetch",
    "FromStep",
    "Hello",
    "Items",
    "Ready",
    "Reply",
    "Report",
    "Request",
    "answer_of",
    "decoded",
    "encoded",
    "entry_of",
]

# Types of Sql arguments that are sent with the name of their type. Others must survive a JSON round trip.
_SCALARS: Final = (
    type(None),
    bool,
    int,
    float,
    str,
    bytes,
    datetime,
    date,
    time_of_day,
    timedelta,
    Decimal,
    UUID,
)
_SCALARS_BY_NAME: Final = {each.__name__: each for each in _SCALARS}


class Hello(msgspec.Struct, frozen=True):
    """The first message to a process: what it has to know."""

    machines: list[tuple[str, int, ImportPath]]
    first: list[tuple[str, int]]
    """Machines to import before it reports `Ready`; it imports the others on demand."""
    bounds: Bounds


class Ready(msgspec.Struct, frozen=True):
    """The reply to `Hello`: the imports succeeded, or an error."""

    error: str | None = None


class Request(msgspec.Struct, frozen=True):
    """Run a step."""

    execution: Execution
    may_chain: bool


class _Effect(msgspec.Struct, frozen=True):
    query: str | None = None
    args: list[tuple[str, Any]] = []
    function: ImportPath | None = None


class Fetch(msgspec.Struct, frozen=True, tag=True):
    """Load content for the running step: the process has no database connection."""

    what: Literal["signals", "children"]
    ids: list[int]


class Checkpoint(msgspec.Struct, frozen=True, tag=True):
    """Store the checkpoint of the running step."""

    text: str


class Report(msgspec.Struct, frozen=True, tag=True):
    """Tell how far the running step is. There is no reply."""

    progress: Progress


class Items(msgspec.Struct, frozen=True, tag=True):
    """Publish items, by stream. There is no reply: while the buffer of the worker is full, it does not read on."""

    items: dict[str, list[str | None]]


class Reply(msgspec.Struct, frozen=True):
    """The reply to a call: what was loaded, or an error."""

    signals: dict[int, str] = {}
    children: dict[int, ChildContent] = {}
    is_lost: bool = False
    """Whether the execution has lost its lease, so that nothing was written."""
    error: str | None = None


class Answer(msgspec.Struct, frozen=True, tag=True):
    """The reply to `Request`: the outcome to commit, and what was logged."""

    entry: dict[str, Any]
    effect: _Effect | None
    raised: str | None
    """What the step raised, if the outcome comes from its handler."""
    logged: list[tuple[int, str]]
    """Level and text of log lines of the engine, for the log of the worker."""


Call: TypeAlias = Fetch | Checkpoint
"""What a running step asks of its worker. The process waits for the `Reply` before its next call."""
FromStep: TypeAlias = Answer | Call | Report | Items
"""What a process sends while it runs a step."""


# Without the execution, which the worker has, and the effect, which is encoded separately.
_HINTS: Final = {
    name: kind
    for name, kind in typing.get_type_hints(CommitEntry).items()
    if name not in ("execution", "effect")
}
_Entry: Final = msgspec.defstruct("_Entry", list(_HINTS.items()), kw_only=True)


def encoded(message: msgspec.Struct) -> bytes:
    """Encode a message as a frame: the length in four bytes, then JSON."""
    text = msgspec.json.encode(message, enc_hook=_encode_hook)
    return len(text).to_bytes(4, "big") + text


def decoded(text: bytes, kind: Any) -> Any:
    """Decode the JSON of a frame."""
    return msgspec.json.decode(text, type=kind, dec_hook=_decode_hook)


def answer_of(entry: CommitEntry, raised: str | None, logged: list[tuple[int, str]]) -> Answer:
    """Build the reply for a commit entry.

    Raises:
        UsageError: the effect cannot be sent to the worker.
    """
    effect = None if entry.effect is None else _encoded_effect(entry.effect)
    return Answer({name: getattr(entry, name) for name in _HINTS}, effect, raised, logged)


def entry_of(answer: Answer, execution: Execution) -> CommitEntry:
    """Rebuild the commit entry from a reply."""
    plain = msgspec.convert(answer.entry, _Entry, strict=False)
    fields = {name: getattr(plain, name) for name in _HINTS}
    effect = None if answer.effect is None else _decoded_effect(answer.effect)
    return CommitEntry(execution=execution, **fields, effect=effect)


def _encoded_effect(effect: Effect) -> _Effect:
    if isinstance(effect, Sql):
        return _Effect(query=effect.query, args=[_argument(value) for value in effect.args])
    module, name = getattr(effect, "__module__", ""), getattr(effect, "__qualname__", "")
    try:
        path = import_path(module, name)
        if path.load() is effect:
            return _Effect(function=path)
    except (UsageError, AttributeError, ImportError):
        pass
    raise UsageError(
        f"the effect {name or type(effect).__name__} cannot be sent from the process of the step to the worker",
        "give Sql(text, *arguments), or an `async def` at the top level of a module",
    )


def _argument(value: Any) -> tuple[str, Any]:
    kind = type(value)
    if kind in _SCALARS:
        return kind.__name__, value
    try:
        if msgspec.json.decode(msgspec.json.encode(value)) == value:
            return "", value
    except (TypeError, ValueError):
        pass
    raise UsageError(
        f"an Sql argument of type {kind.__name__} cannot be sent from the process of the step to the worker",
        "give plain values, and cast them in the statement",
    )


def _decoded_effect(effect: _Effect) -> Effect:
    if effect.query is None:
        assert effect.function is not None  # noqa: S101 - it is one or the other
        found: Effect = effect.function.load()
        return found
    values = (
        value if not kind else msgspec.convert(value, _SCALARS_BY_NAME[kind], strict=False)
        for kind, value in effect.args
    )
    return Sql(effect.query, *values)


def _encode_hook(value: Any) -> Any:
    if isinstance(value, Cancellation):
        return value.is_requested
    raise NotImplementedError


def _decode_hook(kind: type[Any], value: Any) -> Any:
    if kind is Cancellation:
        return Cancellation(is_requested=value)
    raise NotImplementedError
