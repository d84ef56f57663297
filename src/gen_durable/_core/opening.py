"""From what the database holds to what users see: contexts for steps, snapshots for clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..context import Children, Context
from ..definition import MachineDef
from ..errors import DecodeError
from ..instance import Child, Failure, Instance, Status
from ..signals import Inbox, Message
from .codec import decode
from .model import ChildRow, Execution, SignalRow
from .registry import Registry

__all__ = ["instance_of", "open_context", "state_of"]

_NOTHING = Inbox()
_NOBODY = Children()


def open_context(
    execution: Execution,
    machine: MachineDef,
    registry: Registry,
    state: Any,
    *,
    is_strict: bool = True,
    resources: Any = None,
) -> Context[Any]:
    """What a step of this execution sees, around a state that has been decoded.

    Args:
        is_strict: raise for an awaited signal or a child that does not fit its type, as a step needs it. A handler that
            is to mend this gets the same as plain JSON.
        resources: what the worker holds ready for its steps.
    """
    inbox = awaited = _NOTHING
    if execution.inbox:
        names = execution.awaits or ()
        messages = [
            # A misshapen signal that nobody awaits must not stop a step that has nothing to do with it.
            (_message(row, machine, is_strict=is_strict and row.name in names), row.name in names)
            for row in execution.inbox
        ]
        inbox = Inbox([message for message, _ in messages])
        awaited = Inbox([message for message, is_awaited in messages if is_awaited])
    return Context(
        id=execution.id,
        machine=execution.fsm,
        version=execution.version,
        step=execution.step,
        attempt=execution.attempt,
        step_seq=execution.step_seq + 1,
        state=state,
        raw_state=execution.state,
        awaited=awaited,
        inbox=inbox,
        timed_out=execution.timed_out,
        children=Children([_child(row, registry, is_strict=is_strict) for row in execution.children])
        if execution.children
        else _NOBODY,
        parent_id=execution.parent_id,
        correlation_key=execution.correlation_key,
        max_attempts=execution.max_attempts,
        slot=execution.slot,
        cancellation=execution.cancellation,
        resources=resources,
    )


def state_of(execution: Execution, machine: MachineDef) -> Any:
    """The state of an execution, decoded afresh.

    A producer in SQL that gives no state has given {}; where a machine has none, that is meant.
    """
    if machine.state_type in (None, type(None)) and execution.state == "{}":
        return None
    return decode(execution.state, machine.state_type, f"the state of {machine.name} {execution.id}")


def instance_of(row: Mapping[str, Any], machine: MachineDef | None) -> Instance[Any, Any]:
    """A row as a client sees it: typed if the machine is known and its types fit, else as plain JSON.

    What Python cannot read at all (nested too deeply, numbers of thousands of digits) is given as the text that it is.
    """
    name, id = row["fsm"], row["id"]
    state_type: Any = machine.state_type if machine else Any
    result_type: Any = machine.result_type if machine else Any
    result = row["result"]
    return Instance(
        id=id,
        machine=name,
        version=row["fsm_version"],
        step=row["step"],
        status=Status(row["status"]),
        state=_decoded(row["state"], state_type, f"the state of {name} {id}", is_strict=False),
        stored_result=None if result is None else decode(result, result_type, f"the result of {name} {id}"),
        attempt=row["attempt"],
        step_seq=row["step_seq"],
        crash_count=row["crash_count"],
        queue=row["queue"],
        priority=row["priority"],
        awaits=tuple(row["awaits"] or ()),
        await_deadline=row["await_deadline"],
        children_pending=row["children_pending"],
        last_error=row["last_error"],
        error=None if row["error"] is None else _failure(row["error"]),
        correlation_key=row["correlation_key"],
        unique_key=row["unique_key"],
        concurrency_key=row["concurrency_key"],
        parent_id=row["parent_id"],
        locked_by=row["locked_by"],
        inserted_at=row["inserted_at"],
        updated_at=row["updated_at"],
        eligible_at=row["eligible_at"],
        finished_at=row["finished_at"],
        cancel_requested_at=row["cancel_requested_at"],
        cancel_reason=row["cancel_reason"],
        cancelled_by=row["cancelled_by"],
        deleted_at=row["deleted_at"],
        delete_reason=row["delete_reason"],
        schedule=row["schedule"],
        slot=row["slot_at"],
        collected_at=row["collected_at"],
    )


def _failure(text: str) -> Failure | None:
    try:
        failure: Failure = decode(text, Failure, "the error")
    except DecodeError:
        return None  # somebody else has written there
    return failure


def _message(row: SignalRow, machine: MachineDef, *, is_strict: bool) -> Message:
    what = f"the payload of signal '{row.name}'"
    payload = _decoded(row.payload, machine.signals.get(row.name, Any), what, is_strict=is_strict)
    return Message(id=row.id, name=row.name, payload=payload, sent_at=row.inserted_at)


def _child(row: ChildRow, registry: Registry, *, is_strict: bool) -> Child[Any]:
    known = registry.get(row.fsm, row.version)
    state_type: Any = known.definition.state_type if known else Any
    result_type: Any = known.definition.result_type if known else Any
    what = f"{row.fsm} {row.id}"
    return Child(
        id=row.id,
        machine=row.fsm,
        status=Status(row.status),
        state=_decoded(row.state, state_type, f"the state of {what}", is_strict=is_strict),
        result=None
        if row.result is None
        else _decoded(row.result, result_type, f"the result of {what}", is_strict=is_strict),
        last_error=row.last_error,
    )


def _decoded(text: str, type_: Any, what: str, *, is_strict: bool) -> Any:
    try:
        return decode(text, type_, what)
    except DecodeError:
        if is_strict:
            raise
    try:
        return decode(text, Any, what)
    except DecodeError:
        # A producer in SQL may have nested it too deeply. It is still to be seen, by whoever lists it beside others.
        return text
