"""signal, through both clients."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable import AsyncClient, Delivered, DuplicateSignal, Ref, Settings
from gen_durable.errors import EncodeError, NoTargetError, PayloadTooLargeError, UsageError
from tests.clients.machines import Checkout, Order, Payment


async def park(db: Any, *names: str) -> None:
    await db.execute("update gen_durable.gen_durable set status = 'awaiting_signal', awaits = $1", names)


async def end(db: Any) -> None:
    await db.execute("update gen_durable.gen_durable set status = 'done', finished_at = now()")


async def inbox(db: Any) -> list[tuple[Any, ...]]:
    rows = await db.fetch("select name, payload, dedup_key from gen_durable.signals order by id")
    return [tuple(row) for row in rows]


async def test_signal_takes_a_ref_an_id_or_a_key(client: Any, db: Any) -> None:
    order = await client.insert(Checkout, Order(42), correlation_key="order:42")
    for target in (order, order.id, "order:42", Ref(Checkout, "order:42"), Ref(Checkout, order.id)):
        assert await client.signal(target, Checkout.payment, Payment(100)) == Delivered(
            order.id, is_awaited=False
        )
    assert await inbox(db) == [("payment_confirmed", '{"amount": 100}', None)] * 5


async def test_delivered_says_whether_the_signal_is_awaited(client: Any, db: Any) -> None:
    order = await client.insert(Checkout, Order(42))
    await park(db, "payment_confirmed")
    assert await client.signal(order, Checkout.withdrawn) == Delivered(order.id, is_awaited=False)
    assert await client.signal(order, "payment_confirmed", {"amount": 1}) == Delivered(
        order.id, is_awaited=True
    )
    assert (await client.get(order)).status == "runnable"


async def test_signal_with_a_dedup_key_is_delivered_once(client: Any, db: Any) -> None:
    order = await client.insert(Checkout, Order(42))
    assert await client.signal(order, "a", 1, dedup_key="evt-7") == Delivered(order.id, is_awaited=False)
    assert await client.signal(order, "b", 2, dedup_key="evt-7") == DuplicateSignal(order.id)
    assert await inbox(db) == [("a", "1", "evt-7")]


async def test_signal_to_an_unknown_target_raises(client: Any, db: Any) -> None:
    with pytest.raises(NoTargetError) as missing:
        await client.signal(4711, Checkout.withdrawn)
    assert str(missing.value) == (
        "cannot signal 'withdrawn': there is no live instance 4711; it has ended, or was never inserted"
    )
    assert (missing.value.target, isinstance(missing.value, LookupError)) == (4711, True)
    with pytest.raises(NoTargetError, match="no live instance has correlation_key 'order:43'; it has ended"):
        await client.signal(Ref(Checkout, "order:43"), Checkout.withdrawn)
    assert await inbox(db) == []


async def test_id_given_as_a_string_gets_a_hint(client: Any) -> None:
    await client.insert(Checkout, Order(42))
    with pytest.raises(NoTargetError, match=r"correlation_key '42' \(ids are integers: did you mean 42\?\)"):
        await client.signal("42", Checkout.withdrawn)


async def test_signal_to_an_ended_instance_raises(client: Any, db: Any) -> None:
    order = await client.insert(Checkout, Order(42), correlation_key="order:42")
    await end(db)
    for target in (order, "order:42"):
        with pytest.raises(NoTargetError, match="it has ended"):
            await client.signal(target, Checkout.withdrawn)


async def test_full_inbox_error_has_advice(client: Any, db: Any) -> None:
    order = await client.insert(Checkout, Order(42))
    await client.signal(order, "x")
    await db.execute(
        "insert into gen_durable.signals (target_id, name) select $1, 'x' from generate_series(2, 10000)",
        order.id,
    )
    await db.execute("update gen_durable.gen_durable set inbox_count = 10000")
    with pytest.raises(UsageError) as full:
        await client.signal(order, "x")
    assert str(full.value) == (
        f"the inbox of instance {order.id} is full: 10000 unread signals; "
        "await these signals in the machine, or send fewer or smaller ones"
    )


async def test_inbox_bytes_are_bounded_by_settings(durable_dsn: str) -> None:
    async with AsyncClient(durable_dsn, settings=Settings(max_inbox=100)) as client:
        order = await client.insert(Checkout, Order(42))
        await client.signal(order, "x", "y" * 60)
        with pytest.raises(
            UsageError, match="have 62 bytes of JSON, a signal of 62 bytes exceeds the limit of 100"
        ):
            await client.signal(order, "x", "y" * 60)
        await client.signal(order, "x", "y" * 30)


BAD_SIGNALS: list[tuple[Any, Any, dict[str, Any], type[Exception], str]] = [
    (
        Checkout.payment,
        5,
        {},
        EncodeError,
        "the payload of signal 'payment_confirmed' cannot be stored as Payment",
    ),
    (Checkout.withdrawn, 5, {}, EncodeError, "signal 'withdrawn' cannot be stored as None"),
    (
        "x",
        float("nan"),
        {},
        EncodeError,
        "NaN or infinity, which JSON does not have; use None or a string",
    ),
    ("x", {"a": ["\0"]}, {}, EncodeError, r"a NUL character, .* remove it - at `\$.a\[0\]`"),
    ("x", "\ud800", {}, EncodeError, "a lone surrogate, which is not valid Unicode"),
    (
        "x",
        "y" * 2**20,
        {},
        PayloadTooLargeError,
        "1048578 bytes of JSON, 1048576 are allowed; .* settings.max_payload",
    ),
    ("x", object(), {}, EncodeError, "a value of type object has no form in JSON"),
    ("", None, {}, UsageError, "the name of a signal is empty; give 1 to 255 bytes"),
    ("ü" * 128, None, {}, UsageError, "the name of a signal is 256 bytes long; give at most 255 bytes"),
    ("a\0", None, {}, UsageError, "the name of a signal contains a NUL character"),
    ("x", None, {"dedup_key": ""}, UsageError, "dedup_key is empty; give 1 to 1024 bytes"),
    (
        "x",
        None,
        {"dedup_key": "k" * 1025},
        UsageError,
        "dedup_key is 1025 bytes long; give at most 1024 bytes",
    ),
    ("x", None, {"dedup_key": 7}, UsageError, "dedup_key is of type int; give a text, or"),
]


async def test_unstorable_signal_payload_is_rejected(client: Any, db: Any) -> None:
    order = await client.insert(Checkout, Order(42))
    for signal, payload, options, error, problem in BAD_SIGNALS:
        with pytest.raises(error, match=problem):
            await client.signal(order, signal, payload, **options)
    assert await inbox(db) == []


BAD_TARGETS: list[tuple[Any, str]] = [
    ("", "correlation_key is empty"),
    ("k" * 1025, "correlation_key is 1025 bytes long; give at most 1024"),
    (0, "the id is 0; give a number from 1 to"),
    (-1, "the id is -1; give a number from 1 to"),
    (2**63, "the id is 9223372036854775808; give a number from 1 to 9223372036854775807"),
    (True, "the id is of type bool; give a whole number"),
    (None, "the id is of type NoneType; give a whole number"),
    (4.0, "the id is of type float; give a whole number"),
]


async def test_invalid_signal_target_is_rejected(client: Any) -> None:
    for target, problem in BAD_TARGETS:
        with pytest.raises(UsageError, match=problem):
            await client.signal(target, "paid")
        for verb in (client.get, client.wait, client.children):
            with pytest.raises(UsageError, match=problem):
                await verb(target)
