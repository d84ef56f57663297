"""`Machine`, `@step` and `@upgrade`: define a machine. Mistakes are raised when the class is defined."""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
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

from ._checks import MAX_DELAY, checked_duration, duration_text
from ._dictionary import Place, did_you_mean
from ._shapes import unsupported_types
from ._typing import ResultT, StateT, T_co, TypeVar
from .config import HistoryLevel
from .context import Context
from .definition import Definition, MachineDef, Pool, StepDef, StepRef, step_name
from .errors import (
    DuplicateStepError,
    InitialStepError,
    OptionError,
    StateTypeError,
    StepSignatureError,
)
from .outcome import Done, Next, Outcome, Retry, Stop
from .refs import KeyOption, checked_defaults
from .retry import Backoff
from .signals import Signal
from .streams import Stream

__all__ = [
    "BoundStep",
    "Machine",
    "Step",
    "Upgrade",
    "check_annotations",
    "check_lease",
    "check_options",
    "check_pool",
    "check_retry",
    "check_storable",
    "check_timeout",
    "checked_retention",
    "step",
    "upgrade",
]

_AnyOutcome: TypeAlias = Outcome[Any]
# With this bound, type checkers report a step that does not return an outcome at its decorator.
_CallableT = TypeVar("_CallableT", bound=Callable[..., Any])
_ReturnT = TypeVar("_ReturnT", bound=_AnyOutcome | Coroutine[Any, Any, _AnyOutcome], default=Any)


