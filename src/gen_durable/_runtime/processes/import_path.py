"""How another process finds a machine or function: by its module, the file of the module, and its name there."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import reduce
from types import ModuleType
from typing import Any, Final

import msgspec

from ..._core.registry import Registered
from ...errors import OptionError, UsageError
from ...jobs import Job

__all__ = ["ImportPath", "import_path", "load_file", "machine_path"]

_MAIN: Final = "__main_of_worker__"
"""The name of the worker's `__main__` module in a process of the pool, which has another `__main__`."""


class ImportPath(msgspec.Struct, frozen=True):
    """Where an object is defined."""

    module: str
    file: str | None
    name: str

    def load(self) -> Any:
        """Import the module if needed, and return the object."""
        return reduce(getattr, self.name.split("."), _module(self.module, self.file))


def machine_path(registered: Registered) -> ImportPath:
    """Return where another process finds this machine.

    Raises:
        OptionError: another process cannot import it.
    """
    machine = registered.machine
    name = machine._function.__qualname__ if isinstance(machine, Job) else type(machine).__qualname__  # noqa: SLF001
    attributes = (
        []
        if isinstance(machine, Job)
        else [each for each in vars(machine) if each not in registered.definition.steps]
    )
    if registered.is_object and attributes:
        raise OptionError(
            f"{_process_steps(registered)}, but it is given as an object with attributes: {', '.join(attributes)}",
            "give the class: each process creates its own object",
        )
    module = machine.__module__ if isinstance(machine, Job) else type(machine).__module__
    try:
        return import_path(module, name)
    except UsageError as error:
        raise OptionError(f"{_process_steps(registered)}, but {error.problem}", error.advice) from None


def import_path(module: str, name: str) -> ImportPath:
    """Return the path of a name in a module of this process.

    Raises:
        UsageError: another process cannot import it.
    """
    if "<" in name:
        raise UsageError(f"{name} is defined inside a function", "move it to the top level of its module")
    known = sys.modules.get(module)
    spec = getattr(known, "__spec__", None)
    if module == "__main__" and spec is not None:
        return ImportPath(spec.name, None, name)
    file = getattr(known, "__file__", None)
    if module == "__main__" and file is None:
        raise UsageError("the program is not in a file", "write it to a module")
    return ImportPath(_MAIN if module == "__main__" else module, file, name)


def load_file(name: str, file: str) -> ModuleType:
    """Run a file as the module of this name."""
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    # Register it before it runs: annotations are resolved by the module's name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _process_steps(registered: Registered) -> str:
    steps = [step.name for step in registered.definition.steps.values() if step.pool == "process"]
    return f"'{registered.definition.name}' has pool=\"process\" at {', '.join(steps)}"


def _module(name: str, file: str | None) -> ModuleType:
    if name == _MAIN and getattr(sys.modules["__main__"], "__file__", None) == file:
        return sys.modules["__main__"]  # this process is the worker
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) == file:
        return sys.modules[name]
    try:
        found = importlib.import_module(name)
    except ModuleNotFoundError:
        if file is None:
            raise
    else:
        if file is None or getattr(found, "__file__", None) == file:
            return found
    return load_file(name, file)
