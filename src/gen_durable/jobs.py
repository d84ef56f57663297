"""`@job`: a machine of one step, written as a function."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from types import FunctionType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, overload

import msgspec

from ._checks import checked_name
from ._typing import ResultT, StateT, TypeVar
from .context import Context
from .definition import Definition, MachineDef, StepDef, definition_of
from .errors import OptionError, StateTypeError, StepSignatureError
from .outcome import Done, Outcome, Retry, Stop
from .retry import Backoff, backoff

__all__ = ["STEP", "Job", "JobFunction", "job"]

STEP: Final = "run"
"""The one step of every job. A machine of the same name and version that has a step `run` takes its instances over."""

Q = ParamSpec("Q")
# Without defaults, because they stand before Q in the signatures below.
InT = TypeVar("InT")
OutT = TypeVar("OutT")
T_out = TypeVar("T_out", covariant=True)


class Job(Definition[StateT, ResultT]):
    """A payload in, a result out. Made by `@job`."""

    def __init__(self, function: FunctionType, definition: MachineDef) -> None:
        self.__definition__: MachineDef = definition
        self.__doc__ = function.__doc__
        self._function: FunctionType = function

    @property
    def name(self) -> str:
        """What the database calls it."""
        return self.__definition__.name

    def handle(self, error: Exception, ctx: Context[Any]) -> Outcome[Any] | Awaitable[Outcome[Any]]:
        """Retry as the policy says, and then fail."""
        policy = self.__definition__.steps[STEP].retry or backoff
        if ctx.attempt + 1 < (ctx.max_attempts or policy.max_attempts):
            return Retry(policy(ctx.attempt))
        return Stop(error)

    def __repr__(self) -> str:
        return f"<job {self.name}>"


class JobFunction(Job[InT, OutT], Generic[InT, OutT, Q, T_out]):
    """A job that can still be called as the function that it was: `await invoice_charge(Invoice(7), ctx)`."""

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
    dead_letter: str | Definition[Any, Any] | None = None,
) -> _JobDecorator:
    """Make a job of a function `(payload)`, `(payload, ctx)` or `()`.

        @job("billing.invoice_charge.v1", max_attempts=5)
        async def invoice_charge(invoice: Invoice, ctx: Context[Invoice]) -> Receipt: ...

    What it returns is the result; `Done(result, effect=…)` adds what shall commit with it. What it raises is retried as
    `retry` says; `Discard`, `Cancel` and `RetryAfter` are obeyed at once. `async def` runs on the loop, `def` in a
    thread.

    Args:
        name: what the database calls it; dots make namespaces that workers can own by prefix.
        version: stays with an instance for life.
        queue: where it waits, unless an insert says otherwise.
        max_attempts: how often it is executed in all; short for that part of `retry`.
        retry: when to try again.
        lease: how long an execution stays leased without a heartbeat, instead of the worker's setting.
        dead_letter: the job that gets the payload and the error when this one fails, in the same transaction.
    """

    def decorate(function: Any) -> JobFunction[Any, Any, Any, Any]:
        payload_type, result_type, takes = _read(function, name)
        policy = retry if max_attempts is None else msgspec.structs.replace(retry, max_attempts=max_attempts)
        step = StepDef(
            name=STEP,
            function=_adapted(function, takes),
            is_async=inspect.iscoroutinefunction(function),
            is_initial=True,
            retry=policy,
            lease=lease,
            to=(),
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
            dead_letter=_dead_letter(dead_letter),
        )
        return JobFunction(function, definition)

    return decorate


def _dead_letter(given: str | Definition[Any, Any] | None) -> str | None:
    if given is None or isinstance(given, str):
        return None if given is None else checked_name(given, "dead_letter", OptionError)
    return definition_of(given).name


def _adapted(function: Any, takes: int) -> Callable[[Any, Context[Any]], Any]:
    """The function as a step: of the job and a context, with an outcome."""
    if inspect.iscoroutinefunction(function):

        async def run_async(job: Any, ctx: Context[Any]) -> Done[Any]:
            return _done(await function(*(ctx.state, ctx)[:takes]))

        return run_async

    def run(job: Any, ctx: Context[Any]) -> Any:
        value = function(*(ctx.state, ctx)[:takes])
        return value if inspect.iscoroutine(value) else _done(value)

    return run


def _done(value: Any) -> Done[Any]:
    return value if isinstance(value, Done) else Done(value)


def _read(function: Any, name: str) -> tuple[Any, Any, int]:
    """The payload type, the result type and the number of parameters of a job's function."""
    where = f"job '{name}'"
    if not isinstance(function, FunctionType):
        raise StepSignatureError(where, f"on {function!r}", "@job directly above `def` or `async def`")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise StepSignatureError(where, "a generator", "a function that returns its result, without `yield`")
    signature = inspect.signature(function)
    required = [
        p for p in signature.parameters.values() if p.default is p.empty and p.kind is not p.VAR_KEYWORD
    ]
    if len(required) > 2 or any(p.kind is p.KEYWORD_ONLY for p in required):
        called = function.__name__
        raise StepSignatureError(
            where, f"{called}{signature}", f"{called}(payload), {called}(payload, ctx) or {called}()"
        )
    try:
        hints = typing.get_type_hints(function)
    except NameError as error:
        # Only here does a job say its types. Without them its payload would silently arrive as plain JSON.
        raise StateTypeError(
            where,
            f"its annotations name '{error.name}', which is not known at run time",
            "define it above the job, and import it outside of `if TYPE_CHECKING:`",
        ) from None
    parameters = list(signature.parameters)[:2]
    payload = hints.get(parameters[0], Any) if parameters else None
    if payload is Context or typing.get_origin(payload) is Context:
        raise StateTypeError(where, "its first parameter is a Context", "write (payload, ctx), in this order")
    result = hints.get("return", Any)
    if result is type(None):
        result = None
    if typing.get_origin(result) is Done:
        (result,) = typing.get_args(result)
    return payload, result, len(parameters)
