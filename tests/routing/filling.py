"""Fast insertion of many rows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

# The other indexes contain none of these rows.
_LATE: Final = ("gen_durable_machine", "gen_durable_pick")


@asynccontextmanager
async def indexed_late(connection: Any) -> AsyncIterator[None]:
    """Drop the indexes, insert the rows, and build the indexes at the end; write no WAL."""
    await connection.execute("alter table gen_durable.gen_durable set unlogged")
    rows = await connection.fetch("select indexdef from pg_indexes where indexname = any ($1)", list(_LATE))
    assert len(rows) == len(_LATE)
    await connection.execute(f"drop index {', '.join(f'gen_durable.{name}' for name in _LATE)}")
    await connection.execute("alter table gen_durable.gen_durable drop constraint gen_durable_pkey")
    yield
    # Small, so that the plan merges sorted runs instead of sorting all rows.
    await connection.execute("set maintenance_work_mem = '8MB'")
    await connection.execute(
        "alter table gen_durable.gen_durable add constraint gen_durable_pkey primary key (id)"
    )
    for row in rows:
        await connection.execute(row["indexdef"])
