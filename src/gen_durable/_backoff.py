"""Exponential backoff with jitter."""

from __future__ import annotations

import random
from typing import Final

__all__ = ["backoff_seconds"]

# Large enough for every cap in use, small enough that `base * factor ** exponent` stays a float.
_MAX_EXPONENT: Final = 63


def backoff_seconds(
    attempt: int,
    *,
    base: float,
    cap: float,
    factor: float = 2.0,
    jitter: tuple[float, float] = (0.5, 1.0),
) -> float:
    """Seconds to wait after attempt number `attempt`, counted from 0.

    `min(cap, base * factor ** attempt)`, times a random number between the two of `jitter`: processes that failed
    together do not retry together.
    """
    exponent = min(max(attempt, 0), _MAX_EXPONENT)
    return min(cap, base * factor**exponent) * random.uniform(*jitter)
