"""Build the rows that an insert or a commit writes: new instances, dead letters, events and alerts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from .._tracing import traceparent_of_insert
from ..definition import NO_DEFAULTS, MachineDef, definition_of
from ..errors import UsageError
from ..events import MAX_EVENTS, Event
from ..instance import Status
from ..outcome import reason_text
from ..refs import AnySpec, key_text
from .codec import convert, encode
from .model import CommitEntry, DeadLetter, EventRow, Execution, NewInstance

__all__ = ["ALERT", "alert", "computed_key", "dead_letter", "event_rows", "new_instance"]

ALERT: Final = "gen_durable.instance.failed"
"""The event type of alerts about failed instances."""


def computed_key(function: Callable[[Any], Any], state: object, what: str, machine: str) -> str | None:
    """Call the function that a machine or job has as a default key.

    Raises:
        UsageError: the function raises, or returns no key.
    """
    try:
        key = function(state)
    except Exception as error:
        problem = f"{what}= of machine '{machine}' raised {reason_text(error)} for the given state"
        raise UsageError(problem, f"correct the function or the state, or pass {what}=") from error
    return None if key is None else key_text(key, f"{what} of '{machine}'")


def new_instance(spec: AnySpec, max_payload: int) -> NewInstance:
    """Encode a spec as the row to insert."""
    machine, values = definition_of(spec.definition), spec.values
    what = f"the state of {machine.name}"
    state = convert(spec.state, machine.state_type, what)
    text = encode(state, machine.state_type, what, max_payload)
    key, rate_limit, defaults = values.concurrency_key, values.rate_limit, machine.defaults
    if defaults is not NO_DEFAULTS:
        if callable(defaults.concurrency_key) and "concurrency_key" not in spec.options:
            key = computed_key(defaults.concurrency_key, state, "concurrency_key", machine.name)
        if callable(defaults.rate_limit) and "rate_limit" not in spec.options:
            rate_limit = computed_key(defaults.rate_limit, state, "rate_limit", machine.name)
    return NewInstance(
        machine.name,
        machine.version,
        values.step,
        text,
        values.queue,
        values.priority,
        values.eligible_at,
        values.delay,
        key,
        values.correlation_key,
        None if values.correlation_key is None else _scope(values.correlation_scope),
        values.unique_key,
        None if values.unique_key is None else _scope(values.unique_scope),
        values.max_attempts,
        values.traceparent or traceparent_of_insert(machine.name),
        rate_limit,
        values.weight if rate_limit is not None else None,
    )


def dead_letter(execution: Execution, machine: MachineDef, receiver: str, error: str) -> DeadLetter:
    """Build the dead letter of a failed execution: its payload and the error, as a job for `receiver`."""
    content = {
        "id": execution.id,
        "job": machine.name,
        "version": execution.version,
        "payload": msgspec.Raw(execution.state.encode()),
        "error": error,
        "attempts": execution.attempt + 1,
    }
    return DeadLetter(receiver, msgspec.json.encode(content).decode(), traceparent_of_insert(receiver))


def event_rows(events: Sequence[Event], execution: Execution, max_payload: int) -> tuple[EventRow, ...]:
    """Encode the events of one outcome for the outbox.

    Raises:
        UsageError: there are more than `MAX_EVENTS`.
        EncodeError: the data of an event cannot be stored.
    """
    if not events:
        return ()
    if len(events) > MAX_EVENTS:
        raise UsageError(
            f"step '{execution.step}' emits {len(events)} events",
            f"emit at most {MAX_EVENTS} with one outcome",
        )
    return tuple(
        EventRow(
            event.sink,
            event.type,
            event.subject or execution.subject,
            encode(event.data, Any, f"the data of event '{event.type}'", max_payload),
        )
        for event in events
    )


def alert(entry: CommitEntry, sink: str) -> EventRow:
    """Build the alert for an instance that fails by this outcome. The reaper writes the alert for a poisoned one."""
    execution = entry.execution
    facts = {
        "id": execution.id,
        "machine": execution.fsm,
        "version": execution.version,
        "step": entry.step or execution.step,
        "cause": entry.cause,
        "error": entry.error,
        "attempts": entry.attempts,
    }
    return EventRow(sink, ALERT, execution.subject, msgspec.json.encode(facts).decode())


def _scope(statuses: Iterable[Status]) -> str:
    return "{" + ",".join(statuses) + "}"
