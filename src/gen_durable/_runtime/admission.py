"""Move rows that cannot start away from the head of the queue, so that picks reach the rows after them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from .._db import admission
from .._db import pick as picks
from .._db.failures import StatementError
from .._db.pool import Database
from .._db.sqlstates import LOCK_NOT_AVAILABLE
from ..telemetry import ConcurrencyContended, RateLimitThrottled, RateLimitUnknown, Telemetry

__all__ = ["Admission"]


class Admission:
    """Gates all rows of busy concurrency keys, and defers all rows of empty buckets, in chunks."""

    def __init__(
        self,
        database: Database,
        gates: Database,
        telemetry: Telemetry,
        on_rows_deferred: Callable[[int], None],
    ) -> None:
        self._database = database
        # A pool with a short lock_timeout.
        self._gates = gates
        self._telemetry = telemetry
        self._on_rows_deferred = on_rows_deferred

    async def gate(self, denied: list[picks.Denied]) -> int:
        """Gate the rows of these keys. Returns for how many keys no row was gated: their first row still blocks."""
        gated: Counter[str] = Counter()
        keys = {row.concurrency_key for row in denied}
        while keys:
            counts = await self._gated(sorted(keys))
            gated += counts
            keys = admission.with_more_rows(counts)
        self._on_rows_deferred(gated.total())
        for row in denied:
            self._telemetry.emit(
                ConcurrencyContended(
                    count=max(1, gated[row.concurrency_key]),
                    id=row.id,
                    fsm=row.fsm,
                    concurrency_key=row.concurrency_key,
                )
            )
        return sum(not gated[row.concurrency_key] for row in denied)

    async def defer_throttled(
        self, throttled: list[picks.Throttled], machines: picks.Machines | None
    ) -> None:
        """Set the rows of these buckets to the times at which their tokens are available."""
        deferred, left = 0, throttled
        while left:
            counts = await self._database.run_in_transaction(admission.defer_throttled(left, machines))
            deferred += counts.total()
            keys = admission.with_more_rows(counts)
            left = [one for one in left if one.key in keys]
        self._on_rows_deferred(deferred)
        for one in throttled:
            self._telemetry.emit(_throttled(one))

    async def _gated(self, keys: list[str]) -> Counter[str]:
        """Gate one chunk of rows per key. Returns how many, by key.

        A key whose holder row is locked by another transaction does not block the other keys.
        """
        try:
            return await self._gates.run_in_transaction(admission.gate(keys))
        except StatementError as error:
            if error.sqlstate != LOCK_NOT_AVAILABLE:
                raise
        if len(keys) == 1:
            return await self._gates.run_in_transaction(admission.gate(keys, wait_for_holders=False))
        counts: Counter[str] = Counter()
        for key in keys:
            counts += await self._gated([key])
        return counts


def _throttled(one: picks.Throttled) -> RateLimitThrottled | RateLimitUnknown:
    if one.is_known:
        return RateLimitThrottled(wanted=one.wanted, granted=one.granted, key=one.key, queue=one.queue)
    limit = one.key.partition(":")[0]
    return RateLimitUnknown(count=one.wanted, key=one.key, limit=limit, fsm=one.fsm, step=one.step)
