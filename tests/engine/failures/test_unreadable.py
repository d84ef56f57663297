"""Values that do not decode or encode fail one step, and go to `handle`."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gen_durable import (
    Await,
    Context,
    DecodeError,
    Done,
    Machine,
    Next,
    Outcome,
    Retry,
    ScheduleChildren,
    Signal,
    Spec,
    Status,
    Stop,
    Worker,
    job,
    step,
)
from gen_durable.telemetry import StepStop
from tests.support.rows import row_of
from tests.support.settings import AN_HOUR, CALM
from tests.support.waiting import PATIENCE, Events


class Order(msgspec.Struct):
    number: int


class Payment(msgspec.Struct):
    cents: int


@pytest.mark.clause("MCH-5")
async def test_undecodable_state_goes_to_handle_as_text(durable_dsn: str, db: Any) -> None:
    seen: list[tuple[type[Exception], object, str, int]] = []

    class Shop(Machine[Order, int]):
        @step
        async def run(self, ctx: Context[Order]) -> Outcome[int]:
            return Done(ctx.state.number)

        def handle(self, error: Exception, ctx: Context[Order]) -> Outcome[int]:
            seen.append((type(error), ctx.state, ctx.raw_state, ctx.attempt))
            return Retry(AN_HOUR)

    async with Worker([Shop], dsn=durable_dsn, settings=CALM) as worker:
        events = Events(worker)
        ref = await worker.insert(Shop, Order(1), schedule_in=AN_HOUR)
        await db.execute(
            """update gen_durable.gen_durable set state = '{"number": "x"}', eligible_at = now()"""
        )
        await events.wait(StepStop)
        row = await row_of(db, ref.id)
        assert seen == [(DecodeError, None, '{"number": "x"}', 0)]
        # The retry keeps the stored state, so repairing the row repairs the instance.
        assert (row["status"], row["attempt"], row["state"]) == ("runnable", 1, '{"number": "x"}')
        assert "does not match Order" in row["last_error"]
        await db.execute(
            """update gen_durable.gen_durable set state = '{"number": 5}', eligible_at = now()"""
        )
        assert (await worker.wait(ref, timeout=PATIENCE)).result == 5


async def test_undecodable_state_leaves_the_inbox_readable(durable_dsn: str, db: Any) -> None:
    class Shop(Machine[Order, list[int]]):
        payment = Signal("payment", Payment)

        @step
        async def start(self, ctx: Context[Order]) -> Outcome[list[int]]:
            return Await(self.payment, then=self.book)

        @step
        async def book(self, ctx: Context[Order]) -> Outcome[list[int]]:
            return Stop("unreachable")

        def handle(self, error: Exception, ctx: Context[Order]) -> Outcome[list[int]]:
            return Done([payment.cents for payment in ctx.awaited.all(self.payment)])

    async with Worker([Shop], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Shop, Order(1))
        await worker.wait(ref, timeout=PATIENCE, until="parked")
        await db.execute("update gen_durable.gen_durable set state = 'null'")
        await worker.signal(ref, Shop.payment, Payment(100))
        await worker.wait(ref.id, timeout=PATIENCE)
        assert (await row_of(db, ref.id))["result"] == "[100]"


async def test_undecodable_signal_leaves_the_state_readable(durable_dsn: str) -> None:
    class Shop(Machine[Order, str]):
        payment = Signal("payment", Payment)

        @step
        async def start(self, ctx: Context[Order]) -> Outcome[str]:
            return Await(self.payment, then=self.book)

        @step
        async def book(self, ctx: Context[Order]) -> Outcome[str]:
            return Done(f"{ctx.state.number} paid {ctx.awaited.all(self.payment)}")

        def handle(self, error: Exception, ctx: Context[Order]) -> Outcome[str]:
            assert isinstance(error, DecodeError)
            return Next(self.settle, Order(ctx.state.number + 1))

        @step
        async def settle(self, ctx: Context[Order]) -> Outcome[str]:
            return Done(f"order {ctx.state.number}, {len(ctx.inbox)} unread")

    async with Worker([Shop], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Shop, Order(41))
        await worker.wait(ref, timeout=PATIENCE, until="parked")
        await worker.signal(ref, "payment", {"cents": "many"})
        ended = await worker.wait(ref, timeout=PATIENCE)
    # The outcome of `handle` consumed the signals of its step.
    assert ended.result == "order 42, 0 unread"


@pytest.mark.clause("MCH-5")
async def test_outcome_that_does_not_encode_goes_to_handle(durable_dsn: str) -> None:
    class Shop(Machine[int, Any]):
        @step
        async def run(self, ctx: Context[int]) -> Outcome[Any]:
            no_number: Any = "no number"
            match ctx.state:
                case 0:
                    return Done(float("nan"))
                case 1:
                    return Next(self.run, no_number)
                case 2:
                    return Next("walk")
                case 3:
                    return ScheduleChildren([Spec(Shop, 1), Spec(Shop, no_number)], then=self.run)
            return None  # type: ignore[return-value]

        def handle(self, error: Exception, ctx: Context[int]) -> Outcome[Any]:
            return Done(f"{ctx.state} {type(error).__name__}")

    async with Worker([Shop], dsn=durable_dsn, settings=CALM) as worker:
        ended = await worker.wait_all([await worker.insert(Shop, n) for n in range(5)], timeout=PATIENCE)
        assert await worker.count(Shop) == 5, "the child that can be stored is not inserted either"
    wanted = ["EncodeError", "EncodeError", "UnknownStepError", "EncodeError", "OutcomeError"]
    assert [one.result for one in ended] == [f"{n} {name}" for n, name in enumerate(wanted)]


# JSON below the size bound that PostgreSQL accepts and Python cannot decode.
DEEP = "repeat('[', 5000) || repeat(']', 5000)"
LONG = "'[1e100000]'"


@pytest.mark.clause("LIM-7")
@pytest.mark.parametrize(
    ("text", "problem"),
    [(DEEP, "it is nested too deeply to be decoded"), (LONG, "Integer value out of range")],
    ids=["deep", "long"],
)
async def test_json_that_python_cannot_decode_fails_only_its_instance(
    durable_dsn: str, db: Any, text: str, problem: str
) -> None:
    @job("sql.dead.v1", max_attempts=1)
    def dead(letter: Any) -> None: ...

    @job("sql.eats.v1", max_attempts=1, dead_letter=dead)
    def eats(payload: Any) -> str:
        return "eaten"

    class Waits(Machine[list[Any], str]):
        @step
        async def run(self, ctx: Context[list[Any]]) -> Outcome[str]:
            return Await("go", then=self.end)

        @step
        async def end(self, ctx: Context[list[Any]]) -> Outcome[str]:
            return Done("gone")

    async with Worker([eats, dead, Waits], dsn=durable_dsn, settings=CALM, queues={"default": 1}) as worker:
        insert = f"select id from gen_durable.insert($1, ({text})::jsonb, priority => -1)"
        job_id, machine_id = [await db.fetchval(insert, name) for name in ("sql.eats.v1", "Waits")]
        woken, passed = await worker.insert(Waits, [1]), await worker.insert(Waits, [2])
        await db.execute(f"select gen_durable.signal($1::bigint, 'go', ({text})::jsonb)", woken.id)
        await db.execute(f"select gen_durable.signal($1::bigint, 'other', ({text})::jsonb)", passed.id)
        await worker.signal(passed, "go")
        after = await worker.insert(eats, "fine", priority=1)
        assert (await worker.wait(after, timeout=PATIENCE)).result == "eaten", "the queue went on"
        for id, message in (
            (job_id, "the state of sql.eats.v1"),
            (machine_id, "the state of Waits"),
            (woken.id, "the payload of signal 'go'"),
        ):
            failed = await worker.wait(id, timeout=PATIENCE)
            assert failed.status is Status.FAILED
            assert f"DecodeError: {message}" in str(failed.last_error)
            assert problem in str(failed.last_error)
        assert (await worker.wait(passed, timeout=PATIENCE)).result == "gone", "it never read that signal"
        (letter,) = await worker.list(dead)
        assert (await worker.wait(letter.id, timeout=PATIENCE)).status is Status.FAILED
        listed = {each.id: each.state for each in await worker.list()}
        assert isinstance(listed[job_id], str), "as the text that it is"
        assert (listed[woken.id], len(listed)) == ([1], 6)
