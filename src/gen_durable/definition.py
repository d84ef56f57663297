"""`MachineDef` and `StepDef`: the immutable definition that is read from a machine class or job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final, Generic, Literal, TypeAlias

import msgspec

from ._checks import checked_int, checked_name
from ._typing import ResultT, StateT
from .config import HistoryLevel
from .errors import InitialStepError, OptionError, UnknownStepError, UsageError
from .retry import Backoff

__all__ = [
    "NO_DEFAULTS",
    "Defaults",
    "Definition",
    "MachineDef",
    "Pool",
    "StepDef",
    "StepRef",
    "definition_of",
    "step_name",
]


Pool: TypeAlias = Literal["thread", "process"]
"""Where a plain `def` step runs: in a thread or a process of the worker."""


class StepRef(Generic[StateT]):
    """A reference to a step: `self.ship`, `Checkout.ship`. `StateT` is the state that the step takes."""

    name: str


class StepDef(msgspec.Struct, frozen=True, kw_only=True):
    """The definition of one step."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    is_initial: bool = False
    retry: Backoff | None = None
    """The retry policy of the default `handle`: that of the step, or of its machine."""
    lease: timedelta | None = None
    """How long an execution keeps its lease without a heartbeat; `None`: `settings.lease`."""
    interrupt: bool = False
    """Whether a cancel interrupts the step at its next `await`."""
    timeout: timedelta | None = None
    """How long the step may run; `None`: no limit."""
    pool: Pool = "thread"
    """Where a plain `def` runs."""
    to: tuple[str, ...] | None = None
    """The steps that may follow; `None` if not declared."""
    was: tuple[str, ...] = ()
    """Former names of the step: it runs instances that are stored at one of them."""
    undo: str | None = None
    """The step that undoes this one when the instance fails or is cancelled later."""
    on_cancel: str | None = None
    """The step that a cancel of an instance at this step leads to."""
    checkpoint: Any = Any
    """The type of `ctx.checkpoint`; `Any`: JSON data."""
    on_failure: str | None = None
    """The step that follows when this one has failed for good; `None`: the instance fails."""


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """Options of an insert that apply if the caller does not give them."""

    priority: int = 0
    max_attempts: int | None = None
    concurrency_key: str | Callable[[Any], Any] | None = None
    """The key, or a function of the state that returns it."""
    rate_limit: str | Callable[[Any], Any] | None = None
    """The same for the rate limit of the first start."""

    @property
    def computed(self) -> tuple[str, ...]:
        """The options that are functions of the state: without code they are unknown."""
        return tuple(name for name in ("concurrency_key", "rate_limit") if callable(getattr(self, name)))


NO_DEFAULTS: Final = Defaults()