class Machine(Definition[StateT, ResultT]):
    """Base class of machines. A subclass defines steps, which are methods with `@step`.

        class Checkout(Machine[Order, Receipt], version=2, queue="checkout"):
            @step
            async def charge(self, ctx: Context[Order]) -> Outcome[Receipt]:
                await payments.charge(ctx.state.card, key=ctx.idempotency_key)
                return Next(self.ship)

            @step
            async def ship(self, ctx: Context[Order]) -> Outcome[Receipt]:
                return Done(Receipt(ctx.state.number))

    `Machine[State, Result]` declares the types of state and result: a `msgspec.Struct`, a dataclass, an attrs class, a
    `TypedDict`, a pydantic model, or plain JSON types. `Machine[State]` accepts any result. The state of a bare
    `Machine` is its nested class `State`, or a dict if there is none.

    An instance starts at the first step of the class, or at the step with `@step(initial=True)`. A worker uses one
    object of the class for all instances. That object may hold dependencies that `__init__` was given, but no data of
    an instance.

    Options of the class statement: `name`, `version`, `queue`, `retry`, `lease`, `keep`, `history`, `priority`,
    `max_attempts`, `concurrency_key`, `rate_limit`, `retention_done`, `retention_failed`, `retention_cancelled`; see
    `__init_subclass__`.

    Raises:
        DefinitionError: the definition is invalid; raised when the class is defined.
    """

    __options__: ClassVar[Mapping[str, Any]] = {
        "queue": "default",
        "retry": None,
        "lease": None,
        "keep": True,
        "history": None,
        "priority": None,
        "max_attempts": None,
        "concurrency_key": None,
        "rate_limit": None,
        "retention_done": None,
        "retention_failed": None,
        "retention_cancelled": None,
    }

    if not TYPE_CHECKING:

        def __class_getitem__(cls, item):  # noqa: ANN001, ANN204
            # Before Python 3.13 type variables have no defaults at run time; fill in the missing argument.
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
        keep: bool | None = None,
        history: HistoryLevel | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        concurrency_key: KeyOption | None = None,
        rate_limit: KeyOption | None = None,
        retention_done: timedelta | None = None,
        retention_failed: timedelta | None = None,
        retention_cancelled: timedelta | None = None,
        **unknown: Never,
    ) -> None:
        """Read the options of a class. Subclasses inherit all of them except name and version.

        `priority`, `max_attempts`, `concurrency_key` and `rate_limit` apply to every insert that does not give its own:
        by clients, as children, by schedules, by SQL and by the command line. A function of the state runs where the
        instance is inserted; producers without code have to give the key.

        Args:
            name: the name in the database; default: the name of the class.
            version: the version of code and state that instances are stored with. To change a machine incompatibly,
                raise it, and either write an `@upgrade` or register the old class next to the new one.
            queue: the queue of its instances, unless an insert names another one; default: `"default"`.
            retry: how the default `handle` retries a step that raised; default: no retry.
            lease: how long an execution keeps its lease without a heartbeat; default: `settings.lease`.
            keep: `False` deletes an instance when it is done, with its history; default: it is kept for
                `settings.retention_done`. Failed and cancelled instances are always kept.
            history: `"all"` keeps the state of each transition, for `client.history` and `client.fork`; default:
                `settings.history`.
            priority: smaller numbers run earlier; default: 0.
            max_attempts: maximum number of executions of a step with a retry policy, which it overrides.
            concurrency_key: one instance with this key executes at a time, or as many as its limit allows. A key, or a
                function of the state: `lambda order: ("tenant", order.tenant)`.
            rate_limit: the rate limit of the first start, as a key or a function of the state.
            retention_done: how long done instances are kept; default: `settings.retention_done`. It applies to
                instances that end after a worker has registered it.
            retention_failed: the same for failed instances.
            retention_cancelled: the same for cancelled instances.
            unknown: none; any other option raises `OptionError` with a hint.

        Raises:
            DefinitionError: the definition is invalid.
        """
        super().__init_subclass__()
        check_options(unknown, "machine", f"machine '{cls.__name__}'", _MACHINE_OPTIONS)
        check_retry(retry, f"machine '{cls.__name__}'")
        check_lease(lease, f"machine '{cls.__name__}'")
        given = {
            "queue": queue,
            "retry": retry,
            "lease": lease,
            "keep": keep,
            "history": history,
            "priority": priority,
            "max_attempts": max_attempts,
            "concurrency_key": concurrency_key,
            "rate_limit": rate_limit,
            "retention_done": retention_done,
            "retention_failed": retention_failed,
            "retention_cancelled": retention_cancelled,
        }
        cls.__options__ = {
            **cls.__options__,
            **{key: value for key, value in given.items() if value is not None},
        }
        _define(cls, cls.__name__ if name is None else name, version)

    # `| Any`: type checkers accept an `async def` as override, and `return super().handle(error, ctx)` in both forms.
    def handle(self, error: Exception, ctx: Context[StateT]) -> Outcome[Any] | Any:
        """Decide the outcome after a step raised. An override may be `def` or `async def`.

        The default retries the step by its `retry=`, or that of the machine. An exception that is not retried, or not
        any more, leads to the step's `on_failure=`, or to `Stop(error)`. An override replaces all of this; it returns
        `super().handle(error, ctx)`, without `await`, for exceptions that it leaves to the default. It is not called
        when a worker process dies: the step then runs again.

            async def handle(self, error: Exception, ctx: Context[Order]) -> Outcome:
                if isinstance(error, CardDeclined):
                    return Next(self.ask_for_another_card)
                return super().handle(error, ctx)

        Args:
            error: the exception that the step raised.
            ctx: a new context; `ctx.state` is the state before the step ran.

        Returns:
            An outcome. If `handle` itself raises, the instance fails.
        """
        step = self.__definition__.steps.get(ctx.step)  # the step of a stored row may have been removed
        retry = step.retry if step else None
        if (
            retry is not None
            and retry.retries(error)
            and ctx.attempt + 1 < (ctx.max_attempts or retry.max_attempts)
        ):
            return Retry(retry(ctx.attempt))
        if step is not None and step.on_failure is not None:
            return Next(step.on_failure)
        return Stop(error)


_DEFAULTS: Final = ("priority", "max_attempts", "concurrency_key", "rate_limit")
_RETENTION: Final = ("retention_done", "retention_failed", "retention_cancelled")
_MACHINE_OPTIONS: Final = (
    "name",
    "version",
    "queue",
    "retry",
    "lease",
    "keep",
    "history",
    *_DEFAULTS,
    *_RETENTION,
)
_STEP_OPTIONS: Final = (
    "initial",
    "retry",
    "lease",
    "interrupt",
    "timeout",
    "pool",
    "to",
    "was",
    "undo",
    "on_cancel",
    "on_failure",
    "checkpoint",
)


