"""What an operation costs in the database, from the counters and the WAL of the server. No figure is a time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Self

import asyncpg

from gen_durable._db.plan import Script, only
from gen_durable._db.pool import Database
from tests.costs.operations import OPERATIONS, Operation, Run
from tests.costs.recorded import Costs, Figures
from tests.support.wire_proxy import Wire

__all__ = ["Meter", "measure_operations", "prepared"]

# Rows that are never due, so that indexes have more than one page.
_BACKGROUND: Final = """
insert into gen_durable.gen_durable (fsm, step, queue, eligible_at)
select 'A', 's', 'later', now() + interval '1 day' from generate_series(1, 500);
insert into gen_durable.gen_durable (fsm, step, status, finished_at)
select 'A', 's', 'done', now() from generate_series(1, 500);
insert into gen_durable.executions (instance_id, step_seq, execution, attempt, status, outcome, step, leased_at, finished_at)
select id, 1, 1, 0, 'DONE', 'done', 's', now(), now() from gen_durable.gen_durable where status = 'done';
"""
_TABLES: Final = "gen_durable.gen_durable, gen_durable.signals, gen_durable.executions, gen_durable.outbox, gen_durable.audit_events"
# The slot keeps the server from removing WAL before it is read.
_OBSERVER: Final = """
create extension pg_walinspect;
set synchronous_commit = on;
select pg_create_physical_replication_slot('costs_' || pg_backend_pid(), true, true)"""
_ADVANCE: Final = (
    "select pg_replication_slot_advance('costs_' || pg_backend_pid(), pg_current_wal_flush_lsn())"
)
_PUBLISH: Final = "select pg_stat_force_next_flush()"
_COUNTERS: Final = """
select sum(heap_blks_read + heap_blks_hit + coalesce(idx_blks_read + idx_blks_hit, 0)
           + coalesce(toast_blks_read + toast_blks_hit + tidx_blks_read + tidx_blks_hit, 0))::int as buffers,
       sum(n_tup_ins + n_tup_upd)::int as row_versions
  from pg_statio_user_tables join pg_stat_user_tables using (relid)"""
# Records of transactions that wrote to this database: other databases of the server write as well. A page split inserts an entry
# too. full_page_writes is off, so the length of a record does not depend on checkpoints.
_WAL: Final = """
with ours as (
  select distinct xid from pg_get_wal_block_info($1, $2, false)
   where reldatabase = (select oid from pg_database where datname = current_database())
)
select (count(*) filter (where resource_manager = 'Btree' and (
         record_type in ('INSERT_LEAF', 'INSERT_POST')
         or record_type in ('SPLIT_L', 'SPLIT_R') and description like 'level: 0,%')))::int as index_entries,
       count(*)::int as wal_records, coalesce(sum(record_length), 0)::int as wal_bytes
  from pg_get_wal_records_info($1, $2) where xid in (select xid from ours) and xid <> '0'"""


async def measure_operations(dsn: str) -> Costs:
    """The figures of all operations."""
    async with Meter.open(dsn) as meter:
        return {operation.title: await meter.measure(operation) for operation in OPERATIONS}


async def prepared(operation: Operation, database: Database, observer: Any) -> Run:
    """Return the operation, ready to run on new rows. It has already run once, so its statements are planned."""
    await observer.execute(f"truncate {_TABLES} restart identity; {_BACKGROUND}")
    await observer.execute(f"vacuum (analyze) {_TABLES}")
    await (await operation.prepare(database, 5))()
    await observer.execute(
        "delete from gen_durable.gen_durable where queue = 'default' and finished_at is null"
    )
    return await operation.prepare(database, operation.rows)


class Meter:
    """Measures operations in one session of a database that is used for nothing else."""

    def __init__(self, wire: Wire, database: Database, observer: Any) -> None:
        self._wire = wire
        self._database = database
        self.observer = observer

    @classmethod
    @asynccontextmanager
    async def open(cls, dsn: str) -> AsyncIterator[Self]:
        observer = await asyncpg.connect(dsn)
        try:
            await observer.execute(_OBSERVER)
            with Wire(dsn) as wire:
                async with await Database.open(wire.dsn, "gen_durable", size=1) as database:
                    yield cls(wire, database, observer)
        finally:
            await observer.close()

    async def measure(self, operation: Operation) -> Figures:
        """Run the operation once and return its figures; again, if the connection was replaced meanwhile."""
        while True:
            connects = self._database.connects
            figures = await self._measure(operation)
            if self._database.connects == connects:
                return figures

    async def _measure(self, operation: Operation) -> Figures:
        run = await prepared(operation, self._database, self.observer)
        # Dead rows would add costs that depend on transactions elsewhere on the server: they decide when a page is pruned.
        await self.observer.execute(f"vacuum (index_cleanup on, truncate off) {_TABLES}")
        await self.observer.execute(_ADVANCE)
        before, start = await self._counters(), await self._lsn()
        sent, round_trips = len(self._wire.sent), self._wire.round_trips
        await run()
        per_call = {
            "statements": (len(self._wire.sent) - sent) / operation.calls,
            "round_trips": (self._wire.round_trips - round_trips) / operation.calls,
        }
        wal = await self.observer.fetchrow(_WAL, start, await self._lsn())
        after = await self._counters()
        used = {name: after[name] - before[name] for name in after} | dict(wal)
        return per_call | {name: count / operation.rows for name, count in used.items()}

    async def _counters(self) -> dict[str, int]:
        # A session publishes its counters once per second, unless it is asked to.
        await self._database.run(only(Script(_PUBLISH)))
        await self.observer.execute(_PUBLISH)
        return dict(await self.observer.fetchrow(_COUNTERS))

    async def _lsn(self) -> Any:
        """The end of the WAL, after it was flushed so that it can be read."""
        await self.observer.execute("select pg_logical_emit_message(true, 'costs', '')")
        return await self.observer.fetchval("select pg_current_wal_flush_lsn()")
