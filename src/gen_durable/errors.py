"""All exceptions that gen_durable raises.

```text
GenDurableError
├── DefinitionError              a machine or job is defined wrongly; raised at import or when a worker is made
│   ├── DuplicateStepError           two functions define the same step
│   ├── InitialStepError             no step, or more than one initial step
│   ├── StepSignatureError           a step or handler has a signature that workers cannot call
│   ├── StateTypeError               a type cannot be stored as JSON, or two declarations of it differ
│   ├── OptionError                  an unknown option, or an invalid name, version or option value
│   ├── UnknownStepError             the machine does not have this step
│   ├── UnknownMachineError          no machine is registered under this name and version
│   └── DuplicateMachineError        two machines have the same name and version
├── SettingsError                a setting is unknown or out of range                          (ValueError)
├── UsageError                   a call with invalid arguments
│   ├── OutcomeError                 a step returned a value that is not an outcome
│   ├── InboxFullError               the inbox of the instance is full
│   ├── SearchError                  a search has an unknown term, or a value that the term does not take
│   └── NotLoadedError               content was too large to be fetched with the execution
├── CodecError                   a value does not match its type; raised in a step, it goes to handle()
│   ├── DecodeError                  stored or received JSON does not match the declared type
│   │   └── UpgradeError                 a stored state cannot be upgraded to the version of the machine
│   └── EncodeError                  a value cannot be stored as the declared type
│       └── PayloadTooLargeError         a value exceeds settings.max_payload
├── ProcessStepError             a step in a process raised; middleware gets this error
├── StepTimeoutError             a step ran longer than its timeout=; it goes to handle()      (TimeoutError)
├── KeyTakenError                an instance of another machine holds the key
├── LimitError                   the rate limit does not exist, or the weight exceeds its burst (LookupError)
├── NoTargetError                no instance has the id or key; of a signal, no live one       (LookupError)
├── MessageReusedError           an inbound message has the id of a message to another target
├── NoScheduleError              no schedule has the name                                      (LookupError)
├── NoBatchError                 no batch has the id                                           (LookupError)
├── BatchCountError              the number of matching instances has moved since the preview
├── NotDoneError                 the instance has no result
│   ├── InstanceFailedError          it failed
│   ├── InstanceCancelledError       it was cancelled
│   ├── InstanceCollectedError       it is done, and its result has been removed (retention, keep=False)
│   └── InstanceUnfinishedError      it has not ended yet
├── PauseTimeoutError            live workers did not confirm a pause in time                  (TimeoutError)
├── WorkerStoppedError           the worker stopped on an engine error, its `__cause__`
└── DatabaseError
    ├── NotConnectedError            the client or worker is not open
    ├── UnreachableError             PostgreSQL cannot be reached                              (ConnectionError)
    └── SchemaVersionError           the tables are missing, too old or too new
```

The positional arguments of every error are in `args`, so errors can be pickled. `str()` of an error says what failed
and what to do. It contains types and paths, never values of a state, payload or result.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from ._dictionary import did_you_mean

__all__ = [
    "BatchCountError",
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
    "NoBatchError",
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
    "SearchError",
    "SettingsError",
    "StateTypeError",
    "StepSignatureError",
    "StepTimeoutError",
    "UnknownMachineError",
    "UnknownStepError",
    "UnreachableError",
    "UpgradeError",
    "UsageError",
    "WorkerStoppedError",
]


class GenDurableError(Exception):
    """Base class of all errors that gen_durable raises."""


class DefinitionError(GenDurableError):
    """A machine or job is defined wrongly.

    Raised when its class or function is defined, or when a worker or harness registers it. Fix the definition.
    """


class DuplicateStepError(DefinitionError):
    """A class body defines a step twice. Python alone would silently keep only the second one."""

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
            f"{self.second_line}); rename one of them"
        )


class InitialStepError(DefinitionError):
    """A machine has no steps, or more than one step with `initial=True`."""

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
    """A step or handler cannot be called by a worker: wrong parameters, a generator, or not a function."""

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
    """A type of a state, result or payload cannot be stored as JSON, or contradicts another declaration."""

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
    """An option of a machine, step or job is unknown, or its value is invalid."""

    problem: str
    advice: str

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(problem, advice)
        self.problem = problem
        self.advice = advice

    def __str__(self) -> str:
        return _sentence(self.problem, self.advice)


class UnknownStepError(DefinitionError):
    """A step name that the machine does not have."""

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
        return _sentence(
            f"{place}machine '{self.machine}' has no step '{self.step}'{hint}",
            f"use one of its steps ({', '.join(self.known)}), or add it",
        )


class UnknownMachineError(DefinitionError):
    """No machine with this name and version is registered. Pass its class to the worker."""

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
                f"version {self.version} of machine '{self.name}' is not registered (registered: {listed}); "
                "also pass the class of that version to the worker"
            )
        names = sorted({name for name, _ in self.known})
        hint = did_you_mean(self.name, names)
        registered = f" (registered: {', '.join(names)})" if names else ""
        return (
            f"machine '{self.name}' version {self.version} is not registered{hint}{registered}; "
            "pass its class to the worker"
        )


class DuplicateMachineError(DefinitionError):
    """Two machines have the same name and version. Change `name=` or `version=` of one of them."""

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
            "change name= or version= of one of them"
        )


class SettingsError(GenDurableError, ValueError):
    """A setting is unknown, or its value is out of range. `path` names the argument, variable or file entry."""

    path: str
    problem: str

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.path} {self.problem}"


class UsageError(GenDurableError):
    """A call with invalid arguments. It fails whatever the database contains; fix the call."""

    problem: str
    advice: str

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(problem, advice)
        self.problem = problem
        self.advice = advice

    def __str__(self) -> str:
        return _sentence(self.problem, self.advice)


class SearchError(UsageError):
    """A search has an unknown term, or a value that the term does not take. `start` and `end` mark the place."""

    start: int
    end: int

    def __init__(self, problem: str, advice: str, start: int, end: int) -> None:
        """Take what is wrong, what to do, and the place in the text: characters from 0."""
        super().__init__(problem, advice)
        self.args = (problem, advice, start, end)
        self.start = start
        self.end = end


class OutcomeError(UsageError):
    """A step or `handle` returned a value that is not an outcome. It goes to `handle` if the step returned it."""

    machine: str
    step: str
    found: str

    def __init__(self, machine: str, step: str, found: str) -> None:
        """Take the machine, the step and the name of the type that was returned."""
        returned = {"NoneType": "None", "coroutine": "a coroutine"}.get(found, f"a value of type {found}")
        super().__init__(
            f"step '{step}' of machine '{machine}' returned {returned}, not an outcome",
            "await it in an `async def`; to continue with another step, return Next(self.that_step)"
            if found == "coroutine"
            else "return Next, Retry, Await, ScheduleChildren, Done or Stop on every path",
        )
        self.args = (machine, step, found)
        self.machine = machine
        self.step = step
        self.found = found


class CodecError(GenDurableError):
    """A value does not match its declared type. Raised inside a step, the error goes to `handle`."""

    what: str
    type_name: str
    problem: str

    def __init__(self, what: str, type_name: str, problem: str) -> None:
        super().__init__(what, type_name, problem)
        self.what = what
        self.type_name = type_name
        self.problem = problem


class DecodeError(CodecError):
    """Stored or received JSON does not match the declared type.

    Typical cause: the type was changed while instances with the old state existed. Give new fields defaults, or use a
    new `version=` of the machine for the new type.
    """

    def __str__(self) -> str:
        return f"{self.what} does not match {self.type_name}: {self.problem}"


class UpgradeError(DecodeError):
    """An `@upgrade` raised, or returned a value that is not JSON data. `__cause__` is the exception."""

    from_version: int

    def __init__(self, what: str, from_version: int, problem: str) -> None:
        super().__init__(what, f"version {from_version + 1}", problem)
        self.args = (what, from_version, problem)
        self.from_version = from_version

    def __str__(self) -> str:
        step = f"from version {self.from_version} to version {self.from_version + 1}"
        return f"{self.what} cannot be upgraded {step}: {self.problem}; correct the function, then retry the instance"


class EncodeError(CodecError):
    """A value cannot be stored as the declared type."""

    def __str__(self) -> str:
        return f"{self.what} cannot be stored as {self.type_name}: {self.problem}"


class PayloadTooLargeError(EncodeError):
    """A value exceeds `settings.max_payload`. Store large data elsewhere, and its address in the state."""

    size: int
    limit: int

    def __init__(self, what: str, type_name: str, size: int, limit: int) -> None:
        problem = (
            f"it is {size} bytes of JSON, {limit} are allowed; store large data elsewhere and keep its address here, "
            "or raise settings.max_payload"
        )
        super().__init__(what, type_name, problem)
        self.args = (what, type_name, size, limit)
        self.size = size
        self.limit = limit


class ProcessStepError(GenDurableError):
    """A step with `pool="process"` raised.

    Middleware gets this error, with only the text of the exception. `handle` runs in that process and gets the
    exception itself.
    """

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
    """A step ran longer than its `timeout=`. It goes to `handle` like any exception of the step."""

    machine: str
    step: str
    timeout: timedelta

    def __init__(self, machine: str, step: str, timeout: timedelta) -> None:
        super().__init__(machine, step, timeout)
        self.machine = machine
        self.step = step
        self.timeout = timeout

    def __str__(self) -> str:
        return f"step '{self.step}' of machine '{self.machine}' exceeded its timeout of {self.timeout}"


class LeaseLostError(GenDurableError):
    """A step called a method of its context after its execution had lost its lease, or had been committed.

    Nothing was written. If the step raises it, `handle` is not called: another execution runs the step.
    """

    id: int
    machine: str
    step: str
    step_seq: int
    """`ctx.step_seq` of the execution."""

    def __init__(self, id: int, machine: str, step: str, step_seq: int) -> None:
        super().__init__(id, machine, step, step_seq)
        self.id, self.machine, self.step, self.step_seq = id, machine, step, step_seq

    def __str__(self) -> str:
        return (
            f"lease lost: {self.machine} {self.id}, step {self.step}, transition {self.step_seq}; nothing was "
            "written. Let the step end: its outcome is discarded"
        )


class KeyTakenError(GenDurableError):
    """The correlation or unique key of an insert is held by an instance of another machine.

    Raised by `insert`, and by every use of a `KeyTaken`, which `insert_all` returns instead of raising. All machines
    share keys: use a prefix per machine.
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
            f"cannot insert {self.machine}: the key {self.key!r} is held by {self.holder} {self.holder_id}; "
            f"keys are shared by all machines, so add a prefix: '{self.machine}:{self.key}'"
        )


