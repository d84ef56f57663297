"""Undo steps on real workers: group commits, effects, crashes, killed processes, and what operators see."""

from __future__ import annotations

import asyncio
import signal
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import (
    AsyncClient,
    CancelRequested,
    Context,
    Done,
    Event,
    Machine,
    Next,
    Outcome,
    Spec,
    Sql,
    Status,
    Stop,
    Worker,
    step,
)
from gen_durable._core.new_rows import ALERT
from gen_durable.telemetry import CompensationStarted
from tests.engine.undo.killable_worker import Trip
from tests.engine.undo.sagas import Order, Saga
from tests.support.settings import CALM, FAST
from tests.support.waiting import PATIENCE
from tests.support.worker_process import program


@pytest.mark.clause("UNDO-2", "UNDO-3", "UNDO-12")
async def test_failed_instances_of_one_batch_are_undone(durable_dsn: str, db: Any) -> None:
    started: list[CompensationStarted] = []
    async with Worker([Saga], dsn=durable_dsn, settings=CALM) as worker:
        worker.telemetry.subscribe(started.append, CompensationStarted)
        endings = ["stop", "done"] * 20
        refs = [await worker.insert(Saga, Order(ending)) for ending in endings]
        ended = [await worker.wait(ref, timeout=PATIENCE) for ref in refs]
    assert [each.status.value for each in ended] == ["failed", "done"] * 20
    assert {each.last_error for each in ended[::2]} == {"no truck"}
    assert sorted(event.id for event in started) == [ref.id for ref in refs[::2]]
    assert await db.fetchval("select count(*) from gen_durable.gen_durable where undo_steps is not null") == 0


@pytest.mark.clause("UNDO-2")
async def test_cancel_of_a_running_step_undoes_the_committed_ones(durable_dsn: str) -> None:
    begun = asyncio.Event()

    class Slow(Machine[list[str], str]):
        @step(undo="refund")
        async def charge(self, ctx: Context[list[str]]) -> Outcome[str]:
            return Next(self.ship)

        @step(interrupt=True)
        async def ship(self, ctx: Context[list[str]]) -> Outcome[str]:
            begun.set()
            await asyncio.sleep(3600)
            return Done("unreachable")

        @step
        async def refund(self, ctx: Context[list[str]]) -> Outcome:
            ctx.state.append("refunded")
            return Done()

    async with Worker([Slow], dsn=durable_dsn, settings=FAST) as worker:
        ref = await worker.insert(Slow, [])
        await begun.wait()
        assert await worker.cancel(ref, reason="too slow") == CancelRequested(ref.id)
        ended = await worker.wait(ref, timeout=PATIENCE)
    assert (ended.status, ended.cancel_reason, ended.state) == (Status.CANCELLED, "too slow", ["refunded"])


@pytest.mark.clause("UNDO-2")
async def test_effect_of_a_stop_commits_with_the_start_of_the_undo(durable_dsn: str, db: Any) -> None:
    class Noting(Machine[None, str]):
        @step(undo="refund")
        async def charge(self, ctx: Context[None]) -> Outcome[str]:
            return Next(self.ship)

        @step
        async def ship(self, ctx: Context[None]) -> Outcome[str]:
            return Stop("no truck", effect=Sql("insert into notes values ('stopped')"))

        @step
        async def refund(self, ctx: Context[None]) -> Outcome:
            return Done(effect=Sql("insert into notes values ('refunded')"))

    await db.execute("create table notes (note text)")
    async with Worker([Noting], dsn=durable_dsn, settings=CALM) as worker:
        ended = await worker.wait(await worker.insert(Noting, None), timeout=PATIENCE)
    assert (ended.status, ended.last_error) == (Status.FAILED, "no truck")
    assert [row["note"] for row in await db.fetch("select note from notes")] == ["stopped", "refunded"]


