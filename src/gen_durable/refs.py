"""Inserts: options, `Spec`, and references to instances."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, Generic, Literal, TypeAlias, TypedDict, Unpack, overload

import msgspec

from ._checks import (
    MAX_KEY_BYTES,
    checked_delay,
    checked_id,
    checked_int,
    checked_key,
    checked_moment,
    checked_name,
    checked_traceparent,
)
from ._dictionary import did_you_mean
from ._typing import ResultT, StateT
from .definition import NO_DEFAULTS, Defaults, Definition, MachineDef, StepRef, definition_of, step_name
from .errors import KeyTakenError, OptionError, UnknownStepError, UsageError
from .instance import LIVE_STATUSES, Instance, Status

__all__ = [
    "AnySpec",
    "Duplicate",
    "InsertOptions",
    "InsertResult",
    "InsertValues",
    "Insertable",
    "Inserted",
    "Key",
    "KeyOption",
    "KeyTaken",
    "Ref",
    "Spec",
    "Target",
    "Until",
    "UntilOne",
    "checked_defaults",
    "checked_weight",
    "insert_values",
    "key_text",
    "target_value",
]

Key: TypeAlias = str | tuple[str, str | int]
"""A key: text, `"importer"`, or a name and a part, `("tenant", 7)`, which is stored as the text `"tenant:7"`.

Every key argument takes both forms. On the command line and in SQL a key is text: `tenant:7`.
"""

KeyOption: TypeAlias = Key | Callable[[Any], Key | None]
"""The default key of a machine or job: a key, or a function of the state that returns a key, or `None` for none."""

Insertable: TypeAlias = type[Definition[StateT, ResultT]] | Definition[StateT, ResultT]
"""A machine class, an object of one, or a job."""


class InsertOptions(TypedDict, total=False):
    """The options of `insert` and `Spec`. All are optional."""

    step: StepRef[Any] | str
    """Start at this step instead of the initial step."""
    queue: str
    """Use this queue instead of the queue of the machine."""
    priority: int
    """Smaller numbers run earlier, -32768 to 32767; default: that of the machine, or 0."""
    eligible_at: datetime
    """Do not run before this time; it must have a time zone."""
    schedule_at: datetime
    """An alias of `eligible_at`, which takes precedence."""
    schedule_in: timedelta
    """Delay before the first run. `eligible_at` and `schedule_at` take precedence."""
    correlation_key: Key
    """A business key, such as an order number: the address for signals. At most one live instance has it."""
    correlation_scope: Iterable[Status]
    """The statuses in which the key is occupied; default: all live ones. Empty: never occupied, and not an address."""
    unique_key: Key | bytes
    """A deduplication key: an insert with a key that is occupied returns `Duplicate` and inserts nothing."""
    unique_scope: Iterable[Status]
    """The statuses in which the unique key is occupied; default: all. Empty: never."""
    concurrency_key: Key | None
    """One instance with this key executes at a time, or as many as the `ConcurrencyLimit` of its name allows.

    Default: that of the machine. `None`: none, also if the machine has a default.
    """
    rate_limit: Key | None
    """The rate limit of the first start: a name, or a name and a partition. Each partition has its own bucket.

    Default: that of the machine. `None`: none, also if the machine has a default.
    """
    weight: int
    """How many tokens of the rate limit the first start takes; default: 1."""
    idempotency_key: Key
    """A unique key that stays occupied until the instance is deleted.

    Repeating a request returns the first instance.
    """
    max_attempts: int
    """Maximum number of executions of a step, the first included; overrides `max_attempts` of its retry policy.

    Default: that of the machine, or none.
    """
    traceparent: str
    """W3C trace context of its spans; default: the trace of the caller, if tracing is on."""


class InsertValues(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one insert after checks and defaults."""

    step: str
    queue: str
    priority: int = 0
    eligible_at: datetime | None = None
    delay: timedelta | None = None
    """Added to the time of the database. Set only if `eligible_at` is not."""
    correlation_key: str | None = None
    correlation_scope: tuple[Status, ...] = ()
    unique_key: bytes | None = None
    unique_scope: tuple[Status, ...] = ()
    concurrency_key: str | None = None
    max_attempts: int | None = None
    traceparent: str | None = None
    rate_limit: str | None = None
    weight: int | None = None


