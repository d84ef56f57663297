"""Apply, revert and print the numbered increments of the schema, under an advisory lock.

One directory `migrations/NNNN_name` is one increment: its `.sql` files run in the order of their names; `down.sql`
reverts all of them. The table `migrations` records the applied increments and the oldest code that works with each.
Code has the version of its newest increment. An increment that works with older code states it in a comment line:
`-- oldest code: 1`.
"""

from __future__ import annotations

import logging
import re
from importlib import resources

import msgspec

from ..errors import SchemaVersionError, UsageError
from .connector import PINNED
from .plan import Plan, Script, in_schema, statements

__all__ = ["LATEST", "Schema", "drop", "migrate", "oldest_code", "prepare", "script", "status", "up"]

_SQL = statements("migrate.sql")
_DIRECTORY = resources.files(__package__).joinpath("migrations")
_INCREMENT = re.compile(r"(\d{4})_\w+")
_TABLE = """create table if not exists gen_durable.migrations (
  version     int primary key,
  applied_at  timestamptz not null default statement_timestamp(),
  oldest_code int not null                                -- version of the oldest code that works with this increment
)"""
_OLDEST_CODE = re.compile(r"^-- oldest code: (\d+)$", re.MULTILINE)
_logger = logging.getLogger("gen_durable")


class Schema(msgspec.Struct, frozen=True):
    """The installed version of the schema."""

    name: str
    version: int | None
    """`None`: not installed."""
    latest: int
    oldest_code: int | None = None
    """Version of the oldest code that works with it."""

    @property
    def is_current(self) -> bool:
        """Whether this library and the schema have the same version."""
        return self.version == self.latest

    @property
    def is_usable(self) -> bool:
        """Whether this library works with it: the same version, or a newer one that allows this code."""
        if self.version is None or self.oldest_code is None:
            return False
        return self.version >= self.latest >= self.oldest_code

    def refusal(self) -> SchemaVersionError:
        """The error for a schema that this library does not work with."""
        return SchemaVersionError(self.name, self.version, self.latest, self.oldest_code)


def _increments() -> dict[int, str]:
    names = (each.name for each in _DIRECTORY.iterdir())
    found = {int(match[1]): match[0] for name in names if (match := _INCREMENT.fullmatch(name))}
    return dict(sorted(found.items()))


_INCREMENTS = _increments()
LATEST = max(_INCREMENTS)


def status(schema: str) -> Plan[Schema]:
    """Read the installed version."""
    rows = yield _SQL["exists"](schema=schema)
    if not rows[0]["has_migrations"]:
        return Schema(schema, None, LATEST)
    return (yield from _installed(schema))


def _installed(schema: str) -> Plan[Schema]:
    (row,) = yield _SQL["version"]()
    return Schema(schema, row["version"], LATEST, row["oldest_code"])


def prepare(schema: str, *, upgrade: bool) -> Plan[None]:
    """Prepare the schema when a client opens: install missing tables, refuse an incompatible version.

    Older tables are upgraded only with `upgrade`. Needs a transaction to install or upgrade.
    """
    found = Schema(schema, None, LATEST)
    if (yield _SQL["is_there"](schema=schema))[0]["is_there"]:
        found = yield from _installed(schema)
    if found.version is None or (upgrade and found.version < LATEST):
        found = yield from migrate(schema)
    if not found.is_usable:
        raise found.refusal()
    if not found.is_current:
        _logger.info(
            "schema '%s' has version %s; this gen_durable has version %s and works with it",
            schema,
            found.version,
            LATEST,
        )


