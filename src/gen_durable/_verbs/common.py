"""Shared by the operations: targets, typed instances, reasons and actors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .._checks import checked_name
from .._core.hydration import instance_of
from .._db import snapshots
from .._db.plan import Plan, Row
from ..definition import MachineDef, definition_of
from ..errors import NoTargetError, UsageError
from ..instance import Instance
from ..outcome import reason_text
from ..refs import Insertable, Ref, Target, target_value

__all__ = [
    "MAX_PAGE",
    "checked_actor",
    "checked_reason",
    "definition_of_target",
    "found",
    "machine_name",
    "of_machine",
    "read",
    "resolve",
]

MAX_PAGE: Final = 10_000


def resolve(target: Target, verb: str) -> Plan[int]:
    """Return the id of a target; raise NoTargetError if a correlation key has no instance."""
    value = target_value(target)
    if isinstance(value, int):
        return value
    id: int = (yield from found(target, verb))["id"]
    return id


def found(target: Target, verb: str) -> Plan[Row]:
    """Return the row of a target; raise NoTargetError if there is none."""
    value = target_value(target)
    row = yield from snapshots.get(value)
    if row is None:
        raise NoTargetError(value, verb)
    return row


def machine_name(machine: Insertable[Any, Any] | str) -> str:
    """Return the name of a machine that is given as such or by name."""
    return checked_name(machine if isinstance(machine, str) else definition_of(machine).name, "the machine")


def definition_of_target(target: Target, machine: Insertable[Any, Any] | None = None) -> MachineDef | None:
    """Return a given machine, or else that of a reference; `None` for an id or a key."""
    if machine is not None:
        return definition_of(machine)
    return definition_of(target.definition) if isinstance(target, Ref) else None


def read(row: Mapping[str, Any], definition: MachineDef | None) -> Instance[Any, Any]:
    """Build an instance from a row, with the type of the definition if that has or upgrades the version of the row.

    Raises:
        UsageError: the instance belongs to another machine.
    """
    return instance_of(row, of_machine(row, definition))


def of_machine(row: Mapping[str, Any], definition: MachineDef | None) -> MachineDef | None:
    """Return the definition if it has or upgrades the version of the instance; `None` otherwise.

    A version that it does not upgrade may have another state type, so its state is plain JSON.

    Raises:
        UsageError: the instance belongs to another machine.
    """
    if definition is None:
        return None
    if row["fsm"] != definition.name:
        raise UsageError(
            f"instance {row['id']} is a {row['fsm']}, not a {definition.name}",
            "use the machine that it belongs to",
        )
    return definition if definition.can_read(row["fsm_version"]) else None


def checked_reason(reason: str | None) -> str | None:
    """Return a reason for the audit log, cut to its maximum length."""
    return None if not reason else reason_text(reason)


def checked_actor(actor: str | None) -> str | None:
    """Return an actor for the audit log; raise UsageError if it is too long."""
    return None if actor is None else checked_name(actor, "actor")
