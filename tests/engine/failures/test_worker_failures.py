"""A worker reports errors at its start, and stops when its heartbeat fails."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import pytest

from gen_durable import Context, Done, Machine, Outcome, Worker, WorkerStoppedError, step
from gen_durable._db import machines
from gen_durable._db.failures import StatementError
from gen_durable._runtime import heartbeat
from tests.support.settings import FAST
from tests.support.waiting import PATIENCE


def _refused(*args: object) -> NoReturn:
    raise StatementError("42501", "permission denied")


class Slow(Machine[float, str]):
    @step
    async def run(self, ctx: Context[float]) -> Outcome[str]:
        await asyncio.sleep(ctx.state)
        return Done("done")


async def test_error_at_the_start_is_raised(durable_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "register", _refused)
    with pytest.raises(StatementError, match="permission denied"):
        async with Worker([Slow], dsn=durable_dsn, settings=FAST):
            raise AssertionError("it started")


async def test_failed_heartbeat_stops_the_worker(
    durable_dsn: str, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would lease rows that nothing renews. Running executions are released."""
    monkeypatch.setattr(heartbeat, "renew", _refused)
    ref = None
    with pytest.raises(WorkerStoppedError, match="permission denied"):
        async with (
            asyncio.timeout(PATIENCE.total_seconds()),
            Worker([Slow], dsn=durable_dsn, settings=FAST) as worker,
        ):
            ref = await worker.insert(Slow, 60.0)
            await asyncio.Event().wait()
    assert ref is not None
    assert (
        await db.fetchval("select status::text from gen_durable.gen_durable where id = $1", ref.id)
        == "runnable"
    )
