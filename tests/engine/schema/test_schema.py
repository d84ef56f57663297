"""The schema: columns, indexes, constraints, migrations."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from gen_durable import Client, Settings, Status
from gen_durable._db import migrate
from gen_durable._schema import LATEST, migrate_schema, schema_status
from gen_durable.errors import SchemaVersionError
from gen_durable.testing import Harness
from tests.db.catalog import dump, leftovers
from tests.support.conformance import SPEC, table_of
from tests.support.machines import Say
from tests.support.rows import SqlConnection

_COLUMNS = """
select c.relname as table, a.attname as column, format_type(a.atttypid, a.atttypmod) as type,
       a.attidentity <> '' as is_identity, a.attgenerated <> '' as is_generated, a.attnotnull as is_required,
       pg_get_expr(d.adbin, d.adrelid) as value
  from pg_attribute a join pg_class c on c.oid = a.attrelid
  left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
 where c.oid in ('gen_durable.gen_durable'::regclass, 'gen_durable.signals'::regclass) and a.attnum > 0"""


def default_of(row: dict[str, Any]) -> str:
    """The default of a column as the specification writes it."""
    if row["is_identity"]:
        return "identity"
    if row["is_generated"]:
        return "generated"
    if row["value"] is None:
        return "" if row["is_required"] else "null"
    plain: str = row["value"].split("::")[0].strip("'")
    return "now" if plain == "statement_timestamp()" else plain


@pytest.mark.clause("SCH-1")
def test_columns_match_the_specification(sql: SqlConnection) -> None:
    found = {
        (row["table"], row["column"]): (row["type"].replace("gen_durable.", ""), default_of(row))
        for row in sql(_COLUMNS)
    }
    named = {
        (table, column): (type_, value)
        for table, column, type_, value in table_of(SPEC.read_text(encoding="utf-8"), "table")
    }
    assert len(named) == 28
    assert {key: found[key] for key in named} == named


@pytest.mark.clause("SCH-2")
def test_statuses_match_the_specification(sql: SqlConnection) -> None:
    labels = sql("select unnest(enum_range(null::gen_durable.durable_status))::text as label")
    assert [row["label"] for row in labels] == list(Status)
    assert list(Status) == [
        *("runnable", "executing", "awaiting_signal", "awaiting_children"),
        *("done", "failed", "cancelled"),
    ]


@pytest.mark.clause("SCH-3", "SCH-4")
def test_indexes_match_the_specification(sql: SqlConnection) -> None:
    found = {
        row["indexname"]: row["indexdef"]
        for row in sql("select indexname, indexdef from pg_indexes where schemaname = 'gen_durable'")
    }
    expected = {
        "gen_durable_pick": "(queue, priority, eligible_at, id) WHERE ((status = 'runnable'",
        "gen_durable_lease": "(id) WHERE (status = 'executing'",
        "gen_durable_unique": "UNIQUE INDEX gen_durable_unique ON gen_durable.gen_durable USING btree (unique_key)"
        " WHERE ((unique_key IS NOT NULL) AND (status = ANY (unique_scope)) AND",
        "gen_durable_parent": "(parent_id, parent_round) WHERE (parent_id IS NOT NULL)",
        "signals_target": "(target_id, name)",
    }
    for name, part in expected.items():
        assert part in found[name]


@pytest.mark.clause("SCH-4")
def test_uniqueness_depends_on_key_status_and_scope(durable: Harness, sql: SqlConnection) -> None:
    first = durable.insert(Say, "hi", unique_key="u", unique_scope=[Status.FAILED])
    is_taken = {}
    for status in ("runnable", "failed", "done"):
        sql("update gen_durable.gen_durable set status = %s where id = %s", status, first.id)
        is_taken[status] = durable.insert(Say, "hi", unique_key="u").id == first.id
    assert is_taken == {"runnable": True, "failed": True, "done": False}
    with pytest.raises(psycopg.errors.UniqueViolation):
        sql("update gen_durable.gen_durable set status = 'failed' where id = %s", first.id)


@pytest.mark.clause("SCH-5")
def test_constraints_reject_impossible_rows(durable: Harness, sql: SqlConnection) -> None:
    durable.insert(Say, "hi")
    for change in ("status = 'executing'", "lease_token = 1", "children_pending = -1"):
        with pytest.raises(psycopg.errors.CheckViolation):
            sql(f"update gen_durable.gen_durable set {change}")


@pytest.mark.clause("SCH-6")
def test_there_are_no_foreign_keys(sql: SqlConnection) -> None:
    assert sql("select conname from pg_constraint where contype = 'f'") == []


@pytest.mark.clause("SCH-7", "SCH-9")
async def test_migrate_applies_only_missing_increments(direct_dsn: str, sql: SqlConnection) -> None:
    for version in range(1, LATEST + 1):
        await migrate_schema(direct_dsn, "shop", version)
        rows = sql("select version from shop.migrations order by 1")
        assert [row["version"] for row in rows] == list(range(1, version + 1))
    before = sql("select xmin::text from shop.migrations")
    assert (await migrate_schema(direct_dsn, "shop")).is_current
    assert sql("select xmin::text from shop.migrations") == before
    assert (await schema_status(direct_dsn, "gen_durable")).version == LATEST


@pytest.mark.clause("SCH-8")
async def test_down_and_up_migrations_round_trip(direct_dsn: str, db: Any) -> None:
    fresh = await dump(db, "gen_durable")
    for version in range(LATEST):
        await migrate_schema(direct_dsn, "gen_durable", version)
        if version == 0:
            assert await leftovers(db, "gen_durable") == []
        await migrate_schema(direct_dsn, "gen_durable")
        assert await dump(db, "gen_durable") == fresh


@pytest.mark.clause("SCH-10")
def test_client_installs_the_schema_and_rejects_another_version(durable_dsn: str, sql: SqlConnection) -> None:
    settings = Settings.load(schema="shop")
    with Client(durable_dsn, settings=settings) as client:
        assert client.count() == 0
    sql("insert into shop.migrations (version, oldest_code) values (99, 99)")
    with pytest.raises(SchemaVersionError, match="shop"), Client(durable_dsn, settings=settings):
        pass


@pytest.mark.clause("SCH-11")
async def test_printed_sql_installs_the_same_schema(db: Any) -> None:
    await db.execute(migrate.script("shop", 0, 1))
    for version in range(1, LATEST):
        await db.execute(migrate.script("shop", version, version + 1))
    assert await dump(db, "shop") == await dump(db, "gen_durable")
    await db.execute(migrate.script("shop", LATEST, 0))
    assert await leftovers(db, "shop") == []