class LimitError(GenDurableError, LookupError):
    """An insert names a rate limit that does not exist, or has a weight above its burst."""

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
                f"there is no rate limit '{self.limit}'; set it with client.set_limit(RateLimit('{self.limit}', …)) "
                "or Worker(…, limits=[…])"
            )
        return (
            f"a weight of {self.weight} is more than the burst of rate limit '{self.limit}', {self.burst}; "
            "lower the weight or raise the burst"
        )


class NoTargetError(GenDurableError, LookupError):
    """No instance has this id or this correlation key; of a signal, no live one."""

    target: int | str
    verb: str

    def __init__(self, target: int | str, verb: str) -> None:
        super().__init__(target, verb)
        self.target = target
        self.verb = verb

    def __str__(self) -> str:
        # Only a live instance takes signals; other calls also find instances that have ended.
        is_live = self.verb.startswith("signal")
        live = "live " if is_live else ""
        gone = "retention or keep=False may have removed it"
        if isinstance(self.target, int):
            why = "it has ended, or was never inserted" if is_live else gone
            return f"cannot {self.verb}: there is no {live}instance {self.target}; {why}"
        why = (
            "it has ended, or has not been inserted yet" if is_live else f"it is not inserted yet, or {gone}"
        )
        hint = f" (ids are integers: did you mean {self.target}?)" if self.target.isdecimal() else ""
        return f"cannot {self.verb}: no {live}instance has correlation_key {self.target!r}{hint}; {why}"


