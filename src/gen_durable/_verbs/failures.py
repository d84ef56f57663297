"""Failed instances, identified by a fingerprint: machine, step, and the message without its variable parts."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import Final

from .._core.fingerprints import masked
from .._db import dashboard, search
from .._db.plan import Plan, Row

__all__ = ["MOST_GROUPED", "fingerprint_of", "ids_of_fingerprints", "newest_failures"]

MOST_GROUPED: Final = 5000
"""The most failures that have a fingerprint: the newest ones."""


def newest_failures() -> Plan[Sequence[Row]]:
    """Read the instances that failed last, the newest first."""
    ids = yield from search.ids(search.Filter(statuses=["failed"]), MOST_GROUPED, None)
    return (yield from dashboard.newest_failed(ids, MOST_GROUPED))


def fingerprint_of(machine: str, step: str, text: str) -> str:
    """Return the fingerprint of failures at a step whose masked message is `text`."""
    return hashlib.sha256("\0".join((machine, step, text)).encode()).hexdigest()[:12]


def ids_of_fingerprints(wanted: Collection[str]) -> Plan[list[int]]:
    """Read the failed instances that have one of these fingerprints."""
    rows = yield from newest_failures()
    return [
        row["id"] for row in rows if fingerprint_of(row["fsm"], row["step"], masked(row["error"])) in wanted
    ]
