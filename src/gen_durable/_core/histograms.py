"""Histograms of durations: each bucket is twice as wide as the one before it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

__all__ = ["BUCKETS", "bound_of", "quantile"]

BUCKETS: Final = 24
"""The first bucket ends at 1 ms, the last but one at 2 ** 22 ms (70 minutes); the last one has all longer durations."""
_LAST: Final = BUCKETS - 1


def bound_of(bucket: int) -> timedelta:
    """Return the upper bound of a bucket, which belongs to the next one. That of the last bucket is nominal.

    The bucket of a duration is the number of bits of its milliseconds, rounded down.
    """
    return timedelta(milliseconds=1 << bucket)


def quantile(counts: Sequence[int | None], share: float) -> timedelta | None:
    """Estimate the duration that this share of all does not exceed; `None` without durations.

    Durations are taken as spread evenly over their bucket, so the estimate is off by a factor of 2 at most.
    """
    total = sum(count or 0 for count in counts)
    if not total:
        return None
    left = share * total
    for bucket, count in enumerate(counts):
        if count and left <= count:
            low = bound_of(bucket - 1) if bucket else timedelta(0)
            return low + (bound_of(bucket) - low) * (left / count)
        left -= count or 0
    return bound_of(_LAST)
