"""Read rows of the engine's tables, on a connection that the engine does not use."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.rows import dict_row


class SqlConnection:
    """A blocking connection in autocommit mode."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.conn = psycopg.connect(dsn, autocommit=True, row_factory=dict_row)

    def __call__(self, query: str, *values: Any) -> list[dict[str, Any]]:
        cursor = self.conn.execute(query.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def another(self) -> psycopg.Connection:
        """A second connection, with an open transaction."""
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
        """The number of signal rows, including consumed ones kept for their dedup_key."""
        count: int = self.value("select count(*) from gen_durable.signals where target_id = %s", id)
        return count

    def executions(self, id: int) -> list[dict[str, Any]]:
        """All executions, live and ended, in order."""
        return self("select * from gen_durable.gen_durable_executions where job_id = %s order by attempt", id)

    def delay(self, id: int) -> timedelta:
        """How long after its last change a runnable instance is due."""
        row = self.row(id)
        assert (row["status"], row["lease_token"]) == ("runnable", None)
        length: timedelta = row["eligible_at"] - row["updated_at"]
        return length

    def expire(self, id: int) -> None:
        """Let the lease of this execution expire."""
        self(
            "update gen_durable.gen_durable set lease_expires_at = now() - interval '1 second' where id = %s",
            id,
        )

    def abandon(self, id: int, worker: str = "other") -> None:
        """Make the row look leased by a worker that has died."""
        self(
            "update gen_durable.gen_durable set status = 'executing', lease_token = 1, locked_by = %s,"
            " execution = execution + 1, leased_at = now() - interval '1 hour',"
            " lease_expires_at = now() - interval '1 second' where id = %s",
            worker,
            id,
        )


async def row_of(db: Any, id: int) -> dict[str, Any]:
    """Every column of an instance, as it is stored."""
    found = await db.fetchrow(
        "select *, statement_timestamp() as now from gen_durable.gen_durable where id = $1", id
    )
    assert found is not None
    return dict(found)


async def inbox_of(db: Any, id: int) -> list[str]:
    """The names of unread signals."""
    rows = await db.fetch(
        "select name from gen_durable.signals where target_id = $1 and consumed_seq is null order by id", id
    )
    return [row["name"] for row in rows]


async def signal_rows(db: Any, id: int) -> int:
    """The number of signal rows, including consumed ones kept for their dedup_key."""
    count: int = await db.fetchval("select count(*) from gen_durable.signals where target_id = $1", id)
    return count


async def audit(db: Any, id: int) -> list[tuple[str, str | None, str | None]]:
    """Event, actor and reason of each audit event of an instance."""
    rows = await db.fetch(
        "select event, actor, reason from gen_durable.audit_events where instance_id = $1 order by id", id
    )
    return [(row["event"], row["actor"], row["reason"]) for row in rows]


async def job_states(db: Any, ids: Iterable[int]) -> list[str]:
    rows = await db.fetch(
        "select state from gen_durable.gen_durable_job_state where job_id = any ($1::bigint[]) order by job_id",
        list(ids),
    )
    return [row["state"] for row in rows]


def has_no_lease(row: dict[str, Any]) -> bool:
    return all(row[name] is None for name in ("lease_token", "leased_at", "locked_by", "concurrency_slot"))


def is_about(moment: Any, row: dict[str, Any], ahead: timedelta = timedelta(0)) -> bool:
    """Whether a time is about `ahead` after the last change of the row."""
    return bool(abs(moment - row["updated_at"] - ahead) < timedelta(milliseconds=500))


def is_near(moment: Any, other: Any) -> bool:
    """Whether two times of the database differ by less than 2 s."""
    return bool(abs(moment - other) < timedelta(seconds=2))
