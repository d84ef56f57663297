"""Edit an instance: change its state or its step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from .._checks import checked_int
from .._core import schemas
from .._core.codec import convert, encode
from .._core.hydration import stored_state
from .._db import control, machines
from .._db.plan import Plan
from .._typing import KEEP
from ..config import Settings
from ..definition import MachineDef, StepRef, step_name
from ..errors import CodecError, EncodeError, NoTargetError, UnknownStepError, UsageError
from ..instance import Edited, EditResult, NotEdited, Status
from ..refs import Insertable, Target
from .common import checked_actor, checked_reason, definition_of_target, found, of_machine

__all__ = ["check_by_name", "check_change", "check_schema", "edit"]

_NEW_STATE: Final = "the new state"


def edit(
    target: Target,
    state: Any,
    step: StepRef[Any] | str | None,
    settings: Settings,
    *,
    expected_step_seq: int | None,
    machine: Insertable[Any, Any] | None,
    wake: bool,
    validate: bool,
    reason: str | None,
    actor: str | None,
    autocommit: bool,
) -> Plan[tuple[EditResult, set[str]]]:
    """Change the state or the step of an instance that is not executing."""
    if state is KEEP and step is None and not wake:
        raise UsageError("edit got nothing to change", "pass state=, step= or wake=True")
    if expected_step_seq is not None:
        checked_int(expected_step_seq, "expected_step_seq", 0, 2**63 - 1)
    why, who = checked_reason(reason), checked_actor(actor)
    row = yield from found(target, "edit")
    definition = definition_of_target(target, machine)
    text, name = yield from check_change(row, definition, state, step, settings, validate=validate)
    answer = yield from control.edit(
        row["id"],
        text,
        name,
        expected_seq=expected_step_seq,
        # State and step were checked against this version.
        expected_version=row["fsm_version"],
        wake=wake,
        reason=why,
        actor=who,
        autocommit=autocommit,
    )
    if answer is None:
        raise NoTargetError(row["id"], "edit")
    status = Status(answer["status"])
    if answer["refusal"] is not None:
        return NotEdited(answer["id"], answer["refusal"], status, answer["step_seq"]), set()
    queues = {answer["queue"]} if status is Status.RUNNABLE else set()
    return Edited(answer["id"], answer["step_seq"], status), queues


def check_change(
    row: Mapping[str, Any],
    definition: MachineDef | None,
    state: Any,
    step: StepRef[Any] | str | None,
    settings: Settings,
    *,
    validate: bool = True,
) -> Plan[tuple[str | None, str | None]]:
    """Return a new state as JSON and the name of a new step, checked for the machine of an instance.

    The definition decides if it has or upgrades the version of the instance; otherwise what a worker has registered.
    A state of an older version has the form of that version: it is checked by upgrading it, and against the
    registered schema of that version.
    """
    known = of_machine(row, definition)
    upgrades_row = known is not None and known.version != row["fsm_version"]
    type_ = known.state_type if known is not None and not upgrades_row else Any
    text = (
        None
        if state is KEEP
        else encode(convert(state, type_, _NEW_STATE), type_, _NEW_STATE, settings.max_payload)
    )
    name = None if step is None else step_name(step)
    if known is not None and name is not None:
        known_step = known.find_step(name)
        if known_step is None:
            raise UnknownStepError(known.name, name, tuple(known.steps))
        if not upgrades_row:  # a former name fits both versions
            name = known_step.name
    if known is not None and upgrades_row and text is not None:
        _check_upgrade(text, row, known)
    if validate and (known is None or upgrades_row) and (text, name) != (None, None):
        yield from check_by_name(row["fsm"], row["fsm_version"], text, name if known is None else None)
    return text, name


def _check_upgrade(text: str, row: Mapping[str, Any], machine: MachineDef) -> None:
    """Check that the machine can upgrade and decode a new state of an instance of an older version."""
    version = row["fsm_version"]
    try:
        stored_state(text, version, machine, _NEW_STATE)
    except CodecError as error:
        problem = (
            f"instance {row['id']} has version {version}, so give the state as version {version} stores it; "
            f"upgraded to version {machine.version}, {_NEW_STATE} does not match: {error.problem}"
        )
        raise EncodeError(_NEW_STATE, f"{machine.name} version {version}", problem) from error


def check_by_name(
    fsm: str, version: int, state: str | None, step: str | None, what: str = _NEW_STATE
) -> Plan[None]:
    """Check a state, as JSON text, and a step against what a worker has registered about a machine.

    Without the extra `cli` the schema of the state is not checked.

    Raises:
        UnknownStepError: the machine does not have this step.
        EncodeError: the state does not match the schema.
    """
    machine = yield from machines.registered(fsm, version)
    if step is not None and machine.steps is not None and step not in (*machine.steps, *machine.former_steps):
        raise UnknownStepError(fsm, step, machine.steps)
    schema = machine.state_schema
    if state is None or schema is None:
        return
    if state == "{}" and schema.get("type") == "null":
        return  # the default of the command line, which a job without payload ignores
    check_schema(state, schema, what, machine)


def check_schema(
    text: str, schema: Any, what: str, machine: machines.RegisteredMachine, declared: str = ""
) -> None:
    """Check JSON text against a schema of a machine; without the extra `cli`, do nothing."""
    if schemas.is_available() and (problem := schemas.violation(msgspec.json.decode(text), schema)):
        raise EncodeError(what, f"{declared}{machine.name} version {machine.version}", problem)
