"""A database with a million instances, for measurements of the dashboard."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from pathlib import Path
from typing import Final

from docs.screenshots.shop import MACHINES, SCHEDULES
from gen_durable import RateLimit, Settings, Worker
from gen_durable._db.connector import connect
from gen_durable._db.plan import in_schema

__all__ = ["INSTANCES", "LARGE", "is_populated", "populate"]

INSTANCES: Final = 1_000_000
LARGE: Final = 1_000_001
"""The instance with thousands of children and executions."""

_SQL: Final = Path(__file__).with_suffix(".sql")
_STEP: Final = re.compile(r"^-- step: (.+)\n", re.MULTILINE)
_LAST_TABLE: Final = "backlog"
# These read the instances, and not each other.
_PARALLEL: Final = ("executions", "signals, audit, outbox, items")


async def is_populated(dsn: str, schema: str) -> bool:
    """Whether `populate` has filled this schema completely."""
    conn = await connect(dsn)
    try:
        if await conn.fetchval("select to_regclass($1)", f'"{schema}".{_LAST_TABLE}') is None:
            return False
        return bool(
            await conn.fetchval(
                in_schema("select exists (select from gen_durable.backlog b where b.is_kept)", schema)
            )
            and await conn.fetchval(
                in_schema("select max(g.id) > $1 from gen_durable.gen_durable g", schema), LARGE
            )
        )
    finally:
        await conn.close()


async def populate(dsn: str, schema: str) -> None:
    """Install the schema anew and fill it. Takes about two minutes on two cores."""
    await _execute(dsn, f'drop schema if exists "{schema}" cascade')
    limits = [RateLimit("crm", 1000, burst=1000)]
    # It registers its machines, schedules and limits.
    async with Worker(
        MACHINES,
        dsn=dsn,
        settings=Settings(schema=schema),
        queues={"none": 1},
        limits=limits,
        schedules=SCHEDULES,
    ):
        pass
    _, *parts = _STEP.split(_SQL.read_text(encoding="utf-8"))
    steps = {title: in_schema(text, schema) for title, text in zip(parts[::2], parts[1::2], strict=True)}
    together = [(title, steps.pop(title)) for title in _PARALLEL]
    for title, text in steps.items():
        await _step(dsn, title, text)
        if title == "the large instance":
            async with asyncio.TaskGroup() as group:
                for one in together:
                    group.create_task(_step(dsn, *one))
    await _step(dsn, "vacuum", "vacuum (analyze)", "checkpoint")


async def _step(dsn: str, title: str, *texts: str) -> None:
    began = time.monotonic()
    for text in texts:
        await _execute(dsn, text)
    print(f"{title}: {time.monotonic() - began:.0f} s", file=sys.stderr)


async def _execute(dsn: str, text: str) -> None:
    conn = await connect(dsn)
    try:
        await conn.execute(
            "set synchronous_commit = off; set work_mem = '256MB'; set maintenance_work_mem = '512MB'"
        )
        await conn.execute(text)
    finally:
        await conn.close()
