"""Fork an instance: start a new one after one of its transitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .._checks import checked_int
from .._core.hydration import stored_state
from .._core.new_rows import computed_key
from .._db import control, history
from .._db.plan import Plan, Row
from .._typing import KEEP
from ..config import Settings
from ..definition import MachineDef, StepRef
from ..errors import NoTargetError, UsageError
from ..instance import Forked, Status
from ..refs import Insertable, Key, Target, key_text
from .common import checked_actor, checked_reason, definition_of_target, found, of_machine
from .edits import check_change

__all__ = ["fork"]

_PROBLEMS: Final[Mapping[str, tuple[str, str]]] = {
    "collected": ("retention has removed its state", "pass state="),
    "children": (
        "its next step joins children, which a fork does not have",
        "fork at the transition before, to schedule them again, or pass step=",
    ),
    "unknown": ("it has not made this transition", "give a smaller at="),
    "undone": ("it runs undo steps, or has run them", "fork at an earlier transition, or pass step="),
    "not_kept": (
        "the state after this transition was not kept",
        'pass state=; states are kept for machines with history="all"',
    ),
    "no_step": ("the step after this transition was not recorded", "pass step="),
    "upgraded": ("it has another version now than the one that state and step were checked for", "repeat it"),
    "key_taken": ("another instance has the given key", "give another key"),
}


def fork(
    target: Target,
    at: int | None,
    state: Any,
    step: StepRef[Any] | str | None,
    settings: Settings,
    *,
    correlation_key: Key | None,
    unique_key: Key | None,
    machine: Insertable[Any, Any] | None,
    validate: bool,
    reason: str | None,
    actor: str | None,
) -> Plan[tuple[Forked, set[str]]]:
    """Insert a new instance that starts after a transition of another one."""
    if at is not None:
        checked_int(at, "at", 0, 2**63 - 1)
    why, who = checked_reason(reason), checked_actor(actor)
    row = yield from found(target, "fork")
    definition = definition_of_target(target, machine)
    version = None
    if state is not KEEP or step is not None:
        version = yield from _version(row, at)
        row = {**row, "fsm_version": version}
    text, name = yield from check_change(row, definition, state, step, settings, validate=validate)
    first = (row["step_seq"] if at is None else at) == 0
    answer = yield from control.fork(
        row["id"],
        at,
        text,
        name,
        expected_version=version,
        correlation_key=None if correlation_key is None else key_text(correlation_key, "correlation_key"),
        unique_key=None if unique_key is None else key_text(unique_key, "unique_key").encode(),
        computed_keys=_computed_keys(row, definition, text, first=first),
        reason=why,
        actor=who,
    )
    if answer is None:
        raise NoTargetError(row["id"], "fork")
    if answer["problem"] is not None:
        problem, advice = _PROBLEMS[answer["problem"]]
        place = "" if at is None else f" at transition {at}"
        raise UsageError(f"cannot fork instance {row['id']}{place}: {problem}", advice)
    status = Status(answer["status"])
    return Forked(answer["id"], row["id"], answer["step_seq"], status), {answer["queue"]}


def _computed_keys(
    row: Mapping[str, Any], definition: MachineDef | None, state: str | None, *, first: bool
) -> dict[str, str | None]:
    """The keys that the machine computes from a new state, as for an insert; none if the state is the stored one.

    The default rate limit is that of the first step, so it is computed only for a fork at the insert.
    """
    machine = of_machine(row, definition)
    if machine is None or state is None:
        return {}
    functions: dict[str, Any] = {
        name: getattr(machine.defaults, name)
        for name in machine.defaults.computed
        if first or name != "rate_limit"
    }
    if not functions:
        return {}
    value = stored_state(state, row["fsm_version"], machine, "the new state")
    return {name: computed_key(function, value, name, machine.name) for name, function in functions.items()}


def _version(row: Row, at: int | None) -> Plan[int]:
    """The version of a fork: that of the state after the transition, or of the origin if that was not kept."""
    made = None
    if at is not None and at < row["step_seq"]:
        made = yield from history.state_version(row["id"], at)
    version: int = row["fsm_version"] if made is None else made
    return version
