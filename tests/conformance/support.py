"""What the tests of the clauses share: looks at bare rows, one step at a time, and a worker that has died."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import msgspec
import psycopg
from psycopg.rows import dict_row

from gen_durable import Context, Done, Machine, Outcome, Settings, Stop, step
from gen_durable.testing import Harness

# Nobody loses a lease unless a test takes it away; what others insert is found soon.
CALM: Final = Settings.load(
    poll_interval=timedelta(milliseconds=100),
    min_poll_interval=timedelta(milliseconds=100),
    drain_timeout=timedelta(seconds=1),
)
# A worker that soon reaps what others have left behind.
BRISK: Final = msgspec.structs.replace(
    CALM,
    lease=timedelta(milliseconds=300),
    heartbeat=timedelta(milliseconds=100),
    reap_interval=timedelta(milliseconds=50),
)
AN_HOUR: Final = timedelta(hours=1)
# Long enough for a busy machine; a test that gets here has failed.
PATIENCE: Final = timedelta(seconds=20)


class Sql:
    """A connection beside the engine's, on which each statement is a transaction of its own."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.conn = psycopg.connect(dsn, autocommit=True, row_factory=dict_row)

    def __call__(self, query: str, *values: Any) -> list[dict[str, Any]]:
        cursor = self.conn.execute(query.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def another(self) -> psycopg.Connection:
        """Somebody else's connection, with a transaction that lasts until it is told to end."""
        return psycopg.connect(self._dsn)

    def value(self, query: str, *values: Any) -> Any:
        (row,) = self(query, *values)
        (value,) = row.values()
        return value

    def row(self, id: int) -> dict[str, Any]:
        """Every column of an instance."""
        (row,) = self("select * from gen_durable.gen_durable where id = %s", id)
        return row

    def columns(self, id: int, names: str) -> tuple[Any, ...]:
        """Some columns of an instance."""
        row = self.row(id)
        return tuple(row[name] for name in names.split())

    def inbox(self, id: int) -> list[str]:
        """The names of unread signals, oldest first."""
        rows = self(
            "select name from gen_durable.signals where target_id = %s and consumed_seq is null order by id",
            id,
        )
        return [row["name"] for row in rows]

    def signals(self, id: int) -> int:
        """All rows that are left of an inbox, those included that stay for their dedup_key."""
        count: int = self.value("select count(*) from gen_durable.signals where target_id = %s", id)
        return count

    def executions(self, id: int) -> list[dict[str, Any]]:
        """All executions, live and ended, in order."""
        return self("select * from gen_durable.gen_durable_executions where job_id = %s order by attempt", id)

    def expire(self, id: int) -> None:
        """The lease of this execution has run out."""
        self(
            "update gen_durable.gen_durable set lease_expires_at = now() - interval '1 second' where id = %s",
            id,
        )

    def abandon(self, id: int, worker: str = "somebody") -> None:
        """A worker leased this instance some time ago, and has died."""
        self(
            "update gen_durable.gen_durable set status = 'executing', lease_token = 1, locked_by = %s,"
            " execution = execution + 1, leased_at = now() - interval '1 hour',"
            " lease_expires_at = now() - interval '1 second' where id = %s",
            worker,
            id,
        )


class Say(Machine[str, str]):
    """Ends with its state."""

    @step
    async def say(self, ctx: Context[str]) -> Outcome[str]:
        return Done(ctx.state)


class Fail(Machine[str, None]):
    """Fails with its state as the reason."""

    @step
    async def fail(self, ctx: Context[str]) -> Outcome[None]:
        return Stop(ctx.state)


def probe(
    first: Callable[[Context[int]], Outcome[Any]],
    then: Callable[[Context[int]], Outcome[Any]] = lambda ctx: Done(ctx.state),
    handle: Callable[[Exception, Context[int]], Outcome[Any]] | None = None,
) -> type[Machine[int, Any]]:
    """A machine of two steps, `one` and `two`, that do as they are told here; its state is a number."""

    class Probe(Machine[int, Any]):
        @step
        async def one(self, ctx: Context[int]) -> Outcome[Any]:
            return first(ctx)

        @step
        async def two(self, ctx: Context[int]) -> Outcome[Any]:
            return then(ctx)

        def handle(self, error: Exception, ctx: Context[int]) -> Outcome[Any]:
            return Stop(error) if handle is None else handle(error, ctx)

    return Probe


def one_step(durable: Harness) -> None:
    """Run one step, and leave alone what is due after it."""
    try:
        durable.drain(max_steps=1, collapse=False)
    except AssertionError as error:
        if "has not come to rest" not in str(error):
            raise


def has_no_lease(row: dict[str, Any]) -> bool:
    return all(
        row[name] is None for name in ("lease_token", "lease_expires_at", "locked_by", "concurrency_slot")
    )


def is_near(moment: Any, other: Any) -> bool:
    """Whether two moments of the database are the same, but for what a busy machine needs in between."""
    return bool(abs(moment - other) < timedelta(seconds=2))
