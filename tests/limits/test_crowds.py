"""Fifty thousand rows that cannot run stand at the head of a queue: what comes behind them runs all the same."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from gen_durable._db import pick
from gen_durable._db.pick import Picked
from gen_durable._db.plan import Plan
from gen_durable._runtime.scheduler import FromQueue
from tests.plans.explain import Explained, Explainer
from tests.plans.statements import LEASES

CROWD: Final = 50_000
MACHINES: Final = (["A", "B", "C"], [1, 1, 1])
INSERT: Final = (
    "insert into gen_durable.gen_durable (fsm, fsm_version, step, queue, eligible_at, concurrency_key, rate_limit)"
    " select $1, $2, 's', 'q', statement_timestamp() - $3 * interval '1 s', $4, $5 from generate_series(1, $6::int)"
)
HOLDER: Final = (
    "insert into gen_durable.gen_durable (fsm, step, queue, status, lease_token, concurrency_key, concurrency_slot)"
    " select 'A', 's', 'q', 'executing', 1, 'busy', slot from generate_series(0, $1 - 1) slot"
)


@pytest.fixture
async def explainer(direct_dsn: str) -> AsyncIterator[Explainer]:
    async with Explainer.open(direct_dsn) as opened:
        # What an older snapshot can see is neither marked nor vacuumed away: none of autovacuum may come between.
        await opened.connection.execute("alter table gen_durable.gen_durable set (autovacuum_enabled = off)")
        yield opened


async def insert(explainer: Explainer, count: int, *, fsm: str = "A", version: int = 1, **given: Any) -> None:
    values = (fsm, version, given.get("age", 0), given.get("key"), given.get("rate_limit"), count)
    await explainer.connection.execute(INSERT, *values)


class Picker:
    """Looks for work as a worker's queue does: what is in the way makes way before the next look."""

    def __init__(self, explainer: Explainer) -> None:
        self._explainer = explainer
        self._source = FromQueue("q")

    async def pick(self, demand: int = 10) -> tuple[Picked, Explained]:
        plan = self._source.pick(MACHINES, demand, demand, 7, "worker", LEASES)
        picked, (explained, *_) = await self._explainer.run(plan)
        return picked, explained

    async def make_way(self, picked: Picked) -> int:
        """All of it, in chunks; how many chunks there were."""
        chunks = 0
        keys = {row.concurrency_key for row in picked.denied}
        while keys:
            keys = pick.unfinished(await self._run(pick.gate(sorted(keys))))
            chunks += 1
        throttled = picked.throttled
        while throttled:
            left = pick.unfinished(await self._run(pick.put_off(throttled, MACHINES)))
            throttled = [one for one in throttled if one.key in left]
            chunks += 1
        return chunks

    async def _run(self, plan: Plan[Any]) -> Any:
        async with self._explainer.connection.transaction():
            result, _ = await self._explainer.run(plan)
        return result


async def alone(explainer: Explainer) -> Explained:
    """What a pick of ten costs in an orderly queue."""
    await insert(explainer, 10, key=None, age=1)
    picked, explained = await Picker(explainer).pick()
    assert len(picked.executions) == 10
    return explained


@pytest.mark.clause("FLOW-15")
@pytest.mark.parametrize("slots", [1, 3])
async def test_rows_of_a_busy_key_make_way(explainer: Explainer, slots: int) -> None:
    orderly = await alone(explainer)
    await explainer.connection.execute("select gen_durable.set_concurrency_limit('busy', $1)", slots)
    await explainer.connection.execute(HOLDER, slots)
    await insert(explainer, CROWD, key="busy", age=60)
    await insert(explainer, 10, key=None, age=30)
    picker = Picker(explainer)
    first, _ = await picker.pick()
    assert not first.executions
    await picker.make_way(first)
    await check_the_way_is_free(explainer, picker, orderly)


async def test_rows_of_an_empty_bucket_make_way(explainer: Explainer) -> None:
    orderly = await alone(explainer)
    await explainer.connection.execute("select gen_durable.set_rate_limit('crm', 1, '1 hour')")
    await insert(explainer, CROWD, rate_limit="crm", age=60)
    await insert(explainer, 10, key=None, age=30)
    picker = Picker(explainer)
    first, _ = await picker.pick()
    assert len(first.executions) == 1
    await picker.make_way(first)
    await check_the_way_is_free(explainer, picker, orderly)


async def check_the_way_is_free(explainer: Explainer, picker: Picker, orderly: Explained) -> None:
    """The second pick takes what stood behind. What the crowd has left in the index is in nobody's way once it is vacuumed."""
    second, explained = await picker.pick()
    assert len(second.executions) == 10
    assert explained.blocks <= CROWD / 20, explained.blocks
    await explainer.connection.execute("vacuum gen_durable.gen_durable")
    await insert(explainer, 10)
    third, explained = await picker.pick()
    assert len(third.executions) == 10
    assert explained.blocks <= 2 * orderly.blocks, (explained.blocks, orderly.blocks)


@pytest.mark.clause("FLOW-15")
@pytest.mark.parametrize("stranger", [("Nobody", 1), ("A", 2)])
async def test_rows_of_a_machine_that_nobody_has_registered_are_passed_by(
    explainer: Explainer, stranger: tuple[str, int]
) -> None:
    orderly = await alone(explainer)
    fsm, version = stranger
    await insert(explainer, CROWD, fsm=fsm, version=version, age=60)
    for name in "ABC":
        await insert(explainer, 10, fsm=name, age=30)
    picker = Picker(explainer)
    first, _ = await picker.pick()
    assert first.is_crowded
    second, explained = await picker.pick()
    assert len(second.executions) == 10
    assert explained.blocks <= 2 * orderly.blocks, (explained.blocks, orderly.blocks)


async def test_an_orderly_queue_is_picked_from_in_the_plain_way(explainer: Explainer) -> None:
    await insert(explainer, 30, fsm="Nobody", age=60)
    await insert(explainer, 20, age=30)
    picker = Picker(explainer)
    first, _ = await picker.pick()
    assert len(first.executions) == 10
    assert first.is_crowded
    await explainer.connection.execute("delete from gen_durable.gen_durable where fsm = 'Nobody'")
    second, _ = await picker.pick()
    assert len(second.executions) == 10
    assert not second.is_crowded
