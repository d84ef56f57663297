"""What a user means by `app.py`, `app.py:machines` or `shop.machines:worker`."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from .._dictionary import did_you_mean
from .._runtime.processes.import_path import load_file
from ..definition import Definition
from ..errors import GenDurableError
from ..jobs import Job
from ..schedules import Schedule
from ..worker import Worker
from .failure import Failure

__all__ = ["Machines", "load"]

Machines: TypeAlias = list[type[Definition[Any, Any]] | Definition[Any, Any] | Schedule]
"""Machines, and schedules beside them."""


def load(target: str) -> Machines | Worker:
    """The machines behind a target, or the worker that it holds ready-made."""
    place, _, name = target.partition(":")
    module = _module(place)
    if name:
        return _meant(_attribute(module, place, name), target)
    machines = _machines_of(module)
    if not machines:
        raise Failure(f"{place} defines no machine; name what holds them: {place}:machines")
    return [*machines, *(value for value in vars(module).values() if isinstance(value, Schedule))]


def _module(place: str) -> ModuleType:
    """Import a file or a dotted name; the current directory is on the path, as it is for `python` itself."""
    _prepend(Path.cwd())
    is_file = place.endswith(".py")
    path = Path(place).resolve()
    if is_file and not path.is_file():
        raise Failure(f"there is no file {path}")
    try:
        return _import_file(path) if is_file else importlib.import_module(place)
    except GenDurableError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and not is_file and _is_part(error.name, place):
            raise Failure(
                f"there is no module {place}, seen from {Path.cwd()}; a file works too: app.py"
            ) from error
        raise Failure(_told(error, place)) from error


def _import_file(path: Path) -> ModuleType:
    """Import a file under the name by which its neighbours would import it."""
    top, parts = path.parent, [path.stem]
    while (top / "__init__.py").is_file():
        parts.insert(0, top.name)
        top = top.parent
    _prepend(top)
    name = ".".join(parts)
    if len(parts) > 1:
        return importlib.import_module(name)
    if name in sys.modules:
        name = f"{name} of {path.parent}"  # a file queue.py must not take the place of the standard library's
    return load_file(name, str(path))


def _prepend(directory: Path) -> None:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))


def _machines_of(module: ModuleType) -> Machines:
    """The machines and jobs that are written in this module, in the order of the file; a base class is none."""
    return [
        value
        for value in vars(module).values()
        if (isinstance(value, Job) or (isinstance(value, type) and issubclass(value, Definition)))
        and "__definition__" in vars(value)
        and value.__module__ == module.__name__
    ]


def _attribute(module: ModuleType, place: str, name: str) -> object:
    if not hasattr(module, name):
        known = [each for each in vars(module) if not each.startswith("_")]
        raise Failure(f"{place} has no '{name}'{did_you_mean(name, known)}")
    value: object = getattr(module, name)
    return value


def _meant(value: object, target: str) -> Machines | Worker:
    if isinstance(value, Worker):
        return value
    found: list[Any] = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    odd = [each for each in found if not _is_machine(each)]
    if odd:
        raise Failure(
            f"{target} is or holds a {type(odd[0]).__name__}; give a machine, a list of them, or a Worker"
        )
    if all(isinstance(each, Schedule) for each in found) and found:
        raise Failure(f"{target} has schedules only; give the machines as well")
    if not found:
        raise Failure(f"{target} is empty; give a machine, a list of them, or a Worker")
    return found


def _is_machine(value: object) -> bool:
    return isinstance(value, Schedule) or issubclass(
        value if isinstance(value, type) else type(value), Definition
    )


def _is_part(missing: str | None, place: str) -> bool:
    return missing is not None and f"{place}.".startswith(f"{missing}.")


def _told(error: Exception, place: str) -> str:
    """The error as Python tells it, from the user's first line on: how we got there is of no interest."""
    frames = error.__traceback__
    while frames is not None and _is_machinery(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    told = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
    return f"{place} cannot be imported\n{told}"


def _is_machinery(file: str) -> bool:
    return file in (__file__, load_file.__code__.co_filename) or "importlib" in file
