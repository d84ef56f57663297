"""Invalid input of producers is rejected with advice, before anything is written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from gen_durable import AsyncClient, Client, Context, Done, Machine, Outcome, Settings, Spec, step
from gen_durable._db import chunking
from gen_durable._db import insert as inserts
from gen_durable.errors import (
    EncodeError,
    InitialStepError,
    OptionError,
    PayloadTooLargeError,
    UnknownStepError,
    UsageError,
)
from tests.clients.machines import Checkout, Number, Order


class Open(Machine[dict[str, Any], Any]):
    @step
    async def only(self, ctx: Context[dict[str, Any]]) -> Outcome[Any]:
        return Done(ctx.state)


class Empty(Machine[None, None]):
    """A base class for machines, without steps."""


def nested(levels: int) -> Any:
    """Brackets nested this deep."""
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


STATES: list[tuple[Any, type[Exception], str]] = [
    ("text", EncodeError, "the state of Open cannot be stored as dict.*: it is of type str"),
    (None, EncodeError, "it is of type NoneType"),
    ({"a": float("nan")}, EncodeError, r"NaN or infinity.*; use None or a string - at `\$.a`"),
    ({"a": [1, float("-inf")]}, EncodeError, r"NaN or infinity.* - at `\$.a\[1\]`"),
    ({"a": "x\0y"}, EncodeError, r"a NUL character, which PostgreSQL cannot store; remove it - at `\$.a`"),
    ({"x\0": 1}, EncodeError, r"a NUL character.* - at a key of `\$`"),
    (
        {"a": "\ud83d"},
        EncodeError,
        r"a lone surrogate, which is not valid Unicode; remove it - at `\$.a`",
    ),
    ({"a": object()}, EncodeError, "a value of type object has no form in JSON"),
    ({("a", "b"): 1}, EncodeError, "a key of type tuple has no form in JSON"),
    ({"a": 10**400}, EncodeError, "a number of more than 400 digits; store it as a string"),
    ({"a": 10**5000}, EncodeError, "a number of more than 400 digits; store it as a string"),
    ({"a": nested(100)}, EncodeError, "nested more than 100 levels deep; flatten it"),
    ({"a": nested(20_000)}, EncodeError, "nested"),
    (
        {"a": "x" * 2**20},
        PayloadTooLargeError,
        r"it is 1048585 bytes of JSON, 1048576 are allowed; store large data else",
    ),
]


async def test_unstorable_state_is_rejected(client: Any) -> None:
    for state, error, problem in STATES:
        with pytest.raises(error, match=problem):
            await client.insert(Open, state)
        with pytest.raises(error, match=problem) as refused:
            await client.insert_all([Spec(Open, {}), Spec(Open, state)])
        assert refused.value.__notes__ == ["Spec 2 of 2; none of them was inserted."]
    cyclic: dict[str, Any] = {}
    cyclic["self"] = cyclic
    with pytest.raises(EncodeError, match="it is nested too deeply or contains itself; store plain values"):
        await client.insert(Open, cyclic)
    assert await client.count() == 0


async def test_values_at_the_bounds_round_trip(client: Any) -> None:
    states: list[Any] = [
        {"a": nested(99)},
        {"a": 10**399},
        {"a": "x" * (2**20 - 9)},
        {"": "", "é\u202e": "\U0010ffff\u2028\x01\x7f", "\\u0000": "\\ud800"},
        {"a": [1.5, -0.0, 1e-300, 2**53, True, None]},
    ]
    for state in states:
        assert (await client.get(await client.insert(Open, state))).state == state


async def test_payload_bound_is_a_setting(durable_dsn: str) -> None:
    settings = Settings.load(max_payload=10)
    problem = "it is 11 bytes of JSON, 10 are allowed; .*or raise settings.max_payload"
    async with AsyncClient(durable_dsn, settings=settings) as client:
        await client.insert(Open, {"a": "x"})
        with pytest.raises(PayloadTooLargeError, match=problem):
            await client.insert(Open, {"a": "xx"})
    with (
        Client(durable_dsn, settings=settings) as blocking,
        pytest.raises(PayloadTooLargeError, match=problem),
    ):
        blocking.insert(Open, {"a": "xx"})


@pytest.mark.clause("LIM-8")
async def test_oversized_statement_is_rejected_before_it_is_sent(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunking, "_MAX_SIZE", 1000)
    monkeypatch.setattr(inserts, "_MAX_BYTES", 5000)
    with pytest.raises(UsageError) as refused:
        await client.insert_all([Spec(Open, {"a": "é" * 100}) for _ in range(20)])
    assert str(refused.value) == (
        "20 instances have 7900 bytes together; "
        "insert at most 5000 bytes per call; use one transaction (conn=) for several calls"
    )
    await client.insert_all([Spec(Open, {"a": "é" * 100}) for _ in range(10)])
    assert await client.count() == 10


OPTIONS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"prioritty": 1}, UsageError, "insert has no option 'prioritty'; did you mean 'priority'"),
    ({"deadline": 3}, UsageError, "insert has no option 'deadline'; the options are step, queue"),
    ({"max_attempts": 0}, UsageError, "max_attempts is 0; give a number from 1 to"),
    (
        {"idempotency_key": "a", "unique_key": "b"},
        UsageError,
        "idempotency_key is given together with unique_key",
    ),
    ({"step": "onyl"}, UnknownStepError, "machine 'Open' has no step 'onyl'; did you mean 'only'"),
    ({"step": ""}, UsageError, "the name of a step is empty"),
    ({"step": Open.handle}, UsageError, "a value of type function is not a step; mark the method with @step"),
    ({"queue": ""}, UsageError, "the queue is empty; give 1 to 255 bytes"),
    ({"queue": "ü" * 128}, UsageError, "the queue is 256 bytes long; give at most 255 bytes"),
    ({"queue": "a\0"}, UsageError, "the queue contains a NUL character"),
    ({"queue": 7}, UsageError, "the queue is of type int; give a str"),
    ({"priority": 2**15}, UsageError, "the priority is 32768; give a number from -32768 to 32767"),
    ({"priority": 1.5}, UsageError, "the priority is of type float; give a whole number"),
    ({"priority": True}, UsageError, "the priority is of type bool; give a whole number"),
    ({"schedule_in": timedelta(seconds=-1)}, UsageError, "schedule_in is negative .*; give zero or more"),
    ({"schedule_in": 5}, UsageError, r"schedule_in is a number without a unit, got 5; "),
    (
        {"schedule_in": timedelta(days=40_000)},
        UsageError,
        "schedule_in is longer than 100 years .*; give less",
    ),
    ({"eligible_at": datetime(2030, 1, 1)}, UsageError, r"eligible_at has no time zone .*; write datetime"),  # noqa: DTZ001
    ({"schedule_at": datetime(2030, 1, 1)}, UsageError, r"schedule_at has no time zone .*; write datetime"),  # noqa: DTZ001
    ({"eligible_at": "tomorrow"}, UsageError, "eligible_at is of type str; write datetime"),
]


async def test_invalid_insert_option_is_rejected(client: Any) -> None:
    for options, error, problem in OPTIONS:
        with pytest.raises(error, match=problem):
            await client.insert(Open, {}, **options)
        with pytest.raises(error, match=problem):
            Spec(Open, {}, **options)
    assert await client.count() == 0


async def test_extreme_datetimes_are_stored_or_rejected(client: Any) -> None:
    for moment in (datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)):
        inserted = await client.insert(Number, 1, eligible_at=moment)
        assert (await client.get(inserted)).eligible_at == moment
    west, east = timezone(timedelta(hours=-1)), timezone(timedelta(hours=1))
    for moment in (
        datetime.min.replace(tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
        datetime.min.replace(tzinfo=east),
        datetime.max.replace(tzinfo=west),
    ):
        with pytest.raises(UsageError, match=r"eligible_at is out of range .*; give a time"):
            await client.insert(Number, 1, eligible_at=moment)
    assert await client.count() == 2


async def test_non_machine_is_rejected(client: Any) -> None:
    for machine, error, problem in [
        (Order, UsageError, "Order is neither a machine nor a job; give a subclass of Machine, an object"),
        ("Checkout", UsageError, "'Checkout' is neither a machine nor a job"),
        (Empty, InitialStepError, "machine 'Empty' has no steps; mark at least one method with @step"),
    ]:
        with pytest.raises(error, match=problem):
            await client.insert(machine, None)
    for specs in ([Checkout], [(Checkout, Order(1))], "abc"):
        with pytest.raises(
            UsageError, match=r"insert_all got a value of type .*; wrap each one: Spec\(Machine, state\)"
        ):
            await client.insert_all(specs)
    assert await client.count() == 0


def test_unstorable_machine_name_is_rejected_at_definition() -> None:
    for options, problem in [
        ({"name": ""}, "the name of machine .*Bad is empty; give 1 to 255 bytes"),
        ({"name": "ü" * 128}, "is 256 bytes long; give at most 255 bytes"),
        ({"name": "a\0"}, "contains a NUL character"),
        ({"version": 0}, "the version of machine 'Bad' is 0; give a number from 1 to"),
        ({"queue": "q" * 256}, "the queue of machine 'Bad' is 256 bytes long"),
    ]:
        with pytest.raises(OptionError, match=problem):

            class Bad(Machine[None, None], **options):
                @step
                async def only(self, ctx: Context[None]) -> Outcome[None]:
                    return Done()


async def test_state_is_checked_against_its_type(client: Any) -> None:
    for state, problem in [
        ([("number", 1)], "the state of Checkout cannot be stored as Order: it is of type list"),
        (
            {"number": "1"},
            r"the state of Checkout cannot be stored as Order: Expected `int`, got `str` - at `\$.number`",
        ),
        (Order("one"), r"Expected `int`, got `str` - at `\$.number`"),  # type: ignore[arg-type]  # that is the point
        (Order(float("nan")), r"NaN or infinity|Expected `int`"),  # type: ignore[arg-type]
    ]:
        with pytest.raises(EncodeError, match=problem):
            await client.insert(Checkout, state)
    assert await client.count() == 0
