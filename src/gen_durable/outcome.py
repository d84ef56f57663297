"""The six outcomes of a step.

| outcome                           | effect on the instance                         | attempt   | consumes        |
|-----------------------------------|------------------------------------------------|-----------|-----------------|
| `Next(step)`                      | continues with `step`                          | 0         | `ctx.awaited`   |
| `Retry(delay)`                    | runs this step again after `delay`             | + 1       | nothing         |
| `Await(*signals, then=step)`      | waits for a signal, then runs `step`           | 0         | nothing         |
| `ScheduleChildren(…, then=step)`  | waits until its new children end, then `step`  | 0         | `ctx.awaited`   |
| `Done(result)`                    | ends as done                                   | unchanged | the whole inbox |
| `Stop(reason)`                    | ends as failed                                 | unchanged | the whole inbox |

Outcomes are plain values: a test makes and compares them without a database. `Next(self.ship) == Next("ship")`.
`consume=` and `ctx.inbox.take` consume further signals with `Next`, `Await` and `ScheduleChildren`.
An outcome commits its `state=`; without it, `ctx.state` as the step left it. `Done` and `Stop` have no `state=`; they
do not write a state that the step has not changed. A job never changes its payload.
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
from .signals import Message, Signal

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

# Long enough for a message with a quotation, too short for a dumped response body.
_MAX_REASON: Final = 8000


# Of flags that are not False by default.
_DEFAULTS: Final = {"undo": True}


class _Value:
    """Equality and repr over the slots.

    Not a frozen dataclass: every step makes an outcome, and a frozen dataclass takes four times as long to make.
    """

    __slots__: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    __hash__ = None  # type: ignore[assignment]  # a state may change

    def __repr__(self) -> str:
        """Show only arguments that differ from their defaults."""
        parts: list[str] = []
        for name in self.__slots__:
            value = getattr(self, name)
            if value is None or value is KEEP or value == () or value is _DEFAULTS.get(name, False):
                continue
            parts.append(f"{name}={value!r}")
        return f"{type(self).__name__}({', '.join(parts)})"


class Transaction(Protocol):
    """The transaction of an outcome, as an effect function gets it. The engine commits it; an exception rolls it back.

    Parameters are `$1`, `$2`, …, as in asyncpg.
    """

    async def execute(self, query: str, *args: Any) -> str:
        """Run a statement and return its command tag, for example `UPDATE 1`."""
        ...

    async def fetch(self, query: str, *args: Any) -> list[Any]:
        """Run a statement and return all rows."""
        ...

    async def fetchrow(self, query: str, *args: Any) -> Any:
        """Run a statement and return the first row, or `None`."""
        ...

    async def fetchval(self, query: str, *args: Any) -> Any:
        """Run a statement and return the first value of the first row, or `None`."""
        ...


@final
class Sql(_Value):
    """One SQL statement as an effect.

        return Done(effect=Sql("update invoice set paid = true where id = $1", ctx.state.invoice))

    The statement commits in the same transaction as the outcome. Parameters are `$1`, `$2`, …
    """

    __slots__ = __match_args__ = ("query", "args")

    query: str
    args: tuple[Any, ...]

    def __init__(self, query: str, /, *args: Any) -> None:
        self.query = _statement(query)
        self.args = args


Effect: TypeAlias = Sql | Callable[[Transaction], Awaitable[object]]
"""SQL that commits with an outcome, exactly once: a `Sql` statement, or an `async def` that takes the `Transaction`."""


@final
class Next(_Value):
    """Continue with another step, or with the same step as a new transition.

        return Next(self.ship)
        return Next(self.poll, delay=timedelta(minutes=5))

    Without `delay` or `requeue` the same worker usually continues at once, on the same lease.
    """

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
        "consume",
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
    consume: tuple[Message | str, ...]

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
        consume: Iterable[Message | Signal[Any] | str] = (),
    ) -> None:
        """Make the outcome.

        Args:
            step: the next step: `self.ship`, or its name.
            state: the state to commit instead of `ctx.state`.
            delay: minimum time before the step starts.
            concurrency_key: the concurrency key from now on; `None` removes it. Default: unchanged.
            requeue: return the instance to its queue, behind more urgent work, instead of continuing at once.
            effect: SQL that commits in the same transaction as this outcome, exactly once.
            emit: events that commit with this outcome and are published afterwards.
            rate_limit: the rate limit that the start of the step is subject to: a name, or (name, partition). If it
                does not exist, the step waits until it is set.
            weight: how many tokens the start takes; default: 1.
            consume: signals of `ctx.inbox` to consume besides `ctx.awaited`: messages, or signals for all messages of
                that name. A message that arrived after the step was leased is never consumed.

        Raises:
            UsageError: an argument is invalid.
        """
        self.step = step_name(step)
        self.state = state
        self.delay = None if delay is None else checked_delay(delay, "the delay of this Next")
        self.concurrency_key = KEEP if concurrency_key is KEEP else _key(concurrency_key)
        self.requeue = requeue
        self.effect = None if effect is None else _effect(effect)
        self.emit = () if emit is None else emitted(emit)
        self.rate_limit = None if rate_limit is None else key_text(rate_limit, "rate_limit")
        self.weight = None if weight is None else checked_weight(weight, self.rate_limit)
        self.consume = _consumed(consume) if consume else ()


@final
class Retry(_Value):
    """Run this step again, as another attempt, with the same inbox and the same `ctx.idempotency_key`.

        return Retry(timedelta(seconds=30))

    A retry is not a transition: it commits the state, but has no effect and drops the events of `ctx.emit`.

    Args:
        delay: time until the next attempt; default: none.
        state: the state to commit instead of `ctx.state`.
    """

    __slots__ = __match_args__ = ("delay", "state")

    delay: timedelta
    state: Any

    def __init__(self, delay: timedelta = timedelta(0), state: object = KEEP) -> None:
        self.delay = checked_delay(delay, "the delay of this Retry")
        self.state = state


@final
class Await(_Value):
    """Wait until one of the signals arrives, then run step `then`. `ctx.awaited` has the signals that arrived.

        return Await(self.payment, self.withdrawn, then=self.decide, timeout=timedelta(days=3))

    The instance holds no worker, process or connection while it waits. A signal that is already in the inbox ends the
    wait at once. Signals stay in the inbox until the woken step returns `Next`, `ScheduleChildren`, `Done` or `Stop`.

    Args:
        signals: the signals to wait for, as `Signal` or by name. They may be left out with `timeout` or `deadline`:
            `Await(then=…, timeout=…)` sleeps.
        then: the step to run next.
        timeout: maximum time to wait, from now. If no signal has arrived by then, `ctx.timed_out` is true.
        deadline: the same as a time with a time zone.
        state: as for `Next`.
        concurrency_key: as for `Next`.
        effect: as for `Next`.
        emit: as for `Next`.
        rate_limit: as for `Next`.
        weight: as for `Next`.
        consume: as for `Next`; without it, nothing is consumed.
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
        "consume",
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
    consume: tuple[Message | str, ...]

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
        consume: Iterable[Message | Signal[Any] | str] = (),
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
        consume: Iterable[Message | Signal[Any] | str] = (),
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
        consume: Iterable[Message | Signal[Any] | str] = (),
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
        consume: Iterable[Message | Signal[Any] | str] = (),
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
        consume: Iterable[Message | Signal[Any] | str] = (),
    ) -> None:
        if not signals and timeout is None and deadline is None:
            raise UsageError(
                "this Await has no signal, no timeout and no deadline, so it would never end",
                "give one of them",
            )
        if timeout is not None and deadline is not None:
            raise UsageError("this Await has a timeout and a deadline", "give one of them")
        self.signals = _awaited(signals)
        self.then = step_name(then)
        self.timeout = None if timeout is None else checked_delay(timeout, "the timeout of this Await")
        self.deadline = None if deadline is None else checked_moment(deadline, "the deadline of this Await")
        self.state = state
        self.concurrency_key = KEEP if concurrency_key is KEEP else _key(concurrency_key)
        self.effect = None if effect is None else _effect(effect)
        self.emit = () if emit is None else emitted(emit)
        self.rate_limit = None if rate_limit is None else key_text(rate_limit, "rate_limit")
        self.weight = None if weight is None else checked_weight(weight, self.rate_limit)
        self.consume = _consumed(consume) if consume else ()


