"""A worker with sinks publishes the events of the outbox."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from gen_durable import CloudEvent, ExecutionStatus, Rejected, Spec, Worker
from gen_durable._db import outbox
from gen_durable._db.pool import Database
from gen_durable.errors import UsageError
from gen_durable.telemetry import OutboxDead, OutboxFailed
from tests.outbox.machines import Chatter, Teller
from tests.outbox.waiting import all_published
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, Events


class Shelf:
    """A sink that records its events."""

    def __init__(self, batch: int = 1, refuses: Sequence[str] = (), fails: int = 0) -> None:
        self.batch = batch
        self.taken: list[CloudEvent] = []
        self.calls = 0
        self._refuses = refuses
        self._fails = fails

    async def publish(self, events: Sequence[CloudEvent]) -> None:
        self.calls += 1
        await asyncio.sleep(0)
        if any(event.type in self._refuses for event in events):
            raise Rejected("not that one")
        if self._fails:
            self._fails -= 1
            raise ConnectionError("connection refused")
        self.taken.extend(events)

    def lines(self) -> dict[str, list[tuple[int, int]]]:
        found: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for event in self.taken:
            instance, seq, n = event.id.split(":")
            found[instance].append((int(seq), int(n)))
        return found


@pytest.mark.clause("EVT-5", "EVT-10")
@pytest.mark.parametrize("batch", [1, 7])
async def test_events_are_published_in_order(durable_dsn: str, batch: int) -> None:
    shelf = Shelf(batch)
    async with Worker([Chatter], dsn=durable_dsn, sinks=shelf, settings=CALM) as worker:
        refs = await worker.insert_all([Spec(Chatter, 5) for _ in range(20)])
        for ref in refs:
            await worker.wait(ref, timeout=PATIENCE)
        await all_published(worker)
        records = [record for ref in refs for record in await worker.executions(ref)]
    assert shelf.lines() == {str(ref.id): [(n, 1) for n in range(1, 6)] for ref in refs}
    assert {record.status for record in records} == {ExecutionStatus.DONE}
    assert {event.source for event in shelf.taken} == {"/gen_durable/gen_durable"}


@pytest.mark.clause("EVT-10")
async def test_execution_is_done_when_its_events_are_published(durable_dsn: str) -> None:
    async with Worker([Teller], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Teller, {}, step="last")
        await worker.wait(ref, timeout=PATIENCE)
        (record,) = await worker.executions(ref)
        assert record.status is ExecutionStatus.COMMITTED
    async with Worker([Teller], dsn=durable_dsn, settings=CALM, sinks=Shelf()) as worker:
        await all_published(worker)
        (record,) = await worker.executions(ref)
    assert record.status is ExecutionStatus.DONE


@pytest.mark.clause("EVT-5", "EVT-8")
async def test_failed_event_is_retried_in_order(durable_dsn: str) -> None:
    shelf = Shelf(fails=1)
    async with Worker([Chatter], dsn=durable_dsn, sinks=shelf, settings=CALM) as worker:
        events = Events(worker)
        ref = await worker.insert(Chatter, 3)
        await worker.wait(ref, timeout=PATIENCE)
        failed = await events.wait(OutboxFailed)
        await all_published(worker)
        (_, _, first) = await worker.events(ref)
    assert shelf.lines() == {str(ref.id): [(1, 1), (2, 1), (3, 1)]}
    assert (failed.sink, failed.error) == ("default", "ConnectionError: connection refused")
    assert (first.attempts, first.state, first.last_error) == (1, "published", None)


@pytest.mark.clause("EVT-8", "EVT-9", "EVT-10")
@pytest.mark.parametrize("batch", [1, 10])
async def test_rejected_event_does_not_block_later_events(durable_dsn: str, batch: int) -> None:
    shelf = Shelf(batch, refuses=["second"])
    async with Worker(
        [Teller], dsn=durable_dsn, sinks={"default": shelf, "other": print}, settings=CALM
    ) as worker:
        events = Events(worker)
        ref = await worker.insert(Teller, {}, step="several")
        dead = await events.wait(OutboxDead)
        await worker.wait(ref, timeout=PATIENCE)
        await all_published(worker)
        (letter,) = await worker.events(state="dead")
        assert (letter.type, letter.last_error) == ("second", "Rejected: not that one")
        assert dead.id == letter.id == f"{ref.id}:1:2"
        assert [event.type for event in shelf.taken] == ["first", "third", "done"]
        assert {record.status for record in await worker.executions(ref)} == {ExecutionStatus.DONE}
        # After a replay it is published with the same id.
        shelf._refuses = ()
        assert await worker.replay([letter]) == 1
        worker._wakes.events()
        await all_published(worker)
    assert shelf.taken[-1].id == letter.id


@pytest.mark.parametrize("batch", [1, 10])
@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(3), GeneratorExit()])
async def test_cancelled_error_of_a_sink_is_a_failure(
    durable_dsn: str, error: BaseException, batch: int
) -> None:
    class Odd(Shelf):
        async def publish(self, events: Sequence[CloudEvent]) -> None:
            if not self.calls:
                self.calls = 1
                raise error
            await super().publish(events)

        async def close(self) -> None:
            raise RuntimeError("and it does not close either")

    shelf = Odd(batch)
    async with Worker([Chatter], dsn=durable_dsn, sinks=shelf, settings=CALM) as worker:
        ref = await worker.insert(Chatter, 2)
        await worker.wait(ref, timeout=PATIENCE)
        await all_published(worker)
    assert shelf.lines() == {str(ref.id): [(1, 1), (2, 1)]}


@pytest.mark.clause("EVT-6")
async def test_no_transaction_is_open_while_a_sink_publishes(durable_dsn: str, db: Any) -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def slow(event: CloudEvent) -> None:
        entered.set()
        await leave.wait()

    async with Worker([Teller], dsn=durable_dsn, sinks=slow, settings=CALM) as worker:
        await worker.insert(Teller, {}, step="last")
        await asyncio.wait_for(entered.wait(), PATIENCE.total_seconds())
        await asyncio.sleep(0.1)
        busy = await db.fetchval(
            "select count(*) from pg_stat_activity where datname = current_database()"
            " and state like 'idle in transaction%'"
        )
        leave.set()
        await all_published(worker)
    assert busy == 0


@pytest.mark.clause("EVT-4", "EVT-5")
async def test_two_dispatchers_share_the_work(durable_dsn: str) -> None:
    shelves = [Shelf(), Shelf()]
    async with (
        Worker([Chatter], dsn=durable_dsn, settings=CALM, sinks=shelves[0]) as worker,
        Worker([Chatter], dsn=durable_dsn, settings=CALM, sinks=shelves[1]),
    ):
        refs = await worker.insert_all([Spec(Chatter, 10) for _ in range(40)])
        for ref in refs:
            await worker.wait(ref, timeout=PATIENCE)
        await all_published(worker)
    ids = [event.id for shelf in shelves for event in shelf.taken]
    assert sorted(ids) == sorted(f"{ref.id}:{n}:1" for ref in refs for n in range(1, 11))
    for shelf in shelves:
        assert all(line == sorted(line) for line in shelf.lines().values())


@pytest.mark.clause("EVT-9")
async def test_published_event_can_be_replayed(durable_dsn: str) -> None:
    shelf = Shelf()
    async with Worker([Teller], dsn=durable_dsn, sinks=shelf, settings=CALM) as worker:
        ref = await worker.insert(Teller, {}, step="last")
        await worker.wait(ref, timeout=PATIENCE)
        await all_published(worker)
        (event,) = await worker.events(ref, state="published")
        assert await worker.replay([event, event.number + 1000]) == 1
        worker._wakes.events()
        await all_published(worker)
    assert [one.id for one in shelf.taken] == [event.id] * 2


@pytest.mark.clause("EVT-5", "EVT-9")
async def test_replayed_events_precede_pending_ones(durable_dsn: str, database: Database, db: Any) -> None:
    async with Worker([Chatter], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Chatter, 6)
        await worker.wait(ref, timeout=PATIENCE)
        events = sorted(await worker.events(ref), key=lambda event: event.number)
        numbers = [event.number for event in events]
        await db.execute("update gen_durable.outbox set published_at = now() where id = $1", numbers[0])
        await db.execute("update gen_durable.outbox set dead_at = now() where id = any ($1)", numbers[1:3])
        assert await worker.replay([events[2], events[0], events[1]]) == 3
    minute = timedelta(minutes=1)
    await db.execute("update gen_durable.outbox set next_at = now()")
    first = await database.run(outbox.lease("default", 2, 1, minute))
    assert [event.id for event in first] == numbers[:2]
    # While another dispatcher has leased the first event of an instance, later ones are not leased.
    assert await database.run(outbox.lease("default", 10, 2, minute)) == []
    marks = [outbox.Mark(event, "published") for event in first]
    assert await database.run_in_transaction(outbox.mark("default", marks, 1)) == 2
    rest = await database.run(outbox.lease("default", 10, 3, minute))
    assert [event.id for event in rest] == numbers[2:]


def test_invalid_sinks_are_refused() -> None:
    with pytest.raises(UsageError, match="sink 'default' has type int"):
        Worker([Teller], sinks=3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="sink 'x' has type type"):
        Worker([Teller], sinks={"x": Shelf})  # type: ignore[dict-item]


def test_time_attribute_is_rfc3339() -> None:
    from datetime import UTC, datetime

    event = CloudEvent(
        id="1:1:1",
        source="/x",
        type="t",
        subject="s",
        time=datetime(2026, 1, 2, tzinfo=UTC) + timedelta(hours=3),
        data=[1],
    )
    assert event.structured() == {
        "specversion": "1.0",
        "id": "1:1:1",
        "source": "/x",
        "type": "t",
        "subject": "s",
        "time": "2026-01-02T03:00:00Z",
        "datacontenttype": "application/json",
        "data": [1],
    }


async def test_hanging_plain_sink_delays_neither_others_nor_exit(
    durable_dsn: str,
) -> None:
    over, hanging, taken = threading.Event(), list[threading.Thread](), list[str]()

    def hangs(event: CloudEvent) -> None:
        hanging.append(threading.current_thread())
        over.wait()

    sinks: dict[str, Any] = {"default": hangs, "other": lambda event: taken.append(event.type)}
    async with Worker([Teller], dsn=durable_dsn, settings=CALM, sinks=sinks) as worker:
        await worker.insert_all([Spec(Teller, {}, step="several") for _ in range(40)])
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while len(taken) < 40 or len(hanging) < 10:
                await asyncio.sleep(0.02)
        await asyncio.wait_for(asyncio.to_thread(int), 5)  # names are looked up there, for example
        over.set()
    assert all(thread.daemon for thread in hanging)  # the end of the process waits for others only
