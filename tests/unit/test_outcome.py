"""Outcomes are values; invalid ones cannot be created."""

from __future__ import annotations

import copy
import functools
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from unittest.mock import AsyncMock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gen_durable._typing import KEEP
from gen_durable.context import Context
from gen_durable.errors import UsageError
from gen_durable.machine import Machine, step
from gen_durable.outcome import (
    Await,
    Done,
    Next,
    Outcome,
    Retry,
    ScheduleChildren,
    Sql,
    Stop,
    Transaction,
    reason_text,
)
from gen_durable.refs import Spec
from gen_durable.signals import Signal

HOUR = timedelta(hours=1)
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
paid = Signal("paid")


class Toggle(Machine[int, int]):
    @step
    async def on(self, ctx: Context[int]) -> Outcome[int]:
        return Next(self.off)

    @step
    async def off(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)


def test_outcomes_store_step_names() -> None:
    machine = Toggle()
    assert Next(machine.on) == Next(Toggle.on) == Next("on")
    assert Await(paid, then=Toggle.on) == Await("paid", then="on")
    assert ScheduleChildren([], then=Toggle.on) == ScheduleChildren((), then="on")


def test_omitted_state_differs_from_none() -> None:
    assert Next("on").state is KEEP
    assert Next("on", None) != Next("on")
    assert Retry().state is Await(paid, then="on").state is ScheduleChildren([], then="on").state is KEEP


def test_omitted_concurrency_key_means_unchanged() -> None:
    assert Next("on").concurrency_key is Await(paid, then="on").concurrency_key is KEEP
    assert Next("on", concurrency_key=None).concurrency_key is None
    assert Next("on", concurrency_key=("tenant", 7)).concurrency_key == "tenant:7"
    assert Await(paid, then="on", concurrency_key="a").concurrency_key == "a"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Next("on"), Next("off")),
        (Next("on", 1), Next("on", 2)),
        (Next("on", delay=HOUR), Next("on")),
        (Next("on", requeue=True), Next("on")),
        (Retry(), Retry(HOUR)),
        (Await("a", then="on"), Await("b", then="on")),
        (Await("a", then="on", timeout=HOUR), Await("a", then="on")),
        (Done(1), Done(2)),
        (Stop("a"), Stop("b")),
        (Done("a"), Stop("a")),
        (ScheduleChildren([Spec(Toggle, 1)], then="on"), ScheduleChildren([Spec(Toggle, 2)], then="on")),
    ],
)
def test_different_outcomes_are_unequal(one: object, other: object) -> None:
    assert one != other
    assert one == copy.copy(one)


def test_repr_of_an_outcome_is_its_constructor_call() -> None:
    assert repr(Next("on", 1, requeue=True)) == "Next(step='on', state=1, requeue=True)"
    assert repr(Await(paid, then="on")) == "Await(signals=('paid',), then='on')"
    assert repr(Done()) == "Done()"
    assert repr(Stop("late")) == "Stop(reason='late')"
    assert repr(Stop("late", undo=False)) == "Stop(reason='late', undo=False)"


def test_outcomes_support_match() -> None:
    match Next("on", 7):
        case Next(name, state):
            assert (name, state) == ("on", 7)


def test_await_keeps_names_unique_and_in_order() -> None:
    assert Await("b", paid, "a", "b", then="on").signals == ("b", "paid", "a")


@pytest.mark.clause("LIM-3")
def test_await_accepts_64_signals() -> None:
    assert len(Await(*map(str, range(64)), then="on").signals) == 64
    with pytest.raises(UsageError, match="this Await names 65 signals"):
        Await(*map(str, range(65)), then="on")


def test_deadline_is_converted_to_utc() -> None:
    there = datetime(2030, 1, 1, 13, tzinfo=timezone(HOUR))
    assert Await(then="on", deadline=there).deadline == NOON


