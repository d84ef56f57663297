"""`NatsSink`: events to NATS JetStream."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from .._checks import checked_name
from ..errors import UsageError
from ..events import CloudEvent, Rejected, SinkUnavailable
from .extra import needs

if TYPE_CHECKING:
    from nats.js import JetStreamContext

__all__ = ["NatsSink"]

_BATCH: Final = 100
_SUBJECT: Final = "use tokens between dots, without spaces, control characters, * and >"


class NatsSink:
    """A sink that publishes each event to the JetStream subject `prefix.type` and waits for the acknowledgement.

        Worker([Checkout], sinks=NatsSink("nats://localhost:4222"))

    An event whose type cannot be part of a subject is rejected: empty tokens, spaces, control characters, `*`, `>`.
    The id of the event is the message id, so the stream deduplicates within its window. Needs the extra `nats`.
    """

    batch = _BATCH

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        prefix: str = "events",
        timeout: timedelta = timedelta(seconds=10),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Configure the sink.

        Args:
            servers: one URL, "nats://host:4222", or several.
            prefix: prefix of the subjects. A stream with the subject `prefix.>` must exist.
            timeout: timeout of one batch, until the stream has acknowledged it.
            options: more arguments of `nats.connect`: credentials, TLS.

        Raises:
            UsageError: an argument is invalid, or nats-py is not installed.
        """
        self._nats: Any = needs("nats", "nats")
        self._servers = [servers] if isinstance(servers, str) else list(servers)
        for server in self._servers:
            _check_server(server)
        self._prefix = checked_name(prefix, "the prefix of a subject")
        if not _is_subject(self._prefix):
            raise UsageError(f"{prefix!r} is not a NATS subject", _SUBJECT)
        self._timeout = timeout.total_seconds()
        self._options = dict(options or {})
        self._connection: Any = None
        self._last_error: Exception | None = None
        # Calls of publish overlap; only one of them connects.
        self._connecting = asyncio.Lock()

    def __repr__(self) -> str:
        return f"NatsSink(prefix={self._prefix!r})"

    async def publish(self, events: Sequence[CloudEvent]) -> None:
        """Publish these events; see `Sink.publish`."""
        for event in events:  # before anything is sent: the dispatcher splits a batch with a bad event
            if not _is_subject(event.type):
                raise Rejected(f"the type {event.type!r} cannot be part of a NATS subject; {_SUBJECT}")
        async with asyncio.timeout(self._timeout):
            stream = await self._stream()
            for event in events:
                await stream.publish(
                    f"{self._prefix}.{event.type}",
                    msgspec.json.encode(event.structured()),
                    headers={"Nats-Msg-Id": event.id, "content-type": "application/cloudevents+json"},
                )

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def _stream(self) -> JetStreamContext:
        async with self._connecting:
            if self._connection is None or self._connection.is_closed:
                try:
                    self._connection = await self._nats.connect(self._servers, **self._connecting_options())
                except (self._nats.errors.Error, OSError) as error:
                    cause = self._last_error or error
                    raise SinkUnavailable(f"NATS: {type(cause).__name__}: {cause}") from error
        stream: JetStreamContext = self._connection.jetstream()
        return stream

    def _connecting_options(self) -> dict[str, Any]:
        async def note(error: Exception) -> None:
            self._last_error = error

        self._last_error = None
        return {
            # Two immediate attempts per server; the dispatcher retries with back-off.
            "allow_reconnect": False,
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": 0,
            "connect_timeout": self._timeout,
            # By default nats-py logs every error with a traceback.
            "error_cb": note,
            **self._options,
        }


def _is_subject(text: str) -> bool:
    """Return whether a text consists of valid tokens. A line break would end the protocol command."""
    return all(text.split(".")) and not any(
        character in "*>" or character.isspace() or not character.isprintable() for character in text
    )


def _check_server(url: str) -> None:
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        is_read = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_read = False
    if not is_read:
        # Do not show the URL: it may contain a password or a token.
        raise UsageError(
            "the URL of a NATS server cannot be read",
            "give nats://user:password@host:4222, special characters of the password percent-encoded",
        )
