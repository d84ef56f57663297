"""Read what workers have registered about machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from ..operations import MachineInfo
from .plan import Plan, statements

__all__ = [
    "RegisteredMachine",
    "RegisteredNames",
    "StoredGraph",
    "list_machines",
    "names",
    "react",
    "registered",
    "stored_graphs",
]

_SQL = statements("machines.sql")
# Machine versions that a search for names reads.
_MOST: Final = 10_000


class RegisteredMachine(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a machine, as a worker has registered it. `None`: not known."""

    name: str
    version: int
    steps: tuple[str, ...] | None = None
    state_schema: Any = None
    """The JSON Schema of the state."""
    signals: Mapping[str, Any] = {}
    """The JSON Schema of the payload of each declared signal."""
    streams: tuple[str, ...] = ()
    """The declared streams."""
    computed: tuple[str, ...] = ()
    """The keys that the machine computes from the state: concurrency_key, rate_limit."""


class RegisteredNames(msgspec.Struct, frozen=True):
    """The names of all versions of a machine."""

    steps: set[str]
    queues: set[str]
    signals: set[str]


def names() -> Plan[Mapping[str, RegisteredNames]]:
    """Read the names that workers have registered, by machine."""
    found: dict[str, RegisteredNames] = {}
    for row in (yield _SQL["names"](most=_MOST)):
        one = found.setdefault(row["fsm"], RegisteredNames(set(), set(), set()))
        one.steps.update(_decoded(row["steps"]) or ())
        one.queues.add(row["queue"])
        one.signals.update(_decoded(row["signals"]) or ())
    return found


class StoredGraph(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a machine, and the graph that a worker read from its code."""

    name: str
    version: int
    queue: str
    graph: str | None
    """As JSON; `None` if its worker could not read it."""
    workers: int
    """How many live workers run it."""
    registered_at: datetime


def list_machines() -> Plan[Sequence[MachineInfo]]:
    """Read all registered machines, by name and version."""
    return [
        MachineInfo(
            name=row["fsm"],
            version=row["fsm_version"],
            queue=row["queue"],
            steps=tuple(_decoded(row["steps"]) or ()),
            signals=tuple(_decoded(row["signals"]) or ()),
            streams=tuple(_decoded(row["streams"]) or ()),
            registered_at=row["updated_at"],
            workers=tuple(row["workers"]),
        )
        for row in (yield _SQL["machines"]())
    ]


def registered(name: str, version: int) -> Plan[RegisteredMachine]:
    """Read one version of a machine; without steps and schemas if no worker has stored them."""
    rows = yield _SQL["registered"](fsm=name, version=version)
    if not rows:
        return RegisteredMachine(name=name, version=version)
    columns = ("steps", "state_schema", "signals", "streams", "computed")
    steps, schema, signals, streams, computed = (_decoded(rows[0][column]) for column in columns)
    return RegisteredMachine(
        name=name,
        version=version,
        steps=None if steps is None else tuple(steps),
        state_schema=schema,
        signals=signals or {},
        streams=tuple(streams or ()),
        computed=tuple(computed or ()),
    )


def stored_graphs(name: str | None = None) -> Plan[Sequence[StoredGraph]]:
    """Read the graphs of one machine, or of all machines, by name and version."""
    return [
        StoredGraph(
            name=row["fsm"],
            version=row["fsm_version"],
            queue=row["queue"],
            graph=row["graph"],
            workers=row["workers"],
            registered_at=row["updated_at"],
        )
        for row in (yield _SQL["graphs"](fsm=name))
    ]


def react(names: Sequence[str]) -> Plan[bool]:
    """Return whether one of these machines has an on_cancel or undo step."""
    (row,) = yield _SQL["reacting"](fsms=list(names))
    found: bool = row["reacts"]
    return found


def _decoded(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
