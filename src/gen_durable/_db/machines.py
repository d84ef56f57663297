"""Register machines, and read what workers have registered about them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Any, Final, TypeAlias

import msgspec

from .._graph.description import Description
from ..definition import NO_DEFAULTS, MachineDef
from ..operations import MachineInfo
from .plan import Plan, statements

__all__ = [
    "Machines",
    "RegisteredMachine",
    "RegisteredNames",
    "StoredGraph",
    "digests",
    "list_machines",
    "names",
    "react",
    "register",
    "registered",
    "stored_graphs",
]

_SQL = statements("machines.sql")
# Machine versions that a search for names reads.
_MOST: Final = 10_000
# The parameters of `register` by the fields of a row.
_COLUMNS: Final = {
    "fsm": "fsms",
    "version": "versions",
    "is_upgraded": "are_upgraded",
    "initial_step": "initial_steps",
    "queue": "queues",
    "dead_letter": "dead_letters",
    "steps": "steps",
    "former_steps": "former_steps",
    "graph": "graphs",
    "state_schema": "state_schemas",
    "signals": "signals",
    "streams": "streams",
    "on_cancel": "on_cancels",
    "on_failure": "on_failures",
    "max_attempts": "max_attempts",
    "defaults": "defaults",
    "retention": "retentions",
    "keeps_history": "histories",
}

Machines: TypeAlias = Sequence[tuple[int, Description]]
"""Machines, each with the version of the rows that it runs."""


class RegisteredMachine(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a machine, as a worker has registered it. `None`: not known."""

    name: str
    version: int
    steps: tuple[str, ...] | None = None
    former_steps: tuple[str, ...] = ()
    """Former names of its steps, at which it runs rows, too."""
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
    columns = ("steps", "former_steps", "state_schema", "signals", "streams", "computed")
    steps, former, schema, signals, streams, computed = (_decoded(rows[0][column]) for column in columns)
    return RegisteredMachine(
        name=name,
        version=version,
        steps=None if steps is None else tuple(steps),
        former_steps=tuple(former or ()),
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


def register(machines: Machines, histories: Collection[str] = (), *, renews: bool = False) -> Plan[None]:
    """Store machines for the reaper and for cancels, and for producers and tools that know only names.

    Needs a transaction: the first statement locks the registrations, so that the second one sees the workers of all
    others that have changed them.

    Args:
        machines: with the version of the rows that they run: their own, or one that they upgrade.
        histories: the names of machines that keep their history.
        renews: replace only registrations that no live worker has.
    """
    rows = [_row(version, description, histories) for version, description in machines]
    yield _SQL["lock_registered"](
        fsms=[row["fsm"] for row in rows], versions=[row["version"] for row in rows]
    )
    yield _SQL["register"](
        **{column: [row[name] for row in rows] for name, column in _COLUMNS.items()},
        digests=[_digest(row) for row in rows],
        renews=renews,
    )


def digests(machines: Machines, histories: Collection[str] = ()) -> list[str]:
    """Return a digest of what `register` stores of each machine."""
    return [_digest(_row(version, description, histories)) for version, description in machines]


def _row(version: int, description: Description, histories: Collection[str]) -> dict[str, object]:
    """What is stored of a machine for the rows of a version."""
    machine = description.definition
    return {
        "fsm": machine.name,
        "version": version,
        "is_upgraded": version != machine.version,
        "initial_step": machine.initial,
        "queue": machine.queue,
        "dead_letter": machine.dead_letter,
        "steps": _json(description.steps),
        "former_steps": _json([former for step in machine.steps.values() for former in step.was]),
        "graph": _json(description.graph),
        "state_schema": _json(description.state_schema),
        "signals": _json(description.signals or None),
        "streams": _json(description.streams or None),
        "on_cancel": _json(_on_cancel(machine)),
        "on_failure": _json(_on_failure(machine)),
        "max_attempts": _json(_max_attempts(machine)),
        "defaults": _json(_defaults(machine)),
        "retention": _json(_retention(machine)),
        "keeps_history": machine.name in histories,
    }


def _digest(row: Mapping[str, object]) -> str:
    return blake2b(msgspec.json.encode(row), digest_size=8).hexdigest()


def _json(value: object) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def _on_cancel(machine: MachineDef) -> dict[str, str] | None:
    return {
        name: step.on_cancel
        for step in machine.steps.values()
        if step.on_cancel is not None
        for name in (step.name, *step.was)
    } or None


def _defaults(machine: MachineDef) -> dict[str, object] | None:
    """The defaults of inserts; `None` if the machine declares none."""
    found: dict[str, object] = {
        name: value
        for name, value in msgspec.structs.asdict(machine.defaults).items()
        if value is not None and not callable(value) and value != getattr(NO_DEFAULTS, name)
    }
    if machine.defaults.computed:
        found["computed"] = machine.defaults.computed
    return found or None


def _retention(machine: MachineDef) -> dict[str, float] | None:
    """How long ended instances are kept, in seconds; `None` if the machine declares nothing."""
    return {status: kept.total_seconds() for status, kept in machine.retention.items()} or None


def _max_attempts(machine: MachineDef) -> dict[str, int] | None:
    """After how many executions each step has failed; `None` if no step has a limit."""
    found = {
        name: step.retry.max_attempts
        for step in machine.steps.values()
        if step.retry is not None
        for name in (step.name, *step.was)
    }
    return found or None


def _on_failure(machine: MachineDef) -> dict[str, str] | None:
    """The steps that follow failed ones; `None` if no step declares one."""
    found = {
        name: step.on_failure
        for step in machine.steps.values()
        if step.on_failure is not None
        for name in (step.name, *step.was)
    }
    return found or None


def _decoded(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
