"""One step alone: values in, a value out, no database."""

from __future__ import annotations

import inspect
from collections.abc import Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypedDict, Unpack, overload

from .._core.settle import checked_outcome
from .._typing import StateT, TypeVar
from ..context import Children, Context
from ..definition import Definition
from ..instance import Child
from ..machine import BoundStep
from ..outcome import Outcome
from ..signals import Inbox, Message, Signal, signal_name
from ._loop import Loop

__all__ = ["ContextOptions", "context", "run_step", "run_step_async"]

_OutcomeT = TypeVar("_OutcomeT", bound=Outcome[Any], default=Any)
_SENT_AT: Final = datetime(2020, 1, 1, tzinfo=UTC)


class ContextOptions(TypedDict, total=False):
    """What a step may find in its context. Everything may be left out."""

    attempt: int
    """How often this step was tried before; 0 if left out."""
    awaited: Iterable[tuple[Signal[Any] | str, Any]]
    """The signals that woke it, with their payloads; they are in its inbox as well."""
    inbox: Iterable[tuple[Signal[Any] | str, Any]]
    """Other signals that have come."""
    timed_out: bool
    """Whether a timeout woke it."""
    children: Sequence[Child[Any]]
    """The children that it waited for."""
    id: int
    step_seq: int
    parent_id: int | None
    correlation_key: str | None
    resources: Any
    """What the worker's lifespan would hold ready."""


def context(
    state: StateT, /, *, machine: str = "test", step: str = "test", **options: Unpack[ContextOptions]
) -> Context[StateT]:
    """A context as a step would get it, for whoever calls a job, a step or `handle` himself.

        charge = await invoice_charge(Invoice(7, 1000), context(Invoice(7, 1000), attempt=2))
        outcome = Checkout().handle(TimeoutError(), context(Order(42), attempt=5))

    Args:
        state: what `ctx.state` is; of a job, the payload.
        machine: the name in `ctx.machine`.
        step: the name in `ctx.step`.
        options: attempt, awaited, inbox, timed_out, children, id, step_seq, parent_id, correlation_key, resources.
    """
    awaited = tuple(options.get("awaited", ()))
    messages = _messages((*awaited, *options.get("inbox", ())))
    return Context(
        id=options.get("id", 1),
        machine=machine,
        version=1,
        step=step,
        attempt=options.get("attempt", 0),
        step_seq=options.get("step_seq", 1),
        state=state,
        awaited=Inbox(messages[: len(awaited)]),
        inbox=Inbox(messages),
        timed_out=options.get("timed_out", False),
        children=Children(options.get("children", ())),
        parent_id=options.get("parent_id"),
        correlation_key=options.get("correlation_key"),
        resources=options.get("resources"),
    )


@overload
def run_step(
    step: BoundStep[StateT, Coroutine[Any, Any, _OutcomeT]],
    state: StateT,
    /,
    **options: Unpack[ContextOptions],
) -> _OutcomeT: ...
@overload
def run_step(
    step: BoundStep[StateT, _OutcomeT], state: StateT, /, **options: Unpack[ContextOptions]
) -> _OutcomeT: ...
def run_step(step: BoundStep[Any, Any], state: Any, /, **options: Unpack[ContextOptions]) -> Any:
    """Call one step of a machine object, async or not, and return its outcome.

        outcome = run_step(Checkout().ship, Order(42), awaited=[(Checkout.payment, Payment(100))])
        assert outcome == Done(Receipt(42, 100))

    What the step raises is raised here: `handle` is not asked. What it changes in the state is seen in `state`.
    """
    value = _call(step, state, options)
    if inspect.iscoroutine(value):
        loop = Loop()
        try:
            value = loop.run(value, "run_step", "await run_step_async(…) in its place")
        finally:
            loop.close()
    return _checked(step, value)


@overload
async def run_step_async(
    step: BoundStep[StateT, Coroutine[Any, Any, _OutcomeT]],
    state: StateT,
    /,
    **options: Unpack[ContextOptions],
) -> _OutcomeT: ...
@overload
async def run_step_async(
    step: BoundStep[StateT, _OutcomeT], state: StateT, /, **options: Unpack[ContextOptions]
) -> _OutcomeT: ...
async def run_step_async(step: BoundStep[Any, Any], state: Any, /, **options: Unpack[ContextOptions]) -> Any:
    """`run_step` for tests that are async themselves."""
    value = _call(step, state, options)
    if inspect.iscoroutine(value):
        value = await value
    return _checked(step, value)


def _call(step: BoundStep[Any, Any], state: Any, options: ContextOptions) -> Any:
    return step(context(state, machine=_machine_of(step), step=step.name, **options))


def _checked(step: BoundStep[Any, Any], value: Any) -> Any:
    return checked_outcome(value, _machine_of(step), step.name)


def _machine_of(step: BoundStep[Any, Any]) -> str:
    machine: Definition[Any, Any] = step._machine  # noqa: SLF001 - known to nobody else, and wanted in messages
    return machine.__definition__.name


def _messages(sent: Iterable[tuple[Signal[Any] | str, Any]]) -> list[Message]:
    return [
        Message(id=id, name=signal_name(signal), payload=payload, sent_at=_SENT_AT)
        for id, (signal, payload) in enumerate(sent, 1)
    ]
