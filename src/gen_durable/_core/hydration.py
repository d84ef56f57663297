"""Build what users see from stored rows: contexts for steps, snapshots for clients."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec

from .._channel import NO_CHANNEL, Channel
from .._loading import NOT_LOADED, LiveChildError, Loader
from ..context import Children, Context
from ..definition import MachineDef
from ..errors import DecodeError, NotLoadedError
from ..instance import Child, Compensation, Failure, Instance, Status
from ..progress import Progress
from ..signals import Inbox, Message
from .codec import ValueName, decode, text_of
from .model import ChildContent, ChildRow, Execution, SignalRow
from .registry import Registry
from .upgrading import upgraded

__all__ = [
    "StepChannel",
    "compensation_of",
    "failure_of",
    "instance_of",
    "is_cancel_handled",
    "open_context",
    "progress_of",
    "state_of",
    "step_after_cancel",
    "step_of_retry",
    "stored_state",
    "undo_steps_left",
]

_EMPTY_INBOX = Inbox()
_NO_CHILDREN = Children()


class StepChannel(Channel, Protocol):
    """A channel as the engine sees it. It also loads payloads, states and results that an execution came without."""

    async def signals(self, execution: Execution, ids: Sequence[int]) -> Mapping[int, str]:
        """Load payloads of unread signals, by id."""

    async def children(self, execution: Execution, ids: Sequence[int]) -> Mapping[int, ChildContent]:
        """Load states and results of children, by id."""

    def add_item(self, execution: Execution, stream: str, item: str | None) -> bool:
        """Buffer an item (JSON), or the close of a stream (`None`). Returns whether there was room. In any thread."""

    async def room(self, execution: Execution) -> None:
        """Wait until the buffer of an execution has room."""

    async def store_checkpoint(self, execution: Execution, text: str) -> bool:
        """Store the checkpoint of a step, as JSON. Returns whether the execution still owns its lease."""


def open_context(
    execution: Execution,
    machine: MachineDef,
    registry: Registry,
    state: Any,
    *,
    is_strict: bool = True,
    resources: Any = None,
    channel: StepChannel | None = None,
) -> Context[Any]:
    """Build the context of a step around its decoded state.

    Args:
        is_strict: raise for an awaited signal or a child that does not fit its type. A handler is to repair such a
            failure, so it gets them as plain JSON.
        resources: `ctx.resources`.
        channel: through which the step talks to its worker.
    """
    inbox = awaited = _EMPTY_INBOX
    if execution.inbox:
        names = execution.awaits or ()
        messages = [
            # A signal that does not fit its type fails the step only if the step awaited it.
            (_message(row, machine, is_strict=is_strict and row.name in names), row.name in names)
            for row in execution.inbox
        ]
        loader: Loader[Any] | None = None
        if channel is not None and not all(message.is_loaded for message, _ in messages):
            loader = Loader(_payloads(execution, machine, channel), channel.wait)
        inbox = Inbox([message for message, _ in messages], loader)
        awaited = Inbox([message for message, is_awaited in messages if is_awaited])
    return Context(
        id=execution.id,
        machine=execution.fsm,
        version=machine.version,
        step=execution.step,
        attempt=execution.attempt,
        step_seq=execution.step_seq + 1,
        state=state,
        raw_state=execution.state,
        awaited=awaited,
        inbox=inbox,
        timed_out=execution.timed_out,
        failure=None if execution.failure is None else failure_of(execution.failure),
        children=_children(execution, registry, channel, is_strict=is_strict)
        if execution.children
        else _NO_CHILDREN,
        parent_id=execution.parent_id,
        correlation_key=execution.correlation_key,
        max_attempts=execution.max_attempts,
        fire_time=execution.fire_time,
        cancellation=execution.cancellation,
        resources=resources,
        _channel=channel or NO_CHANNEL,
        _execution=execution,
    )


def state_of(execution: Execution, machine: MachineDef) -> Any:
    """Decode the state of an execution; upgrade it first if it is stored with an older version."""
    what = ("the state of", machine.name, execution.id)
    return stored_state(execution.state, execution.version, machine, what)


def stored_state(text: str, version: int, machine: MachineDef, what: ValueName) -> Any:
    """Decode a state that is stored with this version of the machine.

    SQL producers that give no state insert `{}`. For a machine without state that means `None`.
    """
    if version != machine.version:
        text = upgraded(text, version, machine, text_of(what))
    if text == "{}" and machine.state_type in (None, type(None)):
        return None
    return decode(text, machine.state_type, what)


def instance_of(row: Mapping[str, Any], machine: MachineDef | None) -> Instance[Any, Any]:
    """Build the snapshot of a row. State and result are typed if the machine is known, plain JSON otherwise.

    JSON that Python cannot decode (nested too deeply, numbers of thousands of digits) stays text.
    """
    name, id, version = row["fsm"], row["id"], row["fsm_version"]
    result_type: Any = machine.result_type if machine else Any
    result = row["result"]
    return Instance(
        id=id,
        machine=name,
        version=version,
        step=row["step"],
        status=Status(row["status"]),
        state=_decoded_state(row["state"], version, machine, f"the state of {name} {id}", is_strict=False),
        # Code of an older version may have written a result of another type.
        stored_result=None
        if result is None
        else _decoded(
            result,
            result_type,
            f"the result of {name} {id}",
            is_strict=machine is None or version == machine.version,
        ),
        attempt=row["attempt"],
        step_seq=row["step_seq"],
        crash_count=row["crash_count"],
        queue=row["queue"],
        priority=row["priority"],
        awaits=tuple(row["awaits"] or ()),
        await_deadline=row["await_deadline"],
        children_pending=row["children_pending"],
        last_error=row["last_error"],
        error=None if row["error"] is None else failure_of(row["error"]),
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
        compensation=compensation_of(row["compensation"], row["undo_steps"]),
        schedule=row["schedule"],
        fire_time=row["fire_time"],
        collected_at=row["collected_at"],
        forked_from=row["forked_from"],
        forked_seq=row["forked_seq"],
        progress=progress_of(row["progress"]),
        checkpoint=None if row["checkpoint"] is None else _checkpoint(row, machine),
    )


def compensation_of(text: str | None, undo_steps: str | None) -> Compensation | None:
    """Read the columns `compensation` and `undo_steps`; `None` if the instance has not begun to run undo steps."""
    if text is None or (end := (plan := msgspec.json.decode(text)).get("end")) is None:
        return None
    return Compensation(
        status=Status(end["status"]),
        reason=end.get("error") or end.get("reason"),
        step=end["step"],
        since=datetime.fromisoformat(end["at"]),
        undone=tuple(plan.get("undone", ())),
        pending=undo_steps_left(undo_steps),
    )


def undo_steps_left(undo_steps: str | None) -> tuple[str, ...]:
    """Return the undo steps in the column `undo_steps`, the next one first."""
    if undo_steps is None:
        return ()
    return tuple(undo for _, undo in reversed(msgspec.json.decode(undo_steps)))


def step_of_retry(row: Mapping[str, Any]) -> str | None:
    """The step at which a retry starts, if all steps were undone: the first one."""
    undo = compensation_of(row["compensation"], row["undo_steps"])
    return undo.undone[-1] if undo is not None and row["undo_steps"] is None and undo.undone else None


def step_after_cancel(compensation: str | None, undo_steps: str | None) -> str | None:
    """The `on_cancel` or undo step that runs after the step whose cancel is requested."""
    plan = {} if compensation is None else msgspec.json.decode(compensation)
    if (reaction := plan.get("to")) is not None or "final" in plan or undo_steps is None:
        name: str | None = reaction
        return name
    return undo_steps_left(undo_steps)[0]


def is_cancel_handled(row: Mapping[str, Any]) -> bool:
    """Whether a cancel led the instance to its `on_cancel` step, and it has not ended since."""
    return (
        (row["cancelled_by"] or row["cancel_reason"]) is not None
        and row["cancel_requested_at"] is None
        and row["finished_at"] is None
        and compensation_of(row["compensation"], row["undo_steps"]) is None
    )


def progress_of(text: str | None) -> Progress | None:
    """Read the column `progress`."""
    if text is None:
        return None
    try:
        progress: Progress = decode(text, Progress, "the progress")
    except DecodeError:
        return None  # not written by the engine
    return progress


def _checkpoint(row: Mapping[str, Any], machine: MachineDef | None) -> Any:
    step = None if machine is None else machine.find_step(row["step"])
    type_: Any = Any if step is None else step.checkpoint
    return _decoded(row["checkpoint"], type_, f"the checkpoint of {row['fsm']} {row['id']}", is_strict=False)


def failure_of(text: str) -> Failure | None:
    """Read the columns `error` and `failure`; `None` if the engine has not written it."""
    try:
        failure: Failure = decode(text, Failure, "the error")
    except DecodeError:
        return None
    return failure


def _message(row: SignalRow, machine: MachineDef, *, is_strict: bool) -> Message:
    payload = (
        NOT_LOADED if row.payload is None else _payload(row.name, row.payload, machine, is_strict=is_strict)
    )
    return Message(id=row.id, name=row.name, payload=payload, sent_at=row.inserted_at, size=row.size)


def _payload(name: str, text: str, machine: MachineDef, *, is_strict: bool) -> Any:
    what = f"the payload of signal '{name}'"
    return _decoded(text, machine.signals.get(name, Any), what, is_strict=is_strict)


def _payloads(
    execution: Execution, machine: MachineDef, channel: StepChannel
) -> Callable[[Sequence[int]], Coroutine[Any, Any, Mapping[int, Any]]]:
    names = {row.id: row.name for row in execution.inbox}

    async def fetch(ids: Sequence[int]) -> Mapping[int, Any]:
        texts = await channel.signals(execution, ids)
        if len(texts) < len(ids):
            # Unread signals are deleted only when the instance ends, and then this execution cannot commit.
            raise NotLoadedError(
                f"signals of {execution.fsm} {execution.id} are deleted: the instance was cancelled or has ended",
                "let the step end; its outcome is discarded",
            )
        # Not awaited: a payload that does not fit its type must not fail the step.
        return {id: _payload(names[id], text, machine, is_strict=False) for id, text in texts.items()}

    return fetch


def _children(
    execution: Execution, registry: Registry, channel: StepChannel | None, *, is_strict: bool
) -> Children:
    rows = {row.id: row for row in execution.children}

    async def fetch(ids: Sequence[int]) -> Mapping[int, tuple[Any, Any]]:
        assert channel is not None  # noqa: S101 - otherwise there is no loader
        found = await channel.children(execution, ids)
        for id in ids:
            if id not in found or found[id].status != rows[id].status:
                raise LiveChildError(f"child {id} of {execution.fsm} {execution.id} was retried")
        return {
            id: _state_and_result(rows[id], one.state, one.result, registry, is_strict=is_strict)
            for id, one in found.items()
        }

    loader: Loader[tuple[Any, Any]] | None = None
    if channel is not None and any(row.state is None for row in execution.children):
        loader = Loader(fetch, channel.wait)
    return Children([_child(row, registry, is_strict=is_strict) for row in execution.children], loader)


def _child(row: ChildRow, registry: Registry, *, is_strict: bool) -> Child[Any]:
    state: Any = NOT_LOADED
    result: Any = NOT_LOADED
    if row.state is not None:
        state, result = _state_and_result(row, row.state, row.result, registry, is_strict=is_strict)
    return Child(
        id=row.id,
        machine=row.fsm,
        status=Status(row.status),
        state=state,
        result=result,
        last_error=row.last_error,
        size=row.size,
    )


def _state_and_result(
    row: ChildRow, state: str, result: str | None, registry: Registry, *, is_strict: bool
) -> tuple[Any, Any]:
    known = registry.get(row.fsm, row.version)
    machine = known.definition if known else None
    result_type: Any = machine.result_type if machine else Any
    what = f"{row.fsm} {row.id}"
    # Code of an older version may have written a result of another type.
    is_own_version = machine is None or row.version == machine.version
    return (
        _decoded_state(state, row.version, machine, f"the state of {what}", is_strict=is_strict),
        None
        if result is None
        else _decoded(result, result_type, f"the result of {what}", is_strict=is_strict and is_own_version),
    )


def _decoded_state(text: str, version: int, machine: MachineDef | None, what: str, *, is_strict: bool) -> Any:
    if machine is not None and version != machine.version:
        try:
            return decode(upgraded(text, version, machine, what), machine.state_type, what)
        except DecodeError:
            if is_strict:
                raise
            machine = None
    return _decoded(text, machine.state_type if machine else Any, what, is_strict=is_strict)


def _decoded(text: str, type_: Any, what: str, *, is_strict: bool) -> Any:
    try:
        return decode(text, type_, what)
    except DecodeError:
        if is_strict:
            raise
    try:
        return decode(text, Any, what)
    except DecodeError:
        # An SQL producer may have nested it too deeply. Lists still have to show the instance.
        return text
