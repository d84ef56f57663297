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
    """Gates rows of busy concurrency keys, and defers rows of empty buckets, one chunk at a time."""

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
        # Rows that have been set aside and not reported yet.
        self._rows = 0

    async def set_aside(
        self, picked: picks.Picked, machines: picks.Machines | None
    ) -> tuple[int, picks.Passed]:
        """Gate and defer one chunk of the rows that a pick could not lease.

        Returns for how many keys no row was gated, so that their first row still blocks; and the keys and buckets that
        have more rows.
        """
        blocked, keys = await self._gate(picked.denied)
        return blocked, picks.Passed(keys, await self._defer(picked.throttled, machines))

    def finish(self) -> None:
        """Report the rows that were set aside. A vacuum between chunks would leave dead index entries of later ones."""
        if self._rows:
            self._on_rows_deferred(self._rows)
            self._rows = 0

    async def _gate(self, denied: list[picks.Denied]) -> tuple[int, list[str]]:
        if not denied:
            return 0, []
        keys = sorted({row.concurrency_key for row in denied})
        gated = await self._gated(keys)
        self._rows += gated.total()
        for row in denied:
            self._telemetry.emit(
                ConcurrencyContended(
                    count=max(1, gated[row.concurrency_key]),
                    id=row.id,
                    fsm=row.fsm,
                    concurrency_key=row.concurrency_key,
                )
            )
        if admission.may_have_more(gated):
            return 0, keys
        return sum(not gated[row.concurrency_key] for row in denied), []

    async def _defer(self, throttled: list[picks.Throttled], machines: picks.Machines | None) -> list[str]:
        if not throttled:
            return []
        deferred = await self._database.run_in_transaction(admission.defer_throttled(throttled, machines))
        self._rows += deferred.total()
        for one in throttled:
            self._telemetry.emit(_throttled(one))
        return [one.key for one in throttled] if admission.may_have_more(deferred) else []

    async def _gated(self, keys: list[str]) -> Counter[str]:
        """Gate one chunk of rows. Returns how many, by key.

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
