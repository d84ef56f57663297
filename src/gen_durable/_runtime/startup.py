"""Statements of a starting worker: they wait for locks instead of failing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from .._db import locks
from .._db.failures import StatementError
from .._db.plan import Plan
from .._db.pool import Database
from .._db.sqlstates import LOCK_NOT_AVAILABLE

__all__ = ["run_at_start"]

T = TypeVar("T")

_log: Final = logging.getLogger("gen_durable.worker")


async def run_at_start(database: Database, plan: Callable[[], Plan[T]], *, is_transaction: bool = False) -> T:
    """Run a plan. After each lock timeout, log which table is locked by which session, and run it again."""
    while True:
        try:
            return await (database.run_in_transaction if is_transaction else database.run)(plan())
        except StatementError as error:
            if error.sqlstate != LOCK_NOT_AVAILABLE:
                raise
            found = await database.run(locks.describe(error, database.schema))
            _log.warning("start: waiting for %s; retrying", found)
