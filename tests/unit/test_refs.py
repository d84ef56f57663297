"""Insert options, keys, specs and refs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from gen_durable.context import Context
from gen_durable.errors import InitialStepError, UnknownStepError, UsageError
from gen_durable.instance import LIVE_STATUSES, Status
from gen_durable.machine import Machine, step
from gen_durable.outcome import Done, Next, Outcome
from gen_durable.refs import (
    Duplicate,
    Inserted,
    InsertOptions,
    InsertValues,
    Ref,
    Spec,
    insert_values,
    key_text,
)
from gen_durable.refs import target_value as value_of

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
NIGHT = datetime(2030, 1, 1, 23, tzinfo=UTC)
HOUR = timedelta(hours=1)
NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001 - the fault that is looked for


class Count(Machine[int, int], queue="numbers"):
    @step
    async def begin(self, ctx: Context[int]) -> Outcome[int]:
        return Next(self.end)

    @step
    async def end(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)


class Tick(Machine[None, None], name="tick", version=3):
    @step
    async def go(self, ctx: Context[None]) -> Outcome[None]:
        return Done()


def values(**options: Any) -> InsertValues:
    return insert_values(Count.__definition__, options)


def test_insert_defaults_are_those_of_the_machine() -> None:
    assert values() == InsertValues(step="begin", queue="numbers")


def test_insert_options_override_the_machine() -> None:
    assert values(step=Count.end, queue="other", priority=-5) == InsertValues(
        step="end", queue="other", priority=-5
    )
    assert values(step="end").step == "end"
    assert values(step=Count().end).step == "end"


def test_typed_options_and_known_options_are_equal() -> None:
    every: InsertOptions = {
        "step": "end",
        "queue": "q",
        "priority": 1,
        "eligible_at": NOON,
        "schedule_at": NOON,
        "schedule_in": HOUR,
        "correlation_key": "a",
        "correlation_scope": [],
        "unique_key": "b",
        "unique_scope": [],
        "concurrency_key": "c",
        "max_attempts": 2,
        "traceparent": f"00-{'a' * 32}-{'b' * 16}-01",
        "rate_limit": ("crm", 7),
        "weight": 3,
    }
    assert {*every, "idempotency_key"} == set(InsertOptions.__annotations__)
    assert insert_values(Count.__definition__, every).priority == 1


@pytest.mark.parametrize(
    ("options", "eligible_at", "delay"),
    [
        ({"schedule_in": HOUR}, None, HOUR),
        ({"schedule_at": NIGHT, "schedule_in": HOUR}, NIGHT, None),
        ({"schedule_in": HOUR, "schedule_at": NIGHT, "eligible_at": NOON}, NOON, None),
        ({"eligible_at": NOON, "schedule_at": NIGHT}, NOON, None),
    ],
)
def test_eligible_at_precedes_schedule_at_and_schedule_in(
    options: dict[str, Any], eligible_at: datetime | None, delay: timedelta | None
) -> None:
    assert (values(**options).eligible_at, values(**options).delay) == (eligible_at, delay)


def test_overridden_time_is_checked_too() -> None:
    with pytest.raises(UsageError, match="schedule_at has no time zone"):
        values(eligible_at=NOON, schedule_at=NAIVE)


def test_datetimes_are_converted_to_utc() -> None:
    there = datetime(2030, 1, 1, 13, tzinfo=timezone(HOUR))
    assert values(eligible_at=there).eligible_at == NOON


def test_default_correlation_scope_is_all_live_statuses() -> None:
    assert values(correlation_key="order:42").correlation_scope == LIVE_STATUSES


def test_default_unique_scope_is_all_statuses() -> None:
    assert values(unique_key="evt-7").unique_scope == tuple(Status)


@pytest.mark.parametrize("key", ["correlation", "unique"])
def test_scope_is_widened_to_all_live_statuses(key: str) -> None:
    given = {f"{key}_key": "k", f"{key}_scope": [Status.FAILED, "done", Status.EXECUTING]}
    assert getattr(values(**given), f"{key}_scope") == (*LIVE_STATUSES, Status.DONE, Status.FAILED)


@pytest.mark.parametrize("key", ["correlation", "unique"])
def test_empty_scope_disables_a_key(key: str) -> None:
    found = values(**{f"{key}_key": "k", f"{key}_scope": []})
    assert getattr(found, f"{key}_scope") == ()


def test_idempotency_key_is_a_unique_key_for_all_statuses() -> None:
    found = values(idempotency_key="café")
    assert (found.unique_key, found.unique_scope) == ("café".encode(), tuple(Status))
    others: list[dict[str, Any]] = [{"unique_key": "k"}, {"unique_scope": []}]
    for other in others:
        with pytest.raises(
            UsageError, match="idempotency_key is given together with unique_key or unique_scope"
        ):
            values(idempotency_key="k", **other)


def test_unique_key_is_encoded_as_bytes() -> None:
    assert values(unique_key="café").unique_key == "café".encode()
    assert values(unique_key=b"\x00\xff").unique_key == b"\x00\xff"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        (
            "priorty",
            3,
            r"insert has no option 'priorty'; did you mean 'priority'\? The options are step, queue",
        ),
        ("state", 3, "insert has no option 'state'"),
        ("step", print, r"is not a step; mark the method with @step and pass it without calling it"),
        ("step", "", "the name of a step is empty"),
        ("queue", "", "the queue is empty"),
        ("queue", "q" * 256, "the queue is 256 bytes long"),
        ("queue", None, "the queue is of type NoneType"),
        ("priority", 2**15, "the priority is 32768; give a number from -32768 to 32767"),
        ("priority", "high", "the priority is of type str"),
        ("priority", True, "the priority is of type bool"),
        ("eligible_at", NAIVE, "eligible_at has no time zone"),
        ("schedule_at", "tomorrow", "schedule_at is of type str"),
        ("schedule_in", -HOUR, "schedule_in is negative"),
        (
            "schedule_in",
            1000,
            r"schedule_in is a number without a unit, got 1000; use timedelta\(seconds=1000\) or timedelta\(milliseconds=1000\)",
        ),
        ("schedule_in", timedelta(days=40000), "schedule_in is longer than 100 years"),
        ("correlation_key", "", "correlation_key is empty"),
        ("correlation_key", "k" * 1025, "correlation_key is 1025 bytes long; give at most 1024"),
        ("correlation_key", b"k", "correlation_key is of type bytes"),
        ("correlation_key", "a\0", "correlation_key contains a NUL"),
        ("unique_key", "", "unique_key is empty"),
        ("unique_key", b"", "unique_key is 0 bytes long"),
        ("unique_key", b"k" * 1025, "unique_key is 1025 bytes long"),
        ("unique_key", 7, "unique_key is of type int"),
        ("unique_key", "\ud800", "unique_key contains a lone surrogate"),
        ("correlation_scope", [Status.DONE], "correlation_scope is given without correlation_key"),
        ("unique_scope", [Status.DONE], "unique_scope is given without unique_key"),
        ("correlation_key", None, "correlation_key is of type NoneType"),
        ("idempotency_key", "", "idempotency_key is empty"),
        ("idempotency_key", b"k", "idempotency_key is of type bytes"),
        ("idempotency_key", "k" * 1025, "idempotency_key is 1025 bytes long"),
        ("max_attempts", 0, "max_attempts is 0; give a number from 1"),
        ("max_attempts", 2**31, "max_attempts is 2147483648"),
        ("max_attempts", True, "max_attempts is of type bool"),
        ("max_attempts", 1.5, "max_attempts is of type float"),
        ("traceparent", "mine", "traceparent is 'mine'; give 00-<32 hex digits>"),
        ("traceparent", 7, "traceparent is 7; give 00-<32 hex digits>"),
    ],
)
def test_invalid_option_is_rejected(option: str, value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        values(**{option: value})


@pytest.mark.parametrize("scope", [["finished"], [7], "done", 7, None])
def test_invalid_scope_is_rejected(scope: Any) -> None:
    with pytest.raises(UsageError, match=r"unique_scope (contains a value that is not a status|is of type)"):
        values(unique_key="k", unique_scope=scope)


def test_unknown_step_is_rejected_with_a_hint() -> None:
    with pytest.raises(UnknownStepError, match=r"machine 'Count' has no step 'ende'; did you mean 'end'\?"):
        values(step="ende")
    with pytest.raises(UnknownStepError, match="machine 'Count' has no step 'go'"):
        values(step=Tick.go)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("importer", "importer"),
        ("tenant:7", "tenant:7"),
        (("tenant", 7), "tenant:7"),
        (("tenant", "a:b"), "tenant:a:b"),
        (("t", "x" * 1022), "t:" + "x" * 1022),
    ],
)
def test_tuple_key_is_stored_as_name_and_part(key: Any, text: str) -> None:
    assert key_text(key) == values(concurrency_key=key).concurrency_key == text
    assert values(correlation_key=key).correlation_key == values(rate_limit=key).rate_limit == text
    assert values(unique_key=key).unique_key == values(idempotency_key=key).unique_key == text.encode()
    assert value_of(key) == Ref(Count, key).target == text


@pytest.mark.parametrize(
    "key",
    [7, ("a",), ("a", "b", "c"), ("a:b", 1), ("", 1), ("a", ""), ("a", None), ("a", True), ("t", "x" * 1023)],
)
def test_invalid_key_is_rejected(key: Any) -> None:
    with pytest.raises(UsageError, match="concurrency_key"):
        key_text(key)


def test_spec_exposes_its_values() -> None:
    spec = Spec(Count, 7, priority=3)
    assert (spec.state, spec.values) == (7, InsertValues(step="begin", queue="numbers", priority=3))
    assert repr(spec) == "Spec(Count, 7, priority=3)"
    assert repr(Spec(Tick)) == "Spec(tick, None)"


def test_equal_specs_compare_equal() -> None:
    assert Spec(Count, 7, concurrency_key=("a", 1)) == Spec(Count(), 7, concurrency_key="a:1")
    assert Spec(Count, 7) != Spec(Count, 8)
    assert Spec(Count, 7) != Spec(Count, 7, priority=1)
    assert Spec(Count, 7) != 7


def test_spec_of_a_non_machine_is_rejected() -> None:
    wrong: Any = int
    with pytest.raises(UsageError, match="int is neither a machine nor a job; give a subclass of Machine"):
        Spec(wrong, 7)

    class Empty(Machine[int]):
        pass

    with pytest.raises(InitialStepError, match="machine 'Empty' has no steps"):
        Spec(Empty, 7)


def test_insert_results_are_refs() -> None:
    inserted, duplicate = Inserted(Count, 42), Duplicate(Count, 42, "order:42")
    assert inserted.id == duplicate.id == 42
    assert duplicate.key == "order:42"
    assert [each.status for each in (inserted, duplicate)] == [Status.RUNNABLE] * 2
    assert repr(inserted) == "Inserted(Count, 42)"
    assert inserted != duplicate
    assert inserted == Inserted(Count(), 42)
    assert len({inserted, Inserted(Count, 42), duplicate, Duplicate(Count, 42, "other")}) == 3
    match duplicate:
        case Duplicate(id, key):
            assert (id, key) == (42, "order:42")


def test_target_is_a_ref_an_id_or_a_key() -> None:
    assert [value_of(target) for target in (Ref(Count, 42), Inserted(Count, 42), 42)] == [42, 42, 42]
    assert [value_of(target) for target in (Ref(Count, "order:42"), "order:42")] == ["order:42", "order:42"]


@pytest.mark.parametrize("target", ["", "k" * 1025, 0, 2**63, None, 1.5, True])
def test_invalid_target_is_rejected(target: Any) -> None:
    with pytest.raises(UsageError, match=r"correlation_key is|the id is"):
        value_of(target)
    with pytest.raises(UsageError, match=r"correlation_key is|the id is"):
        Ref(Count, target)
