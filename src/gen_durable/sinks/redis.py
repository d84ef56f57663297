"""`RedisSink`: events to a Redis stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import msgspec

from .._checks import checked_name
from ..errors import UsageError
from ..events import CloudEvent, SinkUnavailable
from .extra import needs

if TYPE_CHECKING:
    from redis.asyncio import Redis

__all__ = ["RedisSink"]

_BATCH: Final = 100


class RedisSink:
    """A sink that appends events to a Redis stream, a batch in one transaction.

        Worker([Checkout], sinks=RedisSink("redis://localhost:6379/0", stream="orders"))

    The fields of an entry are `id`, `type` and `event` (JSON). Needs the extra `redis`.
    """

    batch = _BATCH

    def __init__(
        self,
        url: str,
        *,
        stream: str = "events",
        most: int | None = None,
        timeout: timedelta = timedelta(seconds=10),
    ) -> None:
        """Configure the sink.

        Args:
            url: for example "redis://host:6379/0".
            stream: the key of the stream.
            most: approximate maximum length of the stream (MAXLEN); default: no maximum.
            timeout: timeout of one batch.

        Raises:
            UsageError: an argument is invalid, or redis-py is not installed.
        """
        self._redis: Any = needs("redis.asyncio", "redis")
        try:
            self._redis.connection.parse_url(url)
        except (ValueError, TypeError):
            # The message of redis-py may contain a part of the URL, and so the password.
            raise UsageError(
                "the URL of a Redis sink cannot be read",
                "give redis://user:password@host:6379/0, special characters of the password percent-encoded",
            ) from None
        self._url = url
        self._stream = checked_name(stream, "the name of a stream")
        self._most = most
        self._timeout = timeout.total_seconds()
        self._connection: Redis | None = None

    def __repr__(self) -> str:
        return f"RedisSink(stream={self._stream!r})"

    async def publish(self, events: Sequence[CloudEvent]) -> None:
        """Append these events; see `Sink.publish`."""
        if self._connection is None:
            self._connection = self._redis.from_url(self._url)
        try:
            async with asyncio.timeout(self._timeout), self._connection.pipeline(transaction=True) as batch:
                for event in events:
                    batch.xadd(
                        self._stream,
                        {
                            "id": event.id,
                            "type": event.type,
                            "event": msgspec.json.encode(event.structured()),
                        },
                        maxlen=self._most,
                    )
                await batch.execute()
        except self._redis.ConnectionError as error:
            raise SinkUnavailable(f"Redis: {type(error).__name__}: {error}") from error

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.aclose()
            self._connection = None
