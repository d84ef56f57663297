"""`Machine` and `@step`: how a machine is written. A mistake in its shape is raised here, at import."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from types import FunctionType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    Never,
    Protocol,
    Self,
    TypeAlias,
    get_args,
    overload,
)

import msgspec

from ._checks import checked_duration, duration_text
from ._dictionary import Place, did_you_mean
from ._shapes import unsupported_types
from ._typing import ResultT, StateT, T_co, TypeVar
from .context import Context
from .definition import Definition, MachineDef, Pool, StepDef, StepRef
from .errors import (
    DuplicateStepError,
    InitialStepError,
    OptionError,
    StateTypeError,
    StepSignatureError,
)
from .outcome import Done, Outcome, Retry, Stop
from .retry import Backoff
from .signals import Signal

__all__ = [
    "BoundStep",
    "Machine",
    "Step",
    "check_annotations",
    "check_lease",
    "check_options",
    "check_pool",
    "check_retry",
    "check_storable",
    "check_timeout",
    "step",
]

_AnyOutcome: TypeAlias = Outcome[Any]
# Because of this bound a step that returns something else is a type error, right at its decorator.
_ReturnT = TypeVar("_ReturnT", bound=_AnyOutcome | Coroutine[Any, Any, _AnyOutcome], default=Any)


class Machine(Definition[StateT, ResultT]):
    """The base class of machines.

        class Checkout(Machine[Order, Receipt], version=2, queue="checkout"):
            @step
            async def start(self, ctx: Context[Order]) -> Outcome: ...

    In the brackets stand the types of state and result: a `msgspec.Struct`, a dataclass, an attrs class, a
    `TypedDict`, a pydantic model, or plain JSON types. The result may be left open (`Machine[Order]`); a bare
    `Machine` takes a nested class `State` as its state, and if there is none, a dict.

    An instance begins at the first step, or at the one that says `@step(initial=True)`. All instances share one
    object of the class: it may hold a mailer that `__init__` was given, but nothing that belongs to an instance.
    """

    __options__: ClassVar[Mapping[str, Any]] = {"queue": "default", "retry": None, "lease": None}

    if not TYPE_CHECKING:

        def __class_getitem__(cls, item):  # noqa: ANN001, ANN204
            # Before 3.13 type variables have no defaults at run time, and Machine[Order] would lack an argument.
            items = item if isinstance(item, tuple) else (item,)
            missing = 2 - len(items) if cls is Machine else 0
            return super().__class_getitem__(items + (Any,) * missing)

    def __init_subclass__(
        cls,
        *,
        name: str | None = None,
        version: int = 1,
        queue: str | None = None,
        retry: Backoff | None = None,
        lease: timedelta | None = None,
        **unknown: Never,
    ) -> None:
        """Read the class. Queue, retry and lease are inherited, name and version belong to one class.

        Args:
            name: what the database calls it; the name of the class if left out.
            version: stays with an instance for life, so old classes are registered beside new ones.
            queue: where its instances wait, unless an insert says otherwise; `"default"` if left out.
            retry: how the default `handle` repeats every step; not at all if left out.
            lease: how long an execution stays leased without a heartbeat, instead of the worker's setting.
        """
        super().__init_subclass__()
        check_options(unknown, "machine", f"machine '{cls.__name__}'", _MACHINE_OPTIONS)
        check_retry(retry, f"machine '{cls.__name__}'")
        check_lease(lease, f"machine '{cls.__name__}'")
        given = {"queue": queue, "retry": retry, "lease": lease}
        cls.__options__ = {
            **cls.__options__,
            **{key: value for key, value in given.items() if value is not None},
        }
        _define(cls, cls.__name__ if name is None else name, version)

    # Any: an override may be plain or async, and either may end in `return super().handle(error, ctx)`.
    def handle(self, error: Exception, ctx: Context[StateT]) -> Any:
        """Turn what a step raised into an outcome. May be `async`; if it raises as well, the instance fails.

        Unless overridden, it repeats the step as `retry=` of the step or of the machine says, and then stops.
        """
        step = self.__definition__.steps.get(ctx.step)  # a row may stand at a step that is gone
        retry = step.retry if step else None
        if retry is not None and ctx.attempt + 1 < (ctx.max_attempts or retry.max_attempts):
            return Retry(retry(ctx.attempt))
        return Stop(error)


_MACHINE_OPTIONS: Final = ("name", "version", "queue", "retry", "lease")
_STEP_OPTIONS: Final = ("initial", "retry", "lease", "interrupt", "timeout", "pool", "to")


class BoundStep(StepRef[StateT], Generic[StateT, T_co]):
    """`self.ship`: a step of one machine object. Outcomes take it as a target; tests may call it."""

    __slots__ = ("_function", "_machine", "name")
    name: str

    def __init__(
        self, name: str, function: Callable[[Any, Context[StateT]], T_co], machine: Definition[StateT, Any]
    ) -> None:
        self.name = name
        self._function = function
        self._machine = machine

    def __call__(self, ctx: Context[StateT]) -> T_co:
        return self._function(self._machine, ctx)

    def __repr__(self) -> str:
        return f"<step {self._machine.__definition__.name}.{self.name}>"


class Step(StepRef[StateT], Generic[StateT, T_co]):
    """`Checkout.ship`: what `@step` makes of a method."""

    name: str
    function: Callable[[Any, Context[StateT]], T_co]
    is_initial: bool
    retry: Backoff | None
    lease: timedelta | None
    interrupt: bool
    timeout: timedelta | None
    pool: Pool
    to: tuple[str, ...] | None

    def __init__(
        self,
        function: Callable[[Any, Context[StateT]], T_co],
        *,
        initial: bool = False,
        retry: Backoff | None = None,
        lease: timedelta | None = None,
        interrupt: bool = False,
        timeout: timedelta | None = None,
        pool: Pool = "thread",
        to: tuple[str, ...] | None = None,
    ) -> None:
        self.name = function.__name__
        self.function = function
        self.is_initial = initial
        self.retry = retry
        self.lease = lease
        self.interrupt = interrupt
        self.timeout = timeout
        self.pool = pool
        self.to = to
        self.__doc__ = function.__doc__

    # The machine must have the state that the step takes: Context[Other] is an error wherever the step is used.
    @overload
    def __get__(self, machine: None, owner: type[Definition[StateT, Any]]) -> Self: ...
    @overload
    def __get__(self, machine: Definition[StateT, Any], owner: Any) -> BoundStep[StateT, T_co]: ...
    def __get__(self, machine: Any, owner: Any) -> Any:
        if machine is None:
            return self
        bound = BoundStep(self.name, self.function, machine)
        # The next `self.ship` finds it in the object's own dict and does not come here. Not for the
        # step of a base class that super() asks for: the name belongs to the one that overrides it.
        if getattr(type(machine), self.name, None) is self:
            vars(machine)[self.name] = bound
        return bound

    def __repr__(self) -> str:
        return f"<step {self.name}>"


class _StepDecorator(Protocol):
    def __call__(self, function: Callable[[Any, Context[StateT]], _ReturnT], /) -> Step[StateT, _ReturnT]: ...


@overload
def step(function: Callable[[Any, Context[StateT]], _ReturnT], /) -> Step[StateT, _ReturnT]: ...
@overload
def step(
    *,
    initial: bool = False,
    retry: Backoff | None = None,
    lease: timedelta | None = None,
    interrupt: bool = False,
    timeout: timedelta | None = None,
    pool: Pool = "thread",
    to: Iterable[str] | None = None,
) -> _StepDecorator: ...
def step(
    function: Any = None,
    /,
    *,
    initial: bool = False,
    retry: Backoff | None = None,
    lease: timedelta | None = None,
    interrupt: bool = False,
    timeout: timedelta | None = None,
    pool: Pool = "thread",
    to: Iterable[str] | None = None,
    **unknown: Any,
) -> Any:
    """Make a step of a method: `@step`, or with options `@step(retry=Backoff(max_attempts=5))`.

    Args:
        initial: instances begin here, although it is not the first step.
        retry: how the default `handle` repeats this step; as the machine says if left out.
        lease: instead of that of the machine or of the worker.
        interrupt: an `async def` step is cut off where it awaits when its instance is cancelled, instead of being
            left to end by itself. A step in a process always is.
        timeout: how long the step may run. An `async def` is cancelled then, a step in a process killed, one in a
            thread left to itself; either way `handle` gets a `StepTimeoutError`.
        pool: where a plain `def` runs: in a thread, or with `"process"` in a process of its own, for what keeps a
            processor busy.
        to: the names of all steps that may follow. For a step that computes its target; any other is refused then.
    """
    check_options(unknown, "step", "@step", _STEP_OPTIONS)
    targets = None if to is None else (to,) if isinstance(to, str) else tuple(to)

    def decorate(function: Any) -> Step[Any, Any]:
        _refuse_second(function, sys._getframe(1).f_locals)  # noqa: SLF001 - the class body, while it runs
        _check_function(function)
        check_retry(retry, f"step '{function.__qualname__}'")
        if interrupt and not inspect.iscoroutinefunction(function) and pool != "process":
            raise OptionError(
                f"step '{function.__qualname__}' is a plain def with interrupt=True",
                "a thread cannot be cut off: write `async def`, or ask ctx.cancelled",
            )
        check_lease(lease, f"step '{function.__qualname__}'")
        check_timeout(timeout, f"step '{function.__qualname__}'")
        check_pool(pool, function, f"step '{function.__qualname__}'")
        return Step(
            function,
            initial=initial,
            retry=retry,
            lease=lease,
            interrupt=interrupt,
            timeout=timeout,
            pool=pool,
            to=targets,
        )

    if function is None:
        return decorate
    _refuse_second(function, sys._getframe(1).f_locals)  # noqa: SLF001 - the class body, while it runs
    _check_function(function)
    return Step(function)


def check_annotations(cls: type[Machine[Any, Any]]) -> None:
    """Compare what the steps of a machine say about state and result with what the machine says.

    A class is checked when it is defined, except for names that its module defines further down; a worker that
    takes it in checks again, when all names are known.
    """
    definition = cls.__definition__
    for item in _steps_of(cls).values():
        _check_types(cls, item, definition.state_type, definition.result_type)


def _define(cls: type[Machine[Any, Any]], name: str, version: int) -> None:
    steps = _steps_of(cls)
    if not steps:
        return  # a base class for machines: only running or inserting it is an error
    marked = tuple(item.name for item in steps.values() if item.is_initial)
    if len(marked) > 1:
        raise InitialStepError(name, marked)
    _check_handler(cls)
    state_type, result_type = _declared_types(cls)
    retry: Backoff | None = cls.__options__["retry"]
    cls.__definition__ = MachineDef(
        name=name,
        version=version,
        queue=cls.__options__["queue"],
        steps={
            item.name: StepDef(
                name=item.name,
                function=item.function,
                is_async=inspect.iscoroutinefunction(item.function),
                is_initial=item.is_initial,
                retry=item.retry or retry,
                lease=item.lease or cls.__options__["lease"],
                interrupt=item.interrupt,
                timeout=item.timeout,
                pool=item.pool,
                to=item.to,
            )
            for item in steps.values()
        },
        initial=marked[0] if marked else next(iter(steps)),
        state_type=state_type,
        result_type=result_type,
        signals=_signals_of(cls, name),
        location=f"{cls.__module__}.{cls.__qualname__}",
    )
    check_storable(state_type, f"the state of machine '{name}'")
    check_storable(result_type, f"the result of machine '{name}'")
    for signal, payload_type in cls.__definition__.signals.items():
        check_storable(payload_type, f"the payload of signal '{signal}' of machine '{name}'")
    check_annotations(cls)


def _steps_of(cls: type) -> dict[str, Step[Any, Any]]:
    """Collect the steps of a class, its bases' first, in the order in which they are written."""
    steps: dict[str, Step[Any, Any]] = {}
    for base in reversed(cls.__mro__):
        for attribute, value in vars(base).items():
            if isinstance(value, Step):
                if value.name != attribute:
                    raise OptionError(
                        f"'{attribute}' of machine '{cls.__name__}' is the step '{value.name}' under another name",
                        "a step has the name of its function, so define one function for each",
                    )
                steps[attribute] = value
            elif isinstance(getattr(value, "__wrapped__", None), Step):
                kind = type(value).__name__
                raise StepSignatureError(
                    f"step '{attribute}' of machine '{cls.__name__}'",
                    f"a {kind}",
                    "@step alone, on a plain method",
                )
            else:
                steps.pop(attribute, None)  # a subclass uses the name for something else
    return steps