def migrate(
    schema: str, to: int | None = None, *, reason: str | None = None, actor: str | None = None
) -> Plan[Schema]:
    """Migrate a schema to a version (`None`: the latest), up or down; 0 drops everything. Needs a transaction.

    Processes may call it concurrently: one migrates, the others wait for its lock. A newer schema that this library
    works with is not changed if the latest version is requested: only newer code can revert it. A migration with a
    reason or an actor is recorded in the audit log.
    """
    to = _check(LATEST if to is None else to)
    yield _SQL["lock"](schema=schema)
    found = yield from status(schema)
    current = found.version or 0
    if current > LATEST and not (to == LATEST and found.is_usable):
        raise found.refusal()
    if current >= to == LATEST or current == to:
        return found
    rows = yield _SQL["exists"](schema=schema)
    if rows[0]["encoding"] != "UTF8":
        raise UsageError(
            f"the encoding of this database is {rows[0]['encoding']}, which cannot store all text",
            "use a database with encoding UTF8: create database … encoding 'UTF8' template template0",
        )
    if current == 0 and rows[0]["foreign_owner"] is not None:
        # The owner can add functions and triggers, which would run with the privileges of this role.
        raise UsageError(
            f"schema '{schema}' belongs to role {rows[0]['foreign_owner']!r}, which could act with your privileges",
            "migrate as that role, or change the owner first: alter schema … owner to …",
        )
    if not rows[0]["has_schema"]:
        yield Script(f'create schema "{schema}"')
    yield Script(in_schema(_TABLE, schema))
    yield from _refuse_to_break(schema, current, to)
    for version in range(current + 1, to + 1):
        yield Script(in_schema(up(version), schema))
        yield _SQL["record"](version=version, oldest_code=oldest_code(version))
    for version in range(current, to, -1):
        yield Script(in_schema(_down(version), schema))
        yield _SQL["forget"](version=version)
    if to == 0:
        yield Script(in_schema("drop table gen_durable.migrations", schema))
    elif reason or actor:
        yield _SQL["audit"](version=to, before=current, reason=reason, actor=actor)
    return Schema(schema, to or None, LATEST, max(map(oldest_code, range(1, to + 1)), default=None))


def _refuse_to_break(schema: str, current: int, to: int) -> Plan[None]:
    """Refuse an increment that the code of a live worker does not work with."""
    if not 0 < current < to:
        return
    needed = max(map(oldest_code, range(current + 1, to + 1)))
    if old := (yield _SQL["left_behind"](oldest_code=needed)):
        names = ", ".join(f"{row['name']} ({row['schema_version']})" for row in old)
        raise UsageError(
            f"version {to} of schema '{schema}' needs code of version {needed}, but live workers run older code: "
            f"{names}",
            "replace or stop them first",
        )


def drop(schema: str) -> Plan[None]:
    """Drop a schema with everything in it. Needs a transaction."""
    yield _SQL["lock"](schema=schema)
    yield Script(f'drop schema if exists "{schema}" cascade')


def script(schema: str, current: int = 0, to: int | None = None) -> str:
    """The SQL that `migrate` would run, for other migration tools."""
    to = _check(LATEST if to is None else to)
    _check(current)
    parts = ["begin;", f"set local search_path = {PINNED['search_path']};"]
    if current == 0 and to > 0:
        # CREATE SCHEMA IF NOT EXISTS needs the CREATE privilege on the database even if the schema exists.
        missing = f"""to_regnamespace('"{schema}"') is null"""
        parts.append(f'do $$ begin if {missing} then create schema "{schema}"; end if; end $$;')
        parts.append(in_schema(_TABLE, schema) + ";")
    for version in range(current + 1, to + 1):
        parts.append(in_schema(up(version), schema))
        row = f"insert into gen_durable.migrations values ({version:d}, default, {oldest_code(version):d});"  # noqa: S608 - numbers of ours
        parts.append(in_schema(row, schema))
    for version in range(current, to, -1):
        parts.append(in_schema(_down(version), schema))
        parts.append(in_schema(f"delete from gen_durable.migrations where version = {version:d};", schema))  # noqa: S608 - a number of ours
    if to == 0 and current > 0:
        parts.append(in_schema("drop table gen_durable.migrations;", schema))
    return "\n\n".join([*parts, "commit;", ""])


def _check(version: int) -> int:
    if not 0 <= version <= LATEST:
        raise UsageError(
            f"schema version {version} does not exist", f"pass 0 (no tables) to {LATEST} (the latest)"
        )
    return version


def up(version: int) -> str:
    """The text of one increment: its files, in the order of their names."""
    files = sorted(_DIRECTORY.joinpath(_INCREMENTS[version]).iterdir(), key=lambda file: file.name)
    return "\n".join(file.read_text("utf-8") for file in files if file.name != "down.sql")


def oldest_code(version: int) -> int:
    """The oldest code that works with an increment: code of its own version, unless the increment states another."""
    stated = _OLDEST_CODE.search(up(version))
    return version if stated is None else int(stated[1])


def _down(version: int) -> str:
    return _DIRECTORY.joinpath(_INCREMENTS[version], "down.sql").read_text("utf-8")
