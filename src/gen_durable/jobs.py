"""`@job`: a machine with one step, defined as a function."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import timedelta
from types import FunctionType, UnionType
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, Never, ParamSpec, Protocol, overload

import msgspec

from ._checks import checked_name
from ._dictionary import attribute_hint
from ._typing import ResultT, StateT, TypeVar
from .config import HistoryLevel
from .context import Context
from .definition import Definition, MachineDef, Pool, StepDef, definition_of
from .errors import OptionError, StateTypeError, StepSignatureError, UsageError
from .machine import (
    check_lease,
    check_options,
    check_pool,
    check_retry,
    check_storable,
    check_timeout,
    checked_retention,
)
from .outcome import Await, Done, Next, Outcome, Retry, ScheduleChildren, Stop
from .refs import Insertable, KeyOption, checked_defaults
from .retry import Backoff, backoff

__all__ = ["STEP", "Job", "JobFunction", "job"]

STEP: Final = "run"
"""The step of every job. A machine with the same name and version and a step `run` can continue its instances."""

_OPTIONS: Final = (
    "version",
    "queue",
    "max_attempts",
    "retry",
    "lease",
    "timeout",
    "pool",
    "dead_letter",
    "keep",
    "priority",
    "concurrency_key",
    "rate_limit",
    "retention_done",
    "retention_failed",
    "retention_cancelled",
    "history",
    "checkpoint",
)

Q = ParamSpec("Q")
# Without defaults, because they precede Q in the signatures below.
InT = TypeVar("InT")
OutT = TypeVar("OutT")
T_out = TypeVar("T_out", covariant=True)


class Job(Definition[StateT, ResultT]):
    """A machine with one step, made by `@job`. Pass it to workers, `insert` and `Spec` like a machine."""

    if not TYPE_CHECKING:
        __getattr__ = attribute_hint("job")

    def __init__(self, function: FunctionType, definition: MachineDef) -> None:
        self.__definition__: MachineDef = definition
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__
        self._function: FunctionType = function

    @property
    def name(self) -> str:
        """The name in the database."""
        return self.__definition__.name

    def handle(self, error: Exception, ctx: Context[Any]) -> Outcome[Any] | Awaitable[Outcome[Any]]:
        """Retry by the policy of the job, then fail. Workers call it when the function raised."""
        policy = self.__definition__.steps[STEP].retry or backoff
        if policy.retries(error) and ctx.attempt + 1 < (ctx.max_attempts or policy.max_attempts):
            return Retry(policy(ctx.attempt))
        return Stop(error)

    def __repr__(self) -> str:
        return f"<job {self.name}>"


class JobFunction(Job[InT, OutT], Generic[InT, OutT, Q, T_out]):
    """A job that can also be called as a function, without a database: `await invoice_charge(Invoice(7), ctx)`."""

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> T_out:
        result: T_out = self._function(*args, **kwargs)
        return result


class _JobDecorator(Protocol):
    @overload
    def __call__(
        self, function: Callable[Concatenate[InT, Q], Coroutine[Any, Any, Done[OutT]]], /
    ) -> JobFunction[InT, OutT, Concatenate[InT, Q], Coroutine[Any, Any, Done[OutT]]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[InT, Q], Coroutine[Any, Any, OutT]], /
    ) -> JobFunction[InT, OutT, Concatenate[InT, Q], Coroutine[Any, Any, OutT]]: ...
    @overload
    def __call__(
        self, function: Callable[[], Coroutine[Any, Any, OutT]], /
    ) -> JobFunction[None, OutT, [], Coroutine[Any, Any, OutT]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[InT, Q], Done[OutT]], /
    ) -> JobFunction[InT, OutT, Concatenate[InT, Q], Done[OutT]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[InT, Q], OutT], /
    ) -> JobFunction[InT, OutT, Concatenate[InT, Q], OutT]: ...
    @overload
    def __call__(self, function: Callable[[], OutT], /) -> JobFunction[None, OutT, [], OutT]: ...


def job(
    name: str,
    *,
    version: int = 1,
    queue: str = "default",
    max_attempts: int | None = None,
    retry: Backoff = backoff,
    lease: timedelta | None = None,
    timeout: timedelta | None = None,
    pool: Pool = "thread",
    dead_letter: str | Insertable[Any, Any] | None = None,
    keep: bool = True,
    priority: int | None = None,
    concurrency_key: KeyOption | None = None,
    rate_limit: KeyOption | None = None,
    retention_done: timedelta | None = None,
    retention_failed: timedelta | None = None,
    retention_cancelled: timedelta | None = None,
    history: HistoryLevel | None = None,
    checkpoint: Any = Any,
    **unknown: Never,
) -> _JobDecorator:
    """Make a function a job. It takes `()`, `(payload)` or `(payload, ctx)` and returns the result.

        @job("billing.invoice_charge.v1", max_attempts=5)
        async def invoice_charge(invoice: Invoice, ctx: Context[Invoice]) -> Receipt:
            charge = await payments.charge(invoice.card, key=ctx.idempotency_key)
            return Receipt(charge.id)

        await client.insert(invoice_charge, Invoice(7))

    To commit SQL or events with the result, return `Done(result, effect=…, emit=…)`. An exception is retried by
    `retry`; `Discard`, `Cancel` and `RetryAfter` decide the outcome at once. An `async def` runs on the event loop of
    the worker, a plain `def` in a thread. A job runs at least once: it must be safe to repeat.

    Args:
        name: the name in the database. Dots make namespaces, which workers can serve by prefix.
        version: the version of new instances. Workers run the instances of the versions that they have.
        queue: the queue of its instances, unless an insert names another one.
        max_attempts: maximum number of executions, the first included; overrides `retry.max_attempts`.
        retry: the retry policy; default: 3 executions, 1 s exponential back-off. Its `on` and `never` say which
            exceptions are retried.
        lease: how long an execution keeps its lease without a heartbeat; default: `settings.lease`.
        timeout: how long an execution may run; see `step`.
        pool: where a plain `def` runs: `"thread"`, or `"process"` for CPU-bound work.
        dead_letter: a job that is inserted, with payload and error, in the transaction that fails this one.
        keep: `False` deletes an instance when it is done, with its history; by default it is kept for
            `settings.retention_done`. Failed and cancelled instances are always kept.
        priority: the priority of inserts that do not give one; smaller numbers run earlier. Default: 0.
        concurrency_key: the concurrency key of inserts that do not give one: a key, or a function of the payload, such
            as `lambda invoice: ("tenant", invoice.tenant)`.
        rate_limit: the same for the rate limit.
        retention_done: how long done instances are kept; default: `settings.retention_done`.
        retention_failed: the same for failed instances.
        retention_cancelled: the same for cancelled instances.
        history: `"all"` keeps the payload and each state with the records of executions; default: `settings.history`.
        checkpoint: the type of the values that `ctx.checkpoint` stores; by default JSON data.
        unknown: none; any other option raises `OptionError` with a hint.

    Raises:
        DefinitionError: the function cannot be a job, or an option is invalid.
    """
    function: object = name
    if isinstance(function, FunctionType):
        raise OptionError(
            f"@job above '{function.__name__}' has no name", f'write @job("{function.__name__}")'
        )
    where = f"job '{checked_name(name, 'the name of a job', OptionError)}'"
    check_options(unknown, "job", where, _OPTIONS)
    check_retry(retry, where)
    check_lease(lease, where)
    check_timeout(timeout, where)
    check_storable(checkpoint, f"the checkpoint of {where}")
    policy = retry if max_attempts is None else msgspec.structs.replace(retry, max_attempts=max_attempts)
    letters = _dead_letter(dead_letter, name)
    kept_for = {
        "retention_done": retention_done,
        "retention_failed": retention_failed,
        "retention_cancelled": retention_cancelled,
    }
    retention = checked_retention(where, keep, kept_for)
    defaults = checked_defaults(
        where, priority=priority, concurrency_key=concurrency_key, rate_limit=rate_limit
    )

    def decorate(function: Any) -> JobFunction[Any, Any, Any, Any]:
        # A job may be defined in a function, next to its types.
        local_names = sys._getframe(1).f_locals  # noqa: SLF001 - the frame of the decorator
        payload_type, result_type, takes = _read(function, where, local_names)
        check_pool(pool, function, where)
        check_storable(payload_type, f"the payload of {where}")
        check_storable(result_type, f"the result of {where}")
        step = StepDef(
            name=STEP,
            function=_adapted(function, takes),
            is_async=inspect.iscoroutinefunction(function),
            is_initial=True,
            retry=policy,
            lease=lease,
            timeout=timeout,
            pool=pool,
            to=(),
            checkpoint=checkpoint,
        )
        definition = MachineDef(
            name=name,
            version=version,
            queue=queue,
            steps={STEP: step},
            initial=STEP,
            state_type=payload_type,
            result_type=result_type,
            location=f"{function.__module__}.{function.__qualname__}",
            dead_letter=letters,
            keep=keep,
            is_job=True,
            defaults=defaults,
            retention=retention,
            history=history,
        )
        return JobFunction(function, definition)

    return decorate


def _dead_letter(given: str | Insertable[Any, Any] | None, name: str) -> str | None:
    if given is None:
        return None
    letters = (
        checked_name(given, "dead_letter", OptionError)
        if isinstance(given, str)
        else definition_of(given).name
    )
    if letters == name:
        raise OptionError(f"job '{name}' is its own dead_letter", "name another job")
    return letters


def _adapted(function: Any, takes: int) -> Callable[[Any, Context[Any]], Any]:
    """Wrap the function as a step: it takes the job and a context, and returns an outcome."""
    if inspect.iscoroutinefunction(function):

        async def run_async(job: Any, ctx: Context[Any]) -> Done[Any]:
            return _done(await function(*(ctx.state, ctx)[:takes]), ctx)

        return run_async

    def run(job: Any, ctx: Context[Any]) -> Any:
        value = function(*(ctx.state, ctx)[:takes])
        return value if inspect.iscoroutine(value) else _done(value, ctx)

    return run


def _done(value: Any, ctx: Context[Any]) -> Done[Any]:
    if isinstance(value, Done):
        return value
    if isinstance(value, Next | Retry | Await | ScheduleChildren | Stop):
        raise UsageError(
            f"job '{ctx.machine}' returned {type(value).__name__}",
            "return the result, or raise RetryAfter, Discard or Cancel; use a Machine for several steps",
        )
    return Done(value)


def _read(function: Any, where: str, local_names: Mapping[str, Any]) -> tuple[Any, Any, int]:
    """Return payload type, result type and number of arguments of the function of a job."""
    if not isinstance(function, FunctionType):
        raise StepSignatureError(where, f"on {function!r}", "@job(name) directly above `def` or `async def`")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise StepSignatureError(where, "a generator", "a function that returns its result, without `yield`")
    hints = _hints(function, where, local_names)
    signature, called = inspect.signature(function), function.__name__
    payload, ctx = (*_positional(signature), None, None)[:2]
    if payload is not None and _is_context(hints.get(payload.name)):
        raise StateTypeError(where, "its first parameter is a Context", "write (payload, ctx)")
    # A second parameter of another type must have a default; it is not passed.
    takes_ctx = ctx is not None and (_is_context(hints.get(ctx.name, Context)) or hints[ctx.name] is Any)
    takes = 0 if payload is None else 2 if takes_ctx else 1
    try:
        signature.bind(*range(takes))
    except TypeError:
        expected = f"{called}(payload), {called}(payload, ctx) or {called}()"
        raise StepSignatureError(where, f"{called}{signature}", expected) from None
    payload_type = None if payload is None else _value_type(hints.get(payload.name, Any))
    return payload_type, _result_type(hints.get("return", Any)), takes


def _hints(function: FunctionType, where: str, local_names: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        try:
            return typing.get_type_hints(function)
        except NameError:
            return typing.get_type_hints(function, localns=dict(local_names))
    except NameError as error:
        # The annotations are the only declaration of the types. Without them the payload would silently be plain JSON.
        raise StateTypeError(
            where,
            f"its annotations name '{error.name}', which is not defined at run time",
            "define it before the job, and import it outside `if TYPE_CHECKING:`",
        ) from None
    except (TypeError, AttributeError, SyntaxError) as error:
        raise StateTypeError(
            where, f"its annotations cannot be evaluated ({error})", "correct them"
        ) from error


def _positional(signature: inspect.Signature) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter for parameter in signature.parameters.values() if parameter.kind in kinds]


def _is_context(annotation: Any) -> bool:
    return (typing.get_origin(annotation) or annotation) is Context


def _value_type(annotation: Any) -> Any:
    return None if annotation in (type(None), typing.NoReturn, typing.Never) else annotation


def _result_type(annotation: Any) -> Any:
    """Return the result type of an annotation; `Done[Receipt]` means `Receipt`."""
    if annotation is Done:
        return Any
    if typing.get_origin(annotation) is Done:
        return _value_type(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, UnionType):
        return typing.Union[tuple(_result_type(each) for each in typing.get_args(annotation))]  # noqa: UP007 - its parts are known only at run time
    return _value_type(annotation)
