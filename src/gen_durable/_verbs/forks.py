"""Fork an instance: start a new one after one of its transitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .._checks import checked_int
from .._db import control, snapshots
from .._db.plan import Plan
from ..config import Settings
from ..definition import StepRef, definition_of
from ..errors import NoTargetError, UsageError
from ..instance import Forked, Status
from ..refs import Insertable, Key, Target, key_text, target_value
from .common import checked_actor, checked_reason, definition_of_target
from .edits import check_change

__all__ = ["fork"]

_PROBLEMS: Final[Mapping[str, tuple[str, str]]] = {
    "collected": ("retention has removed its state", "pass state="),
    "children": (
        "it waits for children, which a fork does not have",
        "fork at an earlier transition, which schedules them again, or pass step=",
    ),
    "unknown": ("it has not made this transition", "give a smaller at="),
    "not_kept": (
        "the state after this transition was not kept",
        'pass state=; machines keep states with history="all"',
    ),
    "no_step": ("the step after this transition was not recorded", "pass step="),
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
    row = yield from snapshots.get(target_value(target))
    if row is None:
        raise NoTargetError(target_value(target), "fork")
    definition = definition_of_target(target) if machine is None else definition_of(machine)
    text, name = yield from check_change(row, definition, state, step, settings, validate=validate)
    answer = yield from control.fork(
        row["id"],
        at,
        text,
        name,
        correlation_key=None if correlation_key is None else key_text(correlation_key, "correlation_key"),
        unique_key=None if unique_key is None else key_text(unique_key, "unique_key").encode(),
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
