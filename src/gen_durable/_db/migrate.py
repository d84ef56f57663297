"""The schema of the library: numbered increments, applied and taken back under a lock, or printed.

`migrations/NNNN_name.up.sql` and its `.down.sql` are one increment. The table `migrations` records which are in.
"""

from __future__ import annotations

import re
from importlib import resources

import msgspec

from ..errors import SchemaVersionError, UsageError
from .plan import Plan, Script, in_schema, read, statements
from .pool import PINNED

__all__ = ["LATEST", "Schema", "drop", "migrate", "prepare", "script", "status", "up"]

_SQL = statements("migrate.sql")
_INCREMENT = re.compile(r"(\d{4})_\w+\.up\.sql")
_TABLE = """create table if not exists gen_durable.migrations (
  version    int primary key,
  applied_at timestamptz not null default statement_timestamp()
)"""


class Schema(msgspec.Struct, frozen=True):
    """What a database has of us."""

    name: str
    version: int | None
    """`None`: nothing yet."""
    latest: int

    @property
    def is_current(self) -> bool:
        """Whether this library and the schema are of the same age."""
        return self.version == self.latest


def _increments() -> dict[int, str]:
    names = (file.name for file in resources.files(__package__).joinpath("migrations").iterdir())
    found = {int(match[1]): match[0] for name in names if (match := _INCREMENT.fullmatch(name))}
    return dict(sorted(found.items()))


_INCREMENTS = _increments()
LATEST = max(_INCREMENTS)


def status(schema: str) -> Plan[Schema]:
    """Which version is installed."""
    rows = yield _SQL["exists"](schema=schema)
    if not rows[0]["has_migrations"]:
        return Schema(schema, None, LATEST)
    rows = yield _SQL["version"]()
    return Schema(schema, rows[0]["version"], LATEST)


def prepare(schema: str, *, upgrade: bool) -> Plan[None]:
    """What a client does when it opens: install into a database that has nothing yet, refuse another version.

    Upgrading what is there is a decision of whoever deploys (`upgrade`). Needs a transaction, if there is work to do.
    """
    version = None
    if (yield _SQL["is_there"](schema=schema))[0]["is_there"]:
        version = (yield _SQL["version"]())[0]["version"]
    if version is None or (upgrade and version < LATEST):
        version = (yield from migrate(schema)).version
    if version != LATEST:
        raise SchemaVersionError(schema, version, LATEST)


def migrate(schema: str, to: int = LATEST) -> Plan[Schema]:
    """Bring a schema to a version, up or down; 0 takes everything back. Needs a transaction.

    Ten processes may do this at once on an empty database: one works, nine wait and find it done.
    """
    _check(to)
    yield _SQL["lock"](schema=schema)
    current = (yield from status(schema)).version or 0
    if current > LATEST:
        raise SchemaVersionError(schema, current, LATEST)
    if current == to:
        return Schema(schema, current or None, LATEST)
    rows = yield _SQL["exists"](schema=schema)
    if rows[0]["encoding"] != "UTF8":
        raise UsageError(
            f"the encoding of this database is {rows[0]['encoding']}, which cannot store every text",
            "use one that was created with ENCODING 'UTF8' (TEMPLATE template0)",
        )
    if not rows[0]["has_schema"]:
        yield Script(f'create schema "{schema}"')
    yield Script(in_schema(_TABLE, schema))
    for version in range(current + 1, to + 1):
        yield Script(in_schema(up(version), schema))
        yield _SQL["record"](version=version)
    for version in range(current, to, -1):
        yield Script(in_schema(_down(version), schema))
        yield _SQL["forget"](version=version)
    if to == 0:
        yield Script(in_schema("drop table gen_durable.migrations", schema))
    return Schema(schema, to or None, LATEST)


def drop(schema: str) -> Plan[None]:
    """Remove a schema whole, whatever is in it. Needs a transaction."""
    yield _SQL["lock"](schema=schema)
    yield Script(f'drop schema if exists "{schema}" cascade')


def script(schema: str, current: int = 0, to: int = LATEST) -> str:
    """The SQL that `migrate` would run, for those who apply it with a tool of their own."""
    _check(to)
    _check(current)
    parts = ["begin;", f"set local search_path = {PINNED['search_path']};"]
    if current == 0 and to > 0:
        # CREATE SCHEMA IF NOT EXISTS asks for rights on the database even if the schema is there.
        missing = f"""to_regnamespace('"{schema}"') is null"""
        parts.append(f'do $$ begin if {missing} then create schema "{schema}"; end if; end $$;')
        parts.append(in_schema(_TABLE, schema) + ";")
    for version in range(current + 1, to + 1):
        parts.append(in_schema(up(version), schema))
        parts.append(in_schema(f"insert into gen_durable.migrations (version) values ({version:d});", schema))  # noqa: S608 - a number of ours
    for version in range(current, to, -1):
        parts.append(in_schema(_down(version), schema))
        parts.append(in_schema(f"delete from gen_durable.migrations where version = {version:d};", schema))  # noqa: S608 - a number of ours
    if to == 0 and current > 0:
        parts.append(in_schema("drop table gen_durable.migrations;", schema))
    return "\n\n".join([*parts, "commit;", ""])


def _check(version: int) -> None:
    if not 0 <= version <= LATEST:
        raise UsageError(
            f"there is no schema version {version}", f"give 0 (nothing) to {LATEST} (the latest)"
        )


def up(version: int) -> str:
    """The text of one increment."""
    return read(f"migrations/{_INCREMENTS[version]}")


def _down(version: int) -> str:
    return read(f"migrations/{_INCREMENTS[version].replace('.up.', '.down.')}")
