"""The ledger: one line per applied effect. It has no constraint, so a repeated effect leaves two lines."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from gen_durable import Context, Sql
from gen_durable._core.model import CommitEntry, CommitResult
from gen_durable._db.commit import Recorder, commit
from gen_durable._db.pool import Database
from gen_durable._runtime import effects
from tests.support.waiting import PATIENCE

LEDGER: Final = (
    "create table if not exists ledger (id bigint generated always as identity, key text, who text)"
)
BOOK: Final = "insert into public.ledger (key, who) values ($1, $2)"
_BUSY: Final = """
select pid from pg_stat_activity
 where datname = current_database() and pid <> pg_backend_pid() and state = 'active' and query like $1"""


def booking(ctx: Context[Any], who: str = "") -> Sql:
    """An effect that inserts one line."""
    return Sql(BOOK, ctx.idempotency_key, who)


async def commit_with_effect(database: Database, entry: CommitEntry, recorder: Recorder) -> CommitResult:
    """Commit effect and outcome as a worker does; a lost or cancelled execution commits without its effect."""
    report = await effects.commit_with_effect(database, entry, recorder)
    if report is None:
        bare = msgspec.structs.replace(entry, effect=None)
        report = await database.run_in_transaction(commit([bare], recorder))
    return report.results[0]


async def booked(db: Any) -> list[str]:
    """The keys in the ledger, oldest first, with repetitions."""
    return [row["key"] for row in await db.fetch("select key from ledger order by id")]


async def busy_with(db: Any, query: str) -> int:
    """Wait for a backend that runs a statement like this, and return its pid."""
    async with asyncio.timeout(PATIENCE.total_seconds()):
        while (pid := await db.fetchval(_BUSY, query)) is None:
            await asyncio.sleep(0.02)
    return int(pid)
