"""Large outcomes: statements are bounded, and other outcomes are not delayed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gen_durable._core.model import CommitEntry, Committed, EventRow
from gen_durable._db import chunking
from gen_durable._db.failures import StatementError
from gen_durable._db.pool import Database
from gen_durable._runtime import database_status
from gen_durable._runtime.database_status import DatabaseStatus
from gen_durable._runtime.flusher import Flusher
from gen_durable._runtime.wake import Wakes
from tests.support.engine_plans import RECORDER, entry, flushed, inserted, new, picked
from tests.support.wire_proxy import BEGIN, COMMIT, Wire

# Four rows with a text of this length are one chunk, five are two.
TEXT = '"' + "x" * 498 + '"'
CHUNK = 4100
PATIENCE = 20


@pytest.fixture(autouse=True)
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunking, "_MAX_SIZE", CHUNK)


@pytest.fixture
async def wire(durable_dsn: str) -> AsyncIterator[Wire]:
    with Wire(durable_dsn) as opened:
        yield opened


@pytest.fixture
async def wired(wire: Wire) -> AsyncIterator[Database]:
    async with await Database.open(wire.dsn, "gen_durable", size=1) as opened:
        yield opened


def cut(*sizes: int) -> list[list[int]]:
    return [list(sizes[part]) for part in chunking.chunks(sizes)]


def test_chunks_are_full_and_a_large_row_is_alone() -> None:
    assert cut(1000, 1000, 1000, 1000, 100, 1) == [[1000, 1000, 1000, 1000, 100], [1]]
    assert cut(1, 9000, 2, CHUNK, 9000) == [[1], [9000], [2], [CHUNK], [9000]]
    assert cut(9000) == [[9000]]
    assert cut() == [[]]


async def test_batch_size_is_bounded_by_bytes(wire: Wire, wired: Database, sql: Any) -> None:
    await inserted(wired, *[new() for _ in range(10)])
    entries = [entry(e, "done", payload=TEXT) for e in await picked(wired)]
    with wire.counted() as sent:
        await flushed(wired, entries)
    assert sent == ["commit_plain"] * 3
    assert await sql.fetchval("select count(*) from gen_durable.gen_durable where result is not null") == 10


@pytest.mark.clause("LIM-9")
async def test_large_children_take_several_statements_of_one_transaction(
    wire: Wire, wired: Database, sql: Any
) -> None:
    await inserted(wired, new())
    # The last child has the key of the first, which an earlier statement has inserted.
    keys = [b"k", *[None] * 8, b"k"]
    children = tuple(
        new("B", state=TEXT, priority=n, **({"unique_key": key} if key else {})) for n, key in enumerate(keys)
    )
    (execution,) = await picked(wired)
    with wire.counted() as sent:
        (result,) = await flushed(wired, [entry(execution, "schedule_children", children=children)])
    assert sent == [BEGIN, "commit", *["insert"] * 3, "fix_barriers", COMMIT]
    assert isinstance(result, Committed)
    assert (result.status, result.refused) == ("awaiting_children", 1)
    rows = await sql.fetch(
        "select priority, parent_id from gen_durable.gen_durable where fsm = 'B' order by id"
    )
    assert [tuple(row) for row in rows] == [(n, execution.id) for n in range(9)]
    assert await sql.fetchval("select children_pending from gen_durable.gen_durable where fsm = 'A'") == 9


@pytest.mark.clause("LIM-9")
async def test_large_events_take_several_statements_of_one_transaction(
    wire: Wire, wired: Database, sql: Any
) -> None:
    await inserted(wired, new())
    (execution,) = await picked(wired)
    events = tuple(EventRow("default", str(n), "s", TEXT) for n in range(10))
    with wire.counted() as sent:
        await flushed(wired, [entry(execution, "done", payload="1", events=events)])
    assert sent == [BEGIN, "commit", *["emit"] * 3, COMMIT]
    rows = await sql.fetch("select n, type from gen_durable.outbox order by id")
    assert [tuple(row) for row in rows] == [(n + 1, str(n)) for n in range(10)]


class Slow:
    """A database that waits for an event before each statement."""

    def __init__(self, database: Database, error: Exception | None = None) -> None:
        self._database = database
        self._error = error
        self.may_end = asyncio.Event()

    async def run_in_transaction(self, plan: Any) -> Any:
        await self.may_end.wait()
        if self._error is not None:
            raise self._error
        return await self._database.run_in_transaction(plan)


@pytest.mark.clause("LIM-9")
async def test_large_outcome_does_not_delay_others(database: Database) -> None:
    await inserted(database, new(), new(), new())
    first, second, third = [entry(e, "done", payload="1") for e in await picked(database)]
    second.payload = '"' + "x" * CHUNK + '"'
    slow: Any = Slow(database)
    flusher = Flusher(database, slow, database, RECORDER, Wakes(), DatabaseStatus())
    running = asyncio.create_task(flusher.run())
    async with asyncio.timeout(PATIENCE):
        large = asyncio.create_task(flusher.commit(second))
        await asyncio.sleep(0)  # it is first in the queue
        for one in (first, third):
            assert await flusher.commit(one) == Committed("done")
        assert not large.done()
        slow.may_end.set()
        assert await large == Committed("done")
    running.cancel()


async def test_permanent_error_of_a_large_outcome_is_raised(database: Database) -> None:
    await inserted(database, new())
    (execution,) = await picked(database)
    slow: Any = Slow(database, StatementError("XX000", "invalid memory alloc request size"))
    slow.may_end.set()
    flusher = Flusher(database, slow, database, RECORDER, Wakes(), DatabaseStatus())
    running = asyncio.create_task(flusher.run())
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(StatementError, match="invalid memory"):
            await flusher.commit(entry(execution, "done", payload='"' + "x" * CHUNK + '"'))
    running.cancel()


BOMB = """
create function public.bomb() returns trigger language plpgsql as
  'begin if new.result = ''"bomb"'' then perform pg_terminate_backend(pg_backend_pid()); end if; return new; end';
create trigger bomb before update on gen_durable.gen_durable for each row execute function public.bomb()
"""


@pytest.mark.parametrize("place", [0, 2])
async def test_outcome_that_breaks_connections_does_not_delay_others(
    database: Database, sql: Any, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """It does not fail other outcomes: the cause may be the network."""
    monkeypatch.setattr(database_status, "_FIRST_PAUSE", 0.001)
    await inserted(database, *[new() for _ in range(4)])
    entries: list[CommitEntry] = [entry(e, "done", payload="1") for e in await picked(database)]
    entries[place].payload = '"bomb"'
    await sql.execute(BOMB)
    flusher = Flusher(database, database, database, RECORDER, Wakes(), DatabaseStatus())
    commits = [asyncio.create_task(flusher.commit(one)) for one in entries]
    running = asyncio.create_task(flusher.run())
    async with asyncio.timeout(PATIENCE):
        bomb = commits.pop(place)
        assert await asyncio.gather(*commits) == [Committed("done")] * 3
        assert not bomb.done()
        await sql.execute("drop trigger bomb on gen_durable.gen_durable")
        assert await bomb == Committed("done")
    running.cancel()
