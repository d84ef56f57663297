"""The PostgreSQL server of the comparison, and its databases."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, LiteralString, Self
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from .processor_time import server_seconds

__all__ = ["SETTINGS", "Server", "Session"]

# The same for all systems. Durable: every commit waits for its flush to disk.
SETTINGS: Final = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "autovacuum_naptime": "1min",
}


class Server:
    """A server, with one session for the driver. Its processor time is not counted."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def __enter__(self) -> Self:
        self._session = psycopg.connect(self._dsn, autocommit=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()

    @property
    def version(self) -> str:
        row = self._session.execute("select current_setting('server_version')").fetchone()
        return str(row and row[0])

    def dsn(self, database: str) -> str:
        return urlunsplit(urlsplit(self._dsn)._replace(path=f"/{database}"))

    def has(self, database: str) -> bool:
        found = self._session.execute("select from pg_database where datname = %s", [database])
        return found.fetchone() is not None

    def create(self, database: str, template: str = "template0") -> None:
        """Create a database, in place of one of the same name."""
        self.drop(database)
        self._run("create database {} template {}", database, template)

    def rename(self, database: str, name: str) -> None:
        self._run("alter database {} rename to {}", database, name)

    def drop(self, database: str) -> None:
        self._run("drop database if exists {} with (force)", database)

    def databases(self) -> list[str]:
        return [
            name
            for (name,) in self._session.execute("select datname from pg_database where not datistemplate")
        ]

    def checkpoint(self) -> None:
        self._session.execute("checkpoint")

    def _run(self, statement: LiteralString, *names: str) -> None:
        self._session.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))


class Session:
    """A session of the driver in the database of a measurement."""

    def __init__(self, dsn: str) -> None:
        # The processor time of parallel workers would be counted as that of the system.
        self._conn = psycopg.connect(dsn, autocommit=True, options="-c max_parallel_workers_per_gather=0")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(psycopg.Error):
            self._conn.close()

    def execute(self, statement: str) -> None:
        self._conn.execute(statement)

    def is_true(self, statement: str) -> bool:
        row: Any = self._conn.execute(statement).fetchone()
        return bool(row[0])

    def schema_digest(self) -> str:
        """Return a short digest of all tables, indexes and functions."""
        row: Any = self._conn.execute("""
            with part (text) as (
              select indexdef from pg_indexes where schemaname not in ('pg_catalog', 'information_schema')
               union all
              select concat_ws(' ', table_schema, table_name, column_name, data_type, column_default)
                from information_schema.columns where table_schema not in ('pg_catalog', 'information_schema')
               union all
              select prosrc from pg_proc
               where pronamespace::regnamespace::text not in ('pg_catalog', 'information_schema')
            ) select left(md5(string_agg(text, ';' order by text)), 8) from part""").fetchone()
        return str(row[0])

    def server_seconds(self) -> float:
        """Return the processor time of the whole server, without this session."""
        return server_seconds(self._conn.info.backend_pid)
