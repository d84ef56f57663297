"""What is sent to a live instance, and what lies in its inbox."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Generic, overload

import msgspec

from ._checks import checked_name
from ._typing import PayloadT
from .errors import OptionError

__all__ = ["Inbox", "Message", "Signal", "signal_name"]


class Signal(Generic[PayloadT]):
    """A kind of signal: its name for senders, and the type of what it carries.

    A machine declares those that it awaits as class attributes; several machines may share one of a module.

        payment = Signal("payment_confirmed", Payment)
        withdrawn = Signal("withdrawn")                     # carries nothing

    Senders in other languages know only the name, so it is spelt out and not derived from the attribute.
    """

    __slots__ = ("name", "payload_type")
    name: str
    payload_type: Any

    @overload
    def __init__(self: Signal[None], name: str) -> None: ...
    @overload
    def __init__(self, name: str, payload_type: type[PayloadT]) -> None: ...
    def __init__(self, name: str, payload_type: Any = None) -> None:
        self.name = checked_name(name, "the name of a signal", OptionError)
        self.payload_type = payload_type

    def __repr__(self) -> str:
        if self.payload_type is None:
            return f"Signal({self.name!r})"
        return f"Signal({self.name!r}, {getattr(self.payload_type, '__name__', self.payload_type)})"


def signal_name(signal: Signal[Any] | str) -> str:
    """Find the name of a signal that was given by reference or by name."""
    return signal if isinstance(signal, str) else signal.name


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One signal that arrived and has not been consumed."""

    id: int
    name: str
    payload: Any
    sent_at: datetime


class Inbox:
    """Messages, oldest first. An empty one is false."""

    __slots__ = ("_messages",)

    def __init__(self, messages: Sequence[Message] = ()) -> None:
        self._messages = tuple(messages)

    @overload
    def get(self, signal: Signal[PayloadT], /) -> PayloadT | None: ...
    @overload
    def get(self, signal: str, /) -> Any | None: ...
    def get(self, signal: Signal[Any] | str, /) -> Any | None:
        """Give the payload of the oldest message of this signal; `None` when none came.

        One that carries nothing answers `None` either way: there, ask `signal in ctx.awaited`.
        """
        name = signal_name(signal)
        return next((message.payload for message in self._messages if message.name == name), None)

    @overload
    def all(self, signal: Signal[PayloadT], /) -> list[PayloadT]: ...
    @overload
    def all(self, signal: str, /) -> list[Any]: ...
    def all(self, signal: Signal[Any] | str, /) -> list[Any]:
        """Give the payloads of all messages of this signal, oldest first."""
        name = signal_name(signal)
        return [message.payload for message in self._messages if message.name == name]

    # Were this a Sequence[Message], checkers would declare `self.payment in ctx.awaited` to be always false.
    def __contains__(self, signal: Signal[Any] | str) -> bool:
        name = signal_name(signal)
        return any(message.name == name for message in self._messages)

    def __getitem__(self, index: int) -> Message:
        return self._messages[index]

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    def __repr__(self) -> str:
        return f"Inbox({list(self._messages)!r})"
