"""Undo steps and the limits of their instance: keys, attempts, retention, results."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from gen_durable import (
    Backoff,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    RateLimit,
    Stop,
    step,
)
from gen_durable.testing import Harness
from tests.engine.undo.sagas import Order, Saga

LOG: list[str] = []


class Keyed(Machine[Order, str]):
    @step(undo="refund")
    async def charge(self, ctx: Context[Order]) -> Outcome[str]:
        LOG.append(f"{ctx.id} charge")
        return Next(self.ship)

    @step(undo="recall")
    async def ship(self, ctx: Context[Order]) -> Outcome[str]:
        LOG.append(f"{ctx.id} ship")
        return Next(self.deliver)

    @step
    async def deliver(self, ctx: Context[Order]) -> Outcome[str]:
        LOG.append(f"{ctx.id} deliver")
        return Stop("no truck")

    @step
    async def recall(self, ctx: Context[Order]) -> Outcome[str]:
        LOG.append(f"{ctx.id} recall")
        return Done("")

    @step
    async def refund(self, ctx: Context[Order]) -> Outcome[str]:
        LOG.append(f"{ctx.id} refund")
        return Done("")


@pytest.mark.clause("UNDO-4")
def test_instances_of_one_key_are_undone_beside_each_other(durable: Harness) -> None:
    LOG.clear()
    refs = [durable.insert(Keyed, Order(), concurrency_key="one") for _ in range(3)]
    durable.drain()
    for ref in refs:
        durable.assert_failed(ref, match="no truck")
        mine = [line.split()[1] for line in LOG if line.startswith(f"{ref.id} ")]
        assert mine == ["charge", "ship", "deliver", "recall", "refund"]


@pytest.mark.clause("UNDO-3")
def test_continuation_of_an_undo_step_ends_without_a_result(durable: Harness) -> None:
    class Long(Machine[Order, str]):
        @step(undo="refund")
        async def charge(self, ctx: Context[Order]) -> Outcome[str]:
            return Next(self.ship)

        @step
        async def ship(self, ctx: Context[Order]) -> Outcome[str]:
            return Stop("no truck")

        @step
        async def refund(self, ctx: Context[Order]) -> Outcome:
            return Next(self.report)

        @step
        async def report(self, ctx: Context[Order]) -> Outcome:
            return Done()

    ref = durable.insert(Long, Order())
    durable.drain()
    ended = durable.assert_failed(ref)
    assert ended.last_error == "no truck"


@pytest.mark.clause("UNDO-3")
def test_undo_step_run_as_an_ordinary_step_needs_a_result(durable: Harness) -> None:
    class Both(Machine[Order, str]):
        @step(undo="refund")
        async def charge(self, ctx: Context[Order]) -> Outcome[str]:
            return Next(self.refund)

        @step
        async def refund(self, ctx: Context[Order]) -> Outcome:
            return Done()

    ref = durable.insert(Both, Order())
    durable.drain()
    durable.assert_failed(ref, match="the result of Both")


@pytest.mark.clause("UNDO-2")
def test_max_attempts_of_an_insert_does_not_limit_undo_steps(durable: Harness) -> None:
    tries: list[int] = []

    class Flaky(Machine[Order, str], retry=Backoff(max_attempts=3, base=timedelta(0))):
        @step(undo="refund")
        async def charge(self, ctx: Context[Order]) -> Outcome[str]:
            return Next(self.ship)

        @step
        async def ship(self, ctx: Context[Order]) -> Outcome[str]:
            raise RuntimeError("broken")

        @step
        async def refund(self, ctx: Context[Order]) -> Outcome[str]:
            tries.append(ctx.attempt)
            if ctx.attempt < 2:
                raise RuntimeError("bank is down")
            return Done("")

    ref = durable.insert(Flaky, Order(), max_attempts=1)
    durable.drain()
    ended = durable.assert_failed(ref)
    assert ended.last_error == "RuntimeError: broken"
    assert tries == [0, 1, 2]


@pytest.mark.clause("UNDO-3")
def test_retention_of_an_undone_instance_is_that_of_its_end(durable: Harness, durable_dsn: str) -> None:
    class Short(Saga, retention_failed=timedelta(minutes=5), retention_cancelled=timedelta(minutes=7)):
        pass

    durable.insert(Short, Order("stop"))
    durable.insert(Short, Order("cancel"))
    durable.drain()
    with psycopg.connect(durable_dsn) as conn:
        rows = conn.execute(
            "select expires_at - finished_at from gen_durable.gen_durable order by id"
        ).fetchall()
    assert [row[0] for row in rows] == [timedelta(minutes=5), timedelta(minutes=7)]


class Metered(Machine[Order, str]):
    """charge (refund) → ship → deliver, which stops; ship and the second part of the refund have a rate limit."""

    @step(undo="refund")
    async def charge(self, ctx: Context[Order]) -> Outcome[str]:
        return Next(self.ship, rate_limit="bank", weight=2)

    @step(undo="recall")
    async def ship(self, ctx: Context[Order]) -> Outcome[str]:
        return Next(self.deliver, rate_limit="bank", weight=3)

    @step
    async def deliver(self, ctx: Context[Order]) -> Outcome[str]:
        return Stop("no truck")

    @step
    async def recall(self, ctx: Context[Order]) -> Outcome[str]:
        return Done("")

    @step
    async def refund(self, ctx: Context[Order]) -> Outcome[str]:
        return Next(self.confirm, rate_limit="bank", weight=5)

    @step
    async def confirm(self, ctx: Context[Order]) -> Outcome[str]:
        return Done("")


@pytest.mark.clause("UNDO-2")
def test_undo_steps_have_the_rate_limits_that_lead_to_them(durable: Harness, durable_dsn: str) -> None:
    durable.set_limit(RateLimit("bank", 5, per=timedelta(hours=1)))
    ref = durable.insert(Metered, Order())
    durable.drain(collapse=False)
    waiting = durable.get(ref)
    assert waiting is not None
    # recall and refund took no tokens. Those that ship and deliver took are not there again.
    assert (waiting.step, waiting.is_compensating) == ("confirm", True)
    with psycopg.connect(durable_dsn) as conn:
        row = conn.execute("select rate_limit, weight, rate_turn_at is not null from gen_durable.gen_durable")
        assert row.fetchall() == [("bank", 5, True)]
    durable.advance(hours=2)
    durable.drain()
    durable.assert_failed(ref, match="no truck")


@pytest.mark.clause("UNDO-2")
def test_refused_outcomes_are_undone(durable: Harness, durable_dsn: str) -> None:
    refused = (
        "alter table gen_durable.gen_durable add constraint odd check (result is distinct from '\"shipped\"')"
    )
    with psycopg.connect(durable_dsn, autocommit=True) as conn:
        conn.execute(refused)
    ref = durable.insert(Saga, Order())
    durable.drain()
    ended = durable.assert_failed(ref, match="the database refused the outcome")
    assert ended.step == "ship"
    assert ended.compensation is not None
    assert ended.compensation.undone == ("charge", "begin")


@pytest.mark.clause("UNDO-5")
def test_refused_outcome_of_an_undo_step_ends_the_undo(durable: Harness, durable_dsn: str) -> None:
    refused = "alter table gen_durable.gen_durable add constraint odd check (state ->> 'ending' is distinct from 'odd')"
    with psycopg.connect(durable_dsn, autocommit=True) as conn:
        conn.execute(refused)

    class Odd(Saga):
        @step
        async def refund(self, ctx: Context[Order]) -> Outcome[str]:
            if ctx.state.log[-1] != "repaired":
                ctx.state.ending = "odd"
            return Done("")

    ref = durable.insert(Odd, Order("stop"))
    durable.drain()
    ended = durable.assert_failed(ref, match="no truck; then undo step refund failed: the database refused")
    assert ended.compensation is not None
    assert ended.compensation.pending == ("refund", "release")
    durable.retry(ref, state=Order("stop", log=["repaired"]))
    durable.drain()
    assert durable.assert_failed(ref).last_error == "no truck"
