"""A producer: a role that can call the functions for every language, and nothing else whatever it tries."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from gen_durable._db.insert import register
from gen_durable._db.pool import Database
from gen_durable._schema import migrate_schema
from tests.db.test_sql_insert import machine

# One call of each, in an order in which each has something to do. Ids are those of a fresh database.
CALLS = [
    """select id, status from {s}.insert('Checkout', '{{"a": 1}}', correlation_key => 'k')""",
    """select id from {s}.insert_all('[{{"fsm": "Checkout", "idempotency_key": "i"}}]')""",
    "select delivered from {s}.signal(1, 'paid', '{{}}', 'd')",
    "select delivered from {s}.signal('k', 'paid', '{{}}', 'd')",
    "select {s}.cancel(1, 'why')",
    "select {s}.retry(1, '{{}}', 'why')",
    "select {s}.cancel('k', force => true)",
    "select {s}.retry('k')",
    "select {s}.job_status(1)",
    "select {s}.job_status('k')",
    "select {s}.soft_delete('k', 'why') is not null",
    "select {s}.restore('k')",
    "select {s}.soft_delete(2) is not null",
    "select {s}.restore(2)",
]
ANSWERS: list[tuple[object, ...]] = [
    (1, "pending"),
    (2,),
    (True,),
    (False,),
    ("cancelled",),
    (True,),
    ("cancelled",),
    (True,),
    ("pending",),
    ("pending",),
    (True,),
    ("cancelled",),
    (True,),
    ("cancelled",),
]


@pytest.fixture
async def role(sql: Any) -> AsyncIterator[str]:
    """A login that may connect, and make objects in a schema of its own."""
    name = f"producer_{uuid.uuid4().hex[:12]}"
    await sql.execute(
        f"create role {name} login nosuperuser password 'pw'; create schema lair authorization {name}"
    )
    yield name
    await sql.execute(f"drop owned by {name} cascade; drop role {name}")


@pytest.fixture
async def producer(sql: Any, durable_dsn: str, role: str, database: Database) -> AsyncIterator[Any]:
    await database.run(register([machine(1, "begin", "checkout")]))
    await sql.execute("select gen_durable.grant_producer($1)", role)
    connection = await asyncpg.connect(re.sub(r"//[^@/]*@", f"//{role}:pw@", durable_dsn, count=1))
    yield connection
    await connection.close(timeout=5)


async def call_all(connection: Any, schema: str = "gen_durable") -> list[tuple[object, ...]]:
    return [tuple(await connection.fetchrow(call.format(s=schema))) for call in CALLS]


@pytest.mark.clause("SQL-5")
async def test_it_can_call_every_function_for_producers(sql: Any, producer: Any, role: str) -> None:
    assert await call_all(producer) == ANSWERS
    called = {match for call in CALLS for match in re.findall(r"\{s\}\.(\w+)\(", call)}
    granted = await sql.fetch(
        "select distinct p.proname from gen_durable.producer_functions() f join pg_proc p on p.oid = f"
    )
    assert called == {row["proname"] for row in granted}
    actors = await sql.fetch("select distinct actor from gen_durable.audit_events")
    assert [row["actor"] for row in actors] == [role]


@pytest.mark.clause("SQL-5")
async def test_it_has_no_right_on_any_table_view_sequence_or_other_function(
    sql: Any, producer: Any, role: str
) -> None:
    relations = await sql.fetch(
        """select c.relname, c.relkind::text as kind, case c.relkind
                    when 'S' then has_sequence_privilege($1, c.oid, 'usage, select, update')
                    else has_table_privilege($1, c.oid, 'insert, update, delete, truncate, references, trigger')
                         or has_any_column_privilege($1, c.oid, 'select, insert, update, references') end as has_right
             from pg_class c where c.relnamespace = 'gen_durable'::regnamespace and c.relkind in ('r', 'v', 'S')""",
        role,
    )
    assert {row["kind"] for row in relations} == {"r", "v", "S"}
    assert [row["relname"] for row in relations if row["has_right"]] == []
    functions = await sql.fetch(
        """select p.oid::regprocedure::text as name from pg_proc p
            where p.pronamespace = 'gen_durable'::regnamespace and has_function_privilege($1, p.oid, 'execute')
              and p.oid not in (select gen_durable.producer_functions())""",
        role,
    )
    assert [row["name"] for row in functions] == []
    assert not await sql.fetchval("select has_schema_privilege($1, 'gen_durable', 'create')", role)


ATTEMPTS = [
    "select * from gen_durable.gen_durable",
    "select * from gen_durable.snapshots",
    "select * from gen_durable.gen_durable_executions",
    "select * from gen_durable.machines",
    "select * from gen_durable.audit_events",
    "insert into gen_durable.machines values ('A', 1, 's', 'q')",
    "update gen_durable.gen_durable set state = '{}'",
    "delete from gen_durable.signals",
    "truncate gen_durable.executions",
    "select nextval('gen_durable.gen_durable_id_seq')",
    "begin; lock table gen_durable.gen_durable",
    "create table gen_durable.mine (id int)",
    "create function gen_durable.mine() returns int language sql as 'select 1'",
    "create index on gen_durable.gen_durable (id)",
    "alter function gen_durable.cancel(bigint, text, text, boolean) reset search_path",
    "drop function gen_durable.cancel(bigint, text, text, boolean)",
    "select * from gen_durable.insert_rows('{A}', '{1}', '{s}', '{1}', '{q}', '{0}', null, null, null, null, null,"
    " null, null, null, null, null, true)",
    "select * from gen_durable.deliver(1, null, 'paid', 'null', null)",
    "select * from gen_durable.cancel_rows('{1}', null, null, true)",
    "select * from gen_durable.delete_rows('{1}', null, null)",
    "select * from gen_durable.restore_rows('{1}', null)",
    "select * from gen_durable.retry_rows('{1}', null, null, null)",
    "select gen_durable.ungate('{k}')",
    "select gen_durable.join_parents('{1}')",
    "select gen_durable.resolve(1, null)",
    "select gen_durable.job_word('done')",
    "select gen_durable.producer_functions()",
    "select gen_durable.grant_producer('public')",
]


@pytest.mark.clause("SQL-5")
async def test_what_it_must_not_do_is_denied(producer: Any) -> None:
    await producer.execute("select gen_durable.insert('Checkout', correlation_key => 'k')")
    for attempt in ATTEMPTS:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await producer.execute(attempt)
            pytest.fail(f"it may: {attempt}")
        await producer.execute("rollback")


# Objects that stand before those of PostgreSQL for whoever looks for them by their bare names.
TRAP = """
create table lair.caught (who text);
grant insert on lair.caught to public;
create function lair.spring() returns boolean language plpgsql as $$
begin
  insert into lair.caught values (current_user);
  return true;
