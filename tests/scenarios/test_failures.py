"""A worker that cannot work says so: at its start, and when its heartbeat breaks."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import pytest

from gen_durable import Context, Done, Machine, Outcome, Worker, step
from gen_durable._db import insert as inserts
from gen_durable._db.failures import StatementError
from gen_durable._runtime import heartbeat
from tests.scenarios.support import FAST, PATIENCE, holds


def _refused(*args: object) -> NoReturn:
    raise StatementError("42501", "permission denied")


class Slow(Machine[float, str]):
    @step
    async def run(self, ctx: Context[float]) -> Outcome[str]:
        await asyncio.sleep(ctx.state)
        return Done("done")


async def test_what_keeps_a_worker_from_starting_is_told(
    durable_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inserts, "register", _refused)
    with pytest.raises(StatementError, match="permission denied"):
        async with Worker([Slow], dsn=durable_dsn, settings=FAST):
            raise AssertionError("it started")


async def test_a_heartbeat_that_breaks_stops_its_worker(
    durable_dsn: str, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would else go on taking work on leases that nobody renews."""
    monkeypatch.setattr(heartbeat, "renew", _refused)
    async with Worker([Slow], dsn=durable_dsn, settings=FAST) as worker:
        ref = await worker.insert(Slow, 0.7)
        with pytest.raises(StatementError, match="permission denied"):
            async with asyncio.timeout(PATIENCE.total_seconds()):
                await worker._until(asyncio.Event())
        await holds(db, "select status = 'done' from gen_durable.gen_durable where id = $1", ref.id)
        late = await worker.insert(Slow, 0.0)
        await asyncio.sleep(0.3)
        assert (
            await db.fetchval("select status::text from gen_durable.gen_durable where id = $1", late.id)
            == "runnable"
        )
