"""Slots and tokens, counted from execution records."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

_STARTS = """
select x.leased_at, coalesce(g.weight, 1) as weight from gen_durable.gen_durable_executions x
  join gen_durable.gen_durable g on g.id = x.job_id
 where g.rate_limit = $1 and x.leased_at is not null order by x.leased_at"""
# An execution with an expired lease is over when it was reaped.
_SPANS = """
select x.leased_at, coalesce(x.finished_at, 'infinity') as finished_at from gen_durable.gen_durable_executions x
  join gen_durable.gen_durable g on g.id = x.job_id
 where g.concurrency_key = $1 and x.leased_at is not null"""


async def check_tokens(db: Any, key: str, *, allowed: int, per: timedelta, burst: int) -> int:
    """Assert that no window has more starts than burst + rate · length; return the number of starts."""
    rows: list[Mapping[str, Any]] = await db.fetch(_STARTS, key)
    rate = allowed / per.total_seconds()
    for place, first in enumerate(rows):
        spent = 0
        for last in rows[place:]:
            spent += last["weight"]
            window = (last["leased_at"] - first["leased_at"]).total_seconds()
            # Allow a microsecond of rounding.
            assert spent <= burst + rate * (window + 1e-6), (spent, window, burst, rate)
    return len(rows)


async def most_at_once(db: Any, key: str) -> int:
    """The largest number of concurrent executions of a key."""
    moments: list[tuple[datetime, int]] = []
    for row in await db.fetch(_SPANS, key):
        moments += [(row["leased_at"], 1), (row["finished_at"], -1)]
    count = most = 0
    # Ends sort before starts at the same time.
    for _, change in sorted(moments):
        count += change
        most = max(most, count)
    return most
