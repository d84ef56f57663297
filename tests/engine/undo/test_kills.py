"""Undo steps while worker processes are killed and instances are cancelled."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from gen_durable import AsyncClient, Spec, Status, Worker
from tests.engine.undo.ledger_worker import LEDGER, Plan, Trip
from tests.support.settings import FAST
from tests.support.waiting import PATIENCE
from tests.support.worker_process import program

_ROUNDS = 4
_UNBALANCED = """
select g.id, g.status::text, sum(l.change) from gen_durable.gen_durable g join ledger l on l.instance = g.id
 group by g.id having sum(l.change) <> case g.status when 'done' then count(*) else 0 end or g.undo_steps is not null"""
_HAS_BEGUN = "select step_seq > 0 from gen_durable.gen_durable where id = $1"
_RUNS = "select exists (select from gen_durable.gen_durable where status = 'executing' and step = 'unbook')"
_REPEATED = "select instance, step_seq from ledger group by instance, step_seq having count(*) > 1"


@pytest.mark.clause("UNDO-1", "UNDO-2", "UNDO-8", "UNDO-13")
async def test_each_committed_step_is_undone_once_despite_kills(durable_dsn: str, db: Any) -> None:
    await db.execute(LEDGER)
    rng = random.Random(7)
    options = msgspec.json.encode(FAST).decode()
    async with AsyncClient(durable_dsn, settings=FAST) as client:
        specs = [
            Spec(
                Trip,
                Plan(3, ending, is_leader=number % 5 == 0),
                concurrency_key=f"key {number % 3 if number % 2 else number}",
            )
            for number, ending in enumerate(("stop", "done", "wait") * 12)
        ]
        refs = await client.insert_all(specs)
        waiting = refs[2::3]
        rng.shuffle(waiting)
        for _ in range(_ROUNDS):
            async with program("tests.engine.undo.ledger_worker", durable_dsn, options) as process:
                for ref in (waiting.pop(), waiting.pop(), rng.choice(refs)):
                    await _until(db, _HAS_BEGUN, ref.id)
                    await client.cancel(ref, cascade=rng.random() < 0.5)
                await _until(db, _RUNS)
                await process.kill()
        async with Worker([Trip], dsn=durable_dsn, settings=FAST), asyncio.timeout(PATIENCE.total_seconds()):
            while live := await client.list(Trip, status=[s for s in Status if not s.is_terminal]):
                for each in live:
                    if each.status is Status.AWAITING_SIGNAL:
                        await client.cancel(each)
                await asyncio.sleep(0.1)
        records = [record for ref in refs for record in await client.executions(ref)]
        statuses = {each.status for each in await client.list(Trip, limit=1000)}
    assert statuses == {Status.DONE, Status.FAILED, Status.CANCELLED}
    assert ("unbook", "lease") in {(each.step, each.outcome) for each in records}
    assert await db.fetch(_UNBALANCED) == []
    assert await db.fetch(_REPEATED) == []


async def _until(db: Any, query: str, *args: Any) -> None:
    async with asyncio.timeout(PATIENCE.total_seconds()):
        while not await db.fetchval(query, *args):
            await asyncio.sleep(0.01)
