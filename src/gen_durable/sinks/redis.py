"""Events to a Redis stream."""

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
    """Appends events to a stream, a batch in one transaction: the fields are `id`, `type` and `event` (JSON)."""

    batch = _BATCH

    def __init__(
        self,
        url: str,
        *,
        stream: str = "events",
        most: int | None = None,
        timeout: timedelta = timedelta(seconds=10),
    ) -> None:
        """Say where.

        Args:
            url: "redis://host:6379/0".
            stream: its key.
            most: about how many entries the stream keeps; left out, all.
            timeout: of one batch.
        """
        self._redis: Any = needs("redis.asyncio", "redis")
        try:
            self._redis.connection.parse_url(url)
        except (ValueError, TypeError):
            # Its own words may repeat a part of the URL, which may be the password.
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
        """Give the connection back."""
        if self._connection is not None:
            await self._connection.aclose()
            self._connection = None
