"""Each test has its own database, which is removed afterwards."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from gen_durable._db import migrate
from gen_durable.errors import UnreachableError, UsageError
from gen_durable.testing import Harness
from gen_durable.testing._databases import Databases, _template_name
from gen_durable.testing._server import ScratchServer, _homes
from tests.testing.machines import Parcel


@pytest.fixture(scope="module")
def admin() -> Iterator[psycopg.Connection]:
    """A connection to the server itself."""
    server = ScratchServer.find()
    with psycopg.connect(server.dsn, autocommit=True) as conn:
        yield conn
    server.close()


@pytest.fixture
def role(admin: psycopg.Connection[Any]) -> Iterator[str]:
    """A role that may only connect."""
    name = f"gen_durable_{secrets.token_hex(4)}"
    admin.execute(f"create role {name} login".encode())
    yield name
    admin.execute(f"drop role {name}".encode())


def names(admin: psycopg.Connection[Any], pattern: str) -> set[str]:
    rows = admin.execute("select datname from pg_database where datname like %s", [pattern])
    return {name for (name,) in rows}


def name_in(dsn: str) -> str:
    return urlsplit(dsn).path.removeprefix("/")


def dsn_of(role: str) -> str:
    parts = urlsplit(ScratchServer.find().dsn)
    return f"postgresql://{role}@{parts.netloc.rpartition('@')[2]}{parts.path}?{parts.query}"


def test_databases_are_empty_and_migrated_and_not_shared(durable_databases: Databases) -> None:
    fresh = durable_databases.fresh
    with fresh() as first, fresh() as second, Harness(first) as one, Harness(second) as other:
        one.insert(Parcel, 1)
        assert (one.count(), other.count()) == (1, 0)
        assert one._run_now(migrate.status("gen_durable")).is_current


def test_fixtures_of_a_test_share_a_database(durable: Harness, durable_dsn: str) -> None:
    assert durable.dsn == durable_dsn


def test_databases_are_dropped_after_the_session(admin: psycopg.Connection[Any]) -> None:
    with Databases() as databases:
        with databases.fresh() as dsn, psycopg.connect(dsn) as forgotten:
            name = name_in(dsn)
            assert names(admin, name) == {name}
            forgotten.execute("select 1")
        with pytest.raises(ZeroDivisionError), databases.fresh():
            raise ZeroDivisionError
    assert names(admin, f"gen\\_durable\\_test\\_{databases._token}%") == set()


def test_only_databases_of_killed_sessions_are_swept(
    admin: psycopg.Connection[Any], durable_dsn: str
) -> None:
    orphan = f"gen_durable_test_{secrets.token_hex(4)}_1"
    admin.execute(f"create database {orphan} template template0".encode())
    with Databases():
        assert names(admin, orphan) == set()
        assert names(admin, name_in(durable_dsn)) == {name_in(durable_dsn)}


def test_concurrent_processes_create_one_template(admin: psycopg.Connection[Any]) -> None:
    template = _template_name("raced_for")
    admin.execute(f"drop database if exists {template}".encode())

    def count(_: int) -> object:
        with Databases() as databases, databases.fresh("raced_for") as dsn, psycopg.connect(dsn) as conn:
            return conn.execute("select count(*) from raced_for.gen_durable").fetchone()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(count, range(4))) == [(0,)] * 4
    assert names(admin, template) == {template}


def test_swept_template_is_created_again(admin: psycopg.Connection[Any]) -> None:
    with Databases() as databases:
        with databases.fresh("swept") as first:
            assert first
        admin.execute(f"drop database {_template_name('swept')}".encode())
        with databases.fresh("swept"), databases.fresh("swept") as third, psycopg.connect(third) as conn:
            conn.execute("select from swept.signals")


def test_createdb_privilege_is_enough(admin: psycopg.Connection[Any], role: str) -> None:
    admin.execute(f"alter role {role} createdb".encode())
    template = _template_name("of_a_role")
    admin.execute(f"drop database if exists {template}".encode())
    with (
        Databases(dsn_of(role)) as databases,
        databases.fresh("of_a_role") as dsn,
        psycopg.connect(dsn) as conn,
    ):
        assert conn.execute("select current_user").fetchone() == (role,)
    admin.execute(f"drop database {template}".encode())


def test_missing_createdb_privilege_is_named(role: str) -> None:
    with (
        Databases(dsn_of(role)) as databases,
        pytest.raises(UsageError, match="createdb"),
        databases.fresh(),
    ):
        pass


def test_unreachable_server_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEN_DURABLE_DSN", "postgresql://app:secret@127.0.0.1:1/shop")
    with (
        pytest.raises(UnreachableError, match=r"app@127.0.0.1:1/shop(.|\n)*GEN_DURABLE_DSN"),
        Databases(),
    ):
        pass


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ("postgresql://app:x@db:5432/shop", "postgresql://app:x@db:5432/fresh"),
        ("postgresql://db", "postgresql://db/fresh"),
        ("postgresql:///shop?host=/run/pg", "postgresql:///fresh?host=/run/pg"),
        ("postgresql://app@/shop?host=/run&port=1", "postgresql://app@/fresh?host=/run&port=1"),
        ("postgresql://db/?dbname=shop&sslmode=require", "postgresql://db/fresh?sslmode=require"),
    ],
)
def test_dsn_of_changes_only_the_database(server: str, expected: str) -> None:
    databases = Databases()
    databases._server = ScratchServer(server, "")
    assert databases.dsn_of("fresh") == expected


def test_home_setting_is_respected_but_not_shared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GEN_DURABLE_HOME", str(tmp_path))
    (home,) = _homes()
    assert home.parent == tmp_path
    assert home.name.startswith("tests-pg")


def test_database_with_new_rows_and_tables_is_reused(admin: psycopg.Connection[Any]) -> None:
    with Databases() as databases:
        with databases.clean() as first, Harness(first) as durable, psycopg.connect(first) as forgotten:
            durable.insert(Parcel, 1)
            durable.drain()
            forgotten.execute("create table mine (id int); create view seen as select * from mine")
            forgotten.commit()
            forgotten.execute("select from gen_durable.gen_durable for update")
        again = used(databases)
        assert again == name_in(first)
        with psycopg.connect(databases.dsn_of(again)) as conn:
            assert (
                conn.execute("select from pg_class where relnamespace = 'public'::regnamespace").fetchall()
                == []
            )
        with Harness(databases.dsn_of(again)) as durable:
            assert durable.insert(Parcel, 1).id == 1
            assert durable.count() == 1
            assert durable._run_now(migrate.status("gen_durable")).is_current
        databases.drop(again)
    assert names(admin, f"gen\\_durable\\_test\\_{databases._token}%") == set()


DEEDS = [
    "create schema mine",
    'create collation mine from "C"; create table names (name text collate mine)',
    "create text search configuration mine (copy = simple)",
    "create function mine() returns int language sql return 1",
    "create table mine (id bigint primary key); alter table gen_durable.signals add foreign key (id) references mine",
    "create temporary table mine (id int)",
    "drop index gen_durable.gen_durable_deadline",
    "alter table gen_durable.gen_durable set (autovacuum_enabled = off)",
    "alter table gen_durable.signals alter column name set statistics 7",
    "grant select on gen_durable.signals to public",
    "do $$ begin execute format('alter database %I set work_mem = ''8MB''', current_database()); end $$",
    "alter function gen_durable.refill(numeric, int, interval) cost 7",
    "create trigger mine before insert on gen_durable.signals execute function suppress_redundant_updates_trigger()",
    "update gen_durable.settings set audit = 'all'",
    "analyze gen_durable.gen_durable",
    "select lo_create(0)",
    "insert into gen_durable.gen_durable (fsm, step) select 'A', 's' from generate_series(1, 5000)",
]


def test_database_with_other_changes_is_not_reused() -> None:
    with Databases() as databases:
        for deed in DEEDS:
            with databases.clean() as dsn, psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute(deed.encode())
            assert used(databases) is None, deed


def used(databases: Databases) -> str | None:
    """The returned database, if the next test can reuse it."""
    for returned in databases._returned["gen_durable"].values():
        returned.result()
    return databases._usable("gen_durable")
