"""`run_step` and `context`: one step without a database."""

from __future__ import annotations

import inspect
from collections.abc import Coroutine, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypedDict, Unpack, overload

from .._core.settle import checked_outcome
from .._typing import StateT, TypeVar
from ..context import Children, Context
from ..definition import Definition
from ..instance import Child, Failure
from ..machine import BoundStep
from ..outcome import Outcome
from ..signals import Inbox, Message, Signal, signal_name
from ._loop import Loop

__all__ = ["ContextOptions", "context", "run_step", "run_step_async"]

_OutcomeT = TypeVar("_OutcomeT", bound=Outcome[Any], default=Any)
_SENT_AT: Final = datetime(2020, 1, 1, tzinfo=UTC)


class ContextOptions(TypedDict, total=False):
    """Optional values of a test context."""

    attempt: int
    """`ctx.attempt`; default: 0."""
    awaited: Iterable[tuple[Signal[Any] | str, Any]]
    """Signals in `ctx.awaited`, with payloads; they are also in `ctx.inbox`."""
    inbox: Iterable[tuple[Signal[Any] | str, Any]]
    """More signals in `ctx.inbox`."""
    timed_out: bool
    """`ctx.timed_out`; default: false."""
    failure: Failure | None
    """`ctx.failure`: what led to a step by `on_failure=` or `handle`."""
    children: Sequence[Child[Any]]
    """`ctx.children`."""
    id: int
    step_seq: int
    parent_id: int | None
    correlation_key: str | None
    resources: Any
    """`ctx.resources`."""


def context(
    state: StateT, /, *, machine: str = "test", step: str = "test", **options: Unpack[ContextOptions]
) -> Context[StateT]:
    """Make a context for calling a job, a step or `handle` directly.

        charge = await invoice_charge(Invoice(7, 1000), context(Invoice(7, 1000), attempt=2))
        outcome = Checkout().handle(TimeoutError(), context(Order(42), attempt=5))

    Args:
        state: `ctx.state`; for a job, its payload.
        machine: `ctx.machine`.
        step: `ctx.step`.
        options: attempt, awaited, inbox, timed_out, failure, children, id, step_seq, parent_id, correlation_key,
            resources.
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
        failure=options.get("failure"),
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

    Exceptions of the step are raised here; `handle` is not called. Changes of the state are visible in `state`.

    Args:
        step: a step of a machine object: `Checkout().ship`.
        state: `ctx.state`.
        options: more values of the context; see `context`.

    Raises:
        OutcomeError: the step returned a value that is not an outcome.
    """
    value = _call(step, state, options)
    if inspect.iscoroutine(value):
        loop = Loop()
        try:
            value = loop.run(value, "run_step", "use `await run_step_async(…)`")
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
    """Do the same as `run_step` in an async test."""
    value = _call(step, state, options)
    if inspect.iscoroutine(value):
        value = await value
    return _checked(step, value)


def _call(step: BoundStep[Any, Any], state: Any, options: ContextOptions) -> Any:
    return step(context(state, machine=_machine_of(step), step=step.name, **options))


def _checked(step: BoundStep[Any, Any], value: Any) -> Any:
    return checked_outcome(value, _machine_of(step), step.name)


def _machine_of(step: BoundStep[Any, Any]) -> str:
    machine: Definition[Any, Any] = step._machine  # noqa: SLF001 - for messages
    return machine.__definition__.name


def _messages(sent: Iterable[tuple[Signal[Any] | str, Any]]) -> list[Message]:
    return [
        Message(id=id, name=signal_name(signal), payload=payload, sent_at=_SENT_AT)
        for id, (signal, payload) in enumerate(sent, 1)
    ]
