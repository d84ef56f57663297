"""`timeline`: what happened to an instance, in order."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import (
    Await,
    Backoff,
    Context,
    Done,
    Machine,
    NoTargetError,
    Outcome,
    ScheduleChildren,
    Signal,
    Spec,
    Worker,
    step,
)
from gen_durable.errors import UsageError
from gen_durable.testing import Harness
from tests.operations.rows import put
from tests.support.machines import Say
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE


class Order(Machine[None, str]):
    """Waits for a signal, fails once, waits for a child."""

    @step
    async def start(self, ctx: Context[None]) -> Outcome[str]:
        return Await("paid", then=self.charge)

    @step(retry=Backoff(max_attempts=3, base=timedelta(seconds=5)))
    async def charge(self, ctx: Context[None]) -> Outcome[str]:
        if not ctx.attempt:
            raise TimeoutError("no answer")
        return ScheduleChildren([Spec(Say, "x")], then=self.end)

    @step
    async def end(self, ctx: Context[None]) -> Outcome[str]:
        return Done("x")


def shapes(entries: Any) -> list[tuple[str, str, str | None]]:
    return [(entry.kind, entry.name, entry.outcome) for entry in entries]


@pytest.mark.clause("OPS-12")
def test_timeline_has_everything_in_order(durable: Harness) -> None:
    ref = durable.insert(Order)
    durable.drain()
    insert, start, wait = durable.timeline(ref)
    assert (insert.kind, start.name, start.number, start.step_seq) == ("insert", "start", 1, 1)
    assert start.worker
    assert (wait.name, wait.outcome, wait.is_open) == ("paid", "signal", True)
    durable.signal(ref, "note")
    durable.signal(ref, "paid", dedup_key="p")
    durable.drain(collapse=False)
    *before, failed, delay = durable.timeline(ref)
    assert shapes(before) == [
        ("insert", "", None),
        ("execution", "start", "await"),
        ("wait", "paid", "signal"),
        ("signal", "note", "unread"),
        ("signal", "paid", "unread"),
    ]
    assert (failed.name, failed.outcome, failed.error) == ("charge", "retry", "TimeoutError: no answer")
    assert (delay.kind, delay.outcome, delay.is_open) == ("wait", "retry", True)
    durable.drain()
    ended = durable.timeline(ref)
    assert shapes(ended) == [
        ("insert", "", None),
        ("execution", "start", "await"),
        ("wait", "paid", "signal"),
        ("signal", "note", "unread"),
        ("signal", "paid", "consumed"),
        ("execution", "charge", "retry"),
        ("wait", "", "retry"),
        ("execution", "charge", "schedule_children"),
        ("wait", "", "children"),
        ("child", "Say", "done"),
        ("execution", "end", "done"),
    ]
    assert [entry.attempt for entry in ended if entry.name == "charge"] == [0, 1]
    assert not any(entry.is_open for entry in ended)
    assert all(entry.duration is not None for entry in ended if entry.kind not in ("insert", "signal"))
    assert list(durable.timeline(ref, limit=2)) == list(ended[-2:])


@pytest.mark.clause("OPS-12")
@pytest.mark.parametrize("level", ["failures", "all"])
@pytest.mark.parametrize("dedup_key", [None, "p"])
def test_consumed_signal_is_listed_once(durable: Harness, level: Any, dedup_key: str | None) -> None:
    durable.set_audit(level)
    ref = durable.insert(Order)
    durable.drain()
    durable.signal(ref, "paid", dedup_key=dedup_key)
    (unread,) = (entry for entry in durable.timeline(ref) if entry.kind == "signal")
    durable.drain()
    (consumed,) = (entry for entry in durable.timeline(ref) if entry.kind == "signal")
    assert (unread.outcome, consumed.outcome) == ("unread", "consumed")
    assert (unread.at, unread.number) == (consumed.at, consumed.number)


@pytest.mark.clause("OPS-12")
def test_cancel_records_the_unread_signals_that_it_deletes(durable: Harness) -> None:
    ref = durable.insert(Order)
    durable.signal(ref, "note", dedup_key="n")
    durable.signal(ref, "note")
    durable.cancel(ref)
    found = [entry for entry in durable.timeline(ref) if entry.kind == "signal"]
    assert [(entry.name, entry.outcome) for entry in found] == [("note", "unread")] * 2


class Collects(Machine[int, None]):
    """Ends when it has as many notes as its state says."""

    note = Signal("note", int)

    @step
    async def wait(self, ctx: Context[int]) -> Outcome[None]:
        if len(ctx.awaited) < ctx.state:
            return Await(self.note, then=self.wait)
        return Done()


@pytest.mark.clause("OPS-12")
def test_end_records_the_newest_signals_that_it_deletes(durable: Harness) -> None:
    durable.use(Collects)
    ref = durable.insert(Collects, 150)
    for number in range(150):
        durable.signal(ref, Collects.note, number)
    durable.signal(ref, "noet")
    durable.drain()
    durable.assert_done(ref)
    found = [entry for entry in durable.timeline(ref, limit=1000) if entry.kind == "signal"]
    assert [(entry.name, entry.outcome) for entry in found] == [("note", "consumed")] * 99 + [
        ("noet", "unread")
    ]
    assert durable.timeline(ref)[-1].signals == ("note",) * 99


@pytest.mark.clause("OPS-12")
def test_timeline_names_who_acted(durable: Harness) -> None:
    """An aborted execution without a lease is not listed beside the audit event of the verb that ended it."""
    ref = durable.insert(Order)
    durable.drain()
    durable.cancel(ref, reason="withdrawn", actor="ann")
    durable.soft_delete(ref, reason="tidy", actor="ben")
    *_, cancel, delete = durable.timeline(ref)
    assert (cancel.kind, cancel.name, cancel.actor, cancel.reason) == (
        "audit",
        "cancelled",
        "ann",
        "withdrawn",
    )
    assert (delete.name, delete.actor, delete.reason) == ("deleted", "ben", "tidy")
    assert [entry.name for entry in durable.timeline(ref) if entry.kind == "execution"] == ["start"]


class Broken(Machine[None, str]):
    is_broken = True

    @step
    async def run(self, ctx: Context[None]) -> Outcome[str]:
        if self.is_broken:
            raise ValueError("broken")
        return Done("x")


@pytest.mark.clause("OPS-12")
def test_failed_instance_does_not_wait_until_its_retry(durable: Harness) -> None:
    machine = Broken()
    durable.use(machine)
    ref = durable.insert(Broken)
    durable.drain()
    durable.advance(hours=1)
    machine.is_broken = False
    durable.retry(ref)
    durable.drain()
    waits = [entry.duration for entry in durable.timeline(ref) if entry.kind == "wait"]
    assert waits == []
    assert [each.waited for each in durable.history(ref)][-1] is None


@pytest.mark.clause("OPS-12")
async def test_timeline_without_records_has_the_end(durable_dsn: str) -> None:
    settings = msgspec.structs.replace(CALM, executions="off")
    async with Worker([Say], dsn=durable_dsn, settings=settings) as worker:
        ref = await worker.insert(Say, "hi")
        await worker.wait(ref, timeout=PATIENCE)
        assert shapes(await worker.timeline(ref)) == [("insert", "", None), ("end", "", "done")]


@pytest.mark.clause("OPS-12")
async def test_executing_instance_has_an_open_execution(db: Any, client: Any) -> None:
    id = await put(db, "executing", locked_by="w1", leased_at="=now()", inserted_at="=now() - interval '1 h'")
    _, wait, runs = await client.timeline(id)
    assert (wait.kind, wait.outcome, wait.duration >= timedelta(minutes=59)) == ("wait", "start", True)
    assert (runs.worker, runs.outcome, runs.is_open) == ("w1", None, True)


@pytest.mark.clause("OPS-12")
async def test_limit_keeps_the_newest_of_thousands(db: Any, client: Any) -> None:
    id = await put(db, step_seq=3000, execution=3000, inserted_at="=now() - interval '9 days'")
    await db.execute(
        "insert into gen_durable.executions"
        " (instance_id, step_seq, execution, attempt, status, outcome, step, lease_owner, leased_at, finished_at)"
        " select $1, n, n, 0, 'DONE', 'next', 's', 'w', at, at + interval '1 s'"
        " from generate_series(1, 3000) as n cross join lateral (select now() - (3001 - n) * interval '1 min' as at) t",
        id,
    )
    entries = await client.timeline(id, limit=100)
    assert [entry.number for entry in entries if entry.kind == "execution"] == list(range(2951, 3001))
    assert entries[-1].is_open


async def test_timeline_of_an_unknown_target_is_refused(client: Any) -> None:
    with pytest.raises(NoTargetError, match="cannot show the timeline"):
        await client.timeline(999)
    with pytest.raises(UsageError, match="the limit of timeline entries is 0"):
        await client.timeline(1, limit=0)
