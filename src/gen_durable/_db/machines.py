"""Read what workers have registered about machines."""

from __future__ import annotations

from typing import Any

import msgspec

from .plan import Plan, statements

__all__ = ["RegisteredMachine", "registered"]

_SQL = statements("machines.sql")


class RegisteredMachine(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a machine, as a worker has registered it. `None`: not known."""

    name: str
    version: int
    steps: tuple[str, ...] | None = None
    state_schema: Any = None
    """The JSON Schema of the state."""


def registered(name: str, version: int) -> Plan[RegisteredMachine]:
    """Read one version of a machine; without steps and schema if no worker has stored them."""
    rows = yield _SQL["registered"](fsm=name, version=version)
    if not rows:
        return RegisteredMachine(name=name, version=version)
    steps, schema = (_decoded(rows[0][column]) for column in ("steps", "state_schema"))
    return RegisteredMachine(
        name=name, version=version, steps=None if steps is None else tuple(steps), state_schema=schema
    )


def _decoded(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
