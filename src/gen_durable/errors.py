"""All exceptions that gen_durable raises on purpose.

GenDurableError
├── DefinitionError              a machine is written wrongly: found at import, or when a worker takes it in
│   ├── DuplicateStepError           one step name, two functions
│   ├── InitialStepError             nowhere to begin, or two places
│   ├── StepSignatureError           a step or handler that cannot be called
│   ├── StateTypeError               a type that JSON cannot carry, or about which two places disagree
│   ├── OptionError                  a name, version or option that cannot be used
│   ├── UnknownStepError             a step that the machine does not have
│   ├── UnknownMachineError          a (name, version) that nobody registered
│   └── DuplicateMachineError        a (name, version) that two machines claim
├── SettingsError                an unknown setting, or one out of range                       (ValueError)
├── UsageError                   a call that can never work
│   ├── OutcomeError                 a step returned something that is no outcome
│   ├── InboxFullError               the inbox of an instance takes no more signals
│   └── NotLoadedError               content that was too large to come with the execution
├── CodecError                   a value does not fit its type; inside a step it goes to handle()
│   ├── DecodeError                  what was stored or sent cannot be read as the declared type
│   └── EncodeError                  what was given cannot be stored under the declared type
│       └── PayloadTooLargeError         it is too big
├── ProcessStepError             what a step in a process raised, as middleware sees it
├── StepTimeoutError             a step ran longer than its timeout=; it goes to handle()         (TimeoutError)
├── KeyTakenError                an instance of another machine holds the key
├── LimitError                   an insert names a rate limit that does not exist              (LookupError)
├── NoTargetError                nobody has that id, or nobody alive that key                  (LookupError)
├── MessageReusedError           a message from outside had the id of one for another target
├── NoScheduleError              no schedule has that name                                     (LookupError)
├── NotDoneError                 a result was asked for where there is none
│   ├── InstanceFailedError
│   ├── InstanceCancelledError
│   ├── InstanceCollectedError       it is done, and its result no longer kept
│   └── InstanceUnfinishedError
├── PauseTimeoutError            live workers did not confirm a pause in time                  (TimeoutError)
├── WorkerStoppedError           an engine error ended the worker; `__cause__` is that error
└── DatabaseError
    ├── NotConnectedError            a client or worker that is not open
    ├── UnreachableError             no server, no access, no binaries                         (ConnectionError)
    └── SchemaVersionError           tables that are missing, too old or too new

Every error keeps its positional arguments in `args`, which makes it pickle and gives it a repr. `__str__`
says what happened, to what, and what to do about it; it names types and paths, never a user's values.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from ._dictionary import did_you_mean

__all__ = [
    "CodecError",
    "DatabaseError",
    "DecodeError",
    "DefinitionError",
    "DuplicateMachineError",
    "DuplicateStepError",
    "EncodeError",
    "GenDurableError",
    "InboxFullError",
    "InitialStepError",
    "InstanceCancelledError",
    "InstanceCollectedError",
    "InstanceFailedError",
    "InstanceUnfinishedError",
    "KeyTakenError",
    "LimitError",
    "MessageReusedError",
    "NoScheduleError",
    "NoTargetError",
    "NotConnectedError",
    "NotDoneError",
    "NotLoadedError",
    "OptionError",
    "OutcomeError",
    "PauseTimeoutError",
    "PayloadTooLargeError",
    "ProcessStepError",
    "SchemaVersionError",
    "SettingsError",
    "StateTypeError",
    "StepSignatureError",
    "StepTimeoutError",
    "UnknownMachineError",
    "UnknownStepError",
    "UnreachableError",
    "UsageError",
    "WorkerStoppedError",
]


class GenDurableError(Exception):
    """The root: `except GenDurableError` catches everything of this library."""


class DefinitionError(GenDurableError):
    """A machine is written wrongly."""


class DuplicateStepError(DefinitionError):
    """A class body defines a step twice; Python would silently keep the second."""

    machine: str
    step: str
    first_line: int
    second_line: int

    def __init__(self, machine: str, step: str, first_line: int, second_line: int) -> None:
        super().__init__(machine, step, first_line, second_line)
        self.machine = machine
        self.step = step
        self.first_line = first_line
        self.second_line = second_line

    def __str__(self) -> str:
        return (
            f"machine '{self.machine}' defines step '{self.step}' twice (lines {self.first_line} and "
            f"{self.second_line}); the first would be lost, so rename one"
        )


class InitialStepError(DefinitionError):
    """It is not clear where a machine begins."""

    machine: str
    candidates: tuple[str, ...]

    def __init__(self, machine: str, candidates: tuple[str, ...]) -> None:
        super().__init__(machine, candidates)
        self.machine = machine
        self.candidates = candidates

    def __str__(self) -> str:
        if not self.candidates:
            return f"machine '{self.machine}' has no steps; mark at least one method with @step"
        named = ", ".join(self.candidates)
        return (
            f"machine '{self.machine}' has {len(self.candidates)} initial steps ({named}); "
            "keep initial=True on one of them"
        )


class StepSignatureError(DefinitionError):
    """A step or a handler has a shape that a worker cannot call."""

    where: str
    found: str
    expected: str

    def __init__(self, where: str, found: str, expected: str) -> None:
        super().__init__(where, found, expected)
        self.where = where
        self.found = found
        self.expected = expected

    def __str__(self) -> str:
        return f"{self.where} is {self.found}; write {self.expected}"


class StateTypeError(DefinitionError):
    """A type of a state, result or payload cannot work."""

    where: str
    problem: str
    advice: str

    def __init__(self, where: str, problem: str, advice: str) -> None:
        super().__init__(where, problem, advice)
        self.where = where
        self.problem = problem
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}; {self.advice}"


class OptionError(DefinitionError):
    """A name, a version or another option of a definition cannot be used."""

    problem: str
    advice: str

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(problem, advice)
        self.problem = problem
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.problem}; {self.advice}"


class UnknownStepError(DefinitionError):
    """A step is named that the machine does not have."""

    machine: str
    step: str
    known: tuple[str, ...]
    where: str

    def __init__(self, machine: str, step: str, known: Sequence[str], where: str = "") -> None:
        super().__init__(machine, step, tuple(known), where)
        self.machine = machine
        self.step = step
        self.known = tuple(known)
        self.where = where

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        hint = did_you_mean(self.step, self.known)
        return f"{place}machine '{self.machine}' has no step '{self.step}'{hint} (it has: {', '.join(self.known)})"


class UnknownMachineError(DefinitionError):
    """Nobody registered this name and version."""

    name: str
    version: int
    known: tuple[tuple[str, int], ...]

    def __init__(self, name: str, version: int, known: Sequence[tuple[str, int]]) -> None:
        super().__init__(name, version, tuple(known))
        self.name = name
        self.version = version
        self.known = tuple(known)

    def __str__(self) -> str:
        versions = sorted(version for name, version in self.known if name == self.name)
        if versions:
            listed = ", ".join(map(str, versions))
            return (
                f"machine '{self.name}' has no version {self.version} here (it has: {listed}); "
                "register the class of that version beside the others"
            )
        names = sorted({name for name, _ in self.known})
        hint = did_you_mean(self.name, names)
        there = f" (there are: {', '.join(names)})" if names else ""
        return f"no machine '{self.name}' version {self.version} is registered{hint}{there}; give it to the worker"


class DuplicateMachineError(DefinitionError):
    """Two machines want to be the same name and version."""

    name: str
    version: int
    first: str
    second: str

    def __init__(self, name: str, version: int, first: str, second: str) -> None:
        super().__init__(name, version, first, second)
        self.name = name
        self.version = version
        self.first = first
        self.second = second

    def __str__(self) -> str:
        return (
            f"two machines are named '{self.name}' version {self.version}: {self.first} and {self.second}; "
            "give one of them another name= or version="
        )


class SettingsError(GenDurableError, ValueError):
    """A setting is unknown, or its value is out of range."""

    path: str
    problem: str

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.path} {self.problem}"


class UsageError(GenDurableError):
    """A call that can never work, whatever the database holds."""

    problem: str
    advice: str

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(problem, advice)
        self.problem = problem
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.problem}; {self.advice}"


class OutcomeError(UsageError):
    """A step, or a handler, gave something back that is no outcome."""

    machine: str
    step: str
    found: str

    def __init__(self, machine: str, step: str, found: str) -> None:
        """Tell whose answer it was; `found` is the name of its type."""
        said = {"NoneType": "None", "coroutine": "a coroutine"}.get(found, f"a value of type {found}")
        super().__init__(
            f"step '{step}' of machine '{machine}' returned {said}, which is no outcome",
            "await what it calls, in an `async def`; to go on with another step, return Next(self.that_step)"
            if found == "coroutine"
            else "return Next, Retry, Await, ScheduleChildren, Done or Stop on every path",
        )
        self.args = (machine, step, found)
        self.machine = machine
        self.step = step
        self.found = found


class CodecError(GenDurableError):
    """A value and its type do not go together."""

    what: str
    type_name: str
    problem: str

    def __init__(self, what: str, type_name: str, problem: str) -> None:
        super().__init__(what, type_name, problem)
        self.what = what
        self.type_name = type_name
        self.problem = problem


class DecodeError(CodecError):
    """Stored or received JSON cannot be read as the declared type."""

    def __str__(self) -> str:
        return f"{self.what} does not fit {self.type_name}: {self.problem}"


class EncodeError(CodecError):
    """A value cannot be stored under the declared type."""

    def __str__(self) -> str:
        return f"{self.what} cannot be stored as {self.type_name}: {self.problem}"


class PayloadTooLargeError(EncodeError):
    """A value is JSON of the declared type, but there is too much of it."""

    size: int
    limit: int

    def __init__(self, what: str, type_name: str, size: int, limit: int) -> None:
        problem = (
            f"it is {size} bytes of JSON, {limit} are allowed; keep large data elsewhere and store "
            "where it is, or raise settings.max_payload"
        )
        super().__init__(what, type_name, problem)
        self.args = (what, type_name, size, limit)
        self.size = size
        self.limit = limit


class ProcessStepError(GenDurableError):
    """A step in a process of the pool raised. Its handler has seen the exception itself; here are only its words."""

    machine: str
    step: str
    reason: str

    def __init__(self, machine: str, step: str, reason: str) -> None:
        super().__init__(machine, step, reason)
        self.machine = machine
        self.step = step
        self.reason = reason

    def __str__(self) -> str:
        return f"step '{self.step}' of machine '{self.machine}' raised {self.reason}"


class StepTimeoutError(GenDurableError, TimeoutError):
    """A step took longer than it may."""

    machine: str
    step: str
    timeout: timedelta

    def __init__(self, machine: str, step: str, timeout: timedelta) -> None:
        super().__init__(machine, step, timeout)
        self.machine = machine
        self.step = step
        self.timeout = timeout

    def __str__(self) -> str:
        return f"step '{self.step}' of machine '{self.machine}' was not done after {self.timeout}"


class KeyTakenError(GenDurableError):
    """The key of an insert is held by an instance of another machine, so there is nothing to point at.

    Raised by `insert`, and by any use of a `KeyTaken`, which is what `insert_all` answers.
    """

    key: str
    machine: str
    holder: str
    holder_id: int

    def __init__(self, key: str, machine: str, holder: str, holder_id: int) -> None:
        super().__init__(key, machine, holder, holder_id)
        self.key = key
        self.machine = machine
        self.holder = holder
        self.holder_id = holder_id

    def __str__(self) -> str:
        return (
            f"cannot insert {self.machine}: the key {self.key!r} belongs to {self.holder} {self.holder_id}; "
            f"keys are shared by all machines, so put the machine into it: '{self.machine}:{self.key}'"
        )


class LimitError(GenDurableError, LookupError):
    """An insert names a rate limit that does not exist, or a weight above its burst."""

    limit: str
    weight: int
    burst: int | None

    def __init__(self, limit: str, weight: int, burst: int | None) -> None:
        super().__init__(limit, weight, burst)
        self.limit = limit
        self.weight = weight
        self.burst = burst

    def __str__(self) -> str:
        if self.burst is None:
            return (
                f"there is no rate limit '{self.limit}'; set it first: client.set_limit(RateLimit('{self.limit}', …)), "
                "or give it to a worker"
            )
        return (
            f"a weight of {self.weight} is more than the burst of rate limit '{self.limit}', {self.burst}; "
            "give less weight, or raise the burst"
        )


class NoTargetError(GenDurableError, LookupError):
    """There is no instance with that id, or no live one with that correlation key."""

    target: int | str
    verb: str

    def __init__(self, target: int | str, verb: str) -> None:
        super().__init__(target, verb)
        self.target = target
        self.verb = verb

    def __str__(self) -> str:
        if isinstance(self.target, int):
            # A signal is for the living; anything else finds those that have ended, too, until they are removed.
            is_signal = self.verb.startswith("signal")
            why = " that could take it; it may have finished" if is_signal else "; it may have been removed"
            return f"cannot {self.verb}: there is no instance {self.target}{why}, or not been inserted yet"
        hint = f" (ids are integers: did you mean {self.target}?)" if self.target.isdecimal() else ""
        return (
            f"cannot {self.verb}: no live instance has correlation_key {self.target!r}{hint}; "
            "it may have finished, or not been inserted yet"
        )


class InboxFullError(UsageError):
    """The inbox of an instance is full; signals are refused until a step has consumed some."""


class MessageReusedError(GenDurableError):
    """A message came in under an id that was delivered to another target."""

    message_id: str

    def __init__(self, message_id: str) -> None:
        super().__init__(message_id)
        self.message_id = message_id

    def __str__(self) -> str:
        return (
            "a message with this id was delivered to another target; send each message under an id of its own"
        )


class NoScheduleError(GenDurableError, LookupError):
    """There is no schedule of that name."""

    schedule: str

    def __init__(self, schedule: str) -> None:
        super().__init__(schedule)
        self.schedule = schedule

    def __str__(self) -> str:
        return f"there is no schedule {self.schedule!r}; `gen-durable schedules ls` lists those that are"


class NotLoadedError(UsageError):
    """A payload, state or result that the step has not loaded: it was too large to come with the execution."""


class NotDoneError(GenDurableError):
    """`.result` of an instance that is not done."""

    instance_id: int
    machine: str
    step: str
    status: str
    error: str | None

    def __init__(self, instance_id: int, machine: str, step: str, status: str, error: str | None) -> None:
        super().__init__(instance_id, machine, step, status, error)
        self.instance_id = instance_id
        self.machine = machine
        self.step = step
        self.status = status
        self.error = error

    def __str__(self) -> str:
        reason = f": {self.error}" if self.error else ""
        return (
            f"instance {self.instance_id} ({self.machine}) has no result, it is {self.status} "
            f"at step '{self.step}'{reason}"
        )


class InstanceFailedError(NotDoneError):
    """It ended as failed."""


class InstanceCancelledError(NotDoneError):
    """It ended as cancelled."""


class InstanceUnfinishedError(NotDoneError):
    """It has not ended yet; whoever waited stopped waiting before."""


class InstanceCollectedError(NotDoneError):
    """It was done so long ago that its result is no longer kept; its row stays for a key that it occupies."""

    def __str__(self) -> str:
        return (
            f"instance {self.instance_id} ({self.machine}) is done, but its result is no longer kept; "
            "settings.retention_done says how long results are"
        )


class PauseTimeoutError(GenDurableError, TimeoutError):
    """A queue is paused, and live workers did not confirm it in time. They may still begin what they have leased."""

    queue: str
    workers: tuple[str, ...]

    def __init__(self, queue: str, workers: tuple[str, ...]) -> None:
        super().__init__(queue, workers)
        self.queue = queue
        self.workers = workers

    def __str__(self) -> str:
        return (
            f"queue '{self.queue}' is paused, but not confirmed by {', '.join(self.workers)}. "
            "Wait longer, or check whether these workers hang or have no connection to the database."
        )


class WorkerStoppedError(GenDurableError):
    """A service of a worker failed, so the worker stopped. `__cause__` is the error of that service."""

    worker: str
    cause: str

    def __init__(self, worker: str, cause: str) -> None:
        super().__init__(worker, cause)
        self.worker = worker
        self.cause = cause

    def __str__(self) -> str:
        return (
            f"worker {self.worker} stopped: {self.cause}. Start a new one: other workers run its instances again "
            "when the leases expire."
        )


class DatabaseError(GenDurableError):
    """The database is not there, or not as it has to be."""


class NotConnectedError(DatabaseError):
    """A client or a worker was used outside its `with` block."""

    owner: str
    opener: str

    def __init__(self, owner: str, opener: str) -> None:
        super().__init__(owner, opener)
        self.owner = owner
        self.opener = opener

    def __str__(self) -> str:
        return f"this {self.owner} is not open; use it inside `{self.opener} {self.owner}(...) as ...:`"


class UnreachableError(DatabaseError, ConnectionError):
    """No connection to PostgreSQL. Whoever raises it takes the password out of `dsn`."""

    dsn: str
    cause: str
    advice: str

    def __init__(self, dsn: str, cause: str, advice: str) -> None:
        super().__init__(dsn, cause, advice)
        self.dsn = dsn
        self.cause = cause
        self.advice = advice

    def __str__(self) -> str:
        return f"cannot reach PostgreSQL at {self.dsn}: {self.cause}\n  {self.advice}"


class SchemaVersionError(DatabaseError):
    """The tables are missing, or of a version that this library does not work with."""

    schema: str
    found: int | None
    wanted: int
    oldest_code: int | None

    def __init__(self, schema: str, found: int | None, wanted: int, oldest_code: int | None = None) -> None:
        super().__init__(schema, found, wanted, oldest_code)
        self.schema = schema
        self.found = found
        self.wanted = wanted
        self.oldest_code = oldest_code

    def __str__(self) -> str:
        if self.found is None:
            return f"schema '{self.schema}' has no tables of gen_durable; run `gen-durable db migrate`"
        if self.found > self.wanted:
            return (
                f"schema '{self.schema}' is at version {self.found}, which needs code of version "
                f"{self.oldest_code or self.found} or newer; this gen_durable is of version {self.wanted}: upgrade "
                "the package"
            )
        return (
            f"schema '{self.schema}' is at version {self.found}, and this gen_durable needs {self.wanted}; "
            "run `gen-durable db migrate`"
        )
