"""PostgreSQL can prepare every statement, in any schema."""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any

import pytest

from gen_durable._db import migrate
from gen_durable._db.plan import Script, in_schema, read
from gen_durable._schema import migrate_schema
from tests.support.statement_files import all_statements

SCHEMAS = ["gen_durable", "my_app_1", "order"]


def test_statements_are_found() -> None:
    files = {file for file, _ in all_statements()}
    assert {"commit.sql", "insert.sql", "pick.sql"} <= files


async def prepare_all(sql: Any, schema: str) -> None:
    for _, statement in all_statements():
        prepared = await sql.prepare(in_schema(statement.text, schema))
        assert len(prepared.get_parameters()) == len(statement.parameters), statement


async def test_every_statement_prepares_on_a_fresh_schema(sql: Any) -> None:
    await prepare_all(sql, "gen_durable")


@pytest.mark.parametrize("schema", ["my_app_1", "order"])
async def test_other_schema_does_not_need_the_default_one(sql: Any, durable_dsn: str, schema: str) -> None:
    await migrate_schema(durable_dsn, schema)
    await sql.execute("drop schema gen_durable cascade")
    await prepare_all(sql, schema)
    # plpgsql checks bodies only when they run.
    await sql.execute(
        f"""select * from "{schema}".insert('Greet', step => 'hello', unique_key => 'a', correlation_key => 'b');
            select * from "{schema}".insert('Greet', step => 'hello', unique_key => 'a');
            select * from "{schema}".insert_all('[{{"fsm": "Greet", "step": "hello"}}]');
            select * from "{schema}".signal('b', 'paid'); select * from "{schema}".signal(1, 'paid')"""
    )
    assert await sql.fetchval(f'select count(*) from "{schema}".gen_durable') == 2
    assert await sql.fetchval(f'select count(*) from "{schema}".signals') == 2


@pytest.mark.parametrize("schema", SCHEMAS)
def test_no_statement_names_another_schema(schema: str) -> None:
    texts = [in_schema(statement.text, schema) for _, statement in all_statements()]
    plan = migrate.migrate(schema)
    found = {"has_schema": False, "has_migrations": False, "encoding": "UTF8", "foreign_owner": None}
    answers: Any = [None, [], [found]]
    for answer in [*answers, *[answers[2]] * 3]:
        call = plan.send(answer)
        if isinstance(call, Script):
            texts.append(call.text)
    assert len(texts) > len(list(all_statements()))
    for text in texts:
        assert "gen_durable." not in text.replace('"gen_durable".', "")


def test_every_parameter_is_cast_wherever_it_is_used() -> None:
    """Without a cast PostgreSQL infers the type from the context, and another driver might send another type."""
    bare = [
        (file, statement.name, statement.parameters[int(number) - 1])
        for file, statement in all_statements()
        for number in re.findall(r"\$(\d+)(?!\d|::)", statement.text)
    ]
    # Each use is compared with a text column.
    assert set(bare) == {
        ("pick.sql", name, "queue") for name in ("pick", "pick_with_admission", "pick_by_machine")
    }


@pytest.mark.parametrize("file", ["pick.sql", "admission.sql"])
def test_every_part_is_whole_ctes_or_a_whole_query(file: str) -> None:
    """So each part can be read, and tried in psql, without the others."""
    sections = re.split(r"^-- (name|part): (\w+)\n", read(file), flags=re.MULTILINE)[1:]
    parts = {
        name: re.sub(r"--[^\n]*", "", body).strip()
        for kind, name, body in zip(sections[::3], sections[1::3], sections[2::3], strict=True)
        if kind == "part"
    }
    assert parts
    for name, body in parts.items():
        assert re.match(r"\w+ as (materialized )?\(|select ", body), name
        depths = list(accumulate({"(": 1, ")": -1}.get(character, 0) for character in body))
        assert min(depths) >= 0, name
        assert depths[-1] == 0, name