@final
class ScheduleChildren(_Value):
    """Insert child instances, wait until all of them have ended, then run step `then`. `ctx.children` has them.

        return ScheduleChildren([Spec(Thumbnail, Image(url)) for url in urls], then=self.collect)

    The children are inserted in the same transaction as the outcome. A child may fail or be cancelled; the parent
    continues all the same and decides. A child whose correlation or unique key is held by another instance is not
    inserted: the parent does not wait for it, and the worker logs how many were skipped. If no child was inserted,
    `then` runs at once.

    Args:
        children: one `Spec` per child, at most `settings.max_children`.
        then: the step to run next.
        state: as for `Next`.
        effect: as for `Next`.
        emit: as for `Next`.
        rate_limit: as for `Next`.
        weight: as for `Next`.
        consume: as for `Next`.
    """

    __slots__ = __match_args__ = (
        "children",
        "then",
        "state",
        "effect",
        "emit",
        "rate_limit",
        "weight",
        "consume",
    )

    children: tuple[AnySpec, ...]
    then: str
    state: Any
    effect: Effect | None
    emit: tuple[Event, ...]
    rate_limit: str | None
    weight: int | None
    consume: tuple[Message | str, ...]

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
        consume: Iterable[Message | Signal[Any] | str] = (),
    ) -> None:
        self.children = _specs(children)
        self.then = step_name(then)
        self.state = state
        self.effect = None if effect is None else _effect(effect)
        self.emit = () if emit is None else emitted(emit)
        self.rate_limit = None if rate_limit is None else key_text(rate_limit, "rate_limit")
        self.weight = None if weight is None else checked_weight(weight, self.rate_limit)
        self.consume = _consumed(consume) if consume else ()