def _signals_of(cls: type, machine: str) -> dict[str, Any]:
    signals: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for signal in vars(base).values():
            if not isinstance(signal, Signal):
                continue
            if signals.get(signal.name, signal.payload_type) != signal.payload_type:
                raise StateTypeError(
                    f"machine '{machine}'",
                    f"it declares the signal '{signal.name}' with two payload types",
                    "give one of them another name",
                )
            signals[signal.name] = signal.payload_type
    return signals


def _refuse_second(function: Any, class_body: Mapping[str, Any]) -> None:
    """Raise if the class body has a step of this name: when the class exists, only the second would be left."""
    first = class_body.get(getattr(function, "__name__", ""))
    if isinstance(first, Step) and isinstance(function, FunctionType):
        machine = function.__qualname__.rpartition(".")[0].rpartition(".")[2]
        lines = (first.function.__code__.co_firstlineno, function.__code__.co_firstlineno)
        raise DuplicateStepError(machine, first.name, *lines)


def _check_function(function: Any) -> None:
    if not isinstance(function, FunctionType):
        raise StepSignatureError(
            f"@step on a {type(function).__name__}",
            "not on a function",
            "@step directly above `def` or `async def`",
        )
    where = f"step '{function.__qualname__}'"
    if function.__name__ == "handle":
        raise StepSignatureError(where, "named like the handler of errors", "another name")
    _check_callable(function, where, 2, f"{function.__name__}(self, ctx)")


