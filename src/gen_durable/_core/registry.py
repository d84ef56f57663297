"""The machines that a worker runs, by name and version."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from datetime import timedelta
from types import ModuleType
from typing import Any, TypeAlias

import msgspec

from .._graph.description import Description, describe
from ..config import HistoryLevel
from ..definition import Definition, MachineDef, definition_of
from ..errors import DefinitionError, DuplicateMachineError, UnknownMachineError, UsageError
from ..jobs import Job
from ..machine import Machine, check_annotations
from ..refs import Insertable
from .model import Execution

__all__ = ["Machines", "Registered", "Registry"]

Machines: TypeAlias = Iterable[Insertable[Any, Any] | ModuleType]
"""Machine classes, machine objects, jobs, or modules that define them."""


class Registered(msgspec.Struct, frozen=True):
    """A machine, and the object whose methods are its steps."""

    definition: MachineDef
    machine: Machine[Any, Any] | Job[Any, Any]
    is_object: bool = False
    """Whether it was given as an object. Other processes cannot rebuild its attributes."""


class Registry:
    """The machines of one worker. A row is run by its version, or else by the newest machine that upgrades it."""

    def __init__(self, machines: Machines = (), *, makes_objects: bool = True) -> None:
        # False for code that is only checked: its classes may need arguments.
        self._makes_objects = makes_objects
        self._machines: dict[tuple[str, int], Registered] = {}
        # By the version of a row: the machines, and for other versions the machines that upgrade them.
        self._runs: dict[tuple[str, int], Registered] = {}
        self._renamed: dict[tuple[str, int, str], str] = {}
        self._undo_steps: frozenset[str] = frozenset()
        for machine in _flat(machines):
            self.add(machine)

    def add(self, machine: Insertable[Any, Any], *, replace: bool = False) -> Registered:
        """Register a machine. A class is instantiated here, once."""
        definition = definition_of(machine)
        if not isinstance(machine, Job):
            check_annotations(_class_of(machine))
        key = (definition.name, definition.version)
        known = self._machines.get(key)
        if known is not None and not replace:
            if known.definition is definition and (isinstance(machine, type) or known.machine is machine):
                return known
            raise DuplicateMachineError(*key, known.definition.location, definition.location)
        used: Any = _made(machine) if self._makes_objects else machine
        registered = Registered(definition, used, not isinstance(machine, type))
        self._machines[key] = registered
        self._index()
        return registered

    def find(self, fsm: str, version: int) -> Registered:
        """Return the machine that runs a row; raise UnknownMachineError if none is registered."""
        try:
            return self._runs[fsm, version]
        except KeyError:
            raise UnknownMachineError(fsm, version, tuple(self._runs)) from None

    def get(self, fsm: str, version: int) -> Registered | None:
        """Return the machine that runs a row; `None` if none is registered."""
        return self._runs.get((fsm, version))

    def with_current_steps(self, executions: list[Execution]) -> list[Execution]:
        """Replace the steps of executions that are stored at a former name by their current names."""
        renamed = self._renamed
        if not renamed:
            return executions
        return [
            one
            if (name := renamed.get((one.fsm, one.version, one.step))) is None
            else msgspec.structs.replace(one, step=name)
            for one in executions
        ]

    @property
    def leases(self) -> dict[tuple[str, int, str], timedelta]:
        """Lease lengths of the steps that declare one, by every name under which a row may have them."""
        return {
            (*key, name): step.lease
            for key, registered in self._runs.items()
            for step in registered.definition.steps.values()
            if step.lease is not None
            for name in (step.name, *step.was)
        }

    def histories(self, level: HistoryLevel) -> frozenset[str]:
        """The names of machines that keep their history; `level` is that of machines which do not say it.

        If the versions of a machine differ, all keep it.
        """
        return frozenset(machine.name for machine in self if (machine.history or level) == "all")

    @property
    def keys(self) -> tuple[list[str], list[int]]:
        """Names and versions of the rows that it runs as two parallel lists, as the pick takes them."""
        return [fsm for fsm, _ in self._runs], [version for _, version in self._runs]

    @property
    def steps(self) -> list[list[str]]:
        """For each of `keys`, the steps at which it runs rows, former names included."""
        return [
            [name for step in registered.definition.steps.values() for name in (step.name, *step.was)]
            for registered in self._runs.values()
        ]

    @property
    def undo_steps(self) -> frozenset[str]:
        """The names of all undo steps."""
        return self._undo_steps

    @property
    def machines(self) -> list[Machine[Any, Any] | Job[Any, Any]]:
        """The objects whose methods are the steps."""
        return [registered.machine for registered in self._machines.values()]

    @property
    def descriptions(self) -> list[tuple[int, Description]]:
        """For each of `keys`, the version and the machine as workers store it in the table `machines`."""
        return [(version, describe(registered.machine)) for (_, version), registered in self._runs.items()]

    def __iter__(self) -> Iterator[MachineDef]:
        return (registered.definition for registered in self._machines.values())

    def __len__(self) -> int:
        return len(self._machines)

    def _index(self) -> None:
        """Rebuild what is derived from the machines."""
        oldest_first = sorted(self._machines.items(), key=lambda item: item[0][1])
        upgraded = {
            (name, version): registered
            for (name, _), registered in oldest_first
            for version in registered.definition.upgrades
        }
        self._runs = self._machines | {
            key: registered for key, registered in upgraded.items() if key not in self._machines
        }
        self._undo_steps = frozenset(
            name for registered in self._runs.values() for name in registered.definition.undo_steps
        )
        self._renamed = {
            (*key, former): step.name
            for key, registered in self._runs.items()
            for step in registered.definition.steps.values()
            for former in step.was
        }


def _flat(machines: Machines) -> Iterator[Insertable[Any, Any]]:
    if isinstance(machines, type | Definition | ModuleType):
        name = getattr(machines, "__name__", type(machines).__name__)
        raise UsageError(f"{name} is not a list of machines", f"write [{name}]")
    for item in machines:
        if isinstance(item, ModuleType):
            found = [value for value in vars(item).values() if _is_machine_of(value, item)]
            if not found:
                raise UsageError(
                    f"module {item.__name__} defines no machine",
                    "pass a module that defines one, or the machines",
                )
            yield from found
        else:
            yield item


def _is_machine_of(value: object, module: ModuleType) -> bool:
    if isinstance(value, Job):
        return value.__module__ == module.__name__
    return (
        isinstance(value, type)
        and issubclass(value, Definition)
        and value.__module__ == module.__name__
        and hasattr(value, "__definition__")
    )


def _class_of(machine: Any) -> type[Machine[Any, Any]]:
    return machine if isinstance(machine, type) else type(machine)


def _made(machine: Any) -> Machine[Any, Any] | Job[Any, Any]:
    if not isinstance(machine, type):
        made: Machine[Any, Any] | Job[Any, Any] = machine
        return made
    try:
        inspect.signature(machine).bind()
    except TypeError as error:
        raise DefinitionError(
            f"{machine.__name__}() needs arguments ({error}); "
            f"pass an object to the worker: Worker([{machine.__name__}(…)]). For `gen-durable worker app.py:machines`, "
            f"write in app.py: machines = [{machine.__name__}(…)]"
        ) from None
    return machine()  # type: ignore[no-any-return]  # a class of machines makes one