class BoundStep(StepRef[StateT], Generic[StateT, T_co]):
    """A step of a machine object: `self.ship`. Pass it to outcomes as a target; tests may call it."""

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
    """A step of a machine class: `Checkout.ship`. Made by `@step`."""

    name: str
    function: Callable[[Any, Context[StateT]], T_co]
    is_initial: bool
    retry: Backoff | None
    lease: timedelta | None
    interrupt: bool
    timeout: timedelta | None
    pool: Pool
    to: tuple[str, ...] | None
    was: tuple[str, ...]
    undo: str | None
    on_cancel: str | None
    on_failure: str | None
    checkpoint: Any

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
        was: tuple[str, ...] = (),
        undo: str | None = None,
        on_cancel: str | None = None,
        on_failure: str | None = None,
        checkpoint: Any = Any,
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
        self.was = was
        self.undo = undo
        self.on_cancel = on_cancel
        self.on_failure = on_failure
        self.checkpoint = checkpoint
        self.__doc__ = function.__doc__

    # Type checkers report a step whose Context[Other] does not match the state of the machine.
    @overload
    def __get__(self, machine: None, owner: type[Definition[StateT, Any]]) -> Self: ...
    @overload
    def __get__(self, machine: Definition[StateT, Any], owner: Any) -> BoundStep[StateT, T_co]: ...
    def __get__(self, machine: Any, owner: Any) -> Any:
        if machine is None:
            return self
        bound = BoundStep(self.name, self.function, machine)
        # Cache it: the next `self.ship` finds it in the object's own dict. Not for a step of a base class found by
        # super(), because the name in the dict belongs to the overriding step.
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
    was: str | Iterable[str] = (),
    undo: StepRef[Any] | str | None = None,
    on_cancel: StepRef[Any] | str | None = None,
    on_failure: StepRef[Any] | str | None = None,
    checkpoint: Any = Any,
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
    was: str | Iterable[str] = (),
    undo: StepRef[Any] | str | None = None,
    on_cancel: StepRef[Any] | str | None = None,
    on_failure: StepRef[Any] | str | None = None,
    checkpoint: Any = Any,
    **unknown: Any,
) -> Any:
    """Make a method a step of its machine: `@step`, or with options `@step(retry=Backoff(max_attempts=5))`.

    A step takes a `Context` and returns an outcome. An `async def` runs on the event loop of the worker, a plain `def`
    in a thread. A step runs at least once per transition: it must be safe to repeat. The name of the function is stored
    with instances: after renaming it, give the former name as `was=`.

        @step(retry=Backoff(max_attempts=5), timeout=timedelta(minutes=1))
        async def charge(self, ctx: Context[Order]) -> Outcome:
            await payments.charge(ctx.state.card, key=ctx.idempotency_key)
            return Next(self.ship)

    Args:
        initial: instances start at this step instead of the first step of the class.
        retry: how the default `handle` retries this step; default: `retry=` of the machine.
        lease: how long an execution keeps its lease without a heartbeat; default: that of the machine or the worker.
        interrupt: cancel an `async def` step at its next `await` when its instance is cancelled. By default the step
            runs to its end. A step with `pool="process"` is always interrupted.
        timeout: how long the step may run. `handle` then gets a `StepTimeoutError`. An `async def` step is cancelled, a
            step in a process is killed; a thread cannot be stopped and runs on, but its outcome is discarded.
        pool: where a plain `def` runs: `"thread"`, or `"process"` for CPU-bound work.
        to: the names of all steps that may follow this one; other targets are refused. Declare it for a step that
            computes its target.
        was: the former name of the step, or several: it runs instances that are stored at one of them.
        undo: the step, or its name, that undoes this one. If the instance fails or is cancelled after this step was
            committed, the undo steps of its committed steps run in reverse order, and then the instance ends. An undo
            step is an ordinary step; it ends with `Done()`.
        on_cancel: the step, or its name, that runs instead when the instance is cancelled at this step. Its outcome
            decides how the instance continues.
        on_failure: the step to continue with when this one has failed for good, as a reference or by name: its
            exception is not retried, or not any more, or its process died too often. `ctx.failure` of that step has
            the error. By default the instance fails. A `Stop` that the step returns still ends the instance.
        checkpoint: the type of the values that `ctx.checkpoint` stores; by default JSON data.

    Raises:
        DefinitionError: the function cannot be a step, or an option is invalid.
    """
    check_options(unknown, "step", "@step", _STEP_OPTIONS)
    targets = None if to is None else _names(to, "to")
    former = _names(was, "was")

    def decorate(function: Any) -> Step[Any, Any]:
        _refuse_second(function, sys._getframe(1).f_locals)  # noqa: SLF001 - the class body, while it runs
        _check_function(function)
        check_retry(retry, f"step '{function.__qualname__}'")
        if interrupt and not inspect.iscoroutinefunction(function) and pool != "process":
            raise OptionError(
                f"step '{function.__qualname__}' is a plain def with interrupt=True",
                "a thread cannot be interrupted: write `async def`, or check ctx.cancelled in the step",
            )
        check_lease(lease, f"step '{function.__qualname__}'")
        check_timeout(timeout, f"step '{function.__qualname__}'")
        check_pool(pool, function, f"step '{function.__qualname__}'")
        check_storable(checkpoint, f"the checkpoint of step '{function.__qualname__}'")
        return Step(
            function,
            initial=initial,
            retry=retry,
            lease=lease,
            interrupt=interrupt,
            timeout=timeout,
            pool=pool,
            to=targets,
            was=former,
            undo=_other_step(undo, "undo", function.__qualname__),
            on_cancel=_other_step(on_cancel, "on_cancel", function.__qualname__),
            on_failure=_other_step(on_failure, "on_failure", function.__qualname__),
            checkpoint=checkpoint,
        )

    if function is None:
        return decorate
    _refuse_second(function, sys._getframe(1).f_locals)  # noqa: SLF001 - the class body, while it runs
    _check_function(function)
    return Step(function)