def insert_values(definition: MachineDef, options: Mapping[str, Any]) -> InsertValues:
    """Check the options of an insert and fill in defaults."""
    defaults = definition.defaults
    if not options and defaults is NO_DEFAULTS:
        return InsertValues(step=definition.initial, queue=definition.queue)
    given = {option: _check_of(option)(value) for option, value in options.items()}
    step = definition.initial
    if "step" in given:
        found = definition.find_step(given["step"])
        if found is None:
            raise UnknownStepError(definition.name, given["step"], tuple(definition.steps))
        step = found.name
    if "idempotency_key" in given:
        if "unique_key" in given or "unique_scope" in given:
            raise UsageError(
                "idempotency_key is given together with unique_key or unique_scope",
                "give one of them: idempotency_key is a unique key that stays occupied",
            )
        given["unique_key"] = given["idempotency_key"]
    moment = given.get("eligible_at", given.get("schedule_at"))
    return InsertValues(
        step=step,
        queue=given.get("queue", definition.queue),
        priority=given.get("priority", defaults.priority),
        eligible_at=moment,
        delay=given.get("schedule_in") if moment is None else None,
        correlation_key=given.get("correlation_key"),
        correlation_scope=_scope_of("correlation", given, LIVE_STATUSES),
        unique_key=given.get("unique_key"),
        unique_scope=_scope_of("unique", given, tuple(Status)),
        concurrency_key=given.get("concurrency_key", _static(defaults.concurrency_key)),
        max_attempts=given.get("max_attempts", defaults.max_attempts),
        traceparent=given.get("traceparent"),
        rate_limit=given.get("rate_limit", _static(defaults.rate_limit)),
        weight=checked_weight(given.get("weight"), given.get("rate_limit", defaults.rate_limit)),
    )


def checked_defaults(
    where: str,
    *,
    priority: int | None = None,
    max_attempts: int | None = None,
    concurrency_key: KeyOption | None = None,
    rate_limit: KeyOption | None = None,
) -> Defaults:
    """Check the defaults of a machine or job for inserts. All `None`: `NO_DEFAULTS`."""
    if priority is None and max_attempts is None and concurrency_key is None and rate_limit is None:
        return NO_DEFAULTS
    try:
        return Defaults(
            priority=0 if priority is None else _CHECKS["priority"](priority),
            max_attempts=None if max_attempts is None else _CHECKS["max_attempts"](max_attempts),
            concurrency_key=_checked_option(concurrency_key, "concurrency_key"),
            rate_limit=_checked_option(rate_limit, "rate_limit"),
        )
    except UsageError as error:
        raise OptionError(f"{where}: {error.problem}", error.advice) from None


def _static(default: str | Callable[[Any], Any] | None) -> str | None:
    return default if isinstance(default, str) else None


def _checked_option(given: KeyOption | None, what: str) -> str | Callable[[Any], Any] | None:
    if given is None or isinstance(given, str | tuple):
        return None if given is None else key_text(given, what)
    if not callable(given):
        raise UsageError(
            f"{what} is of type {type(given).__name__}", f"give {_KEY_FORMS}, or a function of the state"
        )
    if inspect.iscoroutinefunction(given):
        raise UsageError(f"{what} is an async function", "give a plain function of the state")
    try:
        inspect.signature(given).bind(None)
    except TypeError:
        raise UsageError(
            f"{what} is a function that does not take one argument", "give a function of the state"
        ) from None
    except ValueError:
        pass  # a builtin without a signature
    return given


_KEY_FORMS: Final = 'a text, or (name, partition): ("tenant", 7)'


def key_text(key: Key, what: str = "concurrency_key") -> str:
    """Return a key as it is stored: `"importer"`, or `"tenant:7"` for `("tenant", 7)`."""
    if isinstance(key, str):
        return checked_key(key, what)
    if not isinstance(key, tuple):
        raise UsageError(f"{what} is of type {type(key).__name__}", f"give {_KEY_FORMS}")
    if len(key) != 2:
        raise UsageError(f"{what} is a tuple of {len(key)}", 'give (name, partition): ("tenant", 7)')
    name, partition = key
    # The first colon ends the name: with one inside, ("a:b", "c") and ("a", "b:c") would be the same key.
    if ":" in checked_key(name, f"the name in {what}"):
        raise UsageError(
            f"the name in {what} contains ':', which separates name and partition", "use another name"
        )
    if isinstance(partition, bool) or not isinstance(partition, int):
        checked_key(partition, f"the partition in {what}")
    return checked_key(f"{name}:{partition}", what)


def checked_weight(weight: int | None, rate_limit: object) -> int | None:
    """Check the number of tokens that a start takes."""
    if weight is None:
        return None
    if rate_limit is None:
        raise UsageError("weight is given without rate_limit", "also give rate_limit, or leave weight out")
    return checked_int(weight, "the weight", 1, 2**31 - 1)


def _unique_key(key: Key | bytes) -> bytes:
    if not isinstance(key, bytes):
        return key_text(key, "unique_key").encode()
    if not 1 <= len(key) <= MAX_KEY_BYTES:
        raise UsageError(f"unique_key is {len(key)} bytes long", f"give 1 to {MAX_KEY_BYTES} bytes")
    return key


