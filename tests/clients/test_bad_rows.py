"""Rows that do not match the code fail with a helpful error, or wait for other code."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import msgspec

from gen_durable import Await, Context, Done, Machine, Next, Outcome, Signal, Spec, Status, Worker, step
from gen_durable.telemetry import StepMissing
from tests.clients.assertions import assert_failed
from tests.clients.machines import Order
from tests.support.waiting import Events

LONG = timedelta(seconds=30)


class Strict(Machine[Order, int]):
    @step
    async def only(self, ctx: Context[Order]) -> Outcome[int]:
        return Done(ctx.state.number)


class Mender(Machine[Order, int]):
    """Its `handle` can read a state that its steps cannot."""

    @step
    async def only(self, ctx: Context[Order]) -> Outcome[int]:
        return Done(ctx.state.number)

    def handle(self, error: Exception, ctx: Context[Order]) -> Outcome[int]:
        return Next(self.only, Order(int(re.findall(r"\d+", ctx.raw_state)[0])))


async def test_undecodable_state_fails_the_instance_and_is_kept(durable_dsn: str, db: Any) -> None:
    insert = "select id from gen_durable.insert($1, $2, step => 'only', version => 1)"
    strict = await db.fetchval(insert, "Strict", '{"number": "seven"}')
    mended = await db.fetchval(insert, "Mender", '{"number": "7"}')
    async with Worker([Strict, Mender], dsn=durable_dsn) as worker:
        failed = await worker.wait(strict, timeout=LONG)
        assert_failed(
            failed,
            {"number": "seven"},
            "DecodeError: the state of Strict {id} does not match Order: Expected `int`, got `str` - at `$.number`",
        )
        assert (await worker.wait(mended, timeout=LONG)).result == 7


async def test_row_of_an_unknown_machine_version_or_step_waits(durable_dsn: str, db: Any) -> None:
    insert = "select id from gen_durable.insert($1, '{\"number\": 1}', step => $2, version => $3)"
    unknown = await db.fetchval(insert, "Unknown", "only", 1)
    future = await db.fetchval(insert, "Strict", "only", 2)
    gone = await db.fetchval(insert, "Strict", "olny", 1)
    async with Worker([Strict], dsn=durable_dsn) as worker:
        await Events(worker).wait(StepMissing)
        for id in (unknown, future, gone):  # a later deployment may run them
            waiting = await worker.wait(id, timeout=timedelta(milliseconds=50))
            assert (waiting.status, waiting.attempt, waiting.last_error) == (Status.RUNNABLE, 0, None)

    class Later(Machine[Order, int], name="Strict", version=2):
        @step
        async def only(self, ctx: Context[Order]) -> Outcome[int]:
            return Done(2)

    async with Worker([Strict, Later], dsn=durable_dsn) as worker:
        assert (await worker.wait(future, timeout=LONG)).result == 2


class Bell(msgspec.Struct):
    tone: int


async def test_undecodable_signal_fails_only_instances_that_await_it(durable_dsn: str, db: Any) -> None:
    class Listener(Machine[str, int]):
        bell = Signal("bell", Bell)
        knock = Signal("knock", Bell)

        @step
        async def wait(self, ctx: Context[str]) -> Outcome:
            return Await(self.bell if ctx.state == "bell" else self.knock, then=self.heard)

        @step
        async def heard(self, ctx: Context[str]) -> Outcome[int]:
            return Done(len(ctx.inbox))

    async with Worker([Listener], dsn=durable_dsn) as worker:
        bell, knock = await worker.insert_all([Spec(Listener, "bell"), Spec(Listener, "knock")])
        await worker.wait_all([bell, knock], until="parked", timeout=LONG)
        for id in (bell.id, knock.id):
            await db.execute("select gen_durable.signal($1::bigint, 'bell', '{\"tone\": \"high\"}')", id)
        await worker.signal(knock, Listener.knock, Bell(1))
        failed, done = await worker.wait_all([bell, knock], timeout=LONG)
    assert failed.status is Status.FAILED
    assert "the payload of signal 'bell' does not match Bell: Expected `int`, got `str`" in (
        failed.last_error or ""
    )
    assert done.result == 2
