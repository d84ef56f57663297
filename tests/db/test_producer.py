"""Producers: roles that can call the granted functions and nothing else."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from gen_durable import _verbs
from gen_durable._db.machines import register
from gen_durable._db.pool import Database
from gen_durable._schema import migrate_schema
from gen_durable.outcome import reason_text
from tests.db.definitions import machine
from tests.support.descriptions import own

# One call of each function, in an order in which each has an effect. Ids are those of a fresh database.
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
    "select id from {s}.insert('Checkout', step => 'ship')",
    "select {s}.set_concurrency_limit('tenant', 3)",
    "select {s}.set_rate_limit('crm', 3, '1 s')",
    "select {s}.remove_limit('crm')",
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
    (3,),
    (None,),
    (None,),
    (True,),
]
RIGHTS = ("insert", "steps", "signal", "status", "cancel", "delete", "restore", "retry", "limits")


@pytest.fixture
async def role(sql: Any) -> AsyncIterator[str]:
    """A login that may connect, and create objects in its own schema."""
    name = f"producer_{uuid.uuid4().hex[:12]}"
    await sql.execute(
        f"create role {name} login nosuperuser password 'pw'; create schema lair authorization {name}"
    )
    yield name
    await sql.execute(f"drop owned by {name} cascade; drop role {name}")


@pytest.fixture
async def producer(sql: Any, durable_dsn: str, role: str, database: Database) -> AsyncIterator[Any]:
    await database.run(register(own(machine(1, "begin", "checkout"))))
    await sql.execute("select gen_durable.grant_producer($1)", role)
    connection = await asyncpg.connect(re.sub(r"//[^@/]*@", f"//{role}:pw@", durable_dsn, count=1))
    yield connection
    await connection.close(timeout=5)


@pytest.fixture
async def entitled(sql: Any, producer: Any, role: str) -> Any:
    """A producer with all rights."""
    await sql.execute("select gen_durable.grant_producer($1, variadic $2)", role, RIGHTS)
    return producer


async def call_all(connection: Any, schema: str = "gen_durable") -> list[tuple[object, ...]]:
    return [tuple(await connection.fetchrow(call.format(s=schema))) for call in CALLS]


@pytest.mark.clause("SQL-5")
async def test_producer_can_call_all_granted_functions(sql: Any, entitled: Any, role: str) -> None:
    assert await call_all(entitled) == ANSWERS
    called = {match for call in CALLS for match in re.findall(r"\{s\}\.(\w+)\(", call)}
    granted = await sql.fetch(
        "select r.name, p.proname from gen_durable.producer_rights() r join pg_proc p on p.oid = r.function"
    )
    assert called | {"insert_from_start", "insert_from_any_step"} == {row["proname"] for row in granted}
    assert {row["name"] for row in granted} == set(RIGHTS)
    actors = await sql.fetch("select distinct actor from gen_durable.audit_events")
    assert [row["actor"] for row in actors] == [role]


@pytest.mark.clause("SQL-5")
async def test_producer_has_no_privilege_on_other_objects(sql: Any, entitled: Any, role: str) -> None:
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
              and p.oid not in (select function from gen_durable.producer_rights())""",
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
    "alter function gen_durable.cancel(bigint, text, text, boolean, boolean) reset search_path",
    "drop function gen_durable.cancel(bigint, text, text, boolean, boolean)",
    "select * from gen_durable.insert_rows('{A}', '{1}', '{s}', '{1}', '{q}', '{0}', null, null, null, null, null,"
    " null, null, null, null, null)",
    "select * from gen_durable.deliver(1, null, 'paid', 'null', null)",
    "select * from gen_durable.cancel_rows('{1}', null, null, true)",
    "select * from gen_durable.delete_rows('{1}', null, null)",
    "select * from gen_durable.restore_rows('{1}', null, null)",
    "select * from gen_durable.retry_rows('{1}', null, null, null, null)",
    "select gen_durable.ungate('{k}')",
    "select gen_durable.join_parents('{1}', '{1}')",
    "select gen_durable.resolve(1, null)",
    "select gen_durable.job_status_name('done')",
    "select * from gen_durable.producer_rights()",
    "select * from gen_durable.insert_specs('[]', true)",
    "select gen_durable.grant_producer('public')",
]


