"""Put instances of older versions in place."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from .._db.plan import Plan
from ._sql import statements

__all__ = ["add_version", "load"]

_SQL: Final = statements("load.sql")


def add_version(fsm: str, version: int, step: str, queue: str) -> Plan[None]:
    """Register a version of a machine, as workers of older code did."""
    yield _SQL["add_version"](fsm=fsm, version=version, step=step, queue=queue)


def load(
    *,
    fsm: str,
    version: int,
    step: str,
    state: str,
    queue: str,
    awaits: list[str] | None,
    timeout: timedelta | None,
    correlation_key: str | None,
    checkpoint: str | None,
) -> Plan[int]:
    """Insert an instance at any version and step, due or parked; return its id."""
    (row,) = yield _SQL["load"](
        fsm=fsm,
        version=version,
        step=step,
        state=state,
        queue=queue,
        awaits=awaits,
        timeout=timeout,
        correlation_key=correlation_key,
        checkpoint=checkpoint,
    )
    id: int = row["id"]
    return id
