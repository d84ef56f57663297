"""Connections to a test database, and advisory locks that pause a session inside a function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, Self

import asyncpg

from gen_durable._db.connector import PINNED
from tests.interleavings.product import Change, Product
from tests.interleavings.session import Lane

_SESSIONS: Final = 3
# The engine's settings, with short timeouts, an immediate deadlock check, and no fsync.
_SETTINGS: Final = {
    **PINNED,
    "lock_timeout": "5s",
    "deadlock_timeout": "20ms",
    "synchronous_commit": "off",
    "client_min_messages": "error",
}
_PAUSES: Final = 2
# Unlike CREATE OR REPLACE, this keeps all other attributes of a function.
_REPLACE: Final = """
update pg_proc p set prosrc = change.new from unnest($2::text[], $3::text[]) as change (old, new)
 where p.pronamespace = (select n.oid from pg_namespace n where n.nspname = $1) and p.prosrc = change.old"""
_BLOCKERS: Final = """
select pid, pg_blocking_pids(pid) as blockers
  from unnest($1::int[]) as pid where cardinality(pg_blocking_pids(pid)) > 0"""


class Pins(NamedTuple):
    """Which of the engine's two ways to pin READ COMMITTED are active."""

    begin: bool = True
    """BEGIN names the isolation. Its connection has the database's default then, to show that BEGIN is enough."""
    connection: bool = True
    """The connection has it as a setting: all there is for plans that run in autocommit."""
    is_default_safe: bool = False
    """Every connection has it: a database with PostgreSQL's own default."""


READ_COMMITTED: Final = Pins(is_default_safe=True)
REPEATABLE_READ: Final = Pins()


class Bench:
    """A database with default isolation REPEATABLE READ, and connections to it."""

    def __init__(self, admin: Any, brake: Any, pinned: list[Any], unpinned: list[Any]) -> None:
        self.admin = admin
        self._brake = brake
        self._pinned = pinned
        self._unpinned = unpinned
        # Per frame: a schema and its current functions.
        self._schemas: dict[str, Product] = {}
        self.brake_pid = brake.get_server_pid()

    @classmethod
    async def open(cls, dsn: str, database: str) -> Self:
        unpinned = {
            name: value for name, value in _SETTINGS.items() if name != "default_transaction_isolation"
        }
        return cls(
            await asyncpg.connect(dsn, database=database, server_settings=_SETTINGS),
            await asyncpg.connect(dsn, database=database, server_settings=_SETTINGS),
            [
                await asyncpg.connect(dsn, database=database, server_settings=_SETTINGS)
                for _ in range(_SESSIONS)
            ],
            [
                await asyncpg.connect(dsn, database=database, server_settings=unpinned)
                for _ in range(_SESSIONS)
            ],
        )

    async def close(self) -> None:
        for conn in (*self._pinned, *self._unpinned, self._brake, self.admin):
            await conn.close()

    def lanes(self, pins: Pins) -> list[Lane]:
        if pins.is_default_safe:
            return [Lane(conn, conn) for conn in self._pinned]
        statements = self._pinned if pins.connection else self._unpinned
        return [Lane(*pair) for pair in zip(self._unpinned, statements, strict=True)]

    async def install(self, changes: tuple[Change, ...]) -> Product:
        """A schema with these changes. Changed statements need no schema; functions are replaced in place."""
        frame = Product("", changes).frame()
        if (installed := self._schemas.get(frame)) is None:
            wanted = Product(f"gen_durable_{len(self._schemas)}", changes)
            await self.admin.execute(f'create schema "{wanted.schema}"; {wanted.ddl()}')
        else:
            wanted = Product(installed.schema, changes)
            bodies = zip(installed.bodies(), wanted.bodies(), strict=True)
            changed = [(old, new) for old, new in bodies if old != new]
            done = await self.admin.execute(
                _REPLACE, wanted.schema, *([pair[n] for pair in changed] for n in (0, 1))
            )
            assert done == f"UPDATE {len(changed)}", "a function is not what it was when it was made"
        self._schemas[frame] = wanted
        return wanted

    async def tables(self, product: Product) -> list[str]:
        rows = await self.admin.fetch(
            "select tablename from pg_tables where schemaname = $1 order by 1", product.schema
        )
        return [row["tablename"] for row in rows]

    async def blockers(self, names: Mapping[int, str]) -> dict[str, set[int]]:
        """Which of these sessions wait for a lock, and for which session."""
        rows = await self.admin.fetch(_BLOCKERS, list(names))
        return {names[row["pid"]]: set(row["blockers"]) for row in rows}

    async def brake_all(self) -> None:
        """Pause every session at every pause point."""
        await self._brake.execute("select pg_advisory_unlock_all()")
        await self._lock(conn.get_server_pid() for conn in (*self._pinned, *self._unpinned))

    async def release(self, pid: int) -> int:
        """Resume a paused session, and return its pause point."""
        place = await self._brake.fetchval(
            "select classid::int from pg_locks where pid = $1 and locktype = 'advisory' and not granted", pid
        )
        await self._brake.execute(f"select pg_advisory_unlock({place}, {pid})")
        return int(place)

    async def brake(self, pid: int, place: int) -> None:
        """Pause a session at this point again."""
        await self._brake.execute(f"select pg_advisory_lock({place}, {pid})")

    async def release_all(self) -> None:
        await self._brake.execute("select pg_advisory_unlock_all()")

    async def _lock(self, pids: Iterable[int]) -> None:
        await self._brake.fetch(
            "select pg_advisory_lock(place, pid) from unnest($1::int[]) as pid, generate_series(1, $2) as place",
            list(pids),
            _PAUSES,
        )