def _names(given: object, option: str) -> tuple[str, ...]:
    """Return the names of steps that an option has: one, or several."""
    if isinstance(given, str):
        return (given,)
    found = tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(isinstance(each, str) for each in found):
        raise OptionError(
            f"{option} of a step is {given!r}",
            f'give names of steps: {option}="ship" or {option}=["ship", "pack"]',
        )
    return found


class Upgrade:
    """A function that upgrades stored states. Made by `@upgrade`; tests may call it."""

    def __init__(self, function: Callable[[Any], Any], from_version: int) -> None:
        self.function = function
        self.from_version = from_version
        self.__doc__ = function.__doc__

    def __call__(self, state: Any, /) -> Any:
        return self.function(state)

    def __repr__(self) -> str:
        return f"<upgrade from version {self.from_version}>"


def _with_version(decorator: _CallableT) -> _CallableT:
    """Refuse `@upgrade` without parentheses, or without a version."""

    @functools.wraps(decorator)
    def checked(*functions: Any, **options: Any) -> Any:
        if functions or set(options) != {"from_version"} or not isinstance(options["from_version"], int):
            raise OptionError(
                "@upgrade got no version",
                "write @upgrade(from_version=1): the version whose states the function takes",
            )
        return decorator(**options)

    return checked  # type: ignore[return-value]  # the same signature