LIST: Any = [paid]
NUMBER: Any = 5
NOTHING: Any = None
NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001 - the fault that is looked for


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Next(NUMBER),
            r"is not a step; mark the method with @step and pass it without calling it: Next\(self.ship\)",
        ),
        (lambda: Next(NOTHING), "a value of type NoneType is not a step"),
        (lambda: Next(""), "the name of a step is empty"),
        (
            lambda: Next("on", delay=NUMBER),
            r"the delay of this Next is a number without a unit, got 5; ",
        ),
        (lambda: Next("on", delay=-HOUR), "the delay of this Next is negative"),
        (lambda: Next("on", delay=timedelta(days=36526)), "longer than 100 years"),
        (lambda: Next("on", concurrency_key=NUMBER), "concurrency_key is of type int"),
        (lambda: Retry(NUMBER), "the delay of this Retry is a number without a unit, got 5"),
        (lambda: Retry(-HOUR), "the delay of this Retry is negative"),
        (lambda: Await(then="on"), "it would never end"),  # type: ignore[call-overload]
        (lambda: Await(paid, then="on", timeout=HOUR, deadline=NOON), "a timeout and a deadline"),  # type: ignore[call-overload]
        (
            lambda: Await(paid, then="on", timeout=NUMBER),
            "the timeout of this Await is a number without a unit, got 5",
        ),
        (lambda: Await(paid, then="on", timeout=-HOUR), "the timeout of this Await is negative"),
        (lambda: Await(paid, then="on", deadline=NAIVE), "the deadline of this Await has no time zone"),
        (lambda: Await(LIST, then="on"), r"unpack it: Await\(\*signals, then=…\)"),
        (lambda: Await("", then="on"), "the name of a signal is empty"),
        (lambda: Await("x" * 256, then="on"), "the name of a signal is 256 bytes long"),
        (lambda: Await(NUMBER, then="on"), "the name of a signal is of type int"),
        (lambda: Await(paid, then=NOTHING), "is not a step"),
        (
            lambda: ScheduleChildren([NUMBER], then="on"),
            r"child 0 is of type int; wrap each one: Spec\(Machine, state\)",
        ),
        (lambda: ScheduleChildren(NUMBER, then="on"), "the children are of type int; give a list of Spec"),
        (lambda: ScheduleChildren(Spec(Toggle, 1), then="on"), "the children are of type Spec"),  # type: ignore[arg-type]
        (lambda: Stop(NUMBER), "of type int"),
    ],
)
def test_invalid_outcome_is_rejected(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_messages_do_not_quote_values() -> None:
    secret: Any = "secret"
    for make in (
        lambda: Next("on", delay=secret),
        lambda: Await(then="on", deadline=secret),
        lambda: Retry(secret),
    ):
        with pytest.raises(UsageError) as caught:
            make()
        assert "secret" not in str(caught.value)


async def book(tx: Transaction) -> None:
    await tx.execute("select 1")


def plain(tx: Transaction) -> None:
    raise AssertionError


async def generate(tx: Transaction) -> Any:
    yield tx


class Booker:
    async def __call__(self, tx: Transaction) -> None:
        await book(tx)

    async def book(self, who: str, tx: Transaction) -> None:
        await book(tx)


def _with_effect(effect: Any) -> list[Any]:
    return [
        Next("on", effect=effect),
        Await(paid, then="on", effect=effect),
        ScheduleChildren([], then="on", effect=effect),
        Done(1, effect=effect),
        Done(effect=effect),
        Stop("late", effect=effect),
    ]


@pytest.mark.parametrize(
    "effect",
    [
        Sql("select 1"),
        book,
        Booker(),
        functools.partial(Booker().book, "me"),
        functools.partial(functools.partial(Booker().book, "me")),
        AsyncMock(),
        None,
    ],
)
def test_effect_is_a_statement_or_an_async_function(effect: Any) -> None:
    assert [outcome.effect for outcome in _with_effect(effect)] == [effect] * 6


@pytest.mark.parametrize(
    ("effect", "message"),
    [
        ("update invoice", r"the effect is a str; wrap it: effect=Sql\(text, \*arguments\)"),
        (plain, "the effect is of type function, not an async function; give Sql"),
        (lambda tx: None, "the effect is of type function"),
        (generate, "the effect is of type function"),
        (Booker, "the effect is of type type"),
        (functools.partial(plain), "the effect is of type partial"),
        (5, "the effect is of type int"),
        ([Sql("select 1")], "the effect is of type list"),
        (False, "the effect is of type bool"),
        (b"update invoice", "the effect is of type bytes"),
    ],
)
def test_invalid_effect_is_rejected(effect: Any, message: str) -> None:
    makers: list[Any] = [
        lambda: Next("on", effect=effect),
        lambda: Await(paid, then="on", effect=effect),
        lambda: ScheduleChildren([], then="on", effect=effect),
        lambda: Done(1, effect=effect),
        lambda: Stop("late", effect=effect),
    ]
    for make in makers:
        with pytest.raises(UsageError, match=message):
            make()


def test_coroutine_as_an_effect_is_rejected() -> None:
    made: Any = book(AsyncMock())
    with pytest.raises(UsageError, match="the effect is of type coroutine"):
        Done(effect=made)
    made.close()


def test_retry_takes_no_effect() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'effect'"):
        Retry(effect=Sql("select 1"))  # type: ignore[call-arg]


def test_outcomes_with_different_effects_are_unequal() -> None:
    assert Done(1, effect=Sql("update a set b = $1", 5)) == Done(1, effect=Sql("update a set b = $1", 5))
    for other in (Sql("update a set b = $1", 6), Sql("update a set c = $1", 5), book, None):
        assert Done(1, effect=Sql("update a set b = $1", 5)) != Done(1, effect=other)
    assert Next("on", effect=book) == Next("on", effect=book) != Next("on")


def test_repr_of_sql_is_its_constructor_call() -> None:
    assert repr(Sql("update a set b = $1", 5)) == "Sql(query='update a set b = $1', args=(5,))"
    match Sql("update a set b = $1", 5):
        case Sql(query, args):
            assert (query, args) == ("update a set b = $1", (5,))


@pytest.mark.parametrize(
    ("query", "message"),
    [("", "is empty"), (" \n", "is empty"), (5, "is of type int"), (None, "is of type NoneType")],
)
def test_empty_sql_is_rejected(query: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"the statement of this Sql {message}; write Sql"):
        Sql(query)


class MuteError(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("payment never came", "payment never came"),
        (ValueError("no such card"), "ValueError: no such card"),
        (TimeoutError(), "TimeoutError"),
        ("a\0b", "a\\x00b"),
        ("a\ud800b", "a\\ud800b"),
        (MuteError(), "MuteError: (str() of this exception raised)"),
    ],
)
def test_stop_reason_is_converted_to_text(reason: Any, text: str) -> None:
    assert Stop(reason).reason == text


def test_long_reason_is_truncated() -> None:
    assert len(reason_text("x" * 100_000)) == 8000


@settings(max_examples=50)
@given(st.text(st.characters(exclude_categories=())))
def test_every_reason_can_be_encoded(reason: str) -> None:
    assert b"\0" not in reason_text(reason).encode()