@pytest.mark.clause("UNDO-13")
@pytest.mark.parametrize("killed", ["pay", "cancel_hotel", "cancel_flight"])
async def test_undo_continues_after_its_process_was_killed(durable_dsn: str, killed: str) -> None:
    async with AsyncClient(durable_dsn, settings=FAST) as client:
        ref = await client.insert(Trip, [])
        options = msgspec.json.encode(FAST).decode()
        async with program("tests.engine.undo.killable_worker", durable_dsn, options, killed) as process:
            assert await process.ends() == -signal.SIGKILL
        async with Worker([Trip], dsn=durable_dsn, settings=FAST):
            ended = await client.wait(ref, timeout=PATIENCE)
        assert (ended.status, ended.step, ended.last_error) == (Status.FAILED, "pay", "card declined")
        assert ended.state == ["pay 3", "cancel_hotel 4", "cancel_flight 5"]
        records = await client.executions(ref)
    assert [(each.step, each.outcome) for each in records if each.status == "ABORTED"] == [(killed, "lease")]


@pytest.mark.clause("UNDO-2", "UNDO-5")
async def test_poison_is_undone_and_a_poisoned_undo_step_is_reported(durable_dsn: str) -> None:
    settings = msgspec.structs.replace(FAST, crash_limit=1)
    options = msgspec.json.encode(settings).decode()
    async with AsyncClient(durable_dsn, settings=settings) as client:
        ref = await client.insert(Trip, [])
        for killed in ("pay", "cancel_flight"):
            async with program("tests.engine.undo.killable_worker", durable_dsn, options, killed) as process:
                assert await process.ends() == -signal.SIGKILL
        async with Worker([Saga], dsn=durable_dsn, settings=settings):
            failed = await client.wait(ref, timeout=PATIENCE)
        assert failed.status is Status.FAILED
        assert failed.last_error == (
            "poison: the process died 1 time in step pay; then undo step cancel_flight failed: "
            "poison: the process died 1 time in step cancel_flight"
        )
        (finding,) = [each for each in await client.doctor() if each.code == "undo.incomplete"]
        assert finding.facts["ids"] == [ref.id]
        await client.retry(ref)
        async with Worker([Trip], dsn=durable_dsn, settings=settings):
            ended = await client.wait(ref, timeout=PATIENCE)
        assert (ended.step, ended.last_error) == ("pay", "poison: the process died 1 time in step pay")
        assert not [each for each in await client.doctor() if each.code == "undo.incomplete"]


@pytest.mark.clause("UNDO-7", "UNDO-9")
async def test_sql_cancels_like_a_client(durable_dsn: str, db: Any) -> None:
    async with AsyncClient(durable_dsn, settings=CALM) as client:
        ref = await client.insert(Saga, Order("wait"), step="begin")
        async with Worker([Saga], dsn=durable_dsn, settings=CALM) as worker:
            await worker.wait(ref, until="parked", timeout=PATIENCE)
        cancel = "select gen_durable.cancel($1::bigint, 'by sql', 'ada', {})"
        assert await db.fetchval(cancel.format("false"), ref.id) == "requested"
        assert await db.fetchval(cancel.format("false"), ref.id) == "compensating"
        assert await db.fetchval(cancel.format("false, false"), ref.id) == "cancelled"
        assert await db.fetchval(cancel.format("false"), ref.id) == "finished"


@pytest.mark.clause("UNDO-2", "UNDO-6")
async def test_machine_that_no_worker_has_fails_without_undo(durable_dsn: str) -> None:
    """A retry continues at the step, because the instance is not undone."""

    class Sold(Saga, name="shop.sale"):
        pass

    prefixes = ["shop."]
    async with Worker([Sold], dsn=durable_dsn, prefixes=prefixes, settings=CALM) as worker:
        ref = await worker.insert(Sold, Order("wait"))
        await worker.wait(ref, until="parked", timeout=PATIENCE)
    async with Worker([Saga], dsn=durable_dsn, prefixes=prefixes, settings=CALM) as other:
        await other.signal(ref, "go")
        failed = await other.wait(ref.id, timeout=PATIENCE)
    assert (failed.status, failed.step, failed.last_error) == (Status.FAILED, "ship", "no_handler_registered")
    assert failed.compensation is None
    async with Worker([Sold], dsn=durable_dsn, prefixes=prefixes, settings=CALM) as worker:
        await worker.retry(ref)
        await worker.signal(ref, "go")
        assert (await worker.wait(ref, timeout=PATIENCE)).result == "shipped"