class MachineDef(msgspec.Struct, frozen=True, kw_only=True):
    """The definition of one version of a machine."""

    name: str
    version: int
    queue: str
    steps: Mapping[str, StepDef]
    initial: str
    state_type: Any
    result_type: Any
    signals: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Payload types by signal name; `None` for a signal without payload."""
    streams: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Item types by stream name."""
    location: str = ""
    """Module and qualified name, for messages: `shop.Checkout`."""
    dead_letter: str | None = None
    """The job that is inserted with payload and error when an instance fails."""
    keep: bool = True
    """Whether done instances stay until `retention_done` is over. `False`: the commit deletes them."""
    history: HistoryLevel | None = None
    """Whether transitions keep the states that they wrote; `None`: `settings.history`."""
    undo_steps: frozenset[str] = frozenset()
    """The steps that undo others. They end with a `Done()` without result."""
    upgrades: Mapping[int, Callable[[Any], Any]] = msgspec.field(
        default_factory=dict[int, Callable[[Any], Any]]
    )
    """By version: the function that turns a stored state of that version into one of the next version."""
    is_job: bool = False
    """Whether it is a job: its state is the payload of the caller, which no outcome changes."""
    retention: Mapping[str, timedelta] = msgspec.field(default_factory=dict[str, timedelta])
    """How long ended instances are kept, by status: `done`, `failed`, `cancelled`. Others: by the settings."""
    defaults: Defaults = NO_DEFAULTS
    """Options of inserts that do not give them."""

    def find_step(self, name: str) -> StepDef | None:
        """Return the step with this name or former name."""
        step = self.steps.get(name)
        if step is None:
            step = next((each for each in self.steps.values() if name in each.was), None)
        return step

    def can_read(self, version: int) -> bool:
        """Whether it can run instances of this version: its own, or one that it upgrades."""
        return version == self.version or version in self.upgrades

    def _check_options(self, of: str) -> None:
        if not isinstance(self.keep, bool):
            raise OptionError(f"keep {of} is {self.keep!r}", "give True or False")
        if self.history not in (None, "off", "all"):
            raise OptionError(f"history {of} is {self.history!r}", "give 'off' or 'all'")

    def __post_init__(self) -> None:
        checked_name(self.name, f"the name of machine {self.location}", OptionError)
        of = f"of machine '{self.name}'"
        checked_int(self.version, f"the version {of}", 1, 2**31 - 1, OptionError)
        checked_name(self.queue, f"the queue {of}", OptionError)
        self._check_options(of)
        for signal in self.signals:
            checked_name(signal, f"a signal name {of}", OptionError)
        if self.initial not in self.steps:
            raise InitialStepError(self.name, ())
        for step in self.steps.values():
            checked_name(step.name, f"a step name {of}", OptionError)
            for target in step.to or ():
                if target not in self.steps:
                    raise UnknownStepError(self.name, target, tuple(self.steps), f"to= of step '{step.name}'")
            for option, other in (
                ("undo", step.undo),
                ("on_cancel", step.on_cancel),
                ("on_failure", step.on_failure),
            ):
                if other == step.name:
                    raise OptionError(
                        f"{option}= of step '{step.name}' is the step itself", "name another step"
                    )
                if other is not None and other not in self.steps:
                    where = f"{option}= of step '{step.name}'"
                    raise UnknownStepError(self.name, other, tuple(self.steps), where)
        self._check_former_names()
        self._check_upgrades()

    def _check_former_names(self) -> None:
        taken: dict[str, str] = {}
        for step in self.steps.values():
            for former in step.was:
                where = f"was= of step '{step.name}' of machine '{self.name}'"
                checked_name(former, where, OptionError)
                if former in self.steps:
                    raise OptionError(
                        f"{where} names '{former}', which is a step of the machine",
                        "remove the name from was=, or remove the step",
                    )
                if former in taken:
                    raise OptionError(
                        f"{where} names '{former}', and so does step '{taken[former]}'",
                        "give each former name to one step",
                    )
                taken[former] = step.name

    def _check_upgrades(self) -> None:
        for version in self.upgrades:
            of = f"the upgrade from version {version!r} of machine '{self.name}'"
            checked_int(version, f"from_version of {of}", 1, 2**31 - 1, OptionError)
            missing = next((n for n in range(version, self.version) if n not in self.upgrades), None)
            if version >= self.version:
                raise OptionError(
                    f"{of} does not lead to its version, {self.version}",
                    f"raise version= of the machine to {version + 1}, or correct from_version",
                )
            if missing is not None:
                raise OptionError(
                    f"{of} ends at version {missing}: the machine has version {self.version}, but no upgrade from "
                    f"version {missing}",
                    f"add a function with @upgrade(from_version={missing})",
                )


class Definition(Generic[StateT, ResultT]):
    """Base class of machines and jobs. `StateT` is the type of the state, `ResultT` that of the result."""

    __definition__: MachineDef


def definition_of(insertable: type[Definition[Any, Any]] | Definition[Any, Any]) -> MachineDef:
    """Return the definition of a machine class, an object of one, or a job."""
    cls = insertable if isinstance(insertable, type) else type(insertable)
    if not issubclass(cls, Definition):
        raise UsageError(
            f"{repr(insertable) if isinstance(insertable, str) else cls.__name__} is neither a machine nor a job",
            "give a subclass of Machine, an object of one, or a job",
        )
    definition: MachineDef | None = getattr(insertable, "__definition__", None)
    if definition is None:
        raise InitialStepError(cls.__name__, ())
    return definition


def step_name(step: StepRef[Any] | str) -> str:
    """Return the name of a step given by reference or by name."""
    if isinstance(step, StepRef):
        return step.name
    if isinstance(step, str):
        return checked_name(step, "the name of a step")
    raise UsageError(
        f"a value of type {type(step).__name__} is not a step",
        "mark the method with @step and pass it without calling it: Next(self.ship)",
    )
