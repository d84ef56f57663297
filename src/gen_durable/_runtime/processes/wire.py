"""What crosses between a worker and the processes of its pool: JSON in frames, never a pickle.

A machine is named, not sent: by its module, the file of that, and its name there. So are effects that are functions.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import typing
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from functools import reduce
from types import ModuleType
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from ..._core.model import ChildContent, CommitEntry, Execution
from ..._core.registry import Registered
from ..._core.settle import Bounds
from ...context import Cancellation
from ...errors import OptionError, UsageError
from ...jobs import Job
from ...outcome import Effect, Sql

__all__ = [
    "Answer",
    "Fetch",
    "Fetched",
    "Hello",
    "Place",
    "Ready",
    "Request",
    "answer_of",
    "decoded",
    "encoded",
    "entry_of",
    "load_file",
    "place_of",
]

MAIN: Final = "__main_of_worker__"
"""What the program is called in a process of the pool, where `__main__` is something else."""

# What an argument of Sql may be: JSON says which of them it was.
_SCALARS: Final = (
    type(None),
    bool,
    int,
    float,
    str,
    bytes,
    datetime,
    date,
    time_of_day,
    timedelta,
    Decimal,
    UUID,
)
_NAMED: Final = {each.__name__: each for each in _SCALARS}


class Place(msgspec.Struct, frozen=True):
    """Where something is written."""

    module: str
    file: str | None
    name: str

    def find(self) -> Any:
        """What is there, imported if need be."""
        return reduce(getattr, self.name.split("."), _module(self.module, self.file))


class Hello(msgspec.Struct, frozen=True):
    """The first thing a process of the pool hears."""

    machines: list[tuple[str, int, Place]]
    first: list[tuple[str, int]]
    """Those to import before it is ready."""
    bounds: Bounds


class Ready(msgspec.Struct, frozen=True):
    """It has imported what it needs, or could not."""

    error: str | None = None


class Request(msgspec.Struct, frozen=True):
    """One execution."""

    execution: Execution
    may_chain: bool


class _Effect(msgspec.Struct, frozen=True):
    query: str | None = None
    args: list[tuple[str, Any]] = []
    function: Place | None = None


class Fetch(msgspec.Struct, frozen=True, tag=True):
    """A step in a process of the pool needs content that was not loaded with its execution."""

    what: Literal["signals", "children"]
    ids: list[int]


class Fetched(msgspec.Struct, frozen=True):
    """That content, or why it could not be read."""

    signals: dict[int, str] = {}
    children: dict[int, ChildContent] = {}
    error: str | None = None


class Answer(msgspec.Struct, frozen=True, tag=True):
    """What is to be committed, and what was said meanwhile."""

    entry: dict[str, Any]
    effect: _Effect | None
    raised: str | None
    """What the step raised, if its handler decided."""
    told: list[tuple[int, str]]


# The worker has the execution already, and an effect is packed separately.
_HINTS: Final = {
    name: kind
    for name, kind in typing.get_type_hints(CommitEntry).items()
    if name not in ("execution", "effect")
}
_Entry: Final = msgspec.defstruct("_Entry", list(_HINTS.items()), kw_only=True)


def encoded(message: msgspec.Struct) -> bytes:
    """A message as a frame: its length in four bytes, and JSON."""
    text = msgspec.json.encode(message, enc_hook=_plain)
    return len(text).to_bytes(4, "big") + text


def decoded(text: bytes, kind: Any) -> Any:
    """A message from the inside of a frame."""
    return msgspec.json.decode(text, type=kind, dec_hook=_unplain)


def answer_of(entry: CommitEntry, raised: str | None, told: list[tuple[int, str]]) -> Answer:
    """An entry on its way to the worker.

    Raises:
        UsageError: its effect cannot leave this process.
    """
    effect = None if entry.effect is None else _packed(entry.effect)
    return Answer({name: getattr(entry, name) for name in _HINTS}, effect, raised, told)


def entry_of(answer: Answer, execution: Execution) -> CommitEntry:
    """The entry in an answer about this execution."""
    plain = msgspec.convert(answer.entry, _Entry, strict=False)
    fields = {name: getattr(plain, name) for name in _HINTS}
    effect = None if answer.effect is None else _unpacked(answer.effect)
    return CommitEntry(execution=execution, **fields, effect=effect)


def place_of(registered: Registered) -> Place:
    """Where another process finds this machine.

    Raises:
        OptionError: it cannot be found from there.
    """
    machine = registered.machine
    name = machine._function.__qualname__ if isinstance(machine, Job) else type(machine).__qualname__  # noqa: SLF001
    held = (
        []
        if isinstance(machine, Job)
        else [each for each in vars(machine) if each not in registered.definition.steps]
    )
    if registered.is_object and held:
        raise OptionError(
            f"{_steps_there(registered)}, but it is given as an object that holds {', '.join(held)}",
            "give the class: another process makes an object of its own",
        )
    module = machine.__module__ if isinstance(machine, Job) else type(machine).__module__
    try:
        return _place(module, name)
    except UsageError as error:
        raise OptionError(f"{_steps_there(registered)}, but {error.problem}", error.advice) from None


def _steps_there(registered: Registered) -> str:
    steps = [step.name for step in registered.definition.steps.values() if step.pool == "process"]
    return f"'{registered.definition.name}' has pool=\"process\" at {', '.join(steps)}"


def _place(module: str, name: str) -> Place:
    if "<" in name:
        raise UsageError(f"{name} is defined inside of a function", "move it to the top of its module")
    known = sys.modules.get(module)
    spec = getattr(known, "__spec__", None)
    if module == "__main__" and spec is not None:
        return Place(spec.name, None, name)
    file = getattr(known, "__file__", None)
    if module == "__main__" and file is None:
        raise UsageError("its program is in no file", "write it into a module")
    return Place(MAIN if module == "__main__" else module, file, name)


def _module(name: str, file: str | None) -> ModuleType:
    if name == MAIN and getattr(sys.modules["__main__"], "__file__", None) == file:
        return sys.modules["__main__"]  # this is the worker itself
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


def load_file(name: str, file: str) -> ModuleType:
    """Run a file as the module of this name."""
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Known by its name before it runs: annotations are looked up there.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _packed(effect: Effect) -> _Effect:
    if isinstance(effect, Sql):
        return _Effect(query=effect.query, args=[_argument(value) for value in effect.args])
    module, name = getattr(effect, "__module__", ""), getattr(effect, "__qualname__", "")
    try:
        place = _place(module, name)
        if place.find() is effect:
            return _Effect(function=place)
    except (UsageError, AttributeError, ImportError):
        pass
    raise UsageError(
        f"the effect {name or type(effect).__name__} cannot leave the process that its step ran in",
        "give Sql(text, *arguments), or an `async def` at the top of a module",
    )


def _argument(value: Any) -> tuple[str, Any]:
    kind = type(value)
    if kind in _SCALARS:
        return kind.__name__, value
    try:
        if msgspec.json.decode(msgspec.json.encode(value)) == value:
            return "", value
    except (TypeError, ValueError):
        pass
    raise UsageError(
        f"an argument of Sql of type {kind.__name__} cannot leave the process that its step ran in",
        "give plain values, and cast in the statement",
    )


def _unpacked(effect: _Effect) -> Effect:
    if effect.query is None:
        assert effect.function is not None  # noqa: S101 - it is one or the other
        found: Effect = effect.function.find()
        return found
    values = (
        value if not kind else msgspec.convert(value, _NAMED[kind], strict=False)
        for kind, value in effect.args
    )
    return Sql(effect.query, *values)


def _plain(value: Any) -> Any:
    if isinstance(value, Cancellation):
        return value.is_requested
    raise NotImplementedError


def _unplain(kind: type[Any], value: Any) -> Any:
    if kind is Cancellation:
        return Cancellation(is_requested=value)
    raise NotImplementedError
