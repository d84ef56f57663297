"""Roles without superuser, and the default settings of a role."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from gen_durable import (
    AsyncClient,
    Client,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    Settings,
    Status,
    Worker,
    step,
)
from gen_durable._db import collect, migrate
from gen_durable._db.failures import StatementError
from gen_durable._db.pool import Database
from gen_durable._schema import migrate_schema
from gen_durable.errors import UsageError
from tests.db.raw import fetchrow

OWN = Settings(schema="shop")


class Echo(Machine[str, str]):
    @step
    async def first(self, ctx: Context[str]) -> Outcome:
        return Next(self.second)

    @step
    def second(self, ctx: Context[str]) -> Outcome[str]:
        return Done(ctx.state)


@pytest.fixture
async def role(sql: Any) -> AsyncIterator[str]:
    """A login without privileges."""
    name = f"role_{uuid.uuid4().hex[:12]}"
    await sql.execute(f"create role {name} login nosuperuser nocreatedb nocreaterole password 'pw'")
    await sql.execute(
        "revoke all on database " + await sql.fetchval("select current_database()") + " from public"
    )
    await sql.execute(
        "grant connect on database " + await sql.fetchval("select current_database()") + f" to {name}"
    )
    yield name
    await sql.execute(f"drop owned by {name} cascade; drop role {name}")


def as_role(dsn: str, role: str) -> str:
    return re.sub(r"//[^@/]*@", f"//{role}:pw@", dsn, count=1)


async def test_schema_owner_needs_no_privilege_on_the_database(sql: Any, durable_dsn: str, role: str) -> None:
    await sql.execute(f"create schema shop authorization {role}")
    dsn = as_role(durable_dsn, role)
    async with Worker([Echo], dsn=dsn, settings=OWN) as worker:
        assert (await worker.wait(await worker.insert(Echo, "hi"))).result == "hi"
    with Client(dsn, settings=OWN) as client:
        assert client.count(Echo, status=Status.DONE) == 1
    assert await sql.fetchval("select tableowner from pg_tables where schemaname = 'shop' limit 1") == role
    assert (await migrate_schema(dsn, "shop", 0)).version is None


async def test_schema_of_another_role_is_refused(sql: Any, durable_dsn: str, role: str) -> None:
    """The owner could add a trigger that runs with the privileges of the role that installs."""
    await sql.execute(f"create schema shop authorization {role}")
    squatter = await asyncpg.connect(as_role(durable_dsn, role))
    await squatter.execute(
        """create table shop.migrations (version int primary key, applied_at timestamptz default now(), oldest_code int);
           create table shop.caught (who text);
           create function shop.spring() returns trigger language plpgsql
             as $$begin insert into shop.caught values (current_user); return new; end$$;
           create trigger spring before insert on shop.migrations for each row execute function shop.spring()"""
    )
    await squatter.close(timeout=5)
    with pytest.raises(UsageError, match=f"schema 'shop' belongs to role '{role}'"):
        async with AsyncClient(durable_dsn, settings=OWN):
            pass
    with pytest.raises(UsageError, match="migrate as that role"):
        await migrate_schema(durable_dsn, "shop")
    assert await sql.fetchval("select count(*) from shop.caught") == 0
    await sql.execute("drop table shop.migrations; alter schema shop owner to current_user")
    assert (await migrate_schema(durable_dsn, "shop")).is_current


async def test_member_of_the_owner_of_a_schema_may_install(sql: Any, durable_dsn: str, role: str) -> None:
    group = f"{role}_group"
    await sql.execute(
        f"create role {group}; grant {group} to {role}; create schema shop authorization {group}"
    )
    try:
        assert (await migrate_schema(as_role(durable_dsn, role), "shop")).is_current
    finally:
        await sql.execute(f"drop owned by {group} cascade; drop role {group}")


async def test_role_that_may_create_schemas_creates_the_schema(sql: Any, durable_dsn: str, role: str) -> None:
    await sql.execute(f"grant create on database {await sql.fetchval('select current_database()')} to {role}")
    async with AsyncClient(as_role(durable_dsn, role), settings=OWN) as client:
        await client.insert(Echo, "hi")
        assert await client.count() == 1


async def test_role_without_privileges_gets_an_error_and_leaves_nothing(
    sql: Any, durable_dsn: str, role: str
) -> None:
    message = (
        r"permission denied for database (\S+) \(SQLSTATE 42501\); grant create on database \1 to this role"
    )
    with pytest.raises(StatementError, match=message):
        async with AsyncClient(as_role(durable_dsn, role), settings=OWN):
            pass
    assert not await sql.fetchval("select exists (select from pg_namespace where nspname = 'shop')")


async def test_error_names_the_missing_grant(sql: Any, durable_dsn: str, role: str) -> None:
    dsn = as_role(durable_dsn, role)
    missing = [
        ("usage on schema gen_durable", "usage on schema gen_durable"),
        ("select, insert, update, delete on migrations", "select on all tables in schema gen_durable"),
        ("execute on function insert_plain_rows", "execute on all functions in schema gen_durable"),
        (
            "select, insert, update, delete on gen_durable",
            "insert, update on all tables in schema gen_durable",
        ),
    ]
    for right, grant in missing:
        with pytest.raises(StatementError, match=rf"\(SQLSTATE 42501\); grant {right} to this role"):
            async with AsyncClient(dsn) as client:
                await client.insert(Echo, "hi")
        await sql.execute(f"grant {grant} to {role}")
    await sql.execute(f"grant usage on all sequences in schema gen_durable to {role}")
    async with AsyncClient(dsn) as client:
        assert (await client.insert(Echo, "hi")).id


async def test_role_without_the_right_to_vacuum_skips_it(sql: Any, durable_dsn: str, role: str) -> None:
    await sql.execute(f"grant usage on schema gen_durable to {role}")
    async with await Database.open(as_role(durable_dsn, role), "gen_durable") as database:
        await database.run_bare(collect.vacuum())
    assert not await sql.fetchval("select sum(vacuum_count) from pg_stat_user_tables")


async def test_printed_script_works_for_the_schema_owner(sql: Any, durable_dsn: str, role: str) -> None:
    await sql.execute(f"create schema shop authorization {role}")
    connection = await asyncpg.connect(as_role(durable_dsn, role))
    try:
        await connection.execute(migrate.script("shop"))
    finally:
        await connection.close()
    async with AsyncClient(as_role(durable_dsn, role), settings=OWN) as client:
        assert await client.count() == 0


async def test_pinned_settings_override_the_defaults_of_a_role(sql: Any, durable_dsn: str, role: str) -> None:
    await sql.execute(f"create schema shop authorization {role}")
    for setting, value in {
        "default_transaction_isolation": "'repeatable read'",
        "default_transaction_read_only": "on",
        "statement_timeout": "'1ms'",
        "lock_timeout": "'1ms'",
        "synchronous_commit": "off",
        "plan_cache_mode": "force_custom_plan",
        "search_path": "nowhere",
        "datestyle": "'SQL, DMY'",
        "intervalstyle": "sql_standard",
        "timezone": "'Asia/Kathmandu'",
        "bytea_output": "escape",
    }.items():
        await sql.execute(f"alter role {role} set {setting} = {value}")
    dsn = as_role(durable_dsn, role)
    async with await Database.open(dsn, "shop") as database:
        row = await fetchrow(
            database,
            "select current_setting('transaction_isolation') as isolation, current_setting('jit') as jit,"
            " current_setting('synchronous_commit') as synchronous_commit,"
            " current_setting('plan_cache_mode') as plans, current_setting('statement_timeout') as timeout",
        )
        assert tuple(row) == ("read committed", "off", "on", "force_generic_plan", "30s")
    async with Worker([Echo], dsn=dsn, settings=OWN) as worker:
        order = await worker.insert(Echo, "hi", unique_key=b"\x00\xff\\", correlation_key="a")
        there = await worker.wait(order)
    with Client(dsn, settings=OWN) as client:
        here = client.get(order)
    assert here == there
    assert (there.result, there.unique_key) == ("hi", b"\x00\xff\\")