@final
class Done(_Value, Generic[ResultT_co]):
    """End the instance as done.

        return Done(Receipt(ctx.state.number))

    Args:
        result: stored with the instance; `client.wait(…)` and the parent read it. Default: `None`.
        effect: SQL that commits in the same transaction, exactly once.
        emit: events that commit with this outcome and are published afterwards.
    """

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
        self.effect = None if effect is None else _effect(effect)
        self.emit = () if emit is None else emitted(emit)


@final
class Stop(_Value):
    """End the instance as failed.

        return Stop("payment never arrived")

    Args:
        reason: a text or an exception, stored as `last_error`.
        effect: SQL that commits in the same transaction, exactly once.
        emit: events that commit with this outcome and are published afterwards.
        undo: `False` ends the instance without running the undo steps of its committed steps.
    """

    __slots__ = __match_args__ = ("reason", "effect", "emit", "undo")

    reason: str
    effect: Effect | None
    emit: tuple[Event, ...]
    undo: bool

    def __init__(
        self,
        reason: str | BaseException,
        *,
        effect: Effect | None = None,
        emit: Emit | None = None,
        undo: bool = True,
    ) -> None:
        self.reason = reason_text(reason)
        self.effect = None if effect is None else _effect(effect)
        self.emit = () if emit is None else emitted(emit)
        self.undo = undo


Outcome: TypeAlias = Union[Next, Retry, Await, ScheduleChildren, Done[ResultT], Stop]  # noqa: UP007 - `A | B[T]` takes no [T]
"""The return type of a step. `Outcome[Receipt]` also declares the type of its result."""


class Discard(Exception):  # noqa: N818 - a decision, not an error
    """Raise it in a step or job to fail the instance now: no further attempt, and `handle` is not called."""


