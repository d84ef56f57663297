"""What an instance is an instance of: a definition, read once from a class and never changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Generic, Literal, TypeAlias

import msgspec

from ._checks import checked_int, checked_name
from ._typing import ResultT, StateT
from .errors import InitialStepError, OptionError, UnknownStepError, UsageError
from .retry import Backoff

__all__ = ["Definition", "MachineDef", "Pool", "StepDef", "StepRef", "definition_of", "step_name"]


Pool: TypeAlias = Literal["thread", "process"]
"""Where plain `def` steps run: a thread of the worker, or a process of its own."""


class StepRef(Generic[StateT]):
    """A step that is meant, not called: `self.ship`, `Checkout.ship`. `StateT` is the state that it takes."""

    name: str


class StepDef(msgspec.Struct, frozen=True, kw_only=True):
    """One step, as workers see it."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    is_initial: bool = False
    retry: Backoff | None = None
    """The policy of the default handler: the step's own, else that of its machine."""
    lease: timedelta | None = None
    """How long its executions stay leased without a heartbeat; as the worker says if left out."""
    interrupt: bool = False
    """Whether a cancel request cuts it off where it awaits, instead of waiting for it to end."""
    timeout: timedelta | None = None
    """How long it may run; as long as it likes if left out."""
    pool: Pool = "thread"
    """Where a plain `def` runs."""
    to: tuple[str, ...] | None = None
    """The only steps that it may lead to; `None` when that is not declared."""


class MachineDef(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a machine, as workers and clients see it."""

    name: str
    version: int
    queue: str
    steps: Mapping[str, StepDef]
    initial: str
    state_type: Any
    result_type: Any
    signals: Mapping[str, Any] = msgspec.field(default_factory=dict[str, Any])
    """Payload types by the name of the signal; `None` for one that carries nothing."""
    location: str = ""
    """Where it is written, for messages: `shop.Checkout`."""
    dead_letter: str | None = None
    """The job that is inserted, with the failed payload, when an instance fails."""

    def __post_init__(self) -> None:
        checked_name(self.name, f"the name of machine {self.location}", OptionError)
        of = f"of machine '{self.name}'"
        checked_int(self.version, f"the version {of}", 1, 2**31 - 1, OptionError)
        checked_name(self.queue, f"the queue {of}", OptionError)
        for signal in self.signals:
            checked_name(signal, f"a signal name {of}", OptionError)
        if self.initial not in self.steps:
            raise InitialStepError(self.name, ())
        for step in self.steps.values():
            checked_name(step.name, f"a step name {of}", OptionError)
            for target in step.to or ():
                if target not in self.steps:
                    raise UnknownStepError(self.name, target, tuple(self.steps), f"to= of step '{step.name}'")


class Definition(Generic[StateT, ResultT]):
    """Whatever can be inserted. `StateT` is the type of its state, `ResultT` that of its result."""

    __definition__: MachineDef


def definition_of(insertable: type[Definition[Any, Any]] | Definition[Any, Any]) -> MachineDef:
    """Find the definition behind a machine (its class, or an object of it) or a job."""
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
    """Find the name of a step that was given by reference or by name."""
    if isinstance(step, StepRef):
        return step.name
    if isinstance(step, str):
        return checked_name(step, "the name of a step")
    raise UsageError(
        f"a value of type {type(step).__name__} is not a step",
        "mark the method with @step and pass it uncalled: Next(self.ship)",
    )
