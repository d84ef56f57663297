"""Names and keys of all kinds survive a round trip through the database."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gen_durable._core.model import Committed, Execution
from gen_durable._db import search, snapshots
from gen_durable._db.commit import id_array, text_array
from gen_durable._db.pick import Leases, PickRequest, load, pick
from gen_durable._db.pool import Database
from gen_durable._db.signals import Delivery, deliver
from tests.support.engine_plans import LEASE, entry, flushed, inserted, new

NASTY = [
    "'",
    '"',
    "\\",
    "\\\\'\"",
    "%",
    "%s%(x)s$1:name::",
    "NULL",
    "null",
    "{}",
    "{a,b}",
    ",",
    " ",
    "\t\n\r\x01\x7f",
    "--",
    "/*",
    ";drop table gen_durable.gen_durable;",
    "$$",
    "gen_durable.",
    "\u202eright to left",
    "e\u0301",
    "\ufeff",
    "\U0001f9ff",
    "\uffff",
    "ß",
    "x" * 255,
    "ü" * 127,
]


def texts(most: int) -> st.SearchStrategy[str]:
    """Texts that `_checks` accepts: not empty, no NUL, no lone surrogate, at most this many bytes."""
    characters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
    longest = st.text(characters, min_size=1, max_size=most).filter(lambda text: len(text.encode()) <= most)
    return st.sampled_from(NASTY) | longest


NAMES = texts(255)
KEYS = texts(1024)
SPARE = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


Conn = psycopg.Connection[Any]


@pytest.fixture
def conn(durable_dsn: str) -> Iterator[Conn]:
    with psycopg.connect(durable_dsn, autocommit=True) as opened:
        yield opened


@given(st.lists(KEYS, max_size=64))
@example(NASTY)
@SPARE
def test_text_array_round_trips(conn: Conn, names: list[str]) -> None:
    assert conn.execute("select %s::text::text[]", (text_array(names),)).fetchone() == (names,)


@given(st.lists(st.integers(1, 2**63 - 1), max_size=100))
@SPARE
def test_id_array_round_trips(conn: Conn, ids: list[int]) -> None:
    assert conn.execute("select %s::text::bigint[]", (id_array(ids),)).fetchone() == (ids,)


@given(
    fsm=NAMES,
    step=NAMES,
    queue=NAMES,
    concurrency_key=KEYS,
    correlation_key=KEYS,
    unique_key=st.binary(min_size=1, max_size=1024) | KEYS.map(str.encode),
    signal=NAMES,
    dedup_key=KEYS,
    others=st.lists(NAMES, max_size=5),
)
@SPARE
async def test_names_and_keys_survive_insert_pick_await_signal_and_get(
    database: Database,
    sql: Any,
    fsm: str,
    step: str,
    queue: str,
    concurrency_key: str,
    correlation_key: str,
    unique_key: bytes,
    signal: str,
    dedup_key: str,
    others: list[str],
) -> None:
    await sql.execute("delete from gen_durable.signals; delete from gen_durable.gen_durable")
    (id,) = await inserted(
        database,
        new(
            fsm,
            step=step,
            queue=queue,
            concurrency_key=concurrency_key,
            correlation_key=correlation_key,
            unique_key=unique_key,
        ),
    )
    (execution,) = await leased(database, fsm, queue)
    assert (execution.id, execution.fsm, execution.step, execution.queue) == (id, fsm, step, queue)
    assert (execution.concurrency_key, execution.correlation_key) == (concurrency_key, correlation_key)

    awaited = tuple(dict.fromkeys([*others, signal]))
    (parked,) = await flushed(database, [entry(execution, "await", step=step, awaits=awaited)])
    assert parked == Committed("awaiting_signal")
    arrival = await database.run(deliver(correlation_key, signal, "1", dedup_key))
    assert arrival == Delivery(id, True, True, queue)
    again = await database.run(deliver(id, signal, "1", dedup_key))
    assert again == Delivery(id, False, False, queue)
    (execution,) = await leased(database, fsm, queue)
    assert execution.awaits == awaited
    assert [message.name for message in execution.awaited] == [signal]

    by_id, by_key = await database.run(snapshots.get(id)), await database.run(snapshots.get(correlation_key))
    assert by_id is not None
    assert by_key is not None
    assert dict(by_id) == dict(by_key)
    assert (by_id["fsm"], by_id["step"], by_id["queue"], tuple(by_id["awaits"])) == (
        fsm,
        step,
        queue,
        awaited,
    )
    assert (by_id["unique_key"], by_id["concurrency_key"]) == (unique_key, concurrency_key)
    found = await database.run(
        search.page(
            search.Filter(
                fsms=[fsm],
                steps=[step],
                queues=[queue],
                unique_keys=[unique_key],
                concurrency_keys=[concurrency_key],
            ),
            10,
            None,
        )
    )
    assert [row["id"] for row in found] == [id]


async def leased(database: Database, fsm: str, queue: str) -> list[Execution]:
    request = PickRequest(([fsm], [1]), 10, 1, "worker", Leases(LEASE))
    picked = await database.run(pick(queue, request))
    return await database.run(load(picked.executions))
