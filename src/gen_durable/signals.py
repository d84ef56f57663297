"""`Signal`, and the `Inbox` of an instance with its messages."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, overload

from ._checks import checked_name
from ._loading import NOT_LOADED, Loader, chunks
from ._typing import PayloadT
from .errors import NotLoadedError, OptionError, UsageError

__all__ = ["Inbox", "Message", "Signal", "end_taking", "mark_taken", "signal_name"]


class Signal(Generic[PayloadT]):
    """A signal that instances can wait for: its name, and the type of its payload.

        class Checkout(Machine[Order]):
            payment = Signal("payment_confirmed", Payment)
            withdrawn = Signal("withdrawn")                     # no payload

        await client.signal("order:42", Checkout.payment, Payment(100))

    Machines declare signals as class attributes; several machines may share one. The name is explicit, because senders
    in other languages and SQL use it.

    Args:
        name: the name, 1 to 255 bytes.
        payload_type: the type of the payload; default: the signal has no payload.
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
    """Return the name of a signal given as `Signal` or by name."""
    if isinstance(signal, str):
        return signal
    if isinstance(signal, Signal):
        return signal.name
    raise UsageError(
        f"a value of type {type(signal).__name__} is not a signal",
        'give a declared Signal or its name: Loan.approved, or "approved"',
    )


class Message:
    """One signal in an inbox."""

    __slots__ = ("_is_taken", "_payload", "id", "name", "sent_at", "size")
    id: int
    name: str
    sent_at: datetime
    size: int
    """Size of the payload in bytes of JSON."""

    def __init__(self, *, id: int, name: str, payload: Any, sent_at: datetime, size: int = 0) -> None:
        self.id = id
        self.name = name
        self.sent_at = sent_at
        self.size = size
        self._payload = payload
        self._is_taken = False

    @property
    def is_loaded(self) -> bool:
        """Whether the payload is loaded. Payloads of awaited signals always are."""
        return self._payload is not NOT_LOADED

    @property
    def payload(self) -> Any:
        """The payload.

        Raises:
            NotLoadedError: it was too large to be fetched with the execution; call `ctx.inbox.load` first.
        """
        if self._payload is NOT_LOADED:
            raise NotLoadedError(
                f"the payload of signal '{self.name}' ({self.id}, {self.size} bytes) is not loaded",
                f"call `await ctx.inbox.load({self.name!r})` first; in a plain def, ctx.inbox.load_sync",
            )
        return self._payload

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return (self.id, self.name, self.sent_at, self._payload) == (
            other.id,
            other.name,
            other.sent_at,
            other._payload,
        )

    def __hash__(self) -> int:
        return hash((self.id, self.name))

    def __repr__(self) -> str:
        return (
            f"Message(id={self.id}, name={self.name!r}, payload={self._payload!r}, sent_at={self.sent_at!r})"
        )