@pytest.mark.clause("UNDO-2")
async def test_undo_step_that_no_worker_has_waits_for_one(durable_dsn: str) -> None:
    """In a rolling deploy, an old worker starts the undo, and a new one runs the undo step."""

    class Old(Machine[list[str], str], name="Trip"):
        @step
        async def book(self, ctx: Context[list[str]]) -> Outcome[str]:
            return Next(self.pay)

        @step
        async def pay(self, ctx: Context[list[str]]) -> Outcome[str]:
            return Stop("declined")

    class New(Machine[list[str], str], name="Trip"):
        @step(undo="unbook")
        async def book(self, ctx: Context[list[str]]) -> Outcome[str]:
            return Next(self.pay, delay=timedelta(hours=1))

        @step
        async def pay(self, ctx: Context[list[str]]) -> Outcome[str]:
            return Stop("declined")

        @step
        async def unbook(self, ctx: Context[list[str]]) -> Outcome[str]:
            ctx.state.append("unbooked")
            return Done("")

    async with Worker([New], dsn=durable_dsn, settings=CALM) as new:
        ref = await new.insert(New, [])
        await _until_at(new, ref.id, "pay")
    async with Worker([Old], dsn=durable_dsn, settings=CALM) as old:
        await old.edit(ref.id, wake=True)
        await _until_at(old, ref.id, "unbook")
        async with Worker([New], dsn=durable_dsn, settings=CALM):
            ended = await old.wait(ref, timeout=PATIENCE)
    assert (ended.status, ended.step, ended.last_error) == (Status.FAILED, "pay", "declined")
    assert ended.state == ["unbooked"]


@pytest.mark.clause("EVT-10", "UNDO-3", "AUD-9")
async def test_events_and_alert_of_an_undone_instance(durable_dsn: str) -> None:
    class Telling(Machine[None, str]):
        @step(undo="refund")
        async def charge(self, ctx: Context[None]) -> Outcome[str]:
            return Next(self.ship)

        @step
        async def ship(self, ctx: Context[None]) -> Outcome[str]:
            return Stop("no truck", emit=Event("stopped"))

        @step
        async def refund(self, ctx: Context[None]) -> Outcome:
            return Done(emit=Event("refunded"))

    settings = msgspec.structs.replace(CALM, alerts="default")
    async with Worker([Telling], dsn=durable_dsn, settings=settings) as worker:
        ref = await worker.insert(Telling, None)
        await worker.wait(ref, timeout=PATIENCE)
        events = (await worker.events(ref))[::-1]
        records = await worker.executions(ref)
    assert [event.type for event in events] == ["stopped", "refunded", ALERT]
    assert (events[-1].data["step"], events[-1].data["error"]) == ("ship", "no truck")
    # Without a sink their events stay pending.
    assert [(each.outcome, each.status.value) for each in records] == [
        ("next", "DONE"),
        ("undo", "COMMITTED"),
        ("undone", "COMMITTED"),
    ]


@pytest.mark.clause("UNDO-3")
async def test_unkept_instance_is_undone_and_then_kept(durable_dsn: str, db: Any) -> None:
    class Unkept(Machine[list[str], None], keep=False):
        @step(undo="refund")
        async def charge(self, ctx: Context[list[str]]) -> Outcome[None]:
            return Next(self.ship)

        @step
        async def ship(self, ctx: Context[list[str]]) -> Outcome[None]:
            return Stop("no truck") if ctx.state else Done()

        @step
        async def refund(self, ctx: Context[list[str]]) -> Outcome[None]:
            ctx.state.append("refunded")
            return Done()

    async with Worker([Unkept], dsn=durable_dsn, settings=CALM) as worker:
        refs = await worker.insert_all([Spec(Unkept, state) for state in ([], ["stop"]) * 10])
        ended = [await worker.wait(ref, timeout=PATIENCE) for ref in refs[1::2]]
    assert [each.status for each in ended] == [Status.FAILED] * 10
    assert [each.state for each in ended] == [["stop", "refunded"]] * 10
    assert await db.fetchval("select count(*) from gen_durable.gen_durable where status = 'done'") == 0


async def _until_at(client: AsyncClient, id: int, name: str) -> None:
    async with asyncio.timeout(PATIENCE.total_seconds()):
        while (found := await client.get(id)) is None or found.step != name:
            await asyncio.sleep(0.02)
