"""Signals: inboxes, targets, dedup keys, payloads, timeouts."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest

from gen_durable import (
    Await,
    Context,
    Delivered,
    Done,
    DuplicateSignal,
    Machine,
    Next,
    NoTargetError,
    Outcome,
    Signal,
    Stop,
    Worker,
    step,
)
from gen_durable.telemetry import AwaitTimeout
from gen_durable.testing import DrainCounts, Harness
from tests.support.machines import Fail, Say, one_step, probe
from tests.support.rows import SqlConnection, is_near
from tests.support.settings import AN_HOUR, CALM
from tests.support.waiting import PATIENCE, Events


def parked(durable: Harness, *names: str, then: Any = lambda ctx: Done(0), **options: Any) -> int:
    """Insert an instance that awaits these signals, and then runs `then`."""
    ref = durable.insert(probe(lambda ctx: Await(*names, then="two", **options), then), 7)
    durable.drain()
    return ref.id


def names(messages: Any) -> list[str]:
    return [message.name for message in messages]


@pytest.mark.clause("SIG-1", "SIG-8")
def test_step_sees_the_whole_inbox_oldest_first(durable: Harness) -> None:
    seen: list[list[str]] = []

    def one(ctx: Context[int]) -> Outcome[int]:
        seen.append(names(ctx.inbox))
        durable.signal(ctx.id, "c")
        return Next("two")

    def two(ctx: Context[int]) -> Outcome[int]:
        seen.append(names(ctx.inbox))
        return Await("c", then="one") if len(seen) == 2 else Done(0)

    ref = durable.insert(probe(one, two), 7)
    for name in ("b", "a", "b"):
        durable.signal(ref, name)
    durable.drain()
    durable.assert_done(ref)
    assert seen == [["b", "a", "b"], ["b", "a", "b", "c"], ["b", "a", "b", "c"], ["b", "a", "b", "c"]]


@pytest.mark.clause("SIG-2")
def test_signal_is_accepted_in_every_live_status(durable: Harness, sql: SqlConnection) -> None:
    ref = durable.insert(Say, "hi", schedule_in=AN_HOUR)
    columns = {
        "runnable": "lease_token = null",
        "executing": "lease_token = 1",
        "awaiting_signal": "lease_token = null, awaits = '{other}'",
        "awaiting_children": "lease_token = null, children_pending = 1",
    }
    for status, others in columns.items():
        sql(f"update gen_durable.gen_durable set status = '{status}', {others}")
        assert durable.signal(ref, f"to {status}") == Delivered(ref.id, is_awaited=False)
        assert sql.columns(ref.id, "status") == (status,)
    assert sql.inbox(ref.id) == [f"to {status}" for status in columns]


@pytest.mark.clause("SIG-3", "SIG-5", "SIG-6")
@pytest.mark.parametrize("name", ["paid", "withdrawn"])
def test_any_awaited_signal_wakes(durable: Harness, sql: SqlConnection, name: str) -> None:
    def two(ctx: Context[int]) -> Outcome[Any]:
        return Done([ctx.step, names(ctx.awaited), names(ctx.inbox)])

    id = parked(durable, "paid", "withdrawn", then=two)
    durable.signal(id, "other")
    assert durable.signal(id, name) == Delivered(id, is_awaited=True)
    row = sql.row(id)
    assert (row["status"], row["awaits"]) == ("runnable", ["paid", "withdrawn"])
    assert is_near(row["eligible_at"], row["updated_at"])
    durable.drain()
    assert durable.assert_done(id) == ["two", [name], ["other", name]]


@pytest.mark.clause("SIG-14")
@pytest.mark.parametrize("end", ["done", "stop", "handle raises"])
def test_ended_instance_has_no_inbox(durable: Harness, sql: SqlConnection, end: str) -> None:
    def two(ctx: Context[int]) -> Outcome[Any]:
        durable.signal(ctx.id, "late")
        return Done(0) if end == "done" else Stop("no") if end == "stop" else Done(1 // 0)

    def handle(error: Exception, ctx: Context[int]) -> Outcome[Any]:
        raise error

    ref = durable.insert(probe(lambda ctx: Await("go", then="two"), two, handle), 7)
    for name in ("go", "other"):
        durable.signal(ref, name, dedup_key=name)
    durable.drain()
    assert sql.columns(ref.id, "status") == ("done" if end == "done" else "failed",)
    assert sql.signals(ref.id) == 0


@pytest.mark.clause("SIG-15", "SIG-16")
def test_dedup_key_counts_once_per_instance(durable: Harness, sql: SqlConnection) -> None:
    id = parked(durable, "go", then=lambda ctx: Next("one"))
    assert durable.signal(id, "go", 1, dedup_key="evt-7") == Delivered(id, is_awaited=True)
    assert durable.signal(id, "go", 2, dedup_key="evt-7") == DuplicateSignal(id)
    assert sql("select payload from gen_durable.signals") == [{"payload": 1}]
    durable.drain()
    assert (sql.inbox(id), sql.columns(id, "status")) == ([], ("awaiting_signal",))
    assert durable.signal(id, "go", 3, dedup_key="evt-7") == DuplicateSignal(id), "consumed, and still one"
    assert durable.drain() == DrainCounts()
    other = durable.insert(Say, "hi", schedule_in=AN_HOUR)
    assert durable.signal(other, "go", dedup_key="evt-7") == Delivered(other.id, is_awaited=False)


@pytest.mark.clause("SIG-17")
def test_signals_without_a_dedup_key_all_count(durable: Harness, sql: SqlConnection) -> None:
    ref = durable.insert(Say, "hi")
    for _ in range(2):
        durable.signal(ref, "go")
    assert sql.inbox(ref.id) == ["go", "go"]


@pytest.mark.clause("SIG-18")
def test_awaited_signals_are_visible_to_the_woken_step_only(durable: Harness) -> None:
    seen: list[int] = []

    def two(ctx: Context[int]) -> Outcome[Any]:
        seen.append(len(ctx.awaited))
        if len(seen) == 1:
            durable.signal(ctx.id, "go")
        return Next("two") if len(seen) < 3 else Done(0)

    id = parked(durable, "go", then=two)
    durable.signal(id, "go")
    durable.drain()
    assert seen == [1, 0, 0]


@pytest.mark.clause("SIG-19", "COR-1")
def test_signal_target_is_an_id_or_a_correlation_key(durable: Harness, sql: SqlConnection) -> None:
    ref = durable.insert(Say, "hi", correlation_key="order:42")
    for target in (ref, ref.id, "order:42"):
        assert durable.signal(target, "go") == Delivered(ref.id, is_awaited=False)
    assert sql.inbox(ref.id) == ["go"] * 3


@pytest.mark.clause("SIG-20")
def test_signal_without_a_live_target_raises(durable: Harness, sql: SqlConnection) -> None:
    done = durable.insert(Say, "hi", correlation_key="order:1")
    failed = durable.insert(Fail, "no")
    durable.drain()
    for target in (done, failed, "order:1", "order:42", 10**9):
        with pytest.raises(NoTargetError):
            durable.signal(target, "go")
    durable.insert(Say, "late", correlation_key="order:42")
    assert sql("select * from gen_durable.signals") == [], "nothing was held for it"


class Paid(Machine[None, Any]):
    payment = Signal("payment", dict[str, int])
    bare = Signal("bare")

    @step
    async def start(self, ctx: Context[None]) -> Outcome[Any]:
        return Await(self.payment, self.bare, then=self.end)

    @step
    async def end(self, ctx: Context[None]) -> Outcome[Any]:
        return Done([message.payload for message in ctx.awaited])

    def handle(self, error: Exception, ctx: Context[None]) -> Outcome[Any]:
        return Stop(f"handled {type(error).__name__}")


@pytest.mark.clause("SIG-21")
def test_signal_payloads_are_checked_against_their_type(durable: Harness, sql: SqlConnection) -> None:
    good, bad = durable.insert(Paid), durable.insert(Paid)
    durable.signal(good, Paid.payment, {"amount": 100})
    durable.signal(good, Paid.bare)
    durable.signal(bad, "payment", "a lot")
    stored = sql("select payload from gen_durable.signals order by id")
    assert [row["payload"] for row in stored] == [{"amount": 100}, None, "a lot"]
    durable.drain()
    assert durable.assert_done(good) == [{"amount": 100}, None]
    durable.assert_failed(bad, match="handled DecodeError")


@pytest.mark.clause("SIG-22")
def test_signal_ids_are_in_delivery_order(durable: Harness, sql: SqlConnection) -> None:
    ref = durable.insert(Say, "hi")
    with sql.another() as first:
        durable.signal(ref, "first", conn=first)
        second = threading.Thread(target=lambda: sql("select gen_durable.signal(%s, 'second')", ref.id))
        second.start()
        second.join(0.1)
        assert second.is_alive(), "it waits for the row"
        first.commit()
        second.join()
    assert sql.inbox(ref.id) == ["first", "second"]


@pytest.mark.clause("TMO-1")
@pytest.mark.parametrize("arrived", [0, 1])
def test_timed_out_step_sees_the_signals_so_far(durable: Harness, arrived: int) -> None:
    def two(ctx: Context[int]) -> Outcome[Any]:
        if ctx.timed_out:
            return Done([ctx.attempt, len(ctx.awaited)])
        return Await("go", then="two", timeout=AN_HOUR)

    id = parked(durable, "go", then=two, timeout=AN_HOUR)
    for _ in range(arrived):
        durable.signal(id, "go")
    durable.drain()
    durable.advance(minutes=59)
    assert durable.drain() == DrainCounts()
    durable.advance(minutes=1)
    durable.drain()
    assert durable.assert_done(id) == [0, arrived]


@pytest.mark.clause("TMO-2", "TEL-9")
async def test_deadline_wakes_within_a_second(durable_dsn: str, sql: SqlConnection) -> None:
    machine = probe(lambda ctx: Await(then="two", timeout=timedelta(milliseconds=100)))
    late: list[timedelta] = []
    expected: list[AwaitTimeout] = []
    async with Worker([machine], dsn=durable_dsn, settings=CALM) as worker:
        events = Events(worker)
        for _ in range(3):  # the machine may be busy
            ref = await worker.insert(machine, 7)
            await worker.wait(ref, timeout=PATIENCE)
            (first, _) = sql.executions(ref.id)
            late.append(sql.row(ref.id)["eligible_at"] - first["finished_at"] - timedelta(milliseconds=100))
            expected.append(AwaitTimeout(id=ref.id, fsm="Probe", step="two"))
            if late[-1] <= timedelta(seconds=1):
                break
    assert timedelta(0) <= min(late) <= timedelta(seconds=1)
    assert events.of(AwaitTimeout) == expected


@pytest.mark.clause("TMO-3")
@pytest.mark.parametrize("early", [False, True])
def test_signal_in_time_clears_the_deadline(durable: Harness, sql: SqlConnection, *, early: bool) -> None:
    machine = probe(
        lambda ctx: Await("go", then="two", timeout=AN_HOUR),
        lambda ctx: Done([ctx.timed_out, len(ctx.awaited)]),
    )
    ref = durable.insert(machine, 7)
    if early:
        durable.signal(ref, "go")
        one_step(durable)
    else:
        durable.drain()
        durable.signal(ref, "go")
    assert sql.columns(ref.id, "status timed_out") == ("runnable", False)
    found = durable.get(ref)
    assert found is not None
    assert found.await_deadline is None
    durable.advance(hours=2)
    durable.drain()
    assert durable.assert_done(ref) == [False, 1]


@pytest.mark.clause("TMO-4")
def test_await_without_signals_ignores_signals(durable: Harness) -> None:
    id = parked(durable, timeout=AN_HOUR, then=lambda ctx: Done([ctx.timed_out, len(ctx.inbox)]))
    durable.signal(id, "go")
    assert durable.drain() == DrainCounts()
    durable.advance(hours=1)
    durable.drain()
    assert durable.assert_done(id) == [True, 1]