@pytest.mark.clause("SQL-5")
async def test_producer_is_denied_everything_else(entitled: Any) -> None:
    await entitled.execute("select gen_durable.insert('Checkout', correlation_key => 'k')")
    for attempt in ATTEMPTS:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await entitled.execute(attempt)
            pytest.fail(f"it may: {attempt}")
        await entitled.execute("rollback")


BEYOND_THE_DEFAULT = [
    "select gen_durable.job_status(1)",
    "select gen_durable.job_status('k')",
    "select gen_durable.cancel(1)",
    "select gen_durable.cancel('k', force => true)",
    "select gen_durable.soft_delete(1)",
    "select gen_durable.restore('k')",
    "select gen_durable.retry(1, '{}')",
    "select gen_durable.set_concurrency_limit('tenant', 3)",
    "select gen_durable.set_rate_limit('crm', 3, '1 s')",
    "select gen_durable.remove_limit('crm')",
    "select * from gen_durable.insert_from_any_step('[]')",
]


@pytest.mark.clause("SQL-5")
async def test_producer_can_only_insert_and_signal_by_default(sql: Any, producer: Any, role: str) -> None:
    assert [tuple(await producer.fetchrow(call.format(s="gen_durable"))) for call in CALLS[:4]] == ANSWERS[:4]
    for call in BEYOND_THE_DEFAULT:
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="permission denied for function"):
            await producer.execute(call)
    await sql.execute("select gen_durable.grant_producer($1, 'status', 'cancel')", role)
    assert await producer.fetchval("select gen_durable.cancel(1)") == "cancelled"
    assert await producer.fetchval("select gen_durable.job_status('k')") == "cancelled"
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await producer.execute("select gen_durable.retry(1)")


async def test_single_right_can_be_granted(sql: Any, producer: Any, role: str) -> None:
    await sql.execute("select gen_durable.revoke_producer($1)", role)
    await sql.execute("select gen_durable.grant_producer($1, 'signal')", role)
    await sql.execute("select gen_durable.insert('Checkout', correlation_key => 'k')")
    assert await producer.fetchval("select delivered from gen_durable.signal('k', 'paid')")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await producer.execute("select gen_durable.insert('Checkout')")


async def test_unknown_right_is_refused(sql: Any, role: str) -> None:
    with pytest.raises(asyncpg.InvalidParameterValueError, match="no right 'delte'") as raised:
        await sql.execute("select gen_durable.grant_producer($1, 'insert', 'delte')", role)
    assert raised.value.hint == "give one of " + ", ".join(sorted(RIGHTS))
    assert not await sql.fetchval("select has_schema_privilege($1, 'gen_durable', 'usage')", role)


@pytest.mark.clause("SQL-7")
async def test_producer_starts_instances_at_the_initial_step_only(sql: Any, producer: Any, role: str) -> None:
    assert await producer.fetchval("select id from gen_durable.insert('Checkout', step => 'begin')") == 1
    for call, problem in (
        ("insert('Checkout', step => 'ship')", "element 1: machine 'Checkout' starts at step 'begin'"),
        ("insert('Other', step => 'ship')", "element 1: no worker has registered machine 'Other'"),
        (
            "insert('Checkout', version => 7, step => 'begin')",
            "no worker has registered machine 'Checkout' version 7",
        ),
        (
            """insert_all('[{"fsm": "Checkout"}, {"fsm": "Checkout", "step": "ship"}]')""",
            "element 2: machine 'Checkout' starts",
        ),
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match=problem) as raised:
            await producer.execute(f"select * from gen_durable.{call}")
        assert raised.value.hint == 'the owner of the schema grants the right "steps" by grant_producer'
    assert await sql.fetchval("select count(*) from gen_durable.gen_durable") == 1
    await sql.execute("select gen_durable.grant_producer($1, 'steps')", role)
    await producer.execute("select gen_durable.insert('Checkout', step => 'ship')")
    await producer.execute("select gen_durable.insert('Other', step => 'ship')")
    steps = await sql.fetch("select step from gen_durable.gen_durable order by id")
    assert [row["step"] for row in steps] == ["begin", "ship", "ship"]


