"""Run a statement again after a lost race: a deadlock, a serialization failure or a lock timeout."""

from __future__ import annotations

import random
from typing import Final

from .failures import StatementError, is_race
from .plan import Call, Plan, Rows, statements

__all__ = ["run"]

_SQL = statements("statement_retry.sql")
_LONGEST_PAUSE: Final = 0.2


def run(call: Call, tries: int) -> Plan[Rows]:
    """Run a statement that is its own transaction, at most `tries` times.

    The pauses between tries are random: otherwise two statements that collided would collide again.
    """
    while True:
        tries -= 1
        try:
            return (yield call)
        except StatementError as error:
            if not tries or not is_race(error):
                raise
        yield _SQL["pause"](seconds=random.uniform(0, _LONGEST_PAUSE))
