"""The state of the system: findings, server, tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from ... import __version__
from ..._db import dashboard, doctor, migrate, snapshots
from ..._db.plan import Plan
from ...config import Settings
from ...findings import Finding
from ..board import Board
from ..endpoints import get

__all__ = ["system"]

_SETTINGS: Final = (
    *("shared_buffers", "effective_cache_size", "work_mem", "maintenance_work_mem", "random_page_cost"),
    *("max_wal_size", "wal_level", "fsync", "full_page_writes", "autovacuum", "autovacuum_naptime"),
    *("autovacuum_max_workers", "max_prepared_transactions", "TimeZone"),
)


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """A table, by the statistics of PostgreSQL."""

    name: str
    live: int
    dead: int
    bytes: int
    index_bytes: int
    vacuumed_at: datetime | None
    analyzed_at: datetime | None


class SystemPage(msgspec.Struct, frozen=True, kw_only=True):
    """Findings of the doctor, problems first; the server, and the tables."""

    at: datetime
    findings: Sequence[Finding]
    passed: Sequence[str]
    """Checks without a finding."""
    version: str
    """Of gen_durable."""
    schema: str
    schema_version: int | None
    postgresql: str
    database: str
    bytes: int
    connections: int
    max_connections: int
    started_at: datetime
    is_standby: bool
    settings: Mapping[str, str]
    """Of PostgreSQL."""
    tables: Sequence[TableRow]
    retention: dict[str, timedelta]
    """The settings of this process; workers may have others."""


@get("/system", summary="Findings of the doctor, server, tables, retention")
async def system(board: Board) -> SystemPage:
    """Return the state of the system."""
    settings, findings = board.client.settings, await board.findings()
    return await board.cached("system", 5.0, lambda: _system(settings, findings))


def _system(settings: Settings, findings: Sequence[Finding]) -> Plan[SystemPage]:
    at = yield from snapshots.now()
    codes = {one.code for one in findings}
    status = yield from migrate.status(settings.schema)
    server = yield from dashboard.server()
    tables = yield from dashboard.tables(settings.schema)
    values: dict[str, Any] = msgspec.structs.asdict(settings)
    return SystemPage(
        at=at,
        findings=sorted(findings, key=lambda one: one.severity != "problem"),
        passed=[] if "schema.version" in codes else [one for one in doctor.CODES if one not in codes],
        version=__version__,
        schema=settings.schema,
        schema_version=status.version,
        postgresql=server["version"],
        database=server["database"],
        bytes=server["bytes"],
        connections=server["connections"],
        max_connections=server["max_connections"],
        started_at=server["started_at"],
        is_standby=server["is_standby"],
        settings=(yield from dashboard.settings(_SETTINGS)),
        tables=[TableRow(**row) for row in tables],
        retention={name: value for name, value in values.items() if name.startswith("retention_")},
    )