def _scope(given: object, what: str) -> tuple[Status, ...]:
    """Return the statuses of a scope in order. A scope that is not empty includes all live statuses.

    A row moves between live statuses. If its key were free in one of them, another row could take it there, and the
    first row could not move back.
    """
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UsageError(f"{what} is of type {type(given).__name__}", "give a list of statuses")
    chosen: set[Status] = set()
    for status in given:
        try:
            chosen.add(Status(status))
        except ValueError:
            hint = did_you_mean(status, tuple(Status), "status") if isinstance(status, str) else ""
            raise UsageError(
                f"{what} contains a value that is not a status{hint}", f"the statuses are {', '.join(Status)}"
            ) from None
    return tuple(status for status in Status if status in chosen or status in LIVE_STATUSES) if chosen else ()


def _scope_of(kind: str, given: Mapping[str, Any], default: tuple[Status, ...]) -> tuple[Status, ...]:
    key, scope = f"{kind}_key", f"{kind}_scope"
    if key in given:
        chosen: tuple[Status, ...] = given.get(scope, default)
        return chosen
    if scope in given:
        raise UsageError(f"{scope} is given without {key}", f"give {key}, or leave {scope} out")
    return ()


_CHECKS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "step": step_name,
    "queue": lambda value: checked_name(value, "the queue"),
    "priority": lambda value: checked_int(value, "the priority", -(2**15), 2**15 - 1),
    "eligible_at": lambda value: checked_moment(value, "eligible_at"),
    "schedule_at": lambda value: checked_moment(value, "schedule_at"),
    "schedule_in": lambda value: checked_delay(value, "schedule_in"),
    "correlation_key": lambda value: key_text(value, "correlation_key"),
    "correlation_scope": lambda value: _scope(value, "correlation_scope"),
    "unique_key": _unique_key,
    "unique_scope": lambda value: _scope(value, "unique_scope"),
    "concurrency_key": lambda value: None if value is None else key_text(value),
    "rate_limit": lambda value: None if value is None else key_text(value, "rate_limit"),
    "weight": lambda value: value,
    "idempotency_key": lambda value: key_text(value, "idempotency_key").encode(),
    "max_attempts": lambda value: checked_int(value, "max_attempts", 1, 2**31 - 1),
    "traceparent": checked_traceparent,
}


def _check_of(option: str) -> Callable[[Any], Any]:
    check = _CHECKS.get(option)
    if check is None:
        raise UsageError(
            f"insert has no option '{option}'{did_you_mean(option, tuple(_CHECKS), 'insert')}",
            f"the options are {', '.join(_CHECKS)}",
        )
    return check


class AnySpec:
    """A `Spec` of any machine: the element type of a list that mixes machines.

    `list[Spec[Any, Any]]` does not work: type checkers then infer `Any` and no longer compare each state with its
    machine.
    """

    __slots__ = ("definition", "options", "state", "values")
    definition: Insertable[Any, Any]
    state: Any
    options: Mapping[str, Any]
    values: InsertValues


class Spec(AnySpec, Generic[StateT, ResultT]):
    """One insert as a value, for `insert_all`, `ScheduleChildren` and `Schedule`.

        Spec(Thumbnail, Image(url), priority=5)

    Args:
        definition: the machine or job.
        state: its first state; for a job, its payload. A mapping is converted to the declared type when it is inserted.
        options: as for `client.insert`; see `InsertOptions`.

    Raises:
        UsageError: an option is unknown or invalid.
    """

    __slots__ = ()
    definition: Insertable[StateT, ResultT]
    state: StateT | Mapping[str, Any]
    options: Mapping[str, Any]
    values: InsertValues

    @overload
    def __init__(
        self, definition: Insertable[None, ResultT], /, **options: Unpack[InsertOptions]
    ) -> None: ...
    @overload
    def __init__(
        self,
        definition: Insertable[StateT, ResultT],
        state: StateT | Mapping[str, Any],
        /,
        **options: Unpack[InsertOptions],
    ) -> None: ...
    def __init__(self, definition: Any, state: Any = None, /, **options: Any) -> None:
        self.definition = definition
        self.state = state
        self.options = options
        self.values = insert_values(definition_of(definition), options)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Spec):
            return NotImplemented
        return (
            definition_of(self.definition) is definition_of(other.definition)
            and self.state == other.state
            and self.values == other.values
        )

    __hash__ = None  # type: ignore[assignment]  # a state may change

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"Spec({definition_of(self.definition).name}, {self.state!r}{options})"


