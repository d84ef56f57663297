"""Workers register, and registrations expire."""

from __future__ import annotations

import asyncio
import os
import socket
from datetime import timedelta
from importlib import metadata
from typing import Any

import msgspec
import pytest

from gen_durable import Worker
from gen_durable._db import workers
from gen_durable._db.pool import Database
from tests.operations.rows import count
from tests.support.machines import Order, Plain, Sitter
from tests.support.settings import AN_HOUR, CALM
from tests.support.waiting import happens, holds
from tests.support.worker_rows import WORKER_ROW

ME = msgspec.structs.replace(WORKER_ROW, queues=["a"], fsms=["F"], fsm_versions=[2])


@pytest.mark.clause("OPS-1")
async def test_open_worker_is_registered(client: Any, db: Any, durable_dsn: str) -> None:
    worker = Worker(
        [Plain, Order],
        dsn=durable_dsn,
        settings=CALM,
        queues={"default": 2, "mail": 1},
        prefixes={"billing.": 4},
    )
    async with worker:
        await holds(db, "select count(*) = 1 from gen_durable.workers")
        (seen,) = await client.workers()
        assert (seen.name, seen.host, seen.pid) == (worker.name, socket.gethostname(), os.getpid())
        assert seen.version == metadata.version("gen_durable")
        assert (seen.queues, seen.prefixes) == (("default", "mail"), ("billing.",))
        assert set(seen.machines) == {("Plain", 1), ("Order", 1)}
        assert (seen.is_live, seen.is_draining) == (True, False)
        assert seen.capacities == {"default": 2, "mail": 1, "billing.*": 4}
        assert (seen.capacity, seen.in_flight) == (None, 0)
    assert await client.workers() == []


@pytest.mark.clause("OPS-1")
async def test_draining_worker_is_registered_as_draining(db: Any, durable_dsn: str) -> None:
    machine = Sitter()
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        await worker.insert(machine, "", step=Sitter.deaf)
        await happens(machine.is_there)
        closing = asyncio.get_running_loop().create_task(worker._close())
        await holds(db, "select is_draining from gen_durable.workers")
        machine.may_go.set()
        await closing


@pytest.mark.clause("OPS-2")
async def test_silent_worker_expires_and_is_removed_later(db: Any, database: Database, client: Any) -> None:
    await database.run(workers.announce(ME, timedelta(0)))
    (seen,) = await client.workers()
    assert not seen.is_live
    await db.execute("update gen_durable.workers set expires_at = expires_at - interval '11 minutes'")
    await database.run(workers.announce(workers.WorkerRow(**{**_fields(), "name": "other"}), AN_HOUR))
    assert [each.name for each in await client.workers()] == ["other"]


async def test_renewed_registration_keeps_its_start(db: Any, database: Database) -> None:
    await database.run(workers.announce(ME, AN_HOUR))
    before = await db.fetchrow("select started_at, seen_at from gen_durable.workers")
    await database.run(workers.announce(ME, AN_HOUR))
    after = await db.fetchrow("select started_at, seen_at from gen_durable.workers")
    assert after["started_at"] == before["started_at"]
    assert after["seen_at"] > before["seen_at"]
    await database.run(workers.withdraw("w"))
    assert await count(db, "workers") == 0


@pytest.mark.clause("GC-9")
async def test_worker_without_queues_runs_maintenance(db: Any, durable_dsn: str) -> None:
    await db.execute(
        "insert into gen_durable.gen_durable (fsm, step, status, finished_at)"
        " values ('A', 's', 'done', now() - interval '1 year')"
    )
    settings = msgspec.structs.replace(CALM, gc_interval=timedelta(milliseconds=100))
    async with Worker([], dsn=durable_dsn, settings=settings, queues={}) as worker:
        await worker.insert(Plain, 1)
        await holds(db, "select count(*) = 1 from gen_durable.gen_durable where finished_at is null")
        await holds(db, "select count(*) = 0 from gen_durable.gen_durable where finished_at is not null")
        await holds(db, "select queues = '{}' from gen_durable.workers")


def _fields() -> dict[str, Any]:
    return {name: getattr(ME, name) for name in ME.__struct_fields__}
