"""Store the answers of changes that were sent with an Idempotency-Key."""

from __future__ import annotations

from datetime import datetime

import msgspec

from .plan import Plan, statements

__all__ = ["Answered", "claim", "store"]

_SQL = statements("requests.sql")


class Answered(msgspec.Struct, frozen=True):
    """An earlier request with the same key."""

    answer: str
    """JSON."""
    is_same: bool
    """Whether it had the same method, path and body."""
    answered_at: datetime


def claim(actor: str, key: str, digest: bytes) -> Plan[Answered | None]:
    """Claim a key for a request; return the earlier request that has it, or `None` if there is none.

    Run it first in the transaction of the change. It waits while another transaction has claimed the key.
    """
    while not (yield _SQL["claim"](actor=actor, key=key, digest=digest)):
        # No row: the collector has deleted it since.
        for row in (yield _SQL["answered"](actor=actor, key=key, digest=digest)):
            return Answered(row["answer"], row["is_same"], row["answered_at"])
    return None


def store(actor: str, key: str, answer: str) -> Plan[None]:
    """Store the answer of a claimed request; run it last in the transaction."""
    yield _SQL["store"](actor=actor, key=key, answer=answer)