async def test_function_of_the_owner_inserts_with_the_owners_privileges(sql: Any, producer: Any) -> None:
    """A trigger function of the owner may start at a later step, for every role that may write the table."""
    await sql.execute(
        """create function public.begin_late() returns bigint language sql security definer
             set search_path = pg_catalog, pg_temp
             as $$select id from gen_durable.insert('Checkout', step => 'ship')$$"""
    )
    assert await producer.fetchval("select public.begin_late()") == 1


@pytest.mark.clause("SQL-8")
async def test_texts_of_a_producer_are_bounded(sql: Any, entitled: Any, role: str) -> None:
    await entitled.execute("select gen_durable.insert('Checkout', correlation_key => 'k')")
    long = "é" * 9000
    for call in (
        "cancel(1, $1)",
        "retry(1, reason => $1)",
        "soft_delete(1, $1)",
        "restore(1, $1)",
    ):
        await entitled.execute(f"select gen_durable.{call}", long)
    reasons = await sql.fetch("select reason from gen_durable.audit_events order by id")
    assert {row["reason"] for row in reasons} == {reason_text(long)}
    stored = await sql.fetchrow("select cancel_reason, delete_reason from gen_durable.gen_durable")
    assert tuple(stored) == (reason_text(long), None)
    for call in (
        "cancel(1, actor => $1)",
        "soft_delete('k', actor => $1)",
        "restore(1, actor => $1)",
        "retry('k', actor => $1)",
    ):
        with pytest.raises(
            asyncpg.InvalidParameterValueError, match="actor must have 1 to 255 bytes, got 256"
        ):
            await entitled.execute(f"select gen_durable.{call}", "é" * 128)
    for call in (
        "pause_queue('q', actor => $1)",
        "resume_queue('q', actor => $1)",
        "set_queue('q', 1, actor => $1)",
        "set_audit('all', actor => $1)",
    ):
        with pytest.raises(
            asyncpg.InvalidParameterValueError, match="actor must have 1 to 255 bytes, got 256"
        ):
            await sql.execute(f"select gen_durable.{call}", "é" * 128)
    scope = ["done"] * 100_000
    await entitled.execute(
        "select gen_durable.insert('Checkout', unique_key => 'u', unique_scope => $1::text[],"
        " correlation_key => 'c', correlation_scope => $1::text[])",
        scope,
    )
    widths = await sql.fetchrow(
        "select cardinality(unique_scope), cardinality(correlation_scope) from gen_durable.gen_durable where id = 2"
    )
    assert tuple(widths) == (5, 5)


@pytest.mark.clause("AUD-12")
async def test_audit_names_the_login_beside_the_claimed_actor(
    sql: Any, entitled: Any, role: str, database: Database
) -> None:
    await entitled.execute("select gen_durable.insert('Checkout', correlation_key => 'k')")
    await entitled.execute("select gen_durable.cancel('k', actor => 'the chief')")
    (event,) = await database.run(_verbs.audit("k", None, 10))
    assert (event.event, event.actor, event.login) == ("cancelled", "the chief", role)


# Objects that shadow those of PostgreSQL when they are looked up by unqualified names.
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


async def test_producers_objects_never_run_with_the_owners_privileges(
    sql: Any, entitled: Any, role: str
) -> None:
    await entitled.execute(TRAP)
    await entitled.execute("create temp table gen_durable (id bigint); create temp table machines (fsm text)")
    # Names in the caller's own statement are resolved on the caller's path.
    assert await call_all(entitled) == ANSWERS
    caught = await sql.fetch("select distinct who from lair.caught")
    assert [row["who"] for row in caught if row["who"] != role] == []


async def test_attack_succeeds_without_the_pinned_path(sql: Any, entitled: Any) -> None:
    """Proves that the test above can fail."""
    await sql.execute(
        """do $$ declare one regprocedure; begin
             for one in select function from gen_durable.producer_rights() loop
               execute format('alter function %s reset search_path', one);
             end loop; end $$"""
    )
    await entitled.execute(TRAP)
    await call_all(entitled)
    owner = await sql.fetchval("select current_user::text")
    assert await sql.fetchval("select count(*) from lair.caught where who = $1", owner) > 0


