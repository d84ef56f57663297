"""An execution whose step its worker does not have gives back its tokens."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import msgspec
import pytest

from gen_durable import Context, Done, Machine, Outcome, Worker, step
from gen_durable._core.model import Committed, Execution, Stale
from gen_durable._db.pool import Database
from gen_durable.telemetry import StepMissing
from tests.support.engine_plans import entry, flushed, inserted, new, picked
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, Events, holds

_TOKENS = """
select burst - extract(epoch from greatest(full_at - clock_timestamp(), '0')) / extract(epoch from period / allowed)
  from gen_durable.buckets join gen_durable.limits on name = key where key = 'crm'"""


async def limit(db: Any, allowed: int, period: str, burst: int) -> None:
    await db.execute(
        "select gen_durable.set_rate_limit('crm', $1, $2::text::interval, $3)", allowed, period, burst
    )


async def tokens(db: Any) -> float:
    """The tokens in the bucket."""
    return float(await db.fetchval(_TOKENS))


async def defer(database: Database, *executions: Execution) -> list[Any]:
    return await flushed(database, [entry(one, "defer", step="", delay=timedelta(0)) for one in executions])


@pytest.mark.clause("FLOW-18")
@pytest.mark.parametrize(("weight", "taken"), [(None, 1), (3, 3), (9, 5)])
async def test_deferred_execution_gives_back_its_tokens(
    database: Database, db: Any, weight: int | None, taken: int
) -> None:
    await limit(db, 1, "1 h", 9)
    await inserted(database, new(rate_limit="crm", weight=weight))
    await limit(db, 1, "1 h", 5)
    (execution,) = await picked(database)
    assert await tokens(db) == pytest.approx(5 - taken, abs=0.01)
    (result,) = await defer(database, execution)
    assert isinstance(result, Committed)
    assert await tokens(db) == pytest.approx(5, abs=0.01)


@pytest.mark.clause("FLOW-18")
async def test_bucket_is_never_more_than_full(database: Database, db: Any) -> None:
    """Tokens that a full bucket would have lost in the meantime are not given back."""
    await limit(db, 1, "1 h", 2)
    await inserted(database, new(rate_limit="crm"), new(rate_limit="crm"))
    executions = await picked(database)
    # The pick was 90 minutes ago: one and a half tokens have arrived.
    await db.execute("update gen_durable.gen_durable set leased_at = leased_at - interval '90 min'")
    await db.execute("update gen_durable.limits set updated_at = updated_at - interval '1 day'")
    await db.execute("update gen_durable.buckets set full_at = full_at - interval '90 min'")
    assert await tokens(db) == pytest.approx(1.5, abs=0.01)
    await defer(database, executions[0])
    assert await tokens(db) == pytest.approx(1.5, abs=0.01)
    await db.execute("update gen_durable.gen_durable set leased_at = leased_at + interval '80 min'")
    await defer(database, executions[1])
    assert await tokens(db) == 2


@pytest.mark.clause("FLOW-18")
async def test_tokens_of_a_changed_limit_are_not_given_back(database: Database, db: Any) -> None:
    await limit(db, 1, "1 h", 1)
    await inserted(database, new(rate_limit="crm"))
    (execution,) = await picked(database)
    await limit(db, 1, "2 h", 1)
    await defer(database, execution)
    assert await tokens(db) == pytest.approx(0.5, abs=0.01)


@pytest.mark.clause("FLOW-18")
async def test_tokens_are_given_back_once(database: Database, db: Any) -> None:
    await limit(db, 1, "1 h", 3)
    await inserted(database, new(rate_limit="crm"))
    (execution,) = await picked(database)
    await defer(database, execution)
    (again,) = await picked(database)
    assert await tokens(db) == pytest.approx(2, abs=0.01)
    (result,) = await defer(database, execution)
    assert isinstance(result, Stale)
    assert await tokens(db) == pytest.approx(2, abs=0.01)
    await defer(database, msgspec.structs.replace(again, step_seq=7))
    assert await tokens(db) == pytest.approx(2, abs=0.01)


@pytest.mark.clause("FLOW-18")
async def test_locked_bucket_delays_no_other_outcome(database: Database, db: Any, direct_dsn: str) -> None:
    await limit(db, 1, "1 h", 1)
    await inserted(database, new(rate_limit="crm"), new())
    executions = await picked(database)
    deferred = next(one for one in executions if one.rate_limit)
    other = next(one for one in executions if not one.rate_limit)
    entries = [entry(deferred, "defer", step="", delay=timedelta(0)), entry(other, "done", step="")]
    status = "select status::text from gen_durable.gen_durable where id = $1"
    holder = await asyncpg.connect(direct_dsn)
    try:
        async with holder.transaction():
            await holder.execute("select from gen_durable.buckets for update")
            flushing = asyncio.create_task(flushed(database, entries))
            await holds(db, "select status = 'done' from gen_durable.gen_durable where id = $1", other.id)
            assert await db.fetchval(status, deferred.id) == "executing"
        await flushing
    finally:
        await holder.close()
    assert await db.fetchval(status, deferred.id) == "runnable"
    assert await tokens(db) == 1


class Partial(Machine[int, int], name="call"):
    """A release without the step `call`."""

    @step
    async def begin(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)


class Whole(Partial, name="call"):
    @step
    async def call(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state + 1)


_INSERT = """
select gen_durable.insert('call', '1', step => 'call', version => 1, rate_limit => 'crm')
  from generate_series(1, $1)"""


@pytest.mark.clause("FLOW-18")
async def test_worker_without_the_step_spends_no_tokens(durable_dsn: str, db: Any) -> None:
    """With a token per hour, the row would wait an hour after each pick of this worker."""
    await limit(db, 1, "1 h", 1)
    await db.execute(_INSERT, 1)
    async with Worker([Partial], dsn=durable_dsn, settings=CALM) as worker:
        await Events(worker).wait(StepMissing, count=2)
        async with Worker([Whole], dsn=durable_dsn, settings=CALM) as other:
            assert (await other.wait(1, timeout=PATIENCE)).result == 2


@pytest.mark.clause("FLOW-6", "FLOW-18")
async def test_starts_obey_the_limit_while_others_are_deferred(durable_dsn: str, db: Any) -> None:
    allowed, burst, count = 40, 4, 30
    await limit(db, allowed, "1 s", burst)
    await db.execute(_INSERT, count)
    async with Worker([Partial], dsn=durable_dsn, settings=CALM) as partial:
        await Events(partial).wait(StepMissing, count=burst)
        async with Worker([Whole], dsn=durable_dsn, settings=CALM) as whole:
            await whole.wait_all(list(range(1, count + 1)), timeout=PATIENCE)
    starts = await db.fetch(
        "select leased_at from gen_durable.executions where outcome = 'done' order by leased_at"
    )
    moments = [row["leased_at"].timestamp() for row in starts]
    assert len(moments) == count
    for place, first in enumerate(moments):
        for number, last in enumerate(moments[place:], 1):
            assert number <= burst + allowed * (last - first + 1e-6)