class InboxFullError(UsageError):
    """The inbox of an instance holds `settings.max_inbox` bytes. Signals are refused until a step consumes some."""


class MessageReusedError(GenDurableError):
    """An inbound message has an id that has been delivered to another target. Send each message with its own id."""

    message_id: str

    def __init__(self, message_id: str) -> None:
        super().__init__(message_id)
        self.message_id = message_id

    def __str__(self) -> str:
        return (
            "a message with this id has been delivered to another target; send each message with its own id"
        )


class NoScheduleError(GenDurableError, LookupError):
    """No schedule has this name."""

    schedule: str

    def __init__(self, schedule: str) -> None:
        super().__init__(schedule)
        self.schedule = schedule

    def __str__(self) -> str:
        return f"there is no schedule {self.schedule!r}; list schedules with `gen-durable schedules`"


class NoBatchError(GenDurableError, LookupError):
    """No batch has this id. The collector removes batches some time after they have ended."""

    batch_id: int

    def __init__(self, batch_id: int) -> None:
        super().__init__(batch_id)
        self.batch_id = batch_id

    def __str__(self) -> str:
        return f"there is no batch {self.batch_id}; list batches with `gen-durable batches`"


class BatchCountError(GenDurableError):
    """The number of instances that a batch would change has moved since the preview. Nothing was started."""

    verb: str
    expected: int
    found: int

    def __init__(self, verb: str, expected: int, found: int) -> None:
        super().__init__(verb, expected, found)
        self.verb = verb
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return (
            f"{self.verb} would change {self.found} instances now, and {self.expected} at the preview; "
            "preview it again, and pass the new count as expected="
        )