def _check_handler(cls: type) -> None:
    handler = inspect.getattr_static(cls, "handle")
    where = f"'{cls.__name__}.handle'"
    if not isinstance(handler, FunctionType):
        raise StepSignatureError(where, f"a {type(handler).__name__}", "def handle(self, error, ctx)")
    _check_callable(handler, where, 3, "handle(self, error, ctx)")


def _check_callable(function: FunctionType, where: str, count: int, expected: str) -> None:
    """Refuse what cannot be called with so many arguments and answer with one value."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise StepSignatureError(where, "a generator", "a function that returns one outcome, without `yield`")
    signature = inspect.signature(function)
    try:
        signature.bind(*range(count))
    except TypeError:
        raise StepSignatureError(where, f"{function.__name__}{signature}", expected) from None


def check_options(unknown: Mapping[str, object], place: Place, where: str, known: Sequence[str]) -> None:
    """Raise `OptionError` for an option that a machine, step or job does not have."""
    for option in unknown:
        raise OptionError(
            f"{where} has no option '{option}'{did_you_mean(option, known, place)}",
            f"the options are {', '.join(known)}",
        )


def check_lease(lease: object, where: str) -> None:
    """Refuse what is no length of a lease."""
    if lease is None:
        return
    duration = checked_duration(lease, f"lease of {where}", OptionError)
    if not timedelta(milliseconds=100) <= duration <= timedelta(days=1):
        raise OptionError(
            f"lease of {where} is {duration_text(duration)}", "give a tenth of a second to a day"
        )


def check_timeout(timeout: object, where: str) -> None:
    """Refuse what is no time that a step may take."""
    if timeout is None:
        return
    duration = checked_duration(timeout, f"timeout of {where}", OptionError)
    if not timedelta(0) < duration <= timedelta(days=365):
        raise OptionError(
            f"timeout of {where} is {duration_text(duration)}", "it must be positive and at most 1 year"
        )


def check_pool(pool: object, function: FunctionType, where: str) -> None:
    """Refuse a place where this function cannot run."""
    if pool not in get_args(Pool):
        raise OptionError(f"pool of {where} is {pool!r}", 'give "thread" or "process"')
    if pool == "process" and inspect.iscoroutinefunction(function):
        raise OptionError(
            f'{where} is an `async def` with pool="process"',
            "write `def`: what keeps a processor busy has nothing to await",
        )


def check_retry(retry: object, where: str) -> None:
    """Refuse what is no policy."""
    if retry is not None and not isinstance(retry, Backoff):
        raise OptionError(f"retry of {where} is of type {type(retry).__name__}", "give a Backoff(…)")


def check_storable(type_: Any, where: str) -> None:
    """Refuse a type of which no value could be read back."""
    try:
        msgspec.json.Decoder(type_)
        unknown = unsupported_types(type_)
    except NameError:
        return  # it refers to a name that its module has not defined yet
    except TypeError as error:
        raise StateTypeError(
            where, f"{type_name(type_)} cannot be read from JSON ({error})", "change it"
        ) from error
    if unknown:
        raise StateTypeError(
            where,
            f"{type_name(type_)} cannot be read from JSON (the class {type_name(unknown[0])} has no form in it)",
            f"make {type_name(unknown[0])} a dataclass, a msgspec.Struct, a TypedDict or a pydantic model",
        )


def _declared_types(cls: type) -> tuple[Any, Any]:
    """Find the types of state and result: in the brackets; the state else in a nested `State`, or it is a dict."""
    state, result = _type_arguments(cls)
    if state is Any or isinstance(state, typing.TypeVar):
        nested = getattr(cls, "State", None)
        state = nested if isinstance(nested, type) else dict[str, Any]
    return state, Any if isinstance(result, typing.TypeVar) else result


def _type_arguments(cls: type) -> tuple[Any, Any]:
    """Find what stands in the brackets of `Machine[…]`, through generic bases whose variables are filled in."""
    for base in vars(cls).get("__orig_bases__", cls.__bases__):
        origin = typing.get_origin(base) or base
        arguments = typing.get_args(base)
        if origin is Machine:
            return arguments or (Any, Any)  # __class_getitem__ makes it two
        if isinstance(origin, type) and issubclass(origin, Machine):
            filled = dict(zip(getattr(origin, "__parameters__", ()), arguments, strict=False))
            state, result = _type_arguments(origin)
            return _fill(state, filled), _fill(result, filled)
    return Any, Any


def _fill(type_: Any, filled: Mapping[Any, Any]) -> Any:
    if isinstance(type_, typing.TypeVar):
        return filled.get(type_, type_)
    variables = getattr(type_, "__parameters__", ())
    if isinstance(type_, type) or not variables:
        return type_
    return type_[tuple(filled.get(variable, Any) for variable in variables)]


def _check_types(cls: type, item: Step[Any, Any], state_type: Any, result_type: Any) -> None:
    where = f"step '{item.name}' of machine {cls.__name__}"
    try:
        hints = typing.get_type_hints(item.function, localns={**vars(cls), cls.__name__: cls})
    except (NameError, AttributeError):
        return  # not defined yet, or never at run time
    except TypeError as error:
        raise StateTypeError(where, f"its annotations make no sense ({error})", "correct them") from error
    parameter = list(inspect.signature(item.function).parameters)[1]
    _check_context(cls, where, item.name, parameter, hints.get(parameter, Any), state_type)
    for ending in _endings(hints.get("return")):
        if not _is_part(ending, result_type):
            raise StateTypeError(
                where,
                f"it may end with {type_name(ending)}, but the result of the machine is {type_name(result_type)}",
                f"write Outcome[{type_name(result_type)}], or give the machine the other result",
            )


def _check_context(
    cls: type, where: str, step_name: str, parameter: str, annotation: Any, state_type: Any
) -> None:
    if annotation is Any:
        return
    if (typing.get_origin(annotation) or annotation) is not Context:
        raise StepSignatureError(
            where,
            f"{step_name}(self, {parameter}: {type_name(annotation)})",
            f"{step_name}(self, {parameter}: Context[{type_name(state_type)}])",
        )
    taken = (typing.get_args(annotation) or (Any,))[0]
    if taken is not Any and not isinstance(taken, typing.TypeVar) and taken != state_type:
        raise StateTypeError(
            where,
            f"it takes Context[{type_name(taken)}], but the state of the machine is {type_name(state_type)}",
            f"write `class {cls.__name__}(Machine[{type_name(taken)}])`, or Context[{type_name(state_type)}]",
        )


def _endings(annotation: Any) -> list[Any]:
    """Collect the types of results in an annotation: `Next | Done[int]` has int."""
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is Done:
        return list(arguments)
    return [ending for argument in arguments for ending in _endings(argument)]


def _is_part(ending: Any, result: Any) -> bool:
    if ending is Any or result is Any or isinstance(ending, typing.TypeVar):
        return True
    allowed = _members(result)
    return all(
        one in allowed
        or any(isinstance(one, type) and isinstance(a, type) and issubclass(one, a) for a in allowed)
        for one in _members(ending)
    )


def _members(type_: Any) -> tuple[Any, ...]:
    return typing.get_args(type_) if typing.get_origin(type_) in (typing.Union, UnionType) else (type_,)


def type_name(type_: Any) -> str:
    """Write a type as a person would."""
    return type_.__name__ if isinstance(type_, type) and not typing.get_args(type_) else str(type_)
