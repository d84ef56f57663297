"""From an outcome to what the commit writes: the heart, as one pure function."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, assert_never

import msgspec

from .._typing import KEEP, Keep
from ..definition import MachineDef
from ..errors import OutcomeError, UnknownStepError, UsageError
from ..events import Event
from ..outcome import Await, Done, Next, Outcome, Retry, ScheduleChildren, Stop
from .codec import decode, encode
from .failures import failure_json
from .model import CommitEntry, Execution
from .new_rows import event_rows, new_instance

__all__ = [
    "NO_HANDLER",
    "UNREAD",
    "Bounds",
    "cancel",
    "checked_outcome",
    "no_handler",
    "outcome_of",
    "refused",
    "rejoin",
    "release",
    "released",
    "settle",
]


class Unread:
    """The type of `UNREAD`."""

    def __repr__(self) -> str:
        return "UNREAD"


UNREAD: Final = Unread()
"""In place of a state that could not be decoded: it stays in the database as it is."""


NO_HANDLER: Final = "no_handler_registered"


class Bounds(msgspec.Struct, frozen=True):
    """The largest outcome that is accepted."""

    max_payload: int
    max_children: int


def checked_outcome(value: object, machine: str, step: str) -> Outcome[Any]:
    """What a step or a handler returned, if it is an outcome."""
    if isinstance(value, Next | Retry | Await | ScheduleChildren | Done | Stop):
        return value
    raise OutcomeError(machine, step, type(value).__name__)


def settle(
    execution: Execution,
    machine: MachineDef,
    outcome: Outcome[Any],
    state: object,
    bounds: Bounds,
    *,
    may_chain: bool = False,
    error: str | None = None,
    emitted: Sequence[Event] = (),
) -> CommitEntry:
    """What to commit for this outcome of this execution.

    Args:
        state: `ctx.state` as the step left it, for an outcome that names none; or `UNREAD`.
        may_chain: keep the lease over a plain Next, so that the same worker goes on at once.
        error: why the step raised, when the outcome is that of its handler.
        emitted: what `ctx.emit` has collected.

    Raises:
        UnknownStepError: the outcome leads to a step that the machine does not have.
        EncodeError: its state, result or a child's state cannot be stored.
        UsageError: it leads where the step's `to=` does not, or schedules too many children.
    """
    match outcome:
        case Next():
            chains = (
                may_chain
                and outcome.delay is None
                and not outcome.requeue
                and outcome.concurrency_key is KEEP
                # Indexes name the limit: a chained commit must not change it, neither to one nor from one.
                and outcome.rate_limit is None
                and execution.rate_limit is None
            )
            return CommitEntry(
                execution=execution,
                kind="continue" if chains else "next",
                step=_target(execution, machine, outcome.step),
                payload=_state(outcome.state, state, execution, machine, bounds),
                delay=outcome.delay,
                error=error,
                consumed=_ids(execution),
                effect=outcome.effect,
                events=event_rows((*emitted, *outcome.emit), execution, bounds.max_payload),
                rate_limit=outcome.rate_limit,
                weight=outcome.weight,
                **_key(outcome.concurrency_key),
            )
        case Retry():
            return CommitEntry(
                execution=execution,
                kind="retry",
                payload=_state(outcome.state, state, execution, machine, bounds),
                delay=outcome.delay,
                error=error,
            )
        case Await():
            return CommitEntry(
                execution=execution,
                kind="await",
                step=_target(execution, machine, outcome.then),
                payload=_state(outcome.state, state, execution, machine, bounds),
                awaits=outcome.signals,
                presented=_ids(execution),
                timeout=outcome.timeout,
                deadline=outcome.deadline,
                error=error,
                effect=outcome.effect,
                events=event_rows((*emitted, *outcome.emit), execution, bounds.max_payload),
                rate_limit=outcome.rate_limit,
                weight=outcome.weight,
                **_key(outcome.concurrency_key),
            )
        case ScheduleChildren():
            if len(outcome.children) > bounds.max_children:
                raise UsageError(
                    f"step '{execution.step}' of machine '{machine.name}' schedules {len(outcome.children)} children",
                    f"at most {bounds.max_children} at once; or raise settings.max_children",
                )
            return CommitEntry(
                execution=execution,
                kind="schedule_children",
                step=_target(execution, machine, outcome.then),
                payload=_state(outcome.state, state, execution, machine, bounds),
                children=tuple(new_instance(spec, bounds.max_payload) for spec in outcome.children),
                error=error,
                consumed=_ids(execution),
                effect=outcome.effect,
                events=event_rows((*emitted, *outcome.emit), execution, bounds.max_payload),
                rate_limit=outcome.rate_limit,
                weight=outcome.weight,
            )
        case Done():
            what = f"the result of {machine.name} {execution.id}"
            result = encode(outcome.result, machine.result_type, what, bounds.max_payload)
            return CommitEntry(
                execution=execution,
                kind="done",
                payload=result,
                error=error,
                effect=outcome.effect,
                events=event_rows((*emitted, *outcome.emit), execution, bounds.max_payload),
            )
        case Stop():
            return CommitEntry(
                execution=execution,
                kind="stop",
                error=outcome.reason,
                effect=outcome.effect,
                events=event_rows((*emitted, *outcome.emit), execution, bounds.max_payload),
            )
        case _:
            assert_never(outcome)


def outcome_of(entry: CommitEntry, machine: MachineDef) -> Outcome[Any]:
    """The outcome behind an entry that was settled in another process, to look at. Its children stay in the entry."""
    if entry.kind == "done":
        return Done(decode(entry.payload or "null", machine.result_type, f"the result of {machine.name}"))
    state = KEEP
    if entry.payload is not None:
        state = decode(entry.payload, machine.state_type, f"the state of {machine.name}")
    match entry.kind:
        case "continue" | "next":
            return Next(entry.step, state, delay=entry.delay)
        case "retry":
            return Retry(entry.delay or timedelta(0), state)
        case "await":
            until: Any = {"timeout": entry.timeout, "deadline": entry.deadline}
            return Await(*entry.awaits or (), then=entry.step, state=state, **until)
        case "schedule_children":
            return ScheduleChildren((), then=entry.step, state=state)
        case _:
            return Stop(entry.error or entry.kind)


def release(execution: Execution) -> CommitEntry:
    """Give an unfinished execution back: a shutdown costs neither an attempt nor a place in the queue."""
    return CommitEntry(execution=execution, kind="release")


def rejoin(execution: Execution) -> CommitEntry:
    """Give an execution that has not begun back to its barrier. Like a release, it costs no attempt."""
    return CommitEntry(execution=execution, kind="rejoin")


def cancel(execution: Execution, reason: str) -> CommitEntry:
    """End as cancelled, by the step's own decision."""
    return CommitEntry(execution=execution, kind="cancel", error=reason)


