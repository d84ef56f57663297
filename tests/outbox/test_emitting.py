"""Events are committed with the outcome that emits them, and only with it."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable import Context, Done, Event, Machine, Next, Outcome, step
from gen_durable.errors import UsageError
from gen_durable.testing import Harness
from tests.outbox.machines import Teller


def emitted(durable: Harness, ref: Any) -> list[tuple[str, str]]:
    return [(event.id, event.type) for event in reversed(durable.events(ref))]


@pytest.fixture
def at(durable: Harness) -> Any:
    """Run an instance from a step and return its reference."""

    def run(name: str, **state: Any) -> Any:
        ref = durable.insert(Teller, state, step=name)
        durable.drain()
        return ref

    return run


@pytest.mark.clause("EVT-3")
def test_event_id_has_transition_and_index(durable: Harness, at: Any) -> None:
    ref = at("several")
    id = ref.id
    assert emitted(durable, ref) == [
        (f"{id}:1:1", "first"),
        (f"{id}:1:2", "second"),
        (f"{id}:1:3", "third"),
        (f"{id}:1:4", "fourth"),
        (f"{id}:2:1", "done"),
    ]


def test_default_subject_is_the_correlation_key(durable: Harness) -> None:
    durable.insert(Teller, {}, step="last", correlation_key="order:1")
    durable.insert(Teller, {}, step="several", correlation_key="order:2")
    durable.drain()
    assert [event.subject for event in durable.events("order:1")] == ["the end"]
    assert {event.subject for event in durable.events("order:2")} == {"the end", "order:2"}
    assert durable.events("order:2", sink="other")[0].data is None


@pytest.mark.clause("EVT-1", "EVT-2")
@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("awaits", ["waiting"]),
        ("spawns", ["spawned", "done"]),
        ("stops", ["stopped"]),
        ("raises", ["handled"]),
        ("retries", ["attempt 2"]),
        ("acts", ["acted"]),
        ("fails_to_act", ["handled"]),
    ],
)
def test_only_transitions_emit(durable: Harness, at: Any, name: str, types: list[str]) -> None:
    assert [type for _, type in emitted(durable, at(name))] == types


@pytest.mark.parametrize("value", [float("nan"), "\0", "\ud800"])
def test_unstorable_data_fails_the_step(durable: Harness, at: Any, value: Any) -> None:
    class Bad(Machine[None, str]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[str]:
            return Done("", emit=Event("bad", {"x": value}))

    ref = durable.insert(Bad)
    durable.drain()
    durable.assert_failed(ref, match="the data of event 'bad'")
    assert not durable.events(ref)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Event(""), "the type of an event"),
        (lambda: Event("x" * 300), "the type of an event"),
        (lambda: Event("x", sink=""), "the sink of an event"),
        (lambda: Next("a", emit="text"), "emit got a value of type str"),  # type: ignore[arg-type]
        (lambda: Next("a", emit=[Event("x")] * 1001), "emit got 1001 events"),
    ],
)
def test_invalid_events_are_refused(make: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make()


def test_number_of_events_is_bounded(durable: Harness) -> None:
    class Flood(Machine[None, str]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[str]:
            for _ in range(600):
                ctx.emit(Event("more"))
            return Done("", emit=[Event("more")] * 401)

    ref = durable.insert(Flood)
    durable.drain()
    durable.assert_failed(ref, match="emits 1001 events")
    assert not durable.events(ref)


@pytest.mark.clause("EVT-2")
def test_cancelled_execution_emits_nothing(durable: Harness) -> None:
    class Regrets(Machine[None, str]):
        @step
        def run(self, ctx: Context[None]) -> Outcome[str]:
            durable.cancel(ctx.id)
            return Done("", emit=Event("too late"))

    ref = durable.insert(Regrets)
    durable.drain()
    durable.assert_cancelled(ref)
    assert not durable.events(ref)
