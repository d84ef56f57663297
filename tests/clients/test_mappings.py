"""A state given as a mapping is converted to the declared type."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import (
    Context,
    Done,
    Inserted,
    Machine,
    Outcome,
    Schedule,
    ScheduleChildren,
    Settings,
    Spec,
    Worker,
    job,
    step,
)
from gen_durable.errors import EncodeError
from tests.clients.machines import Checkout, Order

TYPO = {"number": 42, "payed": True}


class Parcel(msgspec.Struct):
    weight: int


@job("weigh")
async def weigh(parcel: Parcel) -> int:
    return parcel.weight


class Sends(Machine[Order, list[int]]):
    @step
    async def start(self, ctx: Context[Order]) -> Outcome:
        return ScheduleChildren([Spec(weigh, {"weight": ctx.state.number})], then=self.end)

    @step
    async def end(self, ctx: Context[Order]) -> Outcome[list[int]]:
        return Done(ctx.children.results(weigh))


class Misspells(Machine[None, None]):
    @step
    async def start(self, ctx: Context[None]) -> Outcome[None]:
        return ScheduleChildren([Spec(weigh, {"wieght": 1})], then=self.start)


async def test_insert_converts_mappings(client: Any) -> None:
    inserted = await client.insert(Checkout, {"number": 42})
    assert (await client.get(inserted)).state == Order(42)
    inserted = await client.insert(Checkout, args={"number": 43, "paid": True})
    assert (await client.get(inserted)).state == Order(43, paid=True)
    first, second = await client.insert_all([Spec(Checkout, {"number": 1}), Spec(weigh, {"weight": 2})])
    assert (await client.get(first)).state == Order(1)
    assert (await client.get(second)).state == Parcel(2)


async def test_mapping_with_unknown_key_is_rejected(client: Any) -> None:
    problem = r"the state of Checkout cannot be stored as Order: .* - at `\$.payed`; did you mean 'paid'"
    with pytest.raises(EncodeError, match=problem):
        await client.insert(Checkout, TYPO)
    with pytest.raises(EncodeError, match=problem) as refused:
        await client.insert_all([Spec(Checkout, Order(1)), Spec(Checkout, TYPO)])
    assert refused.value.__notes__ == ["Spec 2 of 2; none of them was inserted."]
    with pytest.raises(EncodeError, match=problem):
        await client.put_schedule(Schedule("often", Spec(Checkout, TYPO), every=timedelta(hours=1)))
    with pytest.raises(EncodeError, match=r"the state of weigh cannot be stored as Parcel: .*`weight`"):
        await client.insert(weigh, {})
    assert await client.count() == 0


async def test_schedule_converts_mappings(client: Any) -> None:
    spec = Spec(Checkout, {"number": 42})
    record = await client.put_schedule(Schedule("often", spec, every=timedelta(hours=1)))
    assert record.spec["state"] == {"number": 42, "paid": False}


async def test_retry_converts_mappings(client: Any) -> None:
    inserted = await client.insert(Checkout, Order(1))
    assert isinstance(inserted, Inserted)
    await client.cancel(inserted)
    with pytest.raises(EncodeError, match=r"the new state cannot be stored as Order: .*`\$.payed`"):
        await client.retry(inserted, state=TYPO)
    await client.retry(inserted, state={"number": 2})
    assert (await client.get(inserted)).state == Order(2)


async def test_children_given_as_mappings_are_converted(durable_dsn: str) -> None:
    settings = Settings(poll_interval=timedelta(milliseconds=50))
    async with Worker([Sends, Misspells, weigh], dsn=durable_dsn, settings=settings) as worker:
        assert (await worker.wait(await worker.insert(Sends, {"number": 7}))).result == [7]
        failed = await worker.wait(await worker.insert(Misspells))
        assert "cannot be stored as Parcel: Object missing required field `weight`" in str(failed.last_error)