def no_handler(execution: Execution) -> CommitEntry:
    """End as failed, because no machine of that name and version is registered where it would have to be."""
    facts = {
        "type": NO_HANDLER,
        "message": f"no worker of this namespace has machine '{execution.fsm}' version {execution.version}",
        "traceback": [],
        "attempt": execution.attempt,
    }
    failure = msgspec.json.encode(facts).decode()
    return CommitEntry(
        execution=execution,
        kind="stop",
        error=NO_HANDLER,
        failure=failure,
        cause="no_handler",
        leaves_letter=True,
    )


def refused(entry: CommitEntry, error: Exception) -> CommitEntry:
    """End as failed, because the database refused the outcome; nothing of that outcome is left."""
    return _stripped(
        entry,
        kind="stop",
        error=f"the database refused the outcome: {error}"[:2000],
        failure=failure_json(error, entry.execution.attempt),
        cause="refused",
        leaves_letter=True,
        is_refused=True,
    )


def released(entry: CommitEntry) -> CommitEntry:
    """Give the execution of this outcome back; nothing of the outcome is left."""
    return _stripped(entry, kind="release", error=None)


def _stripped(entry: CommitEntry, **fields: Any) -> CommitEntry:
    """The same execution, with an outcome that has nothing to it."""
    return msgspec.structs.replace(
        entry,
        payload=None,
        children=(),
        awaits=None,
        delay=None,
        timeout=None,
        deadline=None,
        consumed=(),
        events=(),
        letter=None,
        switches_key=False,
        rate_limit=None,
        weight=None,
        effect=None,
        **fields,
    )


def _target(execution: Execution, machine: MachineDef, step: str) -> str:
    if step not in machine.steps:
        raise UnknownStepError(machine.name, step, tuple(machine.steps), f"step '{execution.step}'")
    source = machine.steps.get(execution.step)
    if source is not None and source.to is not None and step not in source.to:
        raise UsageError(
            f"step '{execution.step}' of machine '{machine.name}' went to '{step}'",
            f"its to= allows only {', '.join(source.to) or 'an end'}; add the step there",
        )
    return step


def _state(
    given: object, current: object, execution: Execution, machine: MachineDef, bounds: Bounds
) -> str | None:
    value = current if given is KEEP else given
    if value is UNREAD:
        return None
    return encode(
        value, machine.state_type, f"the state of {machine.name} {execution.id}", bounds.max_payload
    )


def _ids(execution: Execution) -> tuple[int, ...]:
    return tuple(row.id for row in execution.awaited)


def _key(key: str | Keep | None) -> dict[str, Any]:
    return {} if isinstance(key, Keep) else {"switches_key": True, "concurrency_key": key}
