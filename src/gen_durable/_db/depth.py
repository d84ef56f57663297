"""How much waits in each queue."""

from __future__ import annotations

from typing import Final

from ..instance import QueueDepth
from .plan import Plan, statements

__all__ = ["depths"]

_SQL = statements("depth.sql")
# Counted in a few milliseconds; whoever has more waiting than this needs no exact figure.
_MOST: Final = 10_000


def depths() -> Plan[list[QueueDepth]]:
    """Every queue that has something in it."""
    rows = yield _SQL["depths"](most=_MOST)
    return [
        QueueDepth(row["queue"], row["due"], row["scheduled"], row["gated"], row["executing"], row["oldest"])
        for row in rows
    ]
