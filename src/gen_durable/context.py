"""`Context`, the argument of every step, and `Children`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, overload

import msgspec

from ._channel import CLOSE, NO_CHANNEL, Channel
from ._dictionary import attribute_hint
from ._loading import Loader, chunks
from ._typing import ItemT, ResourcesT, ResultT, StateT
from .definition import definition_of
from .errors import LeaseLostError, UsageError
from .events import Event
from .instance import Child, Failure
from .outcome import Cancel
from .progress import checked_progress
from .refs import Insertable
from .signals import Inbox, end_taking
from .streams import Stream

__all__ = ["Cancellation", "Children", "Context", "end_context"]


class Children(Sequence[Child[Any]]):
    """The children that a step waited for, in the order of their specs. All have ended: done, failed or cancelled."""

    __slots__ = ("_children", "_loader")

    def __init__(
        self, children: Sequence[Child[Any]] = (), loader: Loader[tuple[Any, Any]] | None = None
    ) -> None:
        self._children = tuple(children)
        self._loader = loader

    async def load(self, definition: Insertable[Any, Any] | None = None, /) -> None:
        """Fetch the states and results that were too large to be fetched with the execution.

        All of them are in memory afterwards; `stream` keeps a few at a time.

        Args:
            definition: fetch only the children of this machine; default: all.
        """
        if self._loader is not None:
            for chunk in chunks([child for child in self._of(definition) if not child.is_loaded]):
                _fill(chunk, await self._loader.fetch([child.id for child in chunk]))

    def load_sync(self, definition: Insertable[Any, Any] | None = None, /) -> None:
        """Do the same as `load` in a plain `def` step."""
        if self._loader is not None:
            for chunk in chunks([child for child in self._of(definition) if not child.is_loaded]):
                _fill(chunk, self._loader.fetch_sync([child.id for child in chunk], "ctx.children.load_sync"))

    @overload
    def stream(self, /) -> AsyncIterator[Child[Any]]: ...
    @overload
    def stream(self, definition: Insertable[Any, ResultT], /) -> AsyncIterator[Child[ResultT]]: ...
    async def stream(self, definition: Insertable[Any, Any] | None = None, /) -> AsyncIterator[Child[Any]]:
        """Iterate over the children with state and result, fetched in chunks of a few MiB.

        Chunks are not kept, so a fan-in of any size fits in memory.

        Args:
            definition: only the children of this machine; default: all.
        """
        for chunk in chunks(self._of(definition)):
            missing = [child.id for child in chunk if not child.is_loaded]
            content = await self._loader.fetch(missing) if missing and self._loader is not None else {}
            for child in chunk:
                yield _with_content(child, content)

    @overload
    def stream_sync(self, /) -> Iterator[Child[Any]]: ...
    @overload
    def stream_sync(self, definition: Insertable[Any, ResultT], /) -> Iterator[Child[ResultT]]: ...
    def stream_sync(self, definition: Insertable[Any, Any] | None = None, /) -> Iterator[Child[Any]]:
        """Do the same as `stream` in a plain `def` step."""
        for chunk in chunks(self._of(definition)):
            missing = [child.id for child in chunk if not child.is_loaded]
            content = (
                self._loader.fetch_sync(missing, "ctx.children.stream_sync")
                if missing and self._loader is not None
                else {}
            )
            for child in chunk:
                yield _with_content(child, content)

    def _of(self, definition: Insertable[Any, Any] | None) -> Sequence[Child[Any]]:
        return self._children if definition is None else self.of(definition)

    def of(self, definition: Insertable[Any, ResultT], /) -> list[Child[ResultT]]:
        """Return the children of one machine, typed with its result."""
        name = definition_of(definition).name
        return [child for child in self._children if child.machine == name]

    def results(self, definition: Insertable[Any, ResultT], /) -> list[ResultT]:
        """Return the results of the children of one machine that are done, in the order of their specs.

        Children that failed or were cancelled are left out; `failed` has them.

        Raises:
            NotLoadedError: a result was too large to be fetched with the execution; call `load` first.
        """
        return [child.result for child in self.of(definition) if child.is_done]  # type: ignore[misc]  # a done child has one

    @property
    def failed(self) -> list[Child[Any]]:
        """The children that failed or were cancelled."""
        return [child for child in self._children if not child.is_done]

    @overload
    def __getitem__(self, index: int) -> Child[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Child[Any]]: ...
    def __getitem__(self, index: int | slice) -> Child[Any] | Sequence[Child[Any]]:
        return self._children[index]

    def __iter__(self) -> Iterator[Child[Any]]:
        return iter(self._children)

    def __len__(self) -> int:
        return len(self._children)

    def __repr__(self) -> str:
        return f"Children({list(self._children)!r})"


def _fill(children: Sequence[Child[Any]], content: Mapping[int, tuple[Any, Any]]) -> None:
    for child in children:
        child._state, child._result = content[child.id]  # noqa: SLF001 - filled by its Children only


def _with_content(child: Child[Any], content: Mapping[int, tuple[Any, Any]]) -> Child[Any]:
    if child.is_loaded:
        return child
    state, result = content[child.id]
    return Child(
        id=child.id,
        machine=child.machine,
        status=child.status,
        state=state,
        result=result,
        last_error=child.last_error,
        size=child.size,
    )


class Cancellation:
    """Whether a cancel has been requested while a step runs. The worker sets it; a step in any thread reads it."""

    __slots__ = ("is_requested",)

    def __init__(self, *, is_requested: bool = False) -> None:
        self.is_requested = is_requested


# Immutable, so all contexts share them.
_NO_MESSAGES: Final = Inbox()
_NO_CHILDREN: Final = Children()


class Context(msgspec.Struct, Generic[StateT, ResourcesT], kw_only=True):
    """The argument of every step: the instance, its state, its signals and its children.

    `Context[State]` declares the type of the state; `Context[State, Resources]` also that of `ctx.resources`.
    `handle` gets a new context with the state as it was before the step.

        @step
        async def decide(self, ctx: Context[Order]) -> Outcome:
            if ctx.timed_out:
                return Stop("payment never arrived")
            ctx.state.paid = ctx.awaited.get(self.payment).amount
            return Next(self.ship)
    """

    if not TYPE_CHECKING:

        def __class_getitem__(cls, item):  # noqa: ANN001, ANN204
            # Before Python 3.13 type variables have no defaults at run time; fill in the missing argument.
            items = item if isinstance(item, tuple) else (item,)
            return super().__class_getitem__(items + (Any,) * (2 - len(items)))

        __getattr__ = attribute_hint("context")

    id: int
    """The id of the instance."""
    machine: str
    """The name of the machine."""
    version: int
    """The version of the machine."""
    step: str
    """The name of this step."""
    attempt: int
    """How many executions of this step were retried or lost before this one; 0 for the first."""
    step_seq: int
    """The number of the transition that this execution works on: 1, 2, 3 …"""
    state: StateT
    """The state. Change it in place, or pass a new one to the outcome."""
    raw_state: str = ""
    """The stored state as JSON text. Useful in `handle` when the state could not be decoded."""
    awaited: Inbox = _NO_MESSAGES
    """The signals of the last `Await` that have arrived; possibly none if `timed_out`."""
    inbox: Inbox = _NO_MESSAGES
    """All signals that have arrived and are not consumed.

    Payloads of awaited signals are always loaded. Other payloads are loaded if they have at most 1 MiB of JSON in
    total; otherwise call `load`.
    """
    failure: Failure | None = None
    """The failure of the step before, if it led here: by its `on_failure=`, by an outcome of `handle`, or to undo.

    In undo steps, `failure.type` is `Stop` or `Cancel` if the instance was stopped or cancelled, with the reason as
    `failure.message`.

    It stays the same for every attempt at this step, also after a crash or a `retry` of the instance, and is gone after
    the next transition.
    """
    timed_out: bool = False
    """Whether the timeout or deadline of the last `Await` passed before any of its signals arrived.

    A signal that is in the inbox when a worker leases the instance counts as in time.
    """
    children: Children = _NO_CHILDREN
    """The children that this step waited for. Results above 1 MiB in total are fetched by `load` or `stream`."""
    parent_id: int | None = None
    """The id of the parent, if the instance is a child."""
    correlation_key: str | None = None
    """The correlation key of the instance."""
    max_attempts: int | None = None
    """The maximum number of executions of a step, if `insert` was given `max_attempts=`."""
    fire_time: datetime | None = None
    """The time (UTC) that the schedule of this instance was due; `None` if no schedule inserted it."""
    cancellation: Cancellation = msgspec.field(default_factory=Cancellation)
    """Internal; read `cancelled`."""
    # How the methods of this context talk to the worker, and the execution that guards what they write.
    _channel: Channel = NO_CHANNEL
    _execution: Any = None
    _has_ended: bool = False
    resources: ResourcesT = None  # type: ignore[assignment]  # of a worker without a lifespan
    """What the `lifespan=` of the worker yielded: a connection pool, an HTTP client, a model."""
    emitted: list[Event] = []
    """The events given to `emit` so far."""

    def emit(self, event: Event, /) -> None:
        """Commit an event with the outcome of this step, before the events of its `emit=`.

        Events are dropped if the step raises or returns `Retry`.

        Raises:
            UsageError: the argument is not an `Event`.
        """
        if not isinstance(event, Event):
            raise UsageError(
                f"emit got a value of type {type(event).__name__}", 'give Event("order.paid", data)'
            )
        self.emitted.append(event)

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Report how far this step is: `ctx.progress(12, 20, "page 12")`. For `async def` and plain `def` steps.

        The call only keeps the values in memory, so it may be called in every iteration. The worker stores the latest
        ones about once per second; clients read them as `instance.progress`. They stay for a retry of this step; the
        transition to another step clears them. After the step has ended, a call does nothing.

        Args:
            done: how much is done, 0 or more.
            total: how much there is to do, if that is known.
            message: what the step does now; shortened to 1000 characters.

        Raises:
            UsageError: an argument is not a number, or is negative.
        """
        self._channel.report(self._execution, checked_progress(done, total, message))

    async def checkpoint(self, value: object, /) -> None:
        """Store how far this step is, now. The next attempt at this step finds the value in `last_checkpoint`.

            done = ctx.last_checkpoint or 0
            for number in range(done, 20):
                await crawl(number)
                await ctx.checkpoint(number + 1)

        The value is durable when the call returns, and replaces the one before. A retry, a crash, a shutdown and a
        `retry` of the instance keep it; the transition to another step clears it. `@step(checkpoint=Crawl)` declares
        its type; by default it is JSON data. While the database is unreachable, the call waits.

        Raises:
            EncodeError: the value does not match its type, or is larger than `settings.max_payload`.
            LeaseLostError: another execution runs this step now, or the instance was cancelled with `force=True`.
            UsageError: the step has ended.
        """
        channel = self._running("ctx.checkpoint")
        try:
            await channel.checkpoint(self._execution, value)
        except LeaseLostError:
            self._running("ctx.checkpoint")  # the step ended meanwhile: its outcome counts
            raise

    def checkpoint_sync(self, value: object, /) -> None:
        """Do the same as `checkpoint` in a plain `def` step."""
        channel = self._running("ctx.checkpoint_sync")
        try:
            channel.wait(channel.checkpoint(self._execution, value), "ctx.checkpoint_sync")
        except LeaseLostError:
            self._running("ctx.checkpoint_sync")
            raise

    @property
    def last_checkpoint(self) -> Any:
        """The last value that this attempt or an earlier attempt at this step has given to `checkpoint`; or `None`.

        Each read decodes the stored value, so changes of what it returns are not stored.

        Raises:
            DecodeError: the stored value does not match the type that `@step(checkpoint=…)` declares.
        """
        return self._channel.last_checkpoint(self._execution)

    @overload
    async def publish(self, stream: Stream[ItemT], item: ItemT, /) -> None: ...
    @overload
    async def publish(self, stream: str, item: Any, /) -> None: ...
    async def publish(self, stream: Stream[Any] | str, item: Any, /) -> None:
        """Append an item to a stream of this instance. Readers get it while the step runs: `client.stream`.

            async for token in model.answer(ctx.state.question):
                await ctx.publish(self.tokens, token)

        Returns once the item is buffered. The worker stores items about every 50 ms, and before a checkpoint or the
        outcome of the step. They do not belong to the outcome: items of an attempt that fails, or whose process dies
        after they were stored, stay. Items of an execution that has lost its lease are dropped.

        Args:
            stream: a declared `Stream`, or a name.
            item: a value of the type that the machine declares for the stream; otherwise, JSON data.

        Raises:
            EncodeError: the item does not match the type of the stream, or is larger than `settings.max_payload`.
            UsageError: the stream is neither a `Stream` nor a name, or the step has ended.
        """
        await self._running("ctx.publish").publish(self._execution, stream, item)

    @overload
    def publish_sync(self, stream: Stream[ItemT], item: ItemT, /) -> None: ...
    @overload
    def publish_sync(self, stream: str, item: Any, /) -> None: ...
    def publish_sync(self, stream: Stream[Any] | str, item: Any, /) -> None:
        """Do the same as `publish` in a plain `def` step."""
        self._running("ctx.publish_sync").publish_sync(self._execution, stream, item)

    async def close_stream(self, stream: Stream[Any] | str, /) -> None:
        """End a stream for its readers once this step has committed the transition to the next one.

        Without it, readers of the stream end with the instance. A close of an attempt that fails has no effect, and
        an item that is published later opens the stream again.

        Raises:
            UsageError: the stream is neither a `Stream` nor a name, or the step has ended.
        """
        await self._running("ctx.close_stream").publish(self._execution, stream, CLOSE)

    def close_stream_sync(self, stream: Stream[Any] | str, /) -> None:
        """Do the same as `close_stream` in a plain `def` step."""
        self._running("ctx.close_stream_sync").publish_sync(self._execution, stream, CLOSE)

    def _running(self, method: str) -> Channel:
        """Return the channel for a method that writes; the outcome of an ended step may be committed already."""
        if self._has_ended:
            raise UsageError(
                f"{method} was called after step '{self.step}' of {self.machine} {self.id} had ended",
                "call it before the step returns: wait for the tasks and threads that the step starts",
            )
        return self._channel

    @property
    def cancelled(self) -> bool:
        """Whether a cancel of this instance has been requested. The outcome of the step will be discarded."""
        return self.cancellation.is_requested

    def raise_if_cancelled(self) -> None:
        """Raise `Cancel` if a cancel of this instance has been requested."""
        if self.cancellation.is_requested:
            raise Cancel("cancelled on request")

    @property
    def idempotency_key(self) -> str:
        """A key that is the same for every execution of this transition. Pass it to APIs that deduplicate requests."""
        return f"{self.id}:{self.step_seq}"


def end_context(context: Context[Any]) -> tuple[int, ...]:
    """Refuse later calls: the step has ended, so they would be lost. Returns the ids of the messages that it took."""
    context._has_ended = True  # noqa: SLF001
    # Without a call for the usual step, which has no signals. Such steps share one inbox.
    return end_taking(context.inbox, context.awaited) if context.inbox._messages else ()  # noqa: SLF001
