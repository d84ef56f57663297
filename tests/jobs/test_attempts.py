"""An ended instance keeps its attempt until a manual retry."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gen_durable import (
    Backoff,
    Cancel,
    Context,
    Discard,
    Done,
    Machine,
    Next,
    Outcome,
    Status,
    Worker,
    job,
    step,
)
from gen_durable._db import lease
from gen_durable._db.pool import Database
from gen_durable.testing import AsyncHarness
from tests.support.settings import AN_HOUR, CALM
from tests.support.waiting import PATIENCE

AT_ONCE = Backoff(max_attempts=3, base=timedelta(0), jitter=0)


@job("attempts.fate.v1", retry=AT_ONCE)
async def fate(kind: str, ctx: Context[str]) -> int:
    match kind:
        case "recovers" if ctx.attempt == 2:
            return ctx.attempt
        case "discards" if ctx.attempt == 1:
            raise Discard("no use")
        case "cancels" if ctx.attempt == 1:
            raise Cancel("not needed")
        case "works":
            return ctx.attempt
    raise ValueError("not yet")


class Late(Machine[int, int]):
    """Its first step fails before it succeeds; its second step ends it."""

    @step(retry=AT_ONCE)
    async def first(self, ctx: Context[int]) -> Outcome[int]:
        if ctx.attempt == 0:
            raise ValueError("not yet")
        return Next(self.second)

    @step
    async def second(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.attempt)


@pytest.mark.clause("OUT-20")
@pytest.mark.parametrize(
    ("kind", "status", "attempt"),
    [
        ("works", Status.DONE, 0),
        ("recovers", Status.DONE, 2),
        ("fails", Status.FAILED, 2),
        ("discards", Status.FAILED, 1),
        ("cancels", Status.CANCELLED, 1),
    ],
)
async def test_ended_instance_keeps_its_attempt(
    durable_dsn: str, kind: str, status: Status, attempt: int
) -> None:
    async with Worker([fate], dsn=durable_dsn, settings=CALM) as worker:
        ended = await worker.wait(await worker.insert(fate, kind), timeout=PATIENCE)
        assert (ended.status, ended.attempt) == (status, attempt)
        if kind == "fails":
            assert ended.error is not None
            assert ended.error.attempt == attempt
        executions = await worker.executions(ended)
        assert executions[-1].step_attempt == attempt


@pytest.mark.clause("OUT-20")
async def test_attempt_counts_the_last_step_only(async_durable: AsyncHarness) -> None:
    ref = await async_durable.insert(Late, 1)
    await async_durable.drain()
    assert async_durable.assert_done(ref) == 0
    found = await async_durable.get(ref)
    assert found is not None
    assert found.attempt == 0


@pytest.mark.clause("OUT-20")
async def test_cancel_keeps_the_attempt_and_a_manual_retry_resets_it(
    async_durable: AsyncHarness, db: Any
) -> None:
    ref = await async_durable.insert(fate, "fails")
    await db.execute("update gen_durable.gen_durable set attempt = 2, eligible_at = now() + $1", AN_HOUR)
    await async_durable.cancel(ref)
    cancelled = await async_durable.get(ref)
    assert cancelled is not None
    assert cancelled.attempt == 2
    await async_durable.retry(ref)
    await async_durable.drain()
    failed = await async_durable.get(ref)
    assert failed is not None
    assert (failed.status, failed.attempt) == (Status.FAILED, 2), "tried three times again"


@pytest.mark.clause("OUT-20")
@pytest.mark.parametrize("ends_as", ["failed", "cancelled", "runnable"])
async def test_reaper_keeps_the_attempt_of_a_poisoned_instance(
    durable_dsn: str, db: Any, ends_as: str
) -> None:
    await db.execute(
        """insert into gen_durable.gen_durable (fsm, step, status, attempt, crash_count, lease_token, lease_expires_at,
             locked_by, execution, cancel_requested_at)
           values ('X', 's', 'executing', 3, 3, 7, now() - interval '1 s', 'w', 4, $1)""",
        await db.fetchval("select now()") if ends_as == "cancelled" else None,
    )
    async with await Database.open(durable_dsn, "gen_durable", size=1) as database:
        await database.run_in_transaction(
            lease.reap(timedelta(milliseconds=1), lease.CrashPolicy(4 if ends_as == "failed" else 20, "all"))
        )
    row = await db.fetchrow("select status::text, attempt from gen_durable.gen_durable")
    assert tuple(row) == (ends_as, 4 if ends_as == "runnable" else 3)
