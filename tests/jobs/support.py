"""What tests of jobs share: jobs that fail, and looks at what they left."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
from psycopg.rows import DictRow

__all__ = ["row", "waits"]


def row(conn: psycopg.Connection[DictRow], id: int) -> dict[str, Any]:
    """Every column of an instance, as it is stored."""
    found = conn.execute("select * from gen_durable.gen_durable where id = %s", (id,)).fetchone()
    assert found is not None
    return found


def waits(conn: psycopg.Connection[DictRow], id: int) -> timedelta:
    """How long after its last change an instance is due."""
    found = row(conn, id)
    assert (found["status"], found["lease_token"]) == ("runnable", None)
    length: timedelta = found["eligible_at"] - found["updated_at"]
    return length
