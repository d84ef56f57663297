"""What running docs/reference/sql.md does not show: its role for workers, its other languages, its list of functions."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from gen_durable import Context, Done, Machine, Outcome, Worker, step
from gen_durable._db.machines import register
from gen_durable._graph.description import describe
from gen_durable.testing import Harness
from tests.docs.pages import ROOT, Page
from tests.docs.statements import examples, roles_of, run_examples
from tests.support.descriptions import own

PAGE = Page(ROOT / "docs" / "reference" / "sql.md")


class Checkout(Machine[dict[str, Any], None], queue="checkout"):
    @step
    async def start(self, ctx: Context[dict[str, Any]]) -> Outcome[None]:
        return Done(None)


@pytest.fixture
def connection(durable_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(durable_dsn, autocommit=True) as connection:
        yield connection


async def test_documented_worker_role_is_sufficient(
    connection: psycopg.Connection[Any], durable: Harness, direct_dsn: str
) -> None:
    durable._database.run(register(own(describe(Checkout))))
    (text,) = [block.text for block in PAGE.blocks if "create role shop_worker" in block.text]
    names = roles_of([text], secrets.token_hex(6))
    (name,) = names.values()
    try:
        run_examples(connection, examples(text, names))
        dsn = re.sub(r"//[^@/]*@", f"//{name}:change me too@".replace(" ", "%20"), direct_dsn, count=1)
        async with Worker([Checkout], dsn=dsn) as worker:
            order = await worker.insert(Checkout, {"order": 1})
            await worker.wait(order, raise_failed=True)
            await worker.soft_delete(order)
            await worker.restore(order)
    finally:
        connection.execute(f"drop owned by {name}; drop role {name}".encode())


def test_documented_sql_statements_work(connection: psycopg.Connection[Any], durable: Harness) -> None:
    statements = [
        text
        for block in PAGE.blocks
        if block.language in ("go", "js", "ruby")
        for text in re.findall(r'"(select [^"]*)"', block.text)
    ]
    assert len(statements) == 3
    for number, statement in enumerate(statements):
        connection.execute(f"prepare s{number} as {statement}".encode())


def test_documented_functions_are_the_producer_functions(connection: psycopg.Connection[Any]) -> None:
    """With the right that it needs."""
    table = PAGE.text.split("|---|---|---|\n")[1].split("\n\n")[0]
    named = {
        (name, row.split("`")[-2])
        for row in table.splitlines()
        for name in re.findall(r"`(\w+)\(", row.split("|")[1])
    }
    found = connection.execute(
        "select p.proname, r.name from gen_durable.producer_rights() r join pg_proc p on p.oid = r.function"
        " where p.proname not like 'insert\\_from\\_%'"
    ).fetchall()
    assert named == set(found)