class Cancel(Exception):  # noqa: N818 - as above
    """Raise it in a step or job to cancel the instance now: no further attempt, and `handle` is not called."""


class RetryAfter(Exception):  # noqa: N818 - as above
    """Raise it in a step or job to run the step again after `delay`.

        raise RetryAfter(timedelta(seconds=30), "rate limited by the bank")

    It counts as an attempt: after the last attempt of the retry policy the instance fails. `handle` is not called.
    """

    delay: timedelta
    reason: str

    def __init__(self, delay: timedelta, reason: str = "") -> None:
        super().__init__(delay, reason)
        self.delay = checked_delay(delay, "the delay of this RetryAfter")
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or f"retry after {self.delay}"


Decision: TypeAlias = Discard | Cancel | RetryAfter
"""An exception by which a step decides its outcome."""


def reason_text(reason: str | BaseException) -> str:
    """Return a reason as text that PostgreSQL can store: no NUL, no lone surrogate, bounded length."""
    if isinstance(reason, str):
        text = reason
    elif isinstance(reason, BaseException):
        text = _exception_text(reason)
    else:
        raise UsageError(
            f"a reason of type {type(reason).__name__} cannot be stored", "give a text or an exception"
        )
    return _storable(text)


def message_text(error: BaseException) -> str:
    """Return the message of an exception, without its type, as text that PostgreSQL can store."""
    return _storable(_message(error))


def _storable(text: str) -> str:
    if len(text) > _MAX_REASON:
        text = text[: _MAX_REASON - 1] + "…"
    return text.replace("\0", "\\x00").encode(errors="backslashreplace").decode()


def _exception_text(error: BaseException) -> str:
    kind, message = type(error).__name__, _message(error)
    if isinstance(error, BaseExceptionGroup):
        message = "; ".join(_exception_text(inner) for inner in error.exceptions)
    return f"{kind}: {message}" if message else kind


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the user's own __str__ may raise; the failure must be stored all the same
        return "(str() of this exception raised)"


def _statement(query: object) -> str:
    if isinstance(query, str) and query.strip():
        return query
    what = "empty" if isinstance(query, str) else f"of type {type(query).__name__}"
    raise UsageError(f"the statement of this Sql is {what}", 'write Sql("update …", *arguments)')


def _effect(effect: Effect) -> Effect:
    if isinstance(effect, Sql) or inspect.iscoroutinefunction(effect):
        return effect
    # An object whose class has an async __call__, or a functools.partial of a coroutine function.
    call = getattr(type(effect), "__call__", None)  # noqa: B004
    if inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(getattr(effect, "func", None)):
        return effect
    if isinstance(effect, str):
        raise UsageError("the effect is a str", "wrap it: effect=Sql(text, *arguments)")
    raise UsageError(
        f"the effect is of type {type(effect).__name__}, not an async function",
        "give Sql(text, *arguments), or an `async def` that takes the transaction",
    )


def _key(key: Key | Keep | None) -> str | Keep | None:
    return key if key is None or isinstance(key, Keep) else key_text(key)


def _awaited(signals: Iterable[object]) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for signal in signals:
        if isinstance(signal, list | tuple | set | frozenset):
            raise UsageError("Await got a collection of signals", "unpack it: Await(*signals, then=…)")
        names[signal.name if isinstance(signal, Signal) else checked_name(signal, "the name of a signal")] = (
            None
        )
    if len(names) > MAX_AWAITED:
        raise UsageError(
            f"this Await names {len(names)} signals",
            f"name at most {MAX_AWAITED}; distinguish more cases by payload",
        )
    return tuple(names)


def _consumed(signals: object) -> tuple[Message | str, ...]:
    if isinstance(signals, str | Signal | Message) or not isinstance(signals, Iterable):
        raise UsageError(
            f"consume is of type {type(signals).__name__}", "give a list of messages and signals"
        )
    return tuple(
        each
        if isinstance(each, Message)
        else each.name
        if isinstance(each, Signal)
        else checked_name(each, "the name of a signal in consume")
        for each in signals
    )


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
