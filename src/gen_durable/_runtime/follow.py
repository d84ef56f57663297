"""Read something page by page, and wait for what follows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Protocol, TypeVar

from .._db.failures import StatementError
from .._db.plan import Plan
from .._polling import Pace
from .database_status import DatabaseRetry, DatabaseStatus

__all__ = ["Follow", "follow"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Follow(Protocol[T_co]):
    """Something that is read page by page, until it is over."""

    @property
    def name(self) -> str:
        """What it is, for messages about the database."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether nothing follows."""
        ...

    def plan(self) -> Plan[Iterator[T_co]]:
        """Read the next page, possibly an empty one."""
        ...


async def follow(
    run: Callable[[Plan[Any]], Awaitable[Any]],
    source: Follow[T],
    database_status: DatabaseStatus | None = None,
    *,
    ends_when_empty: bool = False,
) -> AsyncIterator[T]:
    """Yield what a source has, until it is over. Outages are retried; no page is read before the last one is consumed.

    Args:
        run: runs a plan.
        source: what to read.
        database_status: whether the database answers.
        ends_when_empty: end at the first empty page.
    """
    pace, retry = Pace(), DatabaseRetry(source.name, database_status, repair_within=0)
    while not source.is_over:
        try:
            page: Iterator[T] = await run(source.plan())
        except StatementError as error:
            await asyncio.sleep(retry.pause(error))
            continue
        retry.succeeded()
        is_empty = True
        for item in page:
            is_empty = False
            yield item
        if not is_empty:
            pace.reset()
        elif ends_when_empty:
            return
        elif not source.is_over:
            await asyncio.sleep(pace.pause() or 0.0)