@_with_version
def upgrade(*, from_version: int) -> Callable[[Callable[[Any], Any] | staticmethod[[Any], Any]], Upgrade]:
    """Make a function of a machine the upgrade of stored states from one version to the next.

        class Checkout(Machine[Order, Receipt], version=2):
            @upgrade(from_version=1)
            @staticmethod
            def split_name(state: dict[str, Any]) -> dict[str, Any]:
                first, _, last = state.pop("name").partition(" ")
                return {**state, "first": first, "last": last}

    The function takes the stored state as plain JSON data, and returns plain JSON data for the next version. It must
    be pure: it may run several times for one instance. Upgrades chain: a machine of version 3 may have one from
    version 1 and one from version 2.

    A worker with the machine also runs instances of these older versions, unless the older version itself is
    registered. An instance keeps its version until an outcome of the new code writes its state.

    Args:
        from_version: the version whose states the function takes.

    Raises:
        DefinitionError: the function is not a plain function of one argument.
    """

    def decorate(function: Callable[[Any], Any] | staticmethod[[Any], Any]) -> Upgrade:
        plain: Any = function.__func__ if isinstance(function, staticmethod) else function
        name = getattr(plain, "__qualname__", type(plain).__name__)
        if not isinstance(plain, FunctionType) or inspect.iscoroutinefunction(plain):
            kind = "an `async def`" if isinstance(plain, FunctionType) else f"a {type(plain).__name__}"
            raise StepSignatureError(
                f"@upgrade on {name}", kind, "a plain `def` with the state as its argument"
            )
        _check_callable(plain, f"upgrade '{name}'", 1, f"{plain.__name__}(state), as a staticmethod")
        return Upgrade(plain, from_version)

    return decorate


def _other_step(value: object, option: str, step: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, StepRef | str):
        raise OptionError(
            f"{option} of step '{step}' is of type {type(value).__name__}",
            f'give a method with @step that is defined above, or its name: {option}="release"',
        )
    return step_name(value)


def check_annotations(cls: type[Machine[Any, Any]]) -> None:
    """Check that the annotations of the steps match the state and result types of the machine.

    The check when the class is defined skips names that its module defines later. A worker that registers the class
    checks again, when all names are known.
    """
    definition = cls.__definition__
    for item in _steps_of(cls).values():
        _check_types(cls, item, definition.state_type, definition.result_type)


def _define(cls: type[Machine[Any, Any]], name: str, version: int) -> None:
    steps = _steps_of(cls)
    if not steps:
        return  # a base class of machines; inserting or registering it is an error
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
        keep=cls.__options__["keep"],
        retention=checked_retention(
            f"machine '{name}'",
            cls.__options__["keep"],
            {each: cls.__options__[each] for each in _RETENTION},
        ),
        history=cls.__options__["history"],
        defaults=checked_defaults(f"machine '{name}'", **{each: cls.__options__[each] for each in _DEFAULTS}),
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
                was=item.was,
                undo=item.undo,
                on_cancel=item.on_cancel,
                on_failure=item.on_failure,
                checkpoint=item.checkpoint,
            )
            for item in steps.values()
        },
        initial=marked[0] if marked else next(iter(steps)),
        state_type=state_type,
        result_type=result_type,
        signals=_signals_of(cls, name),
        streams=_streams_of(cls, name),
        upgrades=_upgrades_of(cls, name),
        location=f"{cls.__module__}.{cls.__qualname__}",
        undo_steps=frozenset(item.undo for item in steps.values() if item.undo is not None),
    )
    check_storable(state_type, f"the state of machine '{name}'")
    check_storable(result_type, f"the result of machine '{name}'")
    for signal, payload_type in cls.__definition__.signals.items():
        check_storable(payload_type, f"the payload of signal '{signal}' of machine '{name}'")
    for stream, item_type in cls.__definition__.streams.items():
        check_storable(item_type, f"an item of stream '{stream}' of machine '{name}'")
    check_annotations(cls)