class Ref(Generic[StateT, ResultT]):
    """A typed reference to an instance by id or correlation key: `Ref(Checkout, 42)`, `Ref(Checkout, "order:42")`.

    Every method of a client takes a reference where it takes an id; the state and result it returns are then typed.
    """

    __slots__ = ("definition", "target")
    __match_args__: tuple[str, ...] = ("target",)
    definition: Insertable[StateT, ResultT]
    target: int | str

    def __init__(self, definition: Insertable[StateT, ResultT], target: int | Key) -> None:
        definition_of(definition)
        self.definition = definition
        self.target = target_value(target)

    def _identity(self) -> tuple[object, ...]:
        definition = definition_of(self.definition)
        return (type(self), definition.name, definition.version, self.target)

    def __eq__(self, other: object) -> bool:
        return self._identity() == other._identity() if isinstance(other, Ref) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({definition_of(self.definition).name}, {self.target!r})"


class Inserted(Ref[StateT, ResultT]):
    """The answer of `insert`: a new instance was inserted."""

    __slots__ = ()
    status: ClassVar[Status] = Status.RUNNABLE
    """Always `runnable`; `Duplicate` has the status of the existing instance."""
    __match_args__ = ("id",)

    def __init__(self, definition: Insertable[StateT, ResultT], target: int) -> None:
        super().__init__(definition, target)

    @property
    def id(self) -> int:
        """The id of the instance."""
        return int(self.target)


class Duplicate(Ref[StateT, ResultT]):
    """The answer of `insert`: nothing was inserted, because this instance already has the key."""

    __slots__ = ("key", "kind", "status")
    __match_args__ = ("id", "key")
    key: str | bytes
    status: Status
    """The status of that instance at the time of the insert."""
    kind: str
    """Which key: `correlation_key`, `unique_key` or `idempotency_key`."""

    def __init__(
        self,
        definition: Insertable[StateT, ResultT],
        target: int,
        key: str | bytes,
        status: Status = Status.RUNNABLE,
        kind: str = "unique_key",
    ) -> None:
        super().__init__(definition, target)
        self.key = key
        self.status = status
        self.kind = kind

    @property
    def id(self) -> int:
        """The id of the instance."""
        return int(self.target)

    def _identity(self) -> tuple[object, ...]:
        return (*super()._identity(), self.key)


class KeyTaken(Ref[StateT, ResultT]):
    """The answer of `insert_all` for a spec whose key is held by an instance of another machine.

    Nothing was inserted. `id`, `target` and every client method that gets this object raise `error`.
    """

    __slots__ = ("error", "kind")
    __match_args__ = ("error",)
    error: KeyTakenError
    """Names the key and the instance that holds it."""
    kind: str
    """Which key: `correlation_key`, `unique_key` or `idempotency_key`."""

    def __init__(self, definition: Insertable[StateT, ResultT], error: KeyTakenError, kind: str) -> None:
        self.definition = definition
        self.error = error
        self.kind = kind

    @property
    def target(self) -> int | str:  # type: ignore[override]  # it has none
        """Raise `error`."""
        raise KeyTakenError(*self.error.args)

    @property
    def id(self) -> int:
        """Raise `error`."""
        raise KeyTakenError(*self.error.args)

    def _identity(self) -> tuple[object, ...]:
        definition = definition_of(self.definition)
        return (type(self), definition.name, definition.version, self.error.args, self.kind)

    def __repr__(self) -> str:
        return f"KeyTaken({definition_of(self.definition).name}, {self.error.key!r})"


InsertResult: TypeAlias = Inserted[StateT, ResultT] | Duplicate[StateT, ResultT]
"""Either way the instance exists, and the answer is a reference to it."""

Target: TypeAlias = Ref[Any, Any] | Instance[Any, Any] | int | Key
"""An instance: a reference, an `Instance`, an id (int) or a correlation key (text or tuple)."""


UntilOne: TypeAlias = (
    Literal["finished", "parked", "runnable", "executing", "awaiting_signal", "awaiting_children"]
    | Literal["done", "failed", "cancelled"]
    | Status
    | StepRef[Any]
    | tuple[Literal["step"], str]
)
"""What `wait` waits for: `"finished"`; `"parked"`, for a signal or children; a status; a step, as a reference or as
`("step", "ship")`."""

Until: TypeAlias = UntilOne | AbstractSet[UntilOne]
"""The same, or a set of them: any one ends the wait. The end of the instance ends every wait."""


def target_value(target: Target) -> int | str:
    """Return the id or correlation key of a target."""
    if isinstance(target, Ref):
        return target.target
    if isinstance(target, Instance):
        return target.id
    if isinstance(target, str | tuple):
        return key_text(target, "correlation_key")
    return checked_id(target)
