"""wait until a status, a step, or a set of them, through both clients."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from gen_durable import Ref, Status
from gen_durable._db.machines import register
from gen_durable._db.pool import Database
from gen_durable._graph.description import describe
from gen_durable.errors import UnknownStepError, UsageError
from tests.clients.machines import Checkout, Order
from tests.support.descriptions import own

SOON = timedelta(milliseconds=100)
LONG = timedelta(seconds=20)


async def set_row(db: Any, **values: str | None) -> None:
    changes = ", ".join(f"{name} = {value}" for name, value in values.items())
    await db.execute(f"update gen_durable.gen_durable set {changes}")


UNTIL: list[tuple[Any, str, str]] = [
    ("awaiting_signal", "awaiting_signal", "start"),
    (Status.AWAITING_SIGNAL, "awaiting_signal", "start"),
    (Checkout.ship, "runnable", "ship"),
    (("step", "ship"), "awaiting_signal", "ship"),
    ({"executing", Checkout.ship}, "runnable", "ship"),
    (frozenset({"finished", "awaiting_signal", ("step", "ship")}), "awaiting_signal", "start"),
    ({"parked", "executing"}, "awaiting_children", "start"),
]


@pytest.mark.clause("WAIT-1")
@pytest.mark.parametrize(("until", "status", "step"), UNTIL, ids=range(len(UNTIL)))
async def test_wait_until_a_status_or_a_step(
    client: Any, db: Any, until: Any, status: str, step: str
) -> None:
    order = await client.insert(Checkout, Order(1))
    waiting = asyncio.ensure_future(client.wait(order, until=until, timeout=LONG))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await set_row(db, status=f"'{status}'", step=f"'{step}'")
    found = await waiting
    assert (found.status, found.step) == (status, step)
    # It holds already.
    assert (await client.wait(order.id, until=until, timeout=LONG)).step == step


@pytest.mark.clause("WAIT-2")
async def test_step_that_was_passed_between_two_polls_counts(client: Any, db: Any) -> None:
    order = await client.insert(Checkout, Order(1))
    waiting = asyncio.ensure_future(client.wait(order, until=Checkout.ship, timeout=LONG))
    await asyncio.sleep(0.1)
    async with db.transaction():
        await set_row(db, step="'start'", step_seq="2", execution="2", status="'awaiting_signal'")
        await db.execute(
            """insert into gen_durable.executions (instance_id, step_seq, execution, attempt, status, outcome, step, finished_at)
               values ($1, 1, 1, 0, 'DONE', 'next', 'start', now()), ($1, 2, 2, 0, 'DONE', 'next', 'ship', now())""",
            order.id,
        )
    assert (await waiting).step == "start"
    # A wait that begins now has not seen it.
    assert not (await client.wait(order, until=Checkout.ship, timeout=SOON)).is_finished


@pytest.mark.clause("WAIT-1")
async def test_end_of_the_instance_ends_every_wait(client: Any, db: Any) -> None:
    order = await client.insert(Checkout, Order(1))
    await set_row(db, status="'failed'", finished_at="now()")
    for until in ("executing", ("step", "ship"), {"done"}, "parked"):
        assert (await client.wait(order, until=until, timeout=LONG)).status == "failed"


async def test_wait_all_until_a_step(client: Any, db: Any) -> None:
    orders = [await client.insert(Checkout, Order(n)) for n in range(3)]
    waiting = asyncio.ensure_future(client.wait_all([*orders, orders[0]], until=Checkout.ship, timeout=LONG))
    await asyncio.sleep(0.05)
    await set_row(db, step="'ship'")
    assert [one.id for one in await waiting] == [*(order.id for order in orders), orders[0].id]


async def test_invalid_until_is_rejected(client: Any) -> None:
    order = await client.insert(Checkout, Order(1))
    bad: list[tuple[Any, str]] = [
        (
            "finshed",
            r"until is 'finshed'; did you mean 'finished'\? Give one of finished, parked, runnable",
        ),
        ("ship", r"a step \(Checkout.ship, or \(\"step\", \"ship\"\)\), or a set of these"),
        (set(), "until is an empty set"),
        ({"parked", 7}, "until is 7"),
        (("step", 7), r"until is \('step', 7\)"),
        (["parked"], "until is"),
        (None, "until is None"),
    ]
    for until, problem in bad:
        with pytest.raises(UsageError, match=problem):
            await client.wait(order, until=until, timeout=LONG)
        with pytest.raises(UsageError, match=problem):
            await client.wait_all([order], until=until, timeout=LONG)


@pytest.mark.clause("WAIT-3")
async def test_unknown_step_of_an_id_or_a_key_is_rejected(client: Any, database: Database, db: Any) -> None:
    order = await client.insert(Checkout, Order(1), correlation_key="order:1")
    # No worker has registered the machine: the step may exist.
    assert not (await client.wait(order.id, until=("step", "shp"), timeout=SOON)).is_finished
    await database.run(register(own(describe(Checkout))))
    for target in (order.id, "order:1"):
        for until in list[Any]([("step", "shp"), {"finished", ("step", "shp")}]):
            with pytest.raises(
                UnknownStepError, match="until=: machine 'Checkout' has no step 'shp'; did you mean 'ship'"
            ):
                await client.wait(target, until=until, timeout=LONG)
        assert not (await client.wait(target, until=("step", "ship"), timeout=SOON)).is_finished
    # The instance may be at a former name of a step.
    await set_row(db, step="'shp'")
    assert (await client.wait(order.id, until=("step", "shp"), timeout=LONG)).step == "shp"


async def test_unknown_step_of_a_typed_target_is_rejected(client: Any) -> None:
    with pytest.raises(UnknownStepError, match="machine 'Checkout' has no step 'shp'; did you mean 'ship'"):
        await client.wait(Ref(Checkout, 1), until=("step", "shp"))
