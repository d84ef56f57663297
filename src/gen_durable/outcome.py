"""The six outcomes of a step.

| outcome                           | what becomes of the instance              | attempt | consumes        |
|-----------------------------------|-------------------------------------------|---------|-----------------|
| `Next(step)`                      | goes on with `step`                       | 0       | `ctx.awaited`   |
| `Retry(delay)`                    | runs this step again, after `delay`       | + 1     | nothing         |
| `Await(*signals, then=step)`      | sleeps until a signal comes, then `step`  | 0       | nothing         |
| `ScheduleChildren(…, then=step)`  | sleeps until its new children have ended  | 0       | `ctx.awaited`   |
| `Done(result)`                    | has ended well                            | 0       | the whole inbox |
| `Stop(reason)`                    | has failed                                | 0       | the whole inbox |

They are values: made without a database, and equal when they say the same: `Next(self.ship) == Next("ship")`.
The state that is committed with one is its `state=`; left out, it is `ctx.state` as the step left it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Protocol, TypeAlias, Union, final, overload

from ._checks import MAX_AWAITED, checked_delay, checked_moment, checked_name
from ._typing import KEEP, Keep, ResultT, ResultT_co, StateT
from .definition import StepRef, step_name
from .errors import UsageError
from .events import Emit, Event, emitted
from .refs import AnySpec, Key, checked_weight, key_text
from .signals import Signal

__all__ = [
    "Await",
    "Cancel",
    "Decision",
    "Discard",
    "Done",
    "Effect",
    "Next",
    "Outcome",
    "Retry",
    "RetryAfter",
    "ScheduleChildren",
    "Sql",
    "Stop",
    "Transaction",
    "message_text",
    "reason_text",
]

# Enough for a message and what it quotes; a dumped response body should not end up in every list of failures.
_MAX_REASON: Final = 8000


class _Value:
    """Equality and a repr over the slots.

    Not a frozen dataclass: one of these is made for every step, and that would make it four times as slow.
    """

    __slots__: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # a state may change

    def __repr__(self) -> str:
        """Only what differs from leaving it out."""
        parts: list[str] = []
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and value is not KEEP and value is not False and value != ():
                parts.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(parts)})"


class Transaction(Protocol):
    """The transaction of an outcome, as an effect sees it: statements go in, rows come out. It ends by itself."""

    async def execute(self, query: str, *args: Any) -> str: ...
    async def fetch(self, query: str, *args: Any) -> list[Any]: ...
    async def fetchrow(self, query: str, *args: Any) -> Any: ...
    async def fetchval(self, query: str, *args: Any) -> Any: ...


@final
class Sql(_Value):
    """One statement as an effect: `Sql("update invoice set paid = true where id = $1", 42)`."""

    __slots__ = __match_args__ = ("query", "args")

    query: str
    args: tuple[Any, ...]

    def __init__(self, query: str, /, *args: Any) -> None:
        self.query = _statement(query)
        self.args = args


Effect: TypeAlias = Sql | Callable[[Transaction], Awaitable[object]]
"""What happens in the transaction of an outcome, exactly once: a statement, or an async function of it."""


@final
class Next(_Value):
    """Go on with another step, or with this one anew."""

    __slots__ = __match_args__ = (
        "step",
        "state",
        "delay",
        "concurrency_key",
        "requeue",
        "effect",
        "emit",
        "rate_limit",
        "weight",
    )

    step: str
    state: Any
    delay: timedelta | None
    concurrency_key: str | Keep | None
    requeue: bool
    effect: Effect | None
    emit: tuple[Event, ...]
    rate_limit: str | None
    weight: int | None

    def __init__(
        self,
        step: StepRef[StateT] | str,
        state: StateT | Keep = KEEP,
        *,
        delay: timedelta | None = None,
        concurrency_key: Key | Keep | None = KEEP,
        requeue: bool = False,
        effect: Effect | None = None,
        emit: Emit | None = None,
        rate_limit: Key | None = None,
        weight: int | None = None,
    ) -> None:
        """Say where to go.

        Args:
            step: `self.ship`, or the name of the step.
            state: what to commit instead of `ctx.state`.
            delay: start no earlier than so long from now.
            concurrency_key: the key from now on; `None` gives it back, left out it stays.
            requeue: queue up again behind more urgent work instead of going on at once.
            effect: what to do in the transaction that commits this outcome, exactly once.
            emit: events that are committed with it and published afterwards.
            rate_limit: the limit that the start of that step has to keep, a name or (name, part). If it does not exist
                yet, the step stalls until it is set.
            weight: how many tokens of it the start takes; 1 if left out.
        """
        self.step = step_name(step)
        self.state = state
        self.delay = None if delay is None else checked_delay(delay, "the delay of this Next")
        self.concurrency_key = _key(concurrency_key)
        self.requeue = requeue
        self.effect = _effect(effect)
        self.emit = emitted(emit)
        self.rate_limit = _limit(rate_limit)
        self.weight = checked_weight(weight, self.rate_limit)


@final
class Retry(_Value):
    """Run this step again: one attempt more, the same inbox, the same `ctx.idempotency_key`.

    It is no transition. Only a new `state` is committed with it.
    """

    __slots__ = __match_args__ = ("delay", "state")

    delay: timedelta
    state: Any

    def __init__(self, delay: timedelta = timedelta(0), state: object = KEEP) -> None:
        self.delay = checked_delay(delay, "the delay of this Retry")
        self.state = state


@final
class Await(_Value):
    """Sleep until one of the signals comes, then run `then`; `ctx.awaited` has what came.

    `timeout` (from now) or `deadline` (a moment) bound the sleep. If none of the signals has come when `then` runs,
    `ctx.timed_out` is true; `ctx.awaited` has only what an earlier step has seen, or nothing. With one of them, signals
    may be left out: `Await(then=…, timeout=…)` sleeps.
    """

    __slots__ = __match_args__ = (
        "signals",
        "then",
        "timeout",
        "deadline",
        "state",
        "concurrency_key",
        "effect",
        "emit",
        "rate_limit",
        "weight",
    )

    signals: tuple[str, ...]
    then: str
    timeout: timedelta | None
    deadline: datetime | None
    state: Any
    concurrency_key: str | Keep | None
    effect: Effect | None
    emit: tuple[Event, ...]
    rate_limit: str | None
    weight: int | None

    @overload
    def __init__(
        self,
        signal: Signal[Any] | str,
        /,
        *more: Signal[Any] | str,
        then: StepRef[StateT] | str,
        timeout: timedelta | None = None,
        deadline: None = None,
        state: StateT | Keep = KEEP,
        concurrency_key: Key | Keep | None = KEEP,
        effect: Effect | None = None,
        emit: Emit | None = None,
        rate_limit: Key | None = None,
        weight: int | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        signal: Signal[Any] | str,
        /,
        *more: Signal[Any] | str,
        then: StepRef[StateT] | str,
        timeout: None = None,
        deadline: datetime,
        state: StateT | Keep = KEEP,
        concurrency_key: Key | Keep | None = KEEP,
        effect: Effect | None = None,
        emit: Emit | None = None,
        rate_limit: Key | None = None,
        weight: int | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        then: StepRef[StateT] | str,
        timeout: timedelta,
        deadline: None = None,
        state: StateT | Keep = KEEP,
        concurrency_key: Key | Keep | None = KEEP,
        effect: Effect | None = None,
        emit: Emit | None = None,
        rate_limit: Key | None = None,
        weight: int | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        *,
        then: StepRef[StateT] | str,
        timeout: None = None,
        deadline: datetime,
        state: StateT | Keep = KEEP,
        concurrency_key: Key | Keep | None = KEEP,
        effect: Effect | None = None,
        emit: Emit | None = None,
        rate_limit: Key | None = None,
        weight: int | None = None,
    ) -> None: ...
    def __init__(
        self,
        *signals: Signal[Any] | str,
        then: StepRef[Any] | str,
        timeout: timedelta | None = None,
        deadline: datetime | None = None,
        state: Any = KEEP,
        concurrency_key: Key | Keep | None = KEEP,
        effect: Effect | None = None,
        emit: Emit | None = None,
        rate_limit: Key | None = None,
        weight: int | None = None,
    ) -> None:
        if not signals and timeout is None and deadline is None:
            raise UsageError(
                "this Await has no signal, no timeout and no deadline, so nothing could wake it",
                "give it one",
            )
        if timeout is not None and deadline is not None:
            raise UsageError("this Await has a timeout and a deadline", "give it one of them")
        self.signals = _awaited(signals)
        self.then = step_name(then)
        self.timeout = None if timeout is None else checked_delay(timeout, "the timeout of this Await")
        self.deadline = None if deadline is None else checked_moment(deadline, "the deadline of this Await")
        self.state = state
        self.concurrency_key = _key(concurrency_key)
        self.effect = _effect(effect)
        self.emit = emitted(emit)
        self.rate_limit = _limit(rate_limit)
        self.weight = checked_weight(weight, self.rate_limit)


@final
class ScheduleChildren(_Value):
    """Insert children, sleep until each of them has ended, then run `then`; `ctx.children` has them.

    A child whose correlation or unique key another instance has is not inserted: it is neither waited for nor in
    `ctx.children`, and the worker logs how many there were. With none inserted `then` runs at once.
    """

    __slots__ = __match_args__ = ("children", "then", "state", "effect", "emit", "rate_limit", "weight")

    children: tuple[AnySpec, ...]
    then: str
    state: Any
    effect: Effect | None
    emit: tuple[Event, ...]
    rate_limit: str | None
    weight: int | None

    def __init__(
        self,
        children: Iterable[AnySpec],
        /,
        *,
        then: StepRef[StateT] | str,
        state: StateT | Keep = KEEP,
        effect: Effect | None = None,
        emit: Emit | None = None,
        rate_limit: Key | None = None,
        weight: int | None = None,
    ) -> None:
        self.children = _specs(children)
        self.then = step_name(then)
        self.state = state
        self.effect = _effect(effect)
        self.emit = emitted(emit)
        self.rate_limit = _limit(rate_limit)
        self.weight = checked_weight(weight, self.rate_limit)


@final
class Done(_Value, Generic[ResultT_co]):
    """End well. The result is kept with the instance, for whoever waits for it."""

    __slots__ = __match_args__ = ("result", "effect", "emit")

    result: ResultT_co
    effect: Effect | None
    emit: tuple[Event, ...]

    @overload
    def __init__(self: Done[None], *, effect: Effect | None = None, emit: Emit | None = None) -> None: ...
    @overload
    def __init__(
        self, result: ResultT_co, *, effect: Effect | None = None, emit: Emit | None = None
    ) -> None: ...
    def __init__(self, result: Any = None, *, effect: Effect | None = None, emit: Emit | None = None) -> None:
        self.result = result
        self.effect = _effect(effect)
        self.emit = emitted(emit)


@final
class Stop(_Value):
    """End as failed. The reason is for people: a text, or the exception."""

    __slots__ = __match_args__ = ("reason", "effect", "emit")

    reason: str
    effect: Effect | None
    emit: tuple[Event, ...]

    def __init__(
        self, reason: str | BaseException, *, effect: Effect | None = None, emit: Emit | None = None
    ) -> None:
        self.reason = reason_text(reason)
        self.effect = _effect(effect)
        self.emit = emitted(emit)


Outcome: TypeAlias = Union[Next, Retry, Await, ScheduleChildren, Done[ResultT], Stop]  # noqa: UP007 - `A | B[T]` takes no [T]
"""What a step returns; `Outcome[Receipt]` also tells what it may end with."""


class Discard(Exception):  # noqa: N818 - not an error but a decision, raised from wherever it is made
    """Raise it anywhere in a step: end as failed now, without another attempt and without `handle`."""


class Cancel(Exception):  # noqa: N818 - as above
    """Raise it anywhere in a step: end as cancelled now, without another attempt and without `handle`."""


class RetryAfter(Exception):  # noqa: N818 - as above
    """Raise it anywhere in a step: run the step again after so long. It counts as an attempt."""

    delay: timedelta
    reason: str

    def __init__(self, delay: timedelta, reason: str = "") -> None:
        super().__init__(delay, reason)
        self.delay = checked_delay(delay, "the delay of this RetryAfter")
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or f"again after {self.delay}"


Decision: TypeAlias = Discard | Cancel | RetryAfter
"""What a step decides by raising."""


def reason_text(reason: str | BaseException) -> str:
    """Turn a reason into text that the database can hold: no NUL, no lone surrogate, not endless."""
    if isinstance(reason, str):
        text = reason
    elif isinstance(reason, BaseException):
        text = _exception_text(reason)
    else:
        raise UsageError(
            f"a reason of type {type(reason).__name__} cannot be kept", "give a text or an exception"
        )
    return _storable(text)


def message_text(error: BaseException) -> str:
    """What an exception says, without its type, as the database can hold it."""
    return _storable(_said(error))


def _storable(text: str) -> str:
    if len(text) > _MAX_REASON:
        text = text[: _MAX_REASON - 1] + "…"
    return text.replace("\0", "\\x00").encode(errors="backslashreplace").decode()


def _exception_text(error: BaseException) -> str:
    kind, said = type(error).__name__, _said(error)
    if isinstance(error, BaseExceptionGroup):
        said = "; ".join(_exception_text(inner) for inner in error.exceptions)
    return f"{kind}: {said}" if said else kind


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the user's own __str__; a failure must still find its way into the row
        return "(its text could not be read)"


def _statement(query: object) -> str:
    if isinstance(query, str) and query.strip():
        return query
    what = "empty" if isinstance(query, str) else f"of type {type(query).__name__}"
    raise UsageError(f"the statement of this Sql is {what}", 'write Sql("update …", *arguments)')


def _effect(effect: Effect | None) -> Effect | None:
    if effect is None or isinstance(effect, Sql) or inspect.iscoroutinefunction(effect):
        return effect
    # An object with an async __call__ (its class has one too, but to call that makes only the object), or a partial.
    call = getattr(type(effect), "__call__", None)  # noqa: B004
    if inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(getattr(effect, "func", None)):
        return effect
    if isinstance(effect, str):
        raise UsageError("the effect is a bare text", "wrap it: effect=Sql(text, *arguments)")
    raise UsageError(
        f"the effect is of type {type(effect).__name__}, which is no async function",
        "give Sql(text, *arguments), or an `async def` of one transaction",
    )


def _key(key: Key | Keep | None) -> str | Keep | None:
    return key if key is None or isinstance(key, Keep) else key_text(key)


def _limit(key: Key | None) -> str | None:
    return None if key is None else key_text(key, "rate_limit")


def _awaited(signals: Iterable[object]) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for signal in signals:
        if isinstance(signal, list | tuple | set | frozenset):
            raise UsageError(
                "Await got a collection of signals", "give them one by one: Await(*signals, then=…)"
            )
        names[signal.name if isinstance(signal, Signal) else checked_name(signal, "the name of a signal")] = (
            None
        )
    if len(names) > MAX_AWAITED:
        raise UsageError(
            f"this Await names {len(names)} signals",
            f"at most {MAX_AWAITED} work; tell the rest apart by payload",
        )
    return tuple(names)


def _specs(children: object) -> tuple[AnySpec, ...]:
    if isinstance(children, AnySpec) or not isinstance(children, Iterable):
        raise UsageError(f"the children are of type {type(children).__name__}", "give a list of Spec")
    specs = tuple(children)
    for index, spec in enumerate(specs):
        if not isinstance(spec, AnySpec):
            raise UsageError(
                f"child {index} is of type {type(spec).__name__}", "wrap each one: Spec(Machine, state)"
            )
    return specs
