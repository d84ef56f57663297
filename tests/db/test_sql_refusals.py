"""Errors of the SQL functions `insert` and `insert_all`: the message, and nothing inserted."""

from __future__ import annotations

import re
from typing import Any

import asyncpg
import pytest

from gen_durable._db.machines import register
from gen_durable._db.pool import Database
from tests.db.conftest import refused
from tests.db.definitions import machine
from tests.support.descriptions import own


@pytest.fixture
async def registered(database: Database) -> None:
    await database.run(register(own(machine(2, "begin", "checkout"))))


BAD_CALLS = [
    (
        "insert('Chekout')",
        "no worker has registered machine 'Chekout': give a step, or start a worker once",
    ),
    (
        "insert('Checkout', version => 9)",
        "no worker has registered machine 'Checkout' version 9: give a step",
    ),
    ("insert('')", "fsm must be a name of 1 to 255 bytes"),
    ("insert(null)", "fsm must be a name of 1 to 255 bytes"),
    ("insert(repeat('x', 256), step => 's')", "fsm must be a name of 1 to 255 bytes"),
    ("insert('Checkout', step => '')", "step must be a name of 1 to 255 bytes"),
    ("insert('Checkout', queue => repeat('ü', 128))", "queue must be a name of 1 to 255 bytes"),
    ("insert('Checkout', priority => 40000)", "priority 40000 does not fit -32768 to 32767"),
    ("insert('Checkout', version => 0, step => 's')", "version 0 is below 1"),
    ("insert('Checkout', schedule_in => '-1 s')", "schedule_in -00:00:01 is negative"),
    ("insert('Checkout', correlation_key => '')", "correlation_key must have 1 to 1024 bytes"),
    ("insert('Checkout', unique_key => repeat('x', 1025))", "unique_key must have 1 to 1024 bytes"),
    (
        "insert('Checkout', concurrency_key => repeat('x', 1025))",
        "concurrency_key must have 1 to 1024 bytes",
    ),
    (
        "insert('Checkout', unique_key => 'u', unique_scope => '{dnoe}')",
        'enum "?gen_durable.durable_status"?: "dnoe"',
    ),
    (
        """insert_all('[{"fsm": "Checkout"}, {"fsm": "Checkout", "prio": 1}]')""",
        "element 2: there is no option 'prio'",
    ),
    ("insert_all('[{}]')", "element 1: fsm must be a name"),
    ("insert_all('[1]')", "element 1: fsm must be a name"),
    ("""insert_all('[{"fsm": "Checkout"}, null]')""", "element 2: fsm must be a name"),
    ("insert_all('{}')", "insert_all takes a JSON array of objects, got object"),
    ("insert_all(null)", "insert_all takes a JSON array of objects, got null"),
    (
        """insert_all('[{"fsm": "Checkout", "version": "two"}]')""",
        'invalid input syntax for type integer: "two"',
    ),
    (
        """insert_all('[{"fsm": "Checkout", "unique_key": "u", "unique_scope": "done"}]')""",
        "cannot extract elements",
    ),
]


@pytest.mark.clause("SQL-4")
@pytest.mark.usefixtures("registered")
async def test_invalid_option_is_refused_and_nothing_is_inserted(sql: Any) -> None:
    for call, problem in BAD_CALLS:
        error = await refused(sql, call)
        assert isinstance(error, asyncpg.DataError), call
        assert error.sqlstate[:2] == "22", call
        assert re.search(problem, str(error)), call
        assert await sql.fetchval("select count(*) from gen_durable.gen_durable") == 0, call


async def test_time_outside_the_range_of_python_is_refused(sql: Any) -> None:
    """A worker could not read the leased row."""
    for option in (
        "eligible_at => 'infinity'",
        "eligible_at => '-infinity'",
        "eligible_at => '0044-03-15 BC'",
        "eligible_at => '20000-01-01'",
        "schedule_in => '9000 years'",
    ):
        error = await refused(sql, f"insert('A', step => 's', {option})")
        assert isinstance(error, asyncpg.DataError), option
        assert re.search("eligible_at|schedule_in", str(error)), option
        assert await sql.fetchval("select count(*) from gen_durable.gen_durable") == 0, option