class NotLoadedError(UsageError):
    """A payload, state or result was too large to be fetched with the execution, and the step has not loaded it.

    Call `await ctx.inbox.load()` or `await ctx.children.load()` first; `load_sync` in a plain `def`.
    """


class NotDoneError(GenDurableError):
    """`.result` was read of an instance that has no result. The subclass says why."""

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
            f"instance {self.instance_id} ({self.machine}) has no result: {self.status} "
            f"at step '{self.step}'{reason}"
        )


class InstanceFailedError(NotDoneError):
    """The instance failed."""


class InstanceCancelledError(NotDoneError):
    """The instance was cancelled."""


class InstanceUnfinishedError(NotDoneError):
    """The instance has not ended yet; `client.wait` returned because of its `timeout=`."""


class InstanceCollectedError(NotDoneError):
    """The instance is done, and its result has been removed: by `keep=False`, or after `settings.retention_done`.

    Only its row is left, because the instance still occupies a correlation or unique key.
    """

    def __str__(self) -> str:
        return (
            f"instance {self.instance_id} ({self.machine}) is done, but its result has been removed; "
            "remove keep=False of the machine, or raise settings.retention_done, to keep results longer"
        )


class PauseTimeoutError(GenDurableError, TimeoutError):
    """A queue is paused, but live workers did not confirm it in time. They may still start rows leased before."""

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
    """A service of a worker failed, so the worker stopped. `__cause__` is the error.

    Start a new worker. Other workers run the instances of the stopped one when their leases expire.
    """

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
    """The database cannot be used: not connected, not reachable, or with the wrong schema version."""


class NotConnectedError(DatabaseError):
    """A client or worker was used outside its `with` or `async with` block."""

    owner: str
    opener: str

    def __init__(self, owner: str, opener: str) -> None:
        super().__init__(owner, opener)
        self.owner = owner
        self.opener = opener

    def __str__(self) -> str:
        return f"this {self.owner} is not open; use it inside `{self.opener} {self.owner}(...) as ...:`"


class UnreachableError(DatabaseError, ConnectionError):
    """PostgreSQL cannot be reached. `dsn` never contains the password."""

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
    """The tables are missing, or their version does not match this release of gen_durable.

    Run `gen-durable db migrate`, or upgrade the package.
    """

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
        is_default = self.schema == "gen_durable"
        migrate = "gen-durable db migrate" + ("" if is_default else f" --schema {self.schema}")
        if self.found is None:
            return f"schema '{self.schema}' has no tables of gen_durable; run `{migrate}`"
        if self.found > self.wanted:
            return (
                f"schema '{self.schema}' is at version {self.found}, which needs code of version "
                f"{self.oldest_code or self.found} or newer; this gen_durable is of version {self.wanted}: upgrade "
                "the package"
            )
        return (
            f"schema '{self.schema}' is at version {self.found}, but this gen_durable needs {self.wanted}; "
            f"run `{migrate}`"
        )


def _sentence(problem: str, advice: str) -> str:
    """Join problem and advice; a problem that ends with a hint ends with a question mark already."""
    return f"{problem} {advice[:1].upper()}{advice[1:]}." if problem.endswith("?") else f"{problem}; {advice}"
