"""Migrations: numbered increments, applied and reverted, also concurrently."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from gen_durable import AsyncClient, Client, Settings
from gen_durable._db import migrate
from gen_durable._db.pool import Database
from gen_durable._schema import LATEST, migrate_schema, schema_status
from gen_durable.errors import SchemaVersionError, UsageError
from gen_durable.testing._databases import Databases
from tests.db.catalog import dump, leftovers
from tests.support.forkserver import launch
from tests.upgrades.next_version import NEXT, as_next_version

ELSEWHERE = "my_app_1"


@pytest.fixture
def next_version(durable_dsn: str, durable_databases: Databases, tmp_path: Path) -> Iterator[None]:
    """Code with one more increment than the schema `gen_durable` of `durable_dsn`."""
    with as_next_version(tmp_path, durable_databases):
        yield


@pytest.mark.usefixtures("next_version")
async def test_increments_applied_one_by_one_equal_a_fresh_schema(sql: Any, durable_dsn: str) -> None:
    for version in range(1, NEXT + 1):
        await migrate_schema(durable_dsn, ELSEWHERE, version)
    await migrate_schema(durable_dsn, "order")
    assert await dump(sql, ELSEWHERE) == await dump(sql, "order")


@pytest.mark.usefixtures("next_version")
async def test_migrating_down_and_up_is_a_round_trip(sql: Any, durable_dsn: str) -> None:
    await migrate_schema(durable_dsn, "gen_durable")
    fresh = await dump(sql, "gen_durable")
    for version in range(NEXT):
        down = await migrate_schema(durable_dsn, "gen_durable", version)
        assert (down.version or 0, down.is_current) == (version, False)
        up = await migrate_schema(durable_dsn, "gen_durable")
        assert (up.version, up.is_current) == (NEXT, True)
        assert await dump(sql, "gen_durable") == fresh


async def test_migrating_to_zero_drops_everything_even_with_instances(sql: Any, durable_dsn: str) -> None:
    await sql.execute("select gen_durable.insert('Greet', step => 'hello', correlation_key => 'a')")
    await sql.execute("select gen_durable.signal('a', 'paid')")
    assert (await migrate_schema(durable_dsn, "gen_durable", 0)).version is None
    assert await leftovers(sql, "gen_durable") == []
    assert (await schema_status(durable_dsn, "gen_durable")).version is None


async def test_objects_of_the_user_in_the_same_schema_survive(sql: Any, durable_dsn: str) -> None:
    await sql.execute("create table gen_durable.invoices (id int)")
    await migrate_schema(durable_dsn, "gen_durable", 0)
    assert await leftovers(sql, "gen_durable") == ["_invoices", "invoices", "invoices"]


async def test_migrating_an_empty_database_to_zero_creates_nothing(sql: Any, durable_dsn: str) -> None:
    assert (await migrate_schema(durable_dsn, ELSEWHERE, 0)).version is None
    assert not await sql.fetchval("select exists (select from pg_namespace where nspname = $1)", ELSEWHERE)


@pytest.mark.parametrize("schema", [ELSEWHERE, "order"])
async def test_printed_script_equals_migrate(sql: Any, schema: str) -> None:
    await sql.execute(migrate.script(schema))  # like psql: one text with many statements
    assert await dump(sql, schema) == await dump(sql, "gen_durable")
    await sql.execute(migrate.script(schema, current=LATEST, to=0))
    assert await leftovers(sql, schema) == []


async def test_failed_script_leaves_nothing(sql: Any) -> None:
    text = migrate.script(ELSEWHERE).replace("create view", "create nonsense", 1)
    with pytest.raises(Exception, match="syntax error"):
        await sql.execute(text)
    await sql.execute("rollback")
    assert not await sql.fetchval("select exists (select from pg_namespace where nspname = $1)", ELSEWHERE)


async def test_ten_tasks_migrate_an_empty_database_concurrently(sql: Any, durable_dsn: str) -> None:
    answers = await asyncio.gather(*[migrate_schema(durable_dsn, ELSEWHERE) for _ in range(10)])
    assert {answer.version for answer in answers} == {LATEST}
    assert await dump(sql, ELSEWHERE) == await dump(sql, "gen_durable")


async def test_ten_processes_start_on_an_empty_database_concurrently(
    sql: Any, durable_dsn: str, tmp_path: Path
) -> None:
    printed = tmp_path / "printed"
    when = str(time.monotonic() + 0.5)  # all processes have started by then
    with printed.open("wb") as output:
        booting = [
            launch("tests.db.boot", durable_dsn, ELSEWHERE, when, output=output.fileno()) for _ in range(10)
        ]
    assert [await process.ends() for process in booting] == [0] * 10
    assert printed.read_text() == "0\n" * 10
    assert await dump(sql, ELSEWHERE) == await dump(sql, "gen_durable")


async def test_newer_schema_is_refused_by_clients_and_by_migrate(sql: Any, durable_dsn: str) -> None:
    await sql.execute("insert into gen_durable.migrations (version, oldest_code) values ($1, $1)", LATEST + 7)
    newer = rf"schema 'gen_durable' is at version {LATEST + 7}, which needs code of version {LATEST + 7} .* upgrade"
    with pytest.raises(SchemaVersionError, match=newer):
        async with AsyncClient(durable_dsn):
            pass
    with pytest.raises(SchemaVersionError, match=newer), Client(durable_dsn):
        pass
    for version in (0, LATEST):
        with pytest.raises(SchemaVersionError, match=newer):
            await migrate_schema(durable_dsn, "gen_durable", version)
    assert await sql.fetchval("select count(*) from gen_durable.gen_durable") == 0


NEWER = [
    # The oldest code of the next increments, and whether ours works with all of them.
    ([LATEST], True),
    ([LATEST - 1, LATEST], True),
    ([LATEST + 1], False),
    ([LATEST + 1, LATEST], False),  # one of them excludes our code
]


@pytest.mark.clause("SCH-12")
@pytest.mark.parametrize(("oldest", "works"), NEWER)
async def test_newer_schema_that_works_with_this_code_is_used(
    sql: Any, durable_dsn: str, oldest: list[int], works: bool, caplog: pytest.LogCaptureFixture
) -> None:
    for number, code in enumerate(oldest, LATEST + 1):
        await sql.execute("insert into gen_durable.migrations values ($1, now(), $2)", number, code)
    newest = LATEST + len(oldest)
    refusal = f"version {newest}, which needs code of version {max(oldest)} or newer"

    def checked() -> AbstractContextManager[Any]:
        return nullcontext() if works else pytest.raises(SchemaVersionError, match=refusal)

    with caplog.at_level(logging.INFO, "gen_durable"):
        with checked():
            async with AsyncClient(durable_dsn) as client:
                assert [each for each in await client.doctor() if each.severity == "problem"] == []
        with checked(), Client(durable_dsn) as blocking:
            assert blocking.count() == 0
        with checked():
            assert (await migrate_schema(durable_dsn, "gen_durable")).version == newest
    message = (
        f"schema 'gen_durable' has version {newest}; this gen_durable has version {LATEST} and works with it"
    )
    assert [record.message for record in caplog.records] == [message] * 2 * works
    with pytest.raises(SchemaVersionError):  # only newer code can revert it
        await migrate_schema(durable_dsn, "gen_durable", LATEST - 1)


def test_increments_state_the_oldest_code_that_works_with_them() -> None:
    stated = {version: migrate.oldest_code(version) for version in range(1, LATEST + 1)}
    assert all(1 <= oldest <= version for version, oldest in stated.items()), stated


@pytest.mark.usefixtures("next_version")
async def test_older_schema_is_refused_until_it_is_migrated(durable_dsn: str) -> None:
    older = f"is at version {LATEST}, but this gen_durable needs {NEXT}; run `gen-durable db migrate`"
    with pytest.raises(SchemaVersionError, match=older):
        async with AsyncClient(durable_dsn):
            pass
    with pytest.raises(SchemaVersionError, match=older), Client(durable_dsn):
        pass
    assert (await schema_status(durable_dsn, "gen_durable")).version == LATEST
    await migrate_schema(durable_dsn, "gen_durable")
    async with AsyncClient(durable_dsn) as client:
        assert await client.count() == 0


@pytest.mark.usefixtures("next_version")
async def test_opening_a_client_upgrades_only_an_embedded_server(sql: Any, durable_dsn: str) -> None:
    await migrate_schema(durable_dsn, ELSEWHERE)
    async with await Database.open(durable_dsn, "gen_durable") as database:
        await database.run_in_transaction(migrate.prepare("gen_durable", upgrade=True))
    assert await dump(sql, "gen_durable") == await dump(sql, ELSEWHERE)


@pytest.mark.usefixtures("next_version")
async def test_scripts_of_single_increments_equal_the_whole(sql: Any, durable_dsn: str) -> None:
    for version in range(NEXT):
        await migrate_schema(durable_dsn, ELSEWHERE, version + 1)
        await sql.execute(migrate.script("order", current=version, to=version + 1))
        assert await dump(sql, "order") == await dump(sql, ELSEWHERE)
    for version in range(NEXT, 0, -1):
        before = await dump(sql, "order")
        await sql.execute(migrate.script("order", current=version, to=version - 1))
        if version > 1:
            await sql.execute(migrate.script("order", current=version - 1, to=version))
            assert await dump(sql, "order") == before
            await sql.execute(migrate.script("order", current=version, to=version - 1))
    assert await leftovers(sql, "order") == []


async def test_client_installs_the_schema_in_an_empty_database(sql: Any, durable_dsn: str) -> None:
    settings = Settings(schema=ELSEWHERE)
    async with AsyncClient(durable_dsn, settings=settings) as client:
        assert await client.count() == 0
    with Client(durable_dsn, settings=settings) as client:
        assert client.count() == 0
    assert (await schema_status(durable_dsn, ELSEWHERE)).is_current


@pytest.mark.parametrize("version", [-1, LATEST + 1])
async def test_unknown_version_is_refused(durable_dsn: str, version: int) -> None:
    with pytest.raises(
        UsageError, match=rf"schema version {version} does not exist; pass 0 \(no tables\) to {LATEST}"
    ):
        await migrate_schema(durable_dsn, "gen_durable", version)


async def test_database_without_utf8_is_refused(sql: Any, durable_dsn: str) -> None:
    name = f"{await sql.fetchval('select current_database()')}_latin1"
    await sql.execute(f"create database {name} encoding 'LATIN1' locale 'C' template template0")
    dsn = urlsplit(durable_dsn)._replace(path=f"/{name}").geturl()
    try:
        for verb in (migrate_schema(dsn, "gen_durable"), AsyncClient(dsn).__aenter__()):
            with pytest.raises(UsageError, match="encoding of this database is LATIN1"):
                await verb
    finally:
        await sql.execute(f"drop database {name} with (force)")
