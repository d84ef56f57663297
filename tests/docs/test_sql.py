"""docs/sql.md does what it says: every statement, in its order, on a new database."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from gen_durable import Context, Done, Machine, Outcome, Worker, job, step
from gen_durable._db.insert import register
from gen_durable.definition import definition_of
from gen_durable.testing import Harness

PAGE = Path(__file__).parents[2] / "docs" / "sql.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Checkout(Machine[dict[str, Any], None], queue="checkout"):
    @step
    async def start(self, ctx: Context[dict[str, Any]]) -> Outcome[None]:
        return Done(None)


@job("billing.invoice_charge.v1")
async def invoice_charge(invoice: dict[str, int]) -> None:
    pass


@dataclass
class Example:
    statement: str
    rows: list[str] = field(default_factory=list)
    error: str | None = None


def blocks(language: str) -> list[str]:
    return [body for name, body in BLOCK.findall(PAGE.read_text(encoding="utf-8")) if name == language]


def examples(names: dict[str, str]) -> list[Example]:
    """The statements of the page, each with what it says will come back."""
    found: list[Example] = []
    open_lines: list[str] = []
    for line in "".join(blocks("sql")).splitlines():
        for name, ours in names.items():
            line = re.sub(rf"\b{name}\b", ours, line)
        if line.startswith("-- →"):
            found[-1].rows.append(line[4:].strip())
        elif line.startswith("-- ✗"):
            found[-1].error = line[4:].strip()
        else:
            open_lines.append(line)
            statement = "\n".join(open_lines)
            if line.endswith(";") and statement.count("$$") % 2 == 0:
                found.append(Example(statement))
                open_lines.clear()
    assert open_lines == []
    return found


@pytest.fixture
def roles(durable_dsn: str) -> Iterator[dict[str, str]]:
    """Names of the page's roles for this test alone: roles belong to the server, not to the database."""
    names = {name: f"{name}_{uuid.uuid4().hex[:12]}" for name in ("webhooks", "shop_worker")}
    yield names
    with psycopg.connect(durable_dsn, autocommit=True) as connection:
        for name in names.values():
            if connection.execute("select from pg_roles where rolname = %s", [name]).fetchone() is not None:
                connection.execute(f"drop owned by {name}; drop role {name}")


@pytest.fixture
def registered(durable: Harness) -> None:
    durable._database.run(register([definition_of(Checkout), definition_of(invoice_charge)]))


@pytest.fixture
def connection(durable_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(durable_dsn, autocommit=True) as connection:
        yield connection


def shown(cursor: psycopg.Cursor[Any]) -> list[str]:
    """The rows as psql shows them."""
    result = cursor.pgresult
    if result is None or not result.nfields:
        return []
    cells = [
        [(result.get_value(row, column) or b"").decode() for column in range(result.nfields)]
        for row in range(result.ntuples)
    ]
    return [" | ".join(row).strip() for row in cells]


def run_page(connection: psycopg.Connection[Any], names: dict[str, str]) -> None:
    for example in examples(names):
        if example.error is None:
            found = shown(connection.execute(example.statement.encode()))
            pattern = "\n".join(re.escape(line).replace("…", ".+") for line in example.rows)
            assert re.fullmatch(pattern, "\n".join(found)), (example, found)
        else:
            with pytest.raises(psycopg.Error) as raised:
                connection.execute(example.statement.encode())
            assert raised.value.diag.message_primary == example.error, example


@pytest.mark.clause("SQL-6")
@pytest.mark.usefixtures("registered")
def test_every_statement_of_the_page(connection: psycopg.Connection[Any], roles: dict[str, str]) -> None:
    assert len(examples(roles)) > 40
    run_page(connection, roles)


@pytest.mark.usefixtures("registered")
async def test_the_role_for_workers_is_enough_for_a_worker(
    connection: psycopg.Connection[Any], durable_dsn: str, roles: dict[str, str]
) -> None:
    run_page(connection, roles)
    name = roles["shop_worker"]
    dsn = re.sub(r"//[^@/]*@", f"//{name}:change me too@".replace(" ", "%20"), durable_dsn, count=1)
    async with Worker([Checkout, invoice_charge], dsn=dsn) as worker:
        order = await worker.insert(Checkout, {"order": 1})
        await worker.wait(order, raise_failed=True)
        await worker.wait("order:44", raise_failed=True)
        await worker.soft_delete(order)
        await worker.restore(order)


def test_the_statements_for_programs_are_such(connection: psycopg.Connection[Any], durable: Harness) -> None:
    statements = [
        text
        for language in ("go", "js", "ruby")
        for text in re.findall(r'"(select [^"]*)"', "".join(blocks(language)))
    ]
    assert len(statements) == 3
    for number, statement in enumerate(statements):
        connection.execute(f"prepare s{number} as {statement}".encode())


def test_every_function_of_the_page_and_no_other_is_a_producer(connection: psycopg.Connection[Any]) -> None:
    table = PAGE.read_text(encoding="utf-8").split("|---|---|\n")[1].split("\n\n")[0]
    named = set(re.findall(r"^\| `(\w+)\(", table, re.MULTILINE))
    found = connection.execute(
        "select p.proname from gen_durable.producer_functions() f join pg_proc p on p.oid = f"
    ).fetchall()
    assert named == {name for (name,) in found}