def _steps_of(cls: type) -> dict[str, Step[Any, Any]]:
    """Return the steps of a class in definition order, those of base classes first."""
    steps: dict[str, Step[Any, Any]] = {}
    for base in reversed(cls.__mro__):
        for attribute, value in vars(base).items():
            if isinstance(value, Step):
                if value.name != attribute:
                    raise OptionError(
                        f"'{attribute}' of machine '{cls.__name__}' is an alias of step '{value.name}'",
                        "define a function for each step: a step has the name of its function",
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
                steps.pop(attribute, None)  # a subclass replaces the step by another attribute
    return steps


def _upgrades_of(cls: type, machine: str) -> dict[int, Callable[[Any], Any]]:
    """Return the upgrades of a class by version; one of a subclass replaces one of a base class.

    A base class that is another machine has versions of its own, so its upgrades are not inherited.
    """
    found: dict[int, Callable[[Any], Any]] = {}
    for base in reversed(cls.__mro__):
        own_definition: MachineDef | None = vars(base).get("__definition__")
        if own_definition is not None and own_definition.name != machine:
            continue
        own: dict[int, str] = {}
        for attribute, value in vars(base).items():
            item = value.__func__ if isinstance(value, staticmethod) else value
            if not isinstance(item, Upgrade):
                continue
            if item.from_version in own:
                raise OptionError(
                    f"machine '{cls.__name__}' has two upgrades from version {item.from_version}: "
                    f"{own[item.from_version]} and {attribute}",
                    "correct from_version of one of them",
                )
            own[item.from_version] = attribute
            found[item.from_version] = item.function
    return found


def _signals_of(cls: type, machine: str) -> dict[str, Any]:
    """Return the payload types of the signals of a class by name."""
    found = ((one.name, one.payload_type) for one in _attributes_of(cls) if isinstance(one, Signal))
    return _types_by_name(found, machine, "signal", "payload types")


def _streams_of(cls: type, machine: str) -> dict[str, Any]:
    """Return the item types of the streams of a class by name."""
    found = ((one.name, one.item_type) for one in _attributes_of(cls) if isinstance(one, Stream))
    return _types_by_name(found, machine, "stream", "item types")


def _attributes_of(cls: type) -> Iterator[object]:
    for base in reversed(cls.__mro__):
        yield from vars(base).values()


def _types_by_name(found: Iterable[tuple[str, Any]], machine: str, kind: str, types: str) -> dict[str, Any]:
    by_name: dict[str, Any] = {}
    for name, type_ in found:
        if by_name.setdefault(name, type_) != type_:
            raise StateTypeError(
                f"machine '{machine}'",
                f"it declares the {kind} '{name}' with two {types}",
                "rename one of them",
            )
    return by_name


def _refuse_second(function: Any, class_body: Mapping[str, Any]) -> None:
    """Raise if the class body already has a step of this name; the finished class would only have the second one."""
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
        raise StepSignatureError(where, "named like the error handler", "another name")
    _check_callable(function, where, 2, f"{function.__name__}(self, ctx)")


def _check_handler(cls: type) -> None:
    handler = inspect.getattr_static(cls, "handle")
    where = f"'{cls.__name__}.handle'"
    if not isinstance(handler, FunctionType):
        raise StepSignatureError(where, f"a {type(handler).__name__}", "def handle(self, error, ctx)")
    _check_callable(handler, where, 3, "handle(self, error, ctx)")


def _check_callable(function: FunctionType, where: str, count: int, expected: str) -> None:
    """Refuse a generator, and a function that cannot be called with `count` positional arguments."""
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
    """Check the `lease` option: 100 ms to 1 day."""
    if lease is None:
        return
    duration = checked_duration(lease, f"lease of {where}", OptionError)
    if not timedelta(milliseconds=100) <= duration <= timedelta(days=1):
        raise OptionError(
            f"lease of {where} is {duration_text(duration)}", "it must be between 100ms and 1 day"
        )


def check_timeout(timeout: object, where: str) -> None:
    """Check the `timeout` option: positive, at most 1 year."""
    if timeout is None:
        return
    duration = checked_duration(timeout, f"timeout of {where}", OptionError)
    if not timedelta(0) < duration <= timedelta(days=365):
        raise OptionError(
            f"timeout of {where} is {duration_text(duration)}", "it must be positive and at most 1 year"
        )


def checked_retention(where: str, keep: object, given: Mapping[str, object]) -> dict[str, timedelta]:
    """Check the options `retention_done`, `retention_failed` and `retention_cancelled`; return them by status."""
    found: dict[str, timedelta] = {}
    for option, value in given.items():
        if value is None:
            continue
        duration = checked_duration(value, f"{option} of {where}", OptionError)
        if not timedelta(0) < duration <= MAX_DELAY:
            advice = "it must be positive and at most 100 years"
            if option == "retention_done":
                advice += "; keep=False deletes done instances at once"
            raise OptionError(f"{option} of {where} is {duration_text(duration)}", advice)
        found[option.removeprefix("retention_")] = duration
    if "done" in found and keep is False:
        raise OptionError(f"{where} has keep=False and retention_done", "remove one of them")
    return found


def check_pool(pool: object, function: FunctionType, where: str) -> None:
    """Check the `pool` option; a coroutine function cannot run in a process."""
    if pool not in get_args(Pool):
        raise OptionError(f"pool of {where} is {pool!r}", 'give "thread" or "process"')
    if pool == "process" and inspect.iscoroutinefunction(function):
        raise OptionError(
            f'{where} is an `async def` with pool="process"',
            "write a plain `def`: steps in processes cannot await",
        )


def check_retry(retry: object, where: str) -> None:
    """Check the `retry` option."""
    if retry is not None and not isinstance(retry, Backoff):
        raise OptionError(f"retry of {where} is of type {type(retry).__name__}", "give a Backoff(…)")


def check_storable(type_: Any, where: str) -> None:
    """Refuse a type whose values cannot be decoded from JSON."""
    try:
        msgspec.json.Decoder(type_)
        unknown = unsupported_types(type_)
    except NameError:
        return  # the type refers to a name that its module defines later
    except TypeError as error:
        raise StateTypeError(
            where, f"{type_name(type_)} cannot be read from JSON ({error})", "use another type"
        ) from error
    if unknown:
        raise StateTypeError(
            where,
            f"{type_name(type_)} cannot be read from JSON (no JSON form is known for class {type_name(unknown[0])})",
            "use another type"
            if unknown[0].__module__ == "builtins"
            else f"make {type_name(unknown[0])} a dataclass, a msgspec.Struct, a TypedDict or a pydantic model",
        )


def _declared_types(cls: type) -> tuple[Any, Any]:
    """Return the types of state and result: the type arguments; without them a nested `State`, or dict, and Any."""
    state, result = _type_arguments(cls)
    if state is Any or isinstance(state, typing.TypeVar):
        nested = getattr(cls, "State", None)
        state = nested if isinstance(nested, type) else dict[str, Any]
    return state, Any if isinstance(result, typing.TypeVar) else result


def _type_arguments(cls: type) -> tuple[Any, Any]:
    """Return the type arguments of `Machine[…]`, resolved through generic base classes."""
    for base in vars(cls).get("__orig_bases__", cls.__bases__):
        origin = typing.get_origin(base) or base
        arguments = typing.get_args(base)
        if origin is Machine:
            return arguments or (Any, Any)  # __class_getitem__ always passes two
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
        return  # a name that is defined later, or only for type checkers
    except TypeError as error:
        raise StateTypeError(
            where, f"its annotations cannot be evaluated ({error})", "correct them"
        ) from error
    parameter = list(inspect.signature(item.function).parameters)[1]
    _check_context(cls, where, item.name, parameter, hints.get(parameter, Any), state_type)
    for ending in _result_types(hints.get("return")):
        if not _is_assignable(ending, result_type):
            raise StateTypeError(
                where,
                f"its result is {type_name(ending)}, but the result of the machine is {type_name(result_type)}",
                f"write Outcome[{type_name(result_type)}], or change the result type of the machine",
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


def _result_types(annotation: Any) -> list[Any]:
    """Return the result types in an annotation: int for `Next | Done[int]`."""
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is Done:
        return list(arguments)
    return [ending for argument in arguments for ending in _result_types(argument)]


def _is_assignable(ending: Any, result: Any) -> bool:
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
    """Return the name of a type for messages."""
    return type_.__name__ if isinstance(type_, type) and not typing.get_args(type_) else str(type_)
