"""Status, records, job states and the pure function agree after any control verbs."""

from __future__ import annotations

import asyncio
from collections import Counter

import asyncpg
import pytest
from hypothesis import HealthCheck, example, given, settings

from gen_durable._db.pool import Database
from gen_durable.config import RecordLevel
from tests.control.random_histories import Happening, History, histories, of

_FAMILY = of(
    "lease 0, schedule_children 0, lease 0, CANCEL 0, RETRY 0, done 2, DELETE 2, RESTORE 2, RETRY 2, lease 0, stop 3,"
    "done 4, lease 0, stop 5, RETRY 0, lease 0, FORCE 0, RETRY 0, lease 0, lose 0, wait 0, lease 0, lose 0, RETRY 0,"
    "lease 0, done 8"
)
_SIGNALS = of(
    "CANCEL 0, insert 0, RETRY 0, FORCE 2, RETRY 0, lease 0, await 0, CANCEL 0, RETRY 0, wait 0, lease 0, stop 2,"
    "RETRY 0, lease 0, CANCEL 3, DELETE 0, insert 0, RESTORE 0, RETRY 0, signal 1, CANCEL 1, insert 0, RETRY 1,"
    "RETRY 0, lease 0, CANCEL 0, next 4, RETRY 0, insert 0"
)


@pytest.mark.clause("JOB-2", "JOB-3", "JOB-5")
@pytest.mark.parametrize(("level", "count"), [("all", 20), ("failures", 8), ("off", 8)])
def test_invariants_hold_in_random_histories(durable_dsn: str, level: RecordLevel, count: int) -> None:
    seen: Counter[str] = Counter()
    with asyncio.Runner() as runner:
        database = runner.run(Database.open(durable_dsn, "gen_durable", size=2))
        db = runner.run(asyncpg.connect(durable_dsn))

        @given(histories())
        @example(_FAMILY)
        @example(_SIGNALS)
        @settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        def hold(happenings: list[Happening]) -> None:
            runner.run(_play(History(database, db, level), happenings, seen))

        try:
            hold()
        finally:
            runner.run(db.close(timeout=5))
            runner.run(database.close())
    everything = {
        "runnable",
        "executing",
        "awaiting_signal",
        "awaiting_children",
        "done",
        "failed",
        "cancelled",
    }
    assert {*everything, "retried", "key taken"} <= seen.keys(), "histories that show something"


async def _play(history: History, happenings: list[Happening], seen: Counter[str]) -> None:
    await history.begin()
    for happening in happenings:
        await history.happen(happening)
    seen.update(history.seen)