class Inbox:
    """The messages of `ctx.awaited` or `ctx.inbox`, oldest first.

        payment = ctx.awaited.get(self.payment)
        if self.withdrawn in ctx.inbox: ...
        while (note := ctx.inbox.take(self.note)) is not None: ...

    An empty inbox is false. A message that `take` has returned is not in it any more.
    """

    __slots__ = ("_has_ended", "_loader", "_messages", "_places")

    def __init__(self, messages: Sequence[Message] = (), loader: Loader[Any] | None = None) -> None:
        self._messages = tuple(messages)
        self._loader = loader
        # By name, the place of the message taken last: an inbox may have a hundred thousand messages.
        self._places: dict[str, int] = {}
        self._has_ended = False

    async def load(self, *signals: Signal[Any] | str) -> None:
        """Fetch the payloads that are not loaded, of these signals; without arguments, of all."""
        if self._loader is not None:
            for chunk in chunks(self._missing(signals)):
                _fill(chunk, await self._loader.fetch([message.id for message in chunk]))

    def load_sync(self, *signals: Signal[Any] | str) -> None:
        """Do the same as `load` in a plain `def` step."""
        if self._loader is not None:
            for chunk in chunks(self._missing(signals)):
                _fill(
                    chunk, self._loader.fetch_sync([message.id for message in chunk], "ctx.inbox.load_sync")
                )

    def _missing(self, signals: Sequence[Signal[Any] | str]) -> list[Message]:
        names = {signal_name(signal) for signal in signals}
        return [message for message in self if not message.is_loaded and (not names or message.name in names)]

    @overload
    def get(self, signal: Signal[PayloadT], /) -> PayloadT | None: ...
    @overload
    def get(self, signal: str, /) -> Any | None: ...
    def get(self, signal: Signal[Any] | str, /) -> Any | None:
        """Return the payload of the oldest message of this signal; `None` if there is none.

        For a signal without payload, use `signal in ctx.awaited` instead.

        Raises:
            NotLoadedError: the payload is not loaded; call `load` first.
        """
        name = signal_name(signal)
        return next((message.payload for message in self if message.name == name), None)

    @overload
    def take(self, signal: Signal[PayloadT], /) -> PayloadT | None: ...
    @overload
    def take(self, signal: str, /) -> Any | None: ...
    def take(self, signal: Signal[Any] | str, /) -> Any | None:
        """Return the payload of the oldest message of this signal, and consume it; `None` if there is none.

            await ctx.inbox.load(self.note)
            while (note := ctx.inbox.take(self.note)) is not None:
                ctx.state.notes.append(note)

        The message is consumed when the outcome of this step commits as a transition. A `Retry`, an exception or a
        crash consumes nothing: the next attempt receives the message again. For a signal whose payload is or may be
        `None`, check `signal in ctx.inbox` first.

        Raises:
            NotLoadedError: the payload is not loaded; call `load` first.
            UsageError: the argument is neither a `Signal` nor a name, or the step has ended.
        """
        name = signal_name(signal)
        if self._has_ended:
            raise UsageError(
                f"take of signal '{name}' was called after its step had ended: the message would not be consumed",
                "call it before the step returns",
            )
        for place in range(self._places.get(name, 0), len(self._messages)):
            message = self._messages[place]
            if message.name == name and not message._is_taken:  # noqa: SLF001 - shared by ctx.inbox and ctx.awaited
                payload = message.payload
                message._is_taken = True  # noqa: SLF001
                self._places[name] = place
                return payload
        return None

    @overload
    def all(self, signal: Signal[PayloadT], /) -> list[PayloadT]: ...
    @overload
    def all(self, signal: str, /) -> list[Any]: ...
    def all(self, signal: Signal[Any] | str, /) -> list[Any]:
        """Return the payloads of all messages of this signal, oldest first."""
        name = signal_name(signal)
        return [message.payload for message in self if message.name == name]

    # Not a Sequence[Message]: type checkers would report `self.payment in ctx.awaited` as always false.
    def __contains__(self, signal: Signal[Any] | str) -> bool:
        name = signal_name(signal)
        return any(message.name == name for message in self)

    def __getitem__(self, index: int) -> Message:
        return list(self)[index]

    def __iter__(self) -> Iterator[Message]:
        return (message for message in self._messages if not message._is_taken)  # noqa: SLF001 - set by take

    def __len__(self) -> int:
        return sum(not message._is_taken for message in self._messages)  # noqa: SLF001 - set by take

    def __repr__(self) -> str:
        return f"Inbox({list(self)!r})"


def end_taking(inbox: Inbox, awaited: Inbox) -> tuple[int, ...]:
    """Refuse to take messages of a context from now on. Returns the ids of those that `take` has returned."""
    inbox._has_ended = awaited._has_ended = True  # noqa: SLF001
    return tuple(message.id for message in inbox._messages if message._is_taken)  # noqa: SLF001


def mark_taken(inbox: Inbox, ids: Container[int]) -> None:
    """Take the messages with these ids."""
    for message in inbox._messages:  # noqa: SLF001
        if message.id in ids:
            message._is_taken = True  # noqa: SLF001


def _fill(messages: Sequence[Message], payloads: Mapping[int, Any]) -> None:
    for message in messages:
        message._payload = payloads[message.id]  # noqa: SLF001 - filled by its inbox only