async def test_session_settings_of_a_producer_change_nothing(entitled: Any) -> None:
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
        await entitled.execute(f"set {setting} = {value}")
    assert await call_all(entitled) == ANSWERS


async def test_all_security_definer_functions_are_known_and_pinned(
    sql: Any,
) -> None:
    """One of them is a trigger: no arguments, and it acts for a role that may update the column."""
    rows = await sql.fetch(
        """select p.oid::regprocedure::text as name, p.proconfig from pg_proc p
            where p.pronamespace = 'gen_durable'::regnamespace and p.prosecdef order by 1"""
    )
    granted = await sql.fetch(
        "select r.function::text as name from gen_durable.producer_rights() r"
        " where r.function not in (select oid from pg_proc where proname in ('insert', 'insert_all')) order by 1"
    )
    assert {row["name"] for row in rows} == {"gen_durable.on_deleted()", *(row["name"] for row in granted)}
    assert {tuple(row["proconfig"]) for row in rows} == {("search_path=pg_catalog, pg_temp",)}


@pytest.mark.clause("SQL-5")
async def test_no_function_is_executable_by_public(sql: Any) -> None:
    """PostgreSQL grants EXECUTE on new functions to PUBLIC: every migration has to revoke it."""
    rows = await sql.fetch(
        """select p.oid::regprocedure::text as name from pg_proc p
            where p.pronamespace = 'gen_durable'::regnamespace
              and (p.proacl is null or exists (select from aclexplode(p.proacl) a where a.grantee = 0))"""
    )
    assert [row["name"] for row in rows] == []


async def test_revoked_right_is_gone(sql: Any, producer: Any, role: str) -> None:
    await sql.execute("select gen_durable.grant_producer($1)", role)  # granting again is harmless
    await sql.execute("select gen_durable.revoke_producer($1)", role)
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="permission denied for schema gen_durable"):
        await producer.execute("select gen_durable.insert('Checkout')")


async def test_role_and_schema_names_are_quoted(sql: Any, durable_dsn: str, role: str) -> None:
    await migrate_schema(durable_dsn, "order")
    strange = f'Web "hooks"; drop {role}'
    quoted = await sql.fetchval("select quote_ident($1)", strange)
    await sql.execute(f"create role {quoted}")
    try:
        await sql.execute("""select "order".grant_producer($1, 'insert', 'steps', 'cancel')""", strange)
        async with sql.transaction():
            await sql.execute(f"set local role {quoted}")
            assert await sql.fetchval("""select id from "order".insert('A', step => 's')""") == 1
            assert await sql.fetchval("""select "order".cancel(1)""") == "cancelled"
        assert not await sql.fetchval("select has_schema_privilege($1, 'gen_durable', 'usage')", strange)
        with pytest.raises(asyncpg.UndefinedObjectError, match="does not exist"):
            await sql.execute("select gen_durable.grant_producer('nobody; drop table x')")
    finally:
        await sql.execute(f"drop owned by {quoted}; drop role {quoted}")


async def test_owner_without_superuser_can_grant_producers(sql: Any, durable_dsn: str, role: str) -> None:
    owner = f"owner_{uuid.uuid4().hex[:12]}"
    await sql.execute(f"create role {owner} login password 'pw'; create schema shop authorization {owner}")
    try:
        await migrate_schema(re.sub(r"//[^@/]*@", f"//{owner}:pw@", durable_dsn, count=1), "shop")
        await sql.execute(f"set role {owner}")
        await sql.execute("select shop.grant_producer($1, 'insert', 'steps')", role)
        await sql.execute(f"set role {role}")
        assert await sql.fetchval("select id from shop.insert('A', step => 's')") == 1
        await sql.execute("reset role")
        assert await sql.fetchval("select count(*) from shop.gen_durable") == 1
    finally:
        await sql.execute(f"reset role; drop owned by {owner} cascade; drop role {owner}")