end $$;
create function lair.octet_length(text) returns int language sql as 'select length($1) from lair.spring()';
create function lair.statement_timestamp() returns timestamptz language sql as 'select now() from lair.spring()';
create function lair.jsonb_typeof(jsonb) returns text language sql as $$select 'array'::text from lair.spring()$$;
create function lair.jsonb_build_array(jsonb) returns jsonb
  language sql as $$select pg_catalog.jsonb_build_array($1) from lair.spring()$$;
create function lair.is_same(bigint, bigint) returns boolean
  language sql as 'select $1 operator(pg_catalog.=) $2 and lair.spring()';
create function lair.is_same(text, text) returns boolean
  language sql as 'select $1 operator(pg_catalog.=) $2 and lair.spring()';
create operator lair.= (leftarg = bigint, rightarg = bigint, function = lair.is_same);
create operator lair.= (leftarg = text, rightarg = text, function = lair.is_same);
create table lair.gen_durable (like lair.caught);
set search_path = lair, pg_catalog;
"""


async def test_objects_of_its_own_never_run_with_the_rights_of_the_owner(
    sql: Any, producer: Any, role: str
) -> None:
    await producer.execute(TRAP)
    await producer.execute("create temp table gen_durable (id bigint); create temp table machines (fsm text)")
    # What the caller's own statement names is found on the caller's own path.
    assert await call_all(producer) == ANSWERS
    caught = await sql.fetch("select distinct who from lair.caught")
    assert [row["who"] for row in caught if row["who"] != role] == []


async def test_without_the_pinned_path_the_trap_would_spring(sql: Any, producer: Any) -> None:
    """So that the test above is known to test something."""
    await sql.execute(
        """do $$ declare one regprocedure; begin
             for one in select gen_durable.producer_functions() loop
               execute format('alter function %s reset search_path', one);
             end loop; end $$"""
    )
    await producer.execute(TRAP)
    await call_all(producer)
    owner = await sql.fetchval("select current_user::text")
    assert await sql.fetchval("select count(*) from lair.caught where who = $1", owner) > 0


async def test_settings_of_its_session_change_nothing(producer: Any) -> None:
    for setting, value in {
        "default_transaction_isolation": "'serializable'",
        "datestyle": "'SQL, DMY'",
        "intervalstyle": "sql_standard",
        "timezone": "'Asia/Kathmandu'",
        "bytea_output": "escape",
        "extra_float_digits": "-15",
        "transform_null_equals": "on",
        "array_nulls": "off",
        "search_path": "''",
        "row_security": "off",
        "enable_indexscan": "off",
        "plan_cache_mode": "force_generic_plan",
    }.items():
        await producer.execute(f"set {setting} = {value}")
    assert await call_all(producer) == ANSWERS


async def test_only_these_functions_run_with_the_rights_of_the_owner_and_all_have_a_pinned_path(
    sql: Any,
) -> None:
    rows = await sql.fetch(
        """select p.oid::regprocedure::text as name, p.proconfig from pg_proc p
            where p.pronamespace = 'gen_durable'::regnamespace and p.prosecdef order by 1"""
    )
    granted = await sql.fetch("select f::text as name from gen_durable.producer_functions() f order by 1")
    assert [row["name"] for row in rows] == [row["name"] for row in granted]
    assert {tuple(row["proconfig"]) for row in rows} == {("search_path=pg_catalog, pg_temp",)}


@pytest.mark.clause("SQL-5")
async def test_no_function_of_ours_is_everybodys(sql: Any) -> None:
    """PostgreSQL gives every new function to PUBLIC: a migration that makes one has to take it away."""
    rows = await sql.fetch(
        """select p.oid::regprocedure::text as name from pg_proc p
            where p.pronamespace = 'gen_durable'::regnamespace
              and (p.proacl is null or exists (select from aclexplode(p.proacl) a where a.grantee = 0))"""
    )
    assert [row["name"] for row in rows] == []


async def test_a_right_that_is_taken_back_is_gone(sql: Any, producer: Any, role: str) -> None:
    await sql.execute("select gen_durable.grant_producer($1)", role)  # again is harmless
    await sql.execute("select gen_durable.revoke_producer($1)", role)
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="permission denied for schema gen_durable"):
        await producer.execute("select gen_durable.job_status(1)")


async def test_a_role_of_any_name_in_a_schema_of_any_name(sql: Any, durable_dsn: str, role: str) -> None:
    await migrate_schema(durable_dsn, "order")
    strange = f'Web "hooks"; drop {role}'
    quoted = await sql.fetchval("select quote_ident($1)", strange)
    await sql.execute(f"create role {quoted}")
    try:
        await sql.execute('select "order".grant_producer($1)', strange)
        async with sql.transaction():
            await sql.execute(f"set local role {quoted}")
            assert await sql.fetchval("""select id from "order".insert('A', step => 's')""") == 1
            assert await sql.fetchval("""select "order".cancel(1)""") == "cancelled"
        assert not await sql.fetchval("select has_schema_privilege($1, 'gen_durable', 'usage')", strange)
        with pytest.raises(asyncpg.UndefinedObjectError, match="does not exist"):
            await sql.execute("select gen_durable.grant_producer('nobody; drop table x')")
    finally:
        await sql.execute(f"drop owned by {quoted}; drop role {quoted}")


async def test_an_owner_that_is_no_superuser_can_have_producers(
    sql: Any, durable_dsn: str, role: str
) -> None:
    owner = f"owner_{uuid.uuid4().hex[:12]}"
    await sql.execute(f"create role {owner} login password 'pw'; create schema shop authorization {owner}")
    try:
        await migrate_schema(re.sub(r"//[^@/]*@", f"//{owner}:pw@", durable_dsn, count=1), "shop")
        await sql.execute(f"set role {owner}")
        await sql.execute("select shop.grant_producer($1)", role)
        await sql.execute(f"set role {role}")
        assert await sql.fetchval("select id from shop.insert('A', step => 's')") == 1
        await sql.execute("reset role")
        assert await sql.fetchval("select count(*) from shop.gen_durable") == 1
    finally:
        await sql.execute(f"reset role; drop owned by {owner} cascade; drop role {owner}")
