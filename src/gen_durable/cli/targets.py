"""Load the target of a worker: `app.py`, `app.py:machines` or `shop.machines:worker`."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import click

from .._dictionary import did_you_mean
from .._runtime.processes.import_path import load_file
from ..definition import Definition, definition_of
from ..errors import GenDurableError
from ..jobs import Job
from ..schedules import Schedule
from ..worker import Worker
from .failure import Failure
from .rows import clean

__all__ = ["Machines", "load", "variables"]

Machines: TypeAlias = list[type[Definition[Any, Any]] | Definition[Any, Any] | Schedule]
"""Machines, jobs and schedules."""


def load(target: str, *, to_run: bool = False) -> Machines | Worker:
    """Return the machines of a target, or its `Worker`.

    Args:
        target: a file or module, or a variable of one.
        to_run: warn if the module has a `Worker` that the target does not name.
    """
    place, _, name = target.partition(":")
    module = _module(place)
    values = _exposed(module)
    schedules = [value for value in values if isinstance(value, Schedule)]
    if name:
        return _with_schedules(_checked(_attribute(module, place, name), target), schedules, target)
    machines = _machines(values)
    if not machines:
        raise Failure(f"{place} has no machine. If a variable holds them, name it: {place}:machines")
    if to_run:
        _warn_of_worker(module, place)
    return [*machines, *schedules]


def variables(place: str, machines: Iterable[object]) -> list[str]:
    """Return the variables of a loaded file or module that hold one of these machines and jobs each."""
    path = str(Path(place).resolve())
    found = [
        module
        for name, module in list(sys.modules.items())
        if name == place or getattr(module, "__file__", None) == path
    ]
    ids = {id(each) for each in machines}
    return [name for module in found[-1:] for name, value in vars(module).items() if id(value) in ids]


def _warn_of_worker(module: ModuleType, place: str) -> None:
    """Warn that the queues, sinks, schedules and settings of a `Worker` do not apply."""
    name = next((name for name, value in vars(module).items() if isinstance(value, Worker)), None)
    if name:
        text = f"the Worker of {place} is not used, only its machines; to run it: {place}:{name}"
        click.echo(f"warning: {clean(text)}", err=True)


def _module(place: str) -> ModuleType:
    """Import a file or a dotted name, with the current directory on the path."""
    _prepend(Path.cwd())
    is_file = place.endswith(".py")
    path = Path(place).resolve()
    if is_file and not path.is_file():
        raise Failure(f"file {path} does not exist")
    try:
        return _import_file(path) if is_file else importlib.import_module(place)
    except GenDurableError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and not is_file and _is_part(error.name, place):
            raise Failure(
                f"module {place} not found from {Path.cwd()}. For a file, write its name with .py: app.py"
            ) from error
        raise Failure(_import_failure(error, place)) from error


def _import_file(path: Path) -> ModuleType:
    """Import a file under the name by which the modules of its package import it."""
    top, parts = path.parent, [path.stem]
    while (top / "__init__.py").is_file():
        parts.insert(0, top.name)
        top = top.parent
    _prepend(top)
    name = ".".join(parts)
    if len(parts) > 1:
        return importlib.import_module(name)
    if name in sys.modules:
        name = (
            f"{name} of {path.parent}"  # a file queue.py must not replace the module of the standard library
        )
    return load_file(name, str(path))


def _prepend(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def _exposed(module: ModuleType) -> list[object]:
    """Return the values that a module exposes, imported ones included: those in `__all__`, or all if it has none."""
    names: Iterable[str] = getattr(module, "__all__", vars(module))
    values = [vars(module)[name] for name in names if name in vars(module)]
    return list({id(value): value for value in values}.values())


def _machines(values: list[object]) -> list[Any]:
    """Return the machines and jobs among these values, without the classes of which there is an object."""
    machines = [value for value in values if _is_definition(value)]
    of_objects = {type(value) for value in machines}
    return [value for value in machines if not (isinstance(value, type) and value in of_objects)]


def _is_definition(value: object) -> bool:
    """Whether it is a job, a machine object or a machine class; a base class without steps is not one."""
    if isinstance(value, Job):
        return True
    made = value if isinstance(value, type) else type(value)
    return issubclass(made, Definition) and "__definition__" in vars(made)


def _with_schedules(loaded: Machines | Worker, schedules: list[Schedule], target: str) -> Machines | Worker:
    """Add the schedules of the file that insert one of the machines, unless the variable has schedules of its own."""
    if isinstance(loaded, Worker) or any(isinstance(each, Schedule) for each in loaded):
        return loaded
    names = {definition_of(each).name for each in loaded if not isinstance(each, Schedule)}
    for each in schedules:
        machine = definition_of(each.spec.definition).name
        if machine in names:
            loaded.append(each)
        else:
            text = f"schedule {each.name} is not stored: {target} does not have its machine {machine}"
            click.echo(f"warning: {clean(text)}", err=True)
    return loaded


def _attribute(module: ModuleType, place: str, name: str) -> object:
    if not hasattr(module, name):
        known = [
            name for name, value in vars(module).items() if _is_definition(value) or isinstance(value, Worker)
        ]
        raise Failure(f"{place} has no '{name}'{did_you_mean(name, known)}")
    value: object = getattr(module, name)
    return value


def _checked(value: object, target: str) -> Machines | Worker:
    if isinstance(value, Worker):
        return value
    found: list[Any] = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    odd = [each for each in found if not _is_machine(each)]
    if odd:
        kind = type(odd[0]).__name__
        raise Failure(
            f"{target} contains a value of type {kind}. Give a machine, a list of machines, or a Worker."
        )
    if all(isinstance(each, Schedule) for each in found) and found:
        raise Failure(f"{target} contains only schedules. Add the machines that they insert.")
    if not found:
        raise Failure(f"{target} is empty. Give a machine, a list of machines, or a Worker.")
    return found


def _is_machine(value: object) -> bool:
    return isinstance(value, Schedule) or issubclass(
        value if isinstance(value, type) else type(value), Definition
    )


def _is_part(missing: str | None, place: str) -> bool:
    return missing is not None and f"{place}.".startswith(f"{missing}.")


def _import_failure(error: Exception, place: str) -> str:
    """Return the traceback from the first line of user code on."""
    frames = error.__traceback__
    while frames is not None and _is_import_machinery(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    text = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
    return f"{place} cannot be imported:\n{text}"


def _is_import_machinery(file: str) -> bool:
    return file in (__file__, load_file.__code__.co_filename) or "importlib" in file
