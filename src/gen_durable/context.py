"""What a step sees of its instance."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, overload

import msgspec

from ._dictionary import attribute_hint
from ._loading import Loader, chunks
from ._typing import ResourcesT, ResultT, StateT
from .definition import definition_of
from .errors import UsageError
from .events import Event
from .instance import Child
from .outcome import Cancel
from .refs import Insertable
from .signals import Inbox

__all__ = ["Cancellation", "Children", "Context"]


class Children(Sequence[Child[Any]]):
    """The children that a step waited for, in the order of their specs. All have ended, well or not."""

    __slots__ = ("_children", "_loader")

    def __init__(
        self, children: Sequence[Child[Any]] = (), loader: Loader[tuple[Any, Any]] | None = None
    ) -> None:
        self._children = tuple(children)
        self._loader = loader

    async def load(self, definition: Insertable[Any, Any] | None = None, /) -> None:
        """Fetch the states and results that are not here yet: of one machine, or of all.

        All of them are in memory afterwards. `stream` holds a few at a time.
        """
        if self._loader is not None:
            for chunk in chunks([child for child in self._of(definition) if not child.is_loaded]):
                _fill(chunk, await self._loader.fetch([child.id for child in chunk]))

    def load_sync(self, definition: Insertable[Any, Any] | None = None, /) -> None:
        """`load` for a step that is a plain `def`."""
        if self._loader is not None:
            for chunk in chunks([child for child in self._of(definition) if not child.is_loaded]):
                _fill(chunk, self._loader.fetch_sync([child.id for child in chunk]))

    @overload
    def stream(self, /) -> AsyncIterator[Child[Any]]: ...
    @overload
    def stream(self, definition: Insertable[Any, ResultT], /) -> AsyncIterator[Child[ResultT]]: ...
    async def stream(self, definition: Insertable[Any, Any] | None = None, /) -> AsyncIterator[Child[Any]]:
        """Iterate over the children, of one machine or all, with state and result; fetch them in chunks of some MiB.

        What was yielded is not kept, so a fan-in of any size fits in memory.
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
        """`stream` for a step that is a plain `def`."""
        for chunk in chunks(self._of(definition)):
            missing = [child.id for child in chunk if not child.is_loaded]
            content = self._loader.fetch_sync(missing) if missing and self._loader is not None else {}
            for child in chunk:
                yield _with_content(child, content)

    def _of(self, definition: Insertable[Any, Any] | None) -> Sequence[Child[Any]]:
        return self._children if definition is None else self.of(definition)

    def of(self, definition: Insertable[Any, ResultT], /) -> list[Child[ResultT]]:
        """Select those of one machine, with the type of its results."""
        name = definition_of(definition).name
        return [child for child in self._children if child.machine == name]

    def results(self, definition: Insertable[Any, ResultT], /) -> list[ResultT]:
        """Collect the results of those of one machine that are done, in the order of their specs.

        Those that failed or were cancelled are left out, so there may be fewer than were scheduled: see `failed`.
        """
        return [child.result for child in self.of(definition) if child.is_done]  # type: ignore[misc]  # `None` only if it is the result

    @property
    def failed(self) -> list[Child[Any]]:
        """Those that failed or were cancelled."""
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
        child._state, child._result = content[child.id]  # noqa: SLF001 - only its Children may change it


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
    """Whether a cancel has been requested while a step runs. The worker sets it; steps on any thread read it."""

    __slots__ = ("is_requested",)

    def __init__(self, *, is_requested: bool = False) -> None:
        self.is_requested = is_requested


# Neither can be changed, so all contexts may share them.
_NO_MESSAGES: Final = Inbox()
_NO_CHILDREN: Final = Children()


class Context(msgspec.Struct, Generic[StateT, ResourcesT], kw_only=True):
    """What a step sees. `handle` gets another one, with the state as it was before the step.

    In the brackets stand the type of the state and, for steps that use them, that of the worker's resources.
    """

    if not TYPE_CHECKING:

        def __class_getitem__(cls, item):  # noqa: ANN001, ANN204
            # Before 3.13 type variables have no defaults at run time, and Context[Order] would lack an argument.
            items = item if isinstance(item, tuple) else (item,)
            return super().__class_getitem__(items + (Any,) * (2 - len(items)))

        __getattr__ = attribute_hint("context")

    id: int
    machine: str
    version: int
    step: str
    attempt: int
    """How many executions of this step came to nothing before; 0 the first time."""
    step_seq: int
    """The number of the transition that this execution works on: 1, 2, 3 …"""
    state: StateT
    """Change it in place, or leave it and give a new one to the outcome."""
    raw_state: str = ""
    """The state as stored, in JSON: what is left to `handle` when it could not be decoded."""
    awaited: Inbox = _NO_MESSAGES
    """The signals of the last `Await` that have come; with `timed_out`, possibly none."""
    inbox: Inbox = _NO_MESSAGES
    """All signals that have come and are not consumed.

    The payloads of awaited signals are always here. Those of the others are here if they have at most 1 MiB of JSON in
    all; otherwise `load` fetches them.
    """
    timed_out: bool = False
    """Whether the timeout or the deadline ended the last `Await`, and none of its signals came before the lease.

    A signal that is there when a worker leases the instance has come in time.
    """
    children: Children = _NO_CHILDREN
    """The children that this step waited for. Results of more than 1 MiB in all are fetched by `load` or `stream`."""
    parent_id: int | None = None
    correlation_key: str | None = None
    max_attempts: int | None = None
    """How often a step may be executed, if this instance has a limit of its own."""
    fire_time: datetime | None = None
    """When a schedule meant this instance to start (UTC); `None` if no schedule has inserted it."""
    cancellation: Cancellation = msgspec.field(default_factory=Cancellation)
    resources: ResourcesT = None  # type: ignore[assignment]  # of a worker without a lifespan
    """What the worker's `lifespan` made: a pool, a client, a model."""
    emitted: list[Event] = []
    """What `emit` has collected so far."""

    def emit(self, event: Event, /) -> None:
        """Let the outcome of this step carry an event: it is committed with that, before what its `emit=` names.

        An outcome that is no transition (Retry) carries none, and a step that raises has emitted nothing.
        """
        if not isinstance(event, Event):
            raise UsageError(
                f"emit got a value of type {type(event).__name__}", 'give Event("order.paid", data)'
            )
        self.emitted.append(event)

    @property
    def cancelled(self) -> bool:
        """Whether somebody asked to cancel this instance. What the step returns will not count: stop when you can."""
        return self.cancellation.is_requested

    def raise_if_cancelled(self) -> None:
        """End here as cancelled, if somebody asked for it."""
        if self.cancellation.is_requested:
            raise Cancel("cancelled on request")

    @property
    def idempotency_key(self) -> str:
        """The same on every execution of this transition: hand it to services that must not act twice."""
        return f"{self.id}:{self.step_seq}"
