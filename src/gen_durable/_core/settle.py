"""Settle: turn the outcome of an execution into the entry that the group commit writes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import CoroutineType
from typing import Any, Final, NamedTuple, assert_never

import msgspec

from .._typing import KEEP, Keep
from ..definition import MachineDef
from ..errors import OutcomeError, UnknownStepError, UsageError
from ..events import Event
from ..outcome import Await, Done, Next, Outcome, Retry, ScheduleChildren, Stop
from ..signals import Message
from .codec import decode, encode, encode_if_changed
from .failures import failure_json
from .model import CommitEntry, Execution, Kind
from .new_rows import event_rows, new_instance

__all__ = [
    "NO_HANDLER",
    "STORED_STATE",
    "TRANSITIONS",
    "Bounds",
    "Transition",
    "cancel",
    "checked_outcome",
    "defer",
    "no_handler",
    "outcome_of",
    "refused",
    "rejoin",
    "release",
    "released",
    "settle",
    "state_of_end",
    "undone",
]


class StoredState:
    """The type of `STORED_STATE`."""

    def __repr__(self) -> str:
        return "STORED_STATE"


STORED_STATE: Final = StoredState()
"""In place of a state: leave the stored one unchanged, for example because it could not be decoded."""


class Transition(NamedTuple):
    """What an outcome does to its row, whatever values it has."""

    status: str
    """The new status."""
    outcome: str
    """Its name in execution records."""
    moves: bool = False
    """Whether the instance goes to another step."""
    keeps_crashes: bool = False
    """Whether earlier crashes of the step still count: nothing of it has succeeded."""

    @property
    def advances(self) -> bool:
        """Whether it is a transition: `step_seq` counts it."""
        return self.moves or self.status in ("done", "failed")

    @property
    def repeats(self) -> bool:
        """Whether the same step may run again, and must see the same awaited names."""
        return not self.moves and self.status != "done"


TRANSITIONS: Final[Mapping[Kind, Transition]] = {
    "continue": Transition("executing", "next", moves=True),
    "next": Transition("runnable", "next", moves=True),
    "await": Transition("awaiting_signal", "await", moves=True),
    "schedule_children": Transition("awaiting_children", "schedule_children", moves=True),
    "retry": Transition("runnable", "retry"),
    "done": Transition("done", "done"),
    "stop": Transition("failed", "stop"),
    "cancel": Transition("cancelled", "cancelled"),
    "release": Transition("runnable", "shutdown", keeps_crashes=True),
    "rejoin": Transition("awaiting_children", "rejoin", keeps_crashes=True),
    "defer": Transition("runnable", "unknown_step", keeps_crashes=True),
    "undone_failed": Transition("failed", "undone", moves=True),
    "undone_cancelled": Transition("cancelled", "undone", moves=True),
}

NO_HANDLER: Final = "no_handler_registered"


_OUTCOMES: Final = (Next, Retry, Await, ScheduleChildren, Done, Stop)


class Bounds(msgspec.Struct, frozen=True):
    """The largest outcome that is accepted."""

    max_payload: int
    max_children: int


def checked_outcome(value: object, machine: str, step: str) -> Outcome[Any]:
    """Return the value that a step or a handler returned, if it is an outcome; raise OutcomeError otherwise."""
    if isinstance(value, _OUTCOMES):
        return value
    if isinstance(value, CoroutineType):
        value.close()  # otherwise Python warns that it is never awaited
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
    taken: Sequence[int] = (),
) -> CommitEntry:
    """Build the commit entry for an outcome of an execution.

    Args:
        state: `ctx.state` after the step, for an outcome without a state; or `STORED_STATE`. An end stores it only if
            the step has changed it, and never for a job: its state is the payload of the caller.
        may_chain: keep the lease over a plain Next, so that the worker runs the next step at once.
        error: what the step raised, if the outcome is that of its handler.
        emitted: the events of `ctx.emit`.
        taken: the ids of the signals that the step took from its inbox.

    Raises:
        UnknownStepError: the machine does not have the next step.
        EncodeError: its state, its result or a child's state cannot be stored.
        UsageError: the step's `to=` does not allow the next step, there are too many children or events, or `consume=`
            names a message that the step has not received.
    """
    entry = _entry(
        execution,
        machine,
        outcome,
        state,
        bounds,
        may_chain=may_chain,
        error=error,
        emitted=emitted,
        taken=taken,
    )
    if execution.version != machine.version and _writes_state(entry):
        entry.version = machine.version
    return entry


def _entry(
    execution: Execution,
    machine: MachineDef,
    outcome: Outcome[Any],
    state: object,
    bounds: Bounds,
    *,
    may_chain: bool,
    error: str | None,
    emitted: Sequence[Event],
    taken: Sequence[int],
) -> CommitEntry:
    # The most frequent outcomes first: each case is tested in turn.
    match outcome:
        case Next():
            chains = (
                may_chain
                and outcome.delay is None
                and not outcome.requeue
                and outcome.concurrency_key is KEEP
                # An index has the column rate_limit: a commit that changes it would not be a HOT update.
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
                consumed=_consumed(execution, outcome.consume, taken, awaited=_ids(execution)),
                effect=outcome.effect,
                events=event_rows((*emitted, *outcome.emit), execution, bounds.max_payload),
                rate_limit=outcome.rate_limit,
                weight=outcome.weight,
                undo=_undo(execution, machine) if machine.undo_steps and error is None else None,
                **_key(outcome.concurrency_key),
            )
        case Done():
            return CommitEntry(
                execution=execution,
                kind="done",
                # An undo step has no result.
                payload="null"
                if execution.is_compensating
                else encode(
                    outcome.result,
                    machine.result_type,
                    ("the result of", machine.name, execution.id),
                    bounds.max_payload,
                ),
                state=_changed_state(state, execution, machine, bounds)
                if not machine.is_job
                and (machine.keep or execution.is_compensating or execution.parent_id is not None)
                else None,
                keep=machine.keep,
                expires="done" in machine.retention,
                error=error,
                consumed=_taken_before_undo(taken, machine) if taken else (),
                effect=outcome.effect,
                events=event_rows((*emitted, *outcome.emit), execution, bounds.max_payload),
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
                consumed=_consumed(execution, outcome.consume, taken),
                timeout=outcome.timeout,
                deadline=outcome.deadline,
                error=error,
                effect=outcome.effect,
                events=event_rows((*emitted, *outcome.emit), execution, bounds.max_payload),
                rate_limit=outcome.rate_limit,
                weight=outcome.weight,
                undo=_undo(execution, machine) if machine.undo_steps and error is None else None,
                **_key(outcome.concurrency_key),
            )
        case ScheduleChildren():
            if len(outcome.children) > bounds.max_children:
                raise UsageError(
                    f"step '{execution.step}' of machine '{machine.name}' schedules {len(outcome.children)} children",
                    f"schedule at most {bounds.max_children} at once, or raise settings.max_children",
                )
            return CommitEntry(
                execution=execution,
                kind="schedule_children",
                step=_target(execution, machine, outcome.then),
                payload=_state(outcome.state, state, execution, machine, bounds),
                children=tuple(new_instance(spec, bounds.max_payload) for spec in outcome.children),
                error=error,
                consumed=_consumed(execution, outcome.consume, taken, awaited=_ids(execution)),
                effect=outcome.effect,
                events=event_rows((*emitted, *outcome.emit), execution, bounds.max_payload),
                rate_limit=outcome.rate_limit,
                weight=outcome.weight,
                undo=_undo(execution, machine) if machine.undo_steps and error is None else None,
            )
        case Stop():
            return CommitEntry(
                execution=execution,
                kind="stop",
                payload=_changed_state(state, execution, machine, bounds),
                error=outcome.reason,
                cause="stop",
                skips_undo=not outcome.undo,
                consumed=_taken_before_undo(taken, machine) if taken else (),
                effect=outcome.effect,
                events=event_rows((*emitted, *outcome.emit), execution, bounds.max_payload),
            )
        case _:
            assert_never(outcome)


def outcome_of(entry: CommitEntry, machine: MachineDef) -> Outcome[Any]:
    """Rebuild the outcome of an entry that a step process has settled, for middleware. Children stay in the entry."""
    if entry.kind == "done":
        type_ = Any if entry.execution.is_compensating else machine.result_type
        return Done(decode(entry.payload or "null", type_, f"the result of {machine.name}"))
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
            return Stop(entry.error or entry.kind, undo=not entry.skips_undo)


def state_of_end(entry: CommitEntry, machine: MachineDef, unchanged: Any) -> Any:
    """Return the state that an instance ends with, for middleware around a step process."""
    text = entry.state if entry.kind == "done" else entry.payload if entry.kind == "stop" else None
    return unchanged if text is None else decode(text, machine.state_type, f"the state of {machine.name}")


def release(execution: Execution) -> CommitEntry:
    """Return an unfinished execution to the queue. A shutdown costs neither an attempt nor the place in the queue."""
    return CommitEntry(execution=execution, kind="release")


def rejoin(execution: Execution) -> CommitEntry:
    """Return an execution that has not begun to its barrier. Like a release, it costs no attempt."""
    return CommitEntry(execution=execution, kind="rejoin")


def cancel(execution: Execution, reason: str) -> CommitEntry:
    """Cancel the instance: its step raised `Cancel`."""
    return CommitEntry(execution=execution, kind="cancel", error=reason)


def defer(execution: Execution, delay: timedelta) -> CommitEntry:
    """Return an execution to the queue, due after `delay`: this worker does not have its step. It costs no attempt."""
    return CommitEntry(execution=execution, kind="defer", delay=delay)


def no_handler(execution: Execution) -> CommitEntry:
    """Fail the instance: the worker that owns its prefix has no machine of that name and version.

    Nothing is undone: the code of its undo steps is missing as well, and a retry continues at the step.
    """
    facts = {
        "type": NO_HANDLER,
        "message": f"no worker of this namespace has machine '{execution.fsm}' version {execution.version}",
        "traceback": [],
        "attempt": execution.attempt,
        "step": execution.step,
    }
    failure = msgspec.json.encode(facts).decode()
    return CommitEntry(
        execution=execution,
        kind="stop",
        error=NO_HANDLER,
        failure=failure,
        cause="no_handler",
        skips_undo=True,
        leaves_letter=True,
    )


def refused(entry: CommitEntry, error: Exception) -> CommitEntry:
    """Replace an outcome that the database refused by a failure of its instance.

    It still consumes the signals that the outcome names: an undo step must not receive them.
    """
    return _stripped(
        entry,
        kind="stop",
        consumed=entry.consumed,
        error=f"the database refused the outcome: {error}"[:2000],
        failure=failure_json(error, entry.execution.attempt, entry.execution.step),
        cause="refused",
        leaves_letter=True,
        is_refused=True,
    )


def undone(entry: CommitEntry, end: Mapping[str, Any]) -> CommitEntry:
    """Replace the outcome of an undo step by the end of its instance: the postponed one, or a failure to undo."""
    failure = end.get("failure")
    fields = {
        "payload": entry.state if entry.kind == "done" else entry.payload,
        "state": None,
        "error": end.get("error"),
        "failure": None if failure is None else msgspec.json.encode(failure).decode(),
        "cause": end.get("cause", "stop") if end["status"] == "failed" else None,
        "letter": None,
        "leaves_letter": end["status"] == "failed",
    }
    if entry.kind != "done":
        return msgspec.structs.replace(entry, kind="stop", **fields)
    kind: Kind = "undone_failed" if end["status"] == "failed" else "undone_cancelled"
    return msgspec.structs.replace(entry, kind=kind, step=end["step"], attempt=end.get("attempt"), **fields)


def released(entry: CommitEntry) -> CommitEntry:
    """Replace an outcome by a release of its execution."""
    return _stripped(entry, kind="release", consumed=(), error=None, cause=None)


def _stripped(entry: CommitEntry, **fields: Any) -> CommitEntry:
    """Drop everything that the outcome would write."""
    return msgspec.structs.replace(
        entry,
        payload=None,
        version=None,
        state=None,
        children=(),
        awaits=None,
        presented=(),
        delay=None,
        timeout=None,
        deadline=None,
        events=(),
        letter=None,
        switches_key=False,
        rate_limit=None,
        weight=None,
        effect=None,
        undo=None,
        **fields,
    )


def _target(execution: Execution, machine: MachineDef, step: str) -> str:
    if step not in machine.steps:
        # A state of older code may contain a former name.
        found = machine.find_step(step)
        if found is None:
            raise UnknownStepError(machine.name, step, tuple(machine.steps), f"step '{execution.step}'")
        step = found.name
    source = machine.steps.get(execution.step)
    if source is not None and source.to is not None and step not in (*source.to, source.on_failure):
        raise UsageError(
            f"step '{execution.step}' of machine '{machine.name}' went to '{step}'",
            f"its to= allows only {', '.join(source.to) or 'an end'}; add the step there",
        )
    return step


def _undo(execution: Execution, machine: MachineDef) -> str | None:
    """The step and its undo step, as the commit stores them."""
    step = machine.steps.get(execution.step)
    if step is None or step.undo is None:
        return None
    return msgspec.json.encode([[step.name, step.undo]]).decode()


def _state(
    given: object, current: object, execution: Execution, machine: MachineDef, bounds: Bounds
) -> str | None:
    value = current if given is KEEP else given
    if value is STORED_STATE:
        return None
    what = ("the state of", machine.name, execution.id)
    return encode(value, machine.state_type, what, bounds.max_payload)


def _writes_state(entry: CommitEntry) -> bool:
    return (entry.state if entry.kind == "done" else entry.payload) is not None


def _changed_state(state: object, execution: Execution, machine: MachineDef, bounds: Bounds) -> str | None:
    """Return the state of an instance that ends, if it is to be written."""
    if state is STORED_STATE or machine.is_job or machine.state_type in (None, type(None)):
        return None
    what = ("the state of", machine.name, execution.id)
    if execution.version != machine.version:
        # The same JSON may mean something else in another version.
        return encode(state, machine.state_type, what, bounds.max_payload)
    return encode_if_changed(state, machine.state_type, execution.state, what, bounds.max_payload)


def _ids(execution: Execution) -> tuple[int, ...]:
    return tuple(row.id for row in execution.awaited) if execution.inbox else ()


def _consumed(
    execution: Execution,
    named: Sequence[Message | str],
    taken: Sequence[int],
    awaited: tuple[int, ...] = (),
) -> tuple[int, ...]:
    """Return the ids of the signals that an outcome consumes. Only signals that this execution has received."""
    if not named and not taken:
        return awaited
    received = {row.id for row in execution.inbox}
    ids = {*awaited, *taken}
    for each in named:
        if isinstance(each, str):
            ids.update(row.id for row in execution.inbox if row.name == each)
        elif each.id in received:
            ids.add(each.id)
        else:
            raise UsageError(
                f"consume has message {each.id} (signal '{each.name}'), which is not in the inbox of this step",
                "give messages of ctx.inbox",
            )
    return tuple(sorted(ids))


def _taken_before_undo(taken: Sequence[int], machine: MachineDef) -> tuple[int, ...]:
    """Return the taken signals that an end consumes by itself: an end removes the inbox, unless an undo step follows.

    The commit adds the awaited ones if an undo step follows.
    """
    return tuple(taken) if machine.undo_steps else ()


def _key(key: str | Keep | None) -> dict[str, Any]:
    return {} if isinstance(key, Keep) else {"switches_key": True, "concurrency_key": key}
