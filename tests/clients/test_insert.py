"""insert and insert_all, through both clients."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gen_durable import Delivered, Duplicate, DuplicateSignal, Inserted, KeyTaken, Ref, Spec, Status
from gen_durable.errors import EncodeError, KeyTakenError, UnknownStepError, UsageError
from tests.clients.machines import Checkout, Number, Order, Ping, Refund


@pytest.mark.clause("INS-2")
async def test_insert_returns_a_ref_of_the_stored_instance(client: Any) -> None:
    inserted = await client.insert(Checkout, Order(42))
    assert isinstance(inserted, Inserted)
    instance = await client.get(inserted)
    assert (instance.id, instance.machine, instance.version) == (inserted.id, "Checkout", 2)
    assert (instance.step, instance.status, instance.queue) == ("start", Status.RUNNABLE, "checkout")
    assert (instance.state, instance.priority, instance.attempt, instance.step_seq) == (Order(42), 0, 0, 0)
    assert (instance.correlation_key, instance.unique_key, instance.concurrency_key) == (None, None, None)
    assert instance.inserted_at == instance.updated_at == instance.eligible_at
    assert instance.inserted_at.utcoffset() is not None


@pytest.mark.clause("INS-2")
async def test_every_insert_option_is_stored(client: Any) -> None:
    moment = datetime(2031, 1, 2, 3, 4, 5, 678_901, tzinfo=UTC)
    inserted = await client.insert(
        Checkout(),
        Order(42),
        step=Checkout.ship,
        queue="urgent",
        priority=-7,
        eligible_at=moment,
        correlation_key="order:42",
        unique_key=b"\x00\xff",
        concurrency_key=("tenant", 7),
    )
    instance = await client.get("order:42")
    assert instance.id == inserted.id
    assert (instance.step, instance.queue, instance.priority) == ("ship", "urgent", -7)
    assert instance.eligible_at == moment
    assert (instance.unique_key, instance.concurrency_key) == (b"\x00\xff", "tenant:7")


async def test_keys_are_strings_or_tuples(client: Any) -> None:
    key = ("order", 42)
    inserted = await client.insert(Checkout, Order(1), correlation_key=key, idempotency_key=key)
    for target in (key, "order:42", Ref(Checkout, key)):
        assert (await client.get(target)).id == inserted.id
    for name in ("correlation_key", "unique_key"):
        assert [one.id for one in await client.list(**{name: key})] == [inserted.id]
    duplicate = await client.insert(Checkout, Order(1), correlation_key=key)
    assert (type(duplicate), duplicate.key) == (Duplicate, "order:42")
    assert isinstance(await client.signal(key, "note", dedup_key=("bank", 7)), Delivered)
    assert isinstance(await client.signal(key, "note", dedup_key="bank:7"), DuplicateSignal)


@pytest.mark.clause("INS-3")
async def test_args_is_an_alias_of_state(client: Any) -> None:
    inserted = await client.insert(Checkout, args=Order(7))
    assert (await client.get(inserted)).state == Order(7)


@pytest.mark.clause("INS-3")
async def test_state_and_args_together_are_rejected(client: Any) -> None:
    with pytest.raises(UsageError, match="args"):
        await client.insert(Checkout, Order(1), args=Order(2))
    assert await client.count() == 0


async def test_machine_without_state_needs_none(client: Any) -> None:
    inserted = await client.insert(Ping)
    assert (await client.get(inserted)).state is None


@pytest.mark.clause("INS-1")
async def test_duplicate_has_the_holder_and_the_key(client: Any) -> None:
    first = await client.insert(Checkout, Order(1), correlation_key="order:1", unique_key=b"u")
    by_correlation = await client.insert(Checkout, Order(2), correlation_key="order:1")
    by_unique = await client.insert(Checkout, Order(3), unique_key="u")
    assert (by_correlation, by_unique) == (
        Duplicate(Checkout, first.id, "order:1"),
        Duplicate(Checkout, first.id, "u"),
    )
    assert (await client.get(by_unique)).state == Order(1)
    assert await client.count() == 1


async def test_insert_all_answers_in_order_with_duplicates(client: Any) -> None:
    old = await client.insert(Checkout, Order(0), unique_key="old")
    answers = await client.insert_all(
        [
            Spec(Checkout, Order(1), unique_key="z"),
            Spec(Checkout, Order(2), unique_key="old"),
            Spec(Refund, Order(3)),
            Spec(Checkout, Order(4), unique_key="a"),
            Spec(Checkout, Order(5), unique_key="z"),
            Spec(Checkout, Order(6), correlation_key="c"),
            Spec(Checkout, Order(7), correlation_key="c"),
        ]
    )
    kinds = [type(answer).__name__ for answer in answers]
    assert kinds == ["Inserted", "Duplicate", "Inserted", "Inserted", "Duplicate", "Inserted", "Duplicate"]
    assert [answers[1].id, answers[4].id, answers[6].id] == [old.id, answers[0].id, answers[5].id]
    assert answers[6].key == "c"
    states = [(await client.get(answer)).state.number for answer in answers]
    assert states == [1, 0, 3, 4, 1, 6, 6]


async def test_insert_all_takes_any_iterable_also_empty(client: Any) -> None:
    assert await client.insert_all([]) == []
    assert len(await client.insert_all(Spec(Ping) for _ in range(3))) == 3


@pytest.mark.clause("INS-11")
async def test_key_of_another_machine_rejects_only_its_row(client: Any) -> None:
    first = await client.insert(Checkout, Order(1), correlation_key="42")
    before, taken, after = await client.insert_all(
        [Spec(Ping), Spec(Refund, Order(1), correlation_key="42"), Spec(Ping)]
    )
    assert (type(before), type(taken), type(after)) == (Inserted, KeyTaken, Inserted)
    assert (taken.kind, taken.error.holder, taken.error.holder_id) == (
        "correlation_key",
        "Checkout",
        first.id,
    )
    assert str(taken.error) == (
        f"cannot insert Refund: the key '42' is held by Checkout {first.id}; "
        "keys are shared by all machines, so add a prefix: 'Refund:42'"
    )
    assert repr(taken) == "KeyTaken(Refund, '42')"
    _, twin = await client.insert_all(
        [Spec(Checkout, Order(1), unique_key=b"k\xff"), Spec(Ping, unique_key=b"k\xff")]
    )
    assert (twin.kind, twin.error.key) == ("unique_key", r"k\xff")
    assert twin != taken
    _, once = await client.insert_all(
        [Spec(Checkout, Order(1), idempotency_key="i"), Spec(Ping, idempotency_key="i")]
    )
    assert once.kind == "idempotency_key"
    assert await client.count() == 5


@pytest.mark.clause("INS-11")
async def test_rejected_spec_is_not_usable_as_a_ref(client: Any) -> None:
    await client.insert(Checkout, Order(1), correlation_key="42")
    (taken,) = await client.insert_all([Spec(Refund, Order(1), correlation_key="42")])
    with pytest.raises(KeyTakenError):
        _ = taken.id
    for verb in (client.get, client.wait, client.cancel, client.soft_delete, client.retry):
        with pytest.raises(KeyTakenError, match="cannot insert Refund: the key '42' is held by Checkout"):
            await verb(taken)
    with pytest.raises(KeyTakenError):
        await client.signal(taken, "paid")
    with pytest.raises(KeyTakenError):
        await client.wait_all([taken])
    assert (await client.get("42")).status == "runnable"


@pytest.mark.clause("INS-7")
async def test_one_invalid_spec_rejects_the_batch_before_sending(client: Any) -> None:
    with pytest.raises(
        EncodeError, match="the state of Checkout cannot be stored as Order: it is of type str"
    ):
        await client.insert_all([Spec(Ping), Spec(Checkout, "not an order")])  # type: ignore[misc]  # that is the point
    with pytest.raises(UnknownStepError, match="machine 'Checkout' has no step 'shp'; did you mean 'ship'"):
        await client.insert_all([Spec(Ping), Spec(Checkout, Order(1), step="shp")])
    assert await client.count() == 0


async def test_insert_all_takes_twenty_thousand_specs(client: Any) -> None:
    answers = await client.insert_all([Spec(Number, number) for number in range(20_000)])
    assert len({answer.id for answer in answers}) == 20_000
    assert [answer.id for answer in answers] == sorted(answer.id for answer in answers)
    assert (await client.get(answers[12_345])).state == 12_345
    assert await client.count(Number) == 20_000


async def test_ids_above_four_bytes_work(client: Any, db: Any) -> None:
    await db.execute("select setval('gen_durable.gen_durable_id_seq', 3000000000)")
    await db.execute("select setval('gen_durable.signals_id_seq', 4000000000)")
    inserted = await client.insert(Checkout, Order(1), correlation_key="k")
    assert inserted.id == 3_000_000_001
    assert (await client.signal(inserted, "withdrawn")).id == inserted.id
    assert [instance.id for instance in await client.list(before=2**40)] == [inserted.id]
    assert (await client.wait(inserted.id, timeout=timedelta(0))).id == inserted.id
    assert await client.children(inserted.id) == []
    assert (await client.get(Ref(Checkout, "k"))).id == inserted.id
