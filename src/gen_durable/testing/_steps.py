"""`run_step` and `context`: one step without a database."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from datetime import UTC, datetime
from typing import Any, Final, TypedDict, Unpack, overload

from .._channel import CLOSE
from .._core.codec import decode, encode
from .._core.settle import checked_outcome
from .._typing import ItemT, StateT, TypeVar
from ..config import Settings
from ..context import Children, Context
from ..definition import Definition, MachineDef
from ..errors import UsageError
from ..instance import Child, Failure
from ..machine import BoundStep
from ..outcome import Outcome
from ..progress import Progress
from ..signals import Inbox, Message, Signal, signal_name
from ..streams import Stream, stream_of
from ._loop import Loop

__all__ = ["ContextOptions", "context", "published_items", "reported_progress", "run_step", "run_step_async"]

_OutcomeT = TypeVar("_OutcomeT", bound=Outcome[Any], default=Any)
_MAX_PAYLOAD: Final = Settings().max_payload
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
    checkpoint: Any
    """`ctx.last_checkpoint`: what an earlier attempt at the step has stored."""


class _Channel:
    """The channel of a context without a worker: it keeps what the step stores."""

    def __init__(self, checkpoint_type: Any, checkpoint: Any, streams: Mapping[str, Any]) -> None:
        self.reports: list[Progress] = []
        self.items: defaultdict[str, list[Any]] = defaultdict(list)
        """What the step has published, by stream."""
        self._streams = streams
        self._type = checkpoint_type
        self._checkpoint = None if checkpoint is None else self._copied(checkpoint)

    def wait(self, call: Coroutine[Any, Any, Any], method: str, /) -> None:
        with suppress(StopIteration):  # the calls of this channel do not suspend
            call.send(None)

    def report(self, execution: Any, progress: Progress, /) -> None:
        self.reports.append(progress)

    async def publish(self, execution: Any, stream: Any, item: object, /) -> None:
        self.publish_sync(execution, stream, item)

    def publish_sync(self, execution: Any, stream: Any, item: object, /) -> None:
        stream = stream_of(stream)
        if item is not CLOSE:
            item_type = self._streams.get(stream.name, stream.item_type)
            encode(item, item_type, f"an item of stream '{stream.name}'", _MAX_PAYLOAD)
            self.items[stream.name].append(deepcopy(item))

    async def checkpoint(self, execution: Any, value: object, /) -> None:
        self._checkpoint = self._copied(value)

    def last_checkpoint(self, execution: Any, /) -> Any:
        return deepcopy(self._checkpoint)

    def _copied(self, value: Any) -> Any:
        """Return what the next attempt would get. Without a declared type, classes are not turned into JSON data."""
        if self._type is Any:
            return deepcopy(value)
        return decode(encode(value, self._type, "the checkpoint", _MAX_PAYLOAD), self._type, "the checkpoint")


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
            resources, checkpoint.
    """
    return _context(state, machine, step, Any, {}, options)


def reported_progress(ctx: Context[Any], /) -> list[Progress]:
    """Return everything that a step has reported by `ctx.progress` of a context of `context`, in order.

    ctx = context(Crawl(pages=20))
    await Crawler().crawl(ctx)
    assert reported_progress(ctx)[-1].fraction == 1
    """
    return _channel_of(ctx, "read `instance.progress`").reports


@overload
def published_items(ctx: Context[Any], stream: Stream[ItemT], /) -> list[ItemT]: ...
@overload
def published_items(ctx: Context[Any], stream: str, /) -> list[Any]: ...
def published_items(ctx: Context[Any], stream: Stream[Any] | str, /) -> list[Any]:
    """Return everything that a step has published to a stream of a context of `context`, in order.

    ctx = context(Conversation("hello"))
    await Chat().answer(ctx)
    assert "".join(published_items(ctx, Chat.tokens)) == "Hello!"
    """
    return _channel_of(ctx, "use `client.stream` or `durable.published`").items[stream_of(stream).name]


def _channel_of(ctx: Context[Any], advice: str) -> _Channel:
    channel = ctx._channel  # noqa: SLF001 - made by `context`
    if not isinstance(channel, _Channel):
        raise UsageError("this context belongs to a worker", advice)
    return channel


def _context(
    state: StateT,
    machine: str,
    step: str,
    checkpoint_type: Any,
    streams: Mapping[str, Any],
    options: ContextOptions,
) -> Context[StateT]:
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
        _channel=_Channel(checkpoint_type, options.get("checkpoint"), streams),
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
    machine = _definition_of(step)
    declared = machine.steps[step.name].checkpoint
    return step(_context(state, machine.name, step.name, declared, machine.streams, options))


def _checked(step: BoundStep[Any, Any], value: Any) -> Any:
    return checked_outcome(value, _definition_of(step).name, step.name)


def _definition_of(step: BoundStep[Any, Any]) -> MachineDef:
    machine: Definition[Any, Any] = step._machine  # noqa: SLF001 - for messages, and the types of its values
    return machine.__definition__


def _messages(sent: Iterable[tuple[Signal[Any] | str, Any]]) -> list[Message]:
    return [
        Message(id=id, name=signal_name(signal), payload=payload, sent_at=_SENT_AT)
        for id, (signal, payload) in enumerate(sent, 1)
    ]
