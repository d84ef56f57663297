"""What both harnesses add to a client, except `drain`: machines, time, assertions, crashes."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from datetime import timedelta
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, get_args, overload

from .. import _verbs
from .._checks import checked_delay, checked_int
from .._core.codec import encode
from .._db import search, snapshots
from .._db.plan import Plan, Row
from .._dictionary import did_you_mean
from .._typing import KEEP, ItemT, ResultT, StateT
from ..async_client import AsyncClient
from ..definition import MachineDef, StepRef, definition_of, step_name
from ..errors import NotConnectedError, UsageError
from ..instance import Instance, Status
from ..refs import AnySpec, Insertable, Key, Ref, Target, key_text, target_value
from ..schedules import Schedule
from ..signals import Signal, signal_name
from ..streams import Stream, StreamItem
from . import _clock as clock
from ._load import add_version, load
from ._stepper import CommittedOutcome, Crash, CrashPoint, Stepper

__all__ = ["HarnessBase"]

T = TypeVar("T")
_MAX_INSTANCES: Final = 10_000


class HarnessBase:
    """Methods of both harnesses. They block, in async tests too, so an `await` cannot be forgotten."""

    _stepper: Stepper
    _ahead: timedelta

    def _run_now(self, plan: Plan[T]) -> T:
        """Run a plan now, blocking."""
        raise NotImplementedError

    def use(self, machine: Insertable[Any, Any], /) -> None:
        """Register a machine, or an object of one with fakes: `durable.use(Welcome(FakeMailer()))`.

        Machines that the harness inserts, and children, are registered automatically.
        """
        self._stepper.use(machine)
        with suppress(NotConnectedError):  # not open yet: the first insert registers it
            self._register()

    @property
    def resources(self) -> Any:
        """`ctx.resources` of the steps; default: `None`. Set it: `durable.resources = Fakes()`."""
        return self._stepper.resources

    @resources.setter
    def resources(self, resources: Any) -> None:
        self._stepper.resources = resources

    # Same signatures as the client; these overrides also register the machine.
    if not TYPE_CHECKING:

        def insert(self, machine, /, *args, **options):  # noqa: ANN001, ANN002, ANN003, ANN202
            self._stepper.learn(machine)
            self._register()
            return super().insert(machine, *args, **options)

        # For help().
        insert.__doc__ = AsyncClient.insert.__doc__
        insert.__signature__ = signature(AsyncClient.insert)

        def insert_all(self, specs, /, **options):  # noqa: ANN001, ANN003, ANN202
            specs = list(specs)
            for spec in specs:
                if isinstance(spec, AnySpec):
                    self._stepper.learn(spec.definition)
            self._register()
            return super().insert_all(specs, **options)

        insert_all.__doc__ = AsyncClient.insert_all.__doc__
        insert_all.__signature__ = signature(AsyncClient.insert_all)

        def put_schedule(self, schedule, /, **options):  # noqa: ANN001, ANN003, ANN202
            if isinstance(schedule, Schedule):
                self._stepper.learn(schedule.spec.definition)
            return super().put_schedule(schedule, **options)

        put_schedule.__doc__ = AsyncClient.put_schedule.__doc__
        put_schedule.__signature__ = signature(AsyncClient.put_schedule)

    def _register(self) -> None:
        """Register new machines in the database, as a worker does when it starts: a cancel reads `on_cancel=` there."""
        if self._stepper.has_new_machines:
            self._run_now(self._stepper.register())

    def load(
        self,
        machine: Insertable[StateT, ResultT],
        /,
        *,
        state: object,
        version: int | None = None,
        step: StepRef[Any] | str | None = None,
        awaits: Iterable[Signal[Any] | str] = (),
        timeout: timedelta | None = None,
        correlation_key: Key | None = None,
        checkpoint: object = None,
    ) -> Ref[StateT, ResultT]:
        """Put an instance in place as older code has left it, to test that the machine continues it.

            order = durable.load(Checkout, version=1, step="decide", state={"name": "Ada"}, awaits=["paid"])
            durable.signal(order, Checkout.paid, Payment(100))
            durable.drain()
            durable.assert_done(order)

        Args:
            machine: the machine that is to continue it.
            state: the stored state, as JSON data. It is not checked against the machine.
            version: the version that the instance is stored with; default: that of the machine.
            step: the step that it is at, also one that the machine does not have; default: the initial step.
            awaits: the signals that it waits for; default: it is due.
            timeout: how long it waits for them; default: forever.
            correlation_key: its key.
            checkpoint: `ctx.last_checkpoint` of the step, as JSON data; it is not checked either. Default: none.

        Returns:
            A reference to the instance. It has no children, and nothing to undo.

        Raises:
            UsageError: the machine does not run this version.
        """
        definition = definition_of(machine)
        number = definition.version if version is None else version
        if isinstance(awaits, str | Signal):
            raise UsageError("awaits= is not a list of signals", f"write awaits=[{signal_name(awaits)!r}]")
        self._stepper.learn(machine)
        if self._stepper.registry.get(definition.name, number) is None:
            raise UsageError(
                f"load got version {number}, which machine '{definition.name}' version {definition.version} does not "
                "run",
                "give its version, or one that it upgrades"
                + (f": write @upgrade(from_version={number})" if 0 < number < definition.version else ""),
            )
        number = checked_int(number, "the version of the instance", 1, 2**31 - 1)
        at = definition.initial if step is None else step_name(step)
        self._run_now(add_version(definition.name, number, at, definition.queue))
        self._run_now(self._stepper.register())
        id = self._run_now(
            load(
                fsm=definition.name,
                version=number,
                step=at,
                state=encode(state, Any, "the state", self._stepper.max_payload),
                queue=definition.queue,
                awaits=[signal_name(each) for each in awaits] or (None if timeout is None else []),
                timeout=None if timeout is None else checked_delay(timeout, "the timeout"),
                correlation_key=None
                if correlation_key is None
                else key_text(correlation_key, "correlation_key"),
                checkpoint=None
                if checkpoint is None
                else encode(checkpoint, Any, "the checkpoint", self._stepper.max_payload),
            )
        )
        return Ref(machine, id)

    def advance(
        self,
        by: timedelta = timedelta(0),
        /,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
    ) -> None:
        """Advance the clock of the database: `durable.advance(hours=24)`. Nothing runs until the next `drain`.

        It moves the stored times into the past; the clock of the process is unchanged. The next `drain` fires every
        fire time of schedules that has passed, as running workers would. To test an outage, call `catch_up` before.
        """
        passed = by + timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        self._run_now(clock.advance(checked_delay(passed, "the time to advance by")))
        self._ahead += passed

    def catch_up(self) -> int:
        """Fire due schedules as the first worker after an outage: by `missed=` of each schedule.

        Returns:
            The number of inserted instances; `drain` runs them.
        """
        return self._run_now(clock.catch_up(self._ahead))

    def fire_timeouts(self) -> int:
        """End every `Await` that has a timeout or deadline, however far away; return how many there were."""
        return self._run_now(clock.fire_timeouts())

    @overload
    def assert_done(self, target: Ref[Any, ResultT], result: object = KEEP, /) -> ResultT: ...
    @overload
    def assert_done(self, target: int | str, result: object = KEEP, /) -> Any: ...
    def assert_done(self, target: Target, result: object = KEEP, /) -> Any:
        """Assert that the instance is done, with this result if one is given; return the result."""
        __tracebackhide__ = True
        instance = self._in_status(target, Status.DONE)
        if result is not KEEP and instance.result != result:
            _fail(f"{_name(instance)} is done with {instance.result!r}, not with {result!r}")
        return instance.result

    def assert_failed(self, target: Target, /, *, match: str = "") -> Instance[Any, Any]:
        """Assert that the instance failed, with a `last_error` that matches the regular expression `match`."""
        __tracebackhide__ = True
        instance = self._in_status(target, Status.FAILED)
        if re.search(match, instance.last_error or "") is None:
            _fail(f"{_name(instance)} failed with {instance.last_error!r}, which does not match {match!r}")
        return instance

    def assert_cancelled(self, target: Target, /, *, match: str = "") -> Instance[Any, Any]:
        """Assert that the instance was cancelled, with a reason that matches the regular expression `match`."""
        __tracebackhide__ = True
        instance = self._in_status(target, Status.CANCELLED)
        if re.search(match, instance.cancel_reason or "") is None:
            _fail(
                f"{_name(instance)} was cancelled for {instance.cancel_reason!r}, which does not match {match!r}"
            )
        return instance

    def assert_awaiting(self, target: Target, /, *signals: Signal[Any] | str) -> Instance[Any, Any]:
        """Assert that the instance waits for these signals, or for others and a deadline if none is given."""
        __tracebackhide__ = True
        instance = self._in_status(target, Status.AWAITING_SIGNAL)
        missing = [name for name in map(signal_name, signals) if name not in instance.awaits]
        if missing:
            _fail(
                f"{_name(instance)} waits for {_listed(instance.awaits) or 'no signal'}, not for {_listed(missing)}"
            )
        return instance

    def assert_at(self, target: Target, step: StepRef[Any] | str, /) -> Instance[Any, Any]:
        """Assert that the instance is at this step: its next step, or its last one if it has ended."""
        __tracebackhide__ = True
        instance = self._find(target)
        if instance.step != step_name(step):
            _fail(
                f"{_name(instance)} is at step '{instance.step}', not '{step_name(step)}'; {self._described(instance)}"
            )
        return instance

    @overload
    def instances(self, machine: Insertable[StateT, ResultT], /) -> list[Instance[StateT, ResultT]]: ...
    @overload
    def instances(self, /) -> list[Instance[Any, Any]]: ...
    def instances(self, machine: Any = None, /) -> list[Instance[Any, Any]]:
        """Return all instances, or those of this machine, the oldest first."""
        definition = None if machine is None else definition_of(machine)
        wanted = (
            search.Filter()
            if definition is None
            else search.Filter(fsms=[definition.name], versions=[definition.version])
        )
        rows = self._run_now(search.page(wanted, _MAX_INSTANCES, None))
        return [_verbs.read(row, definition or self._definition_of(row)) for row in reversed(rows)]

    def outcomes(self, target: Target, /) -> list[CommittedOutcome]:
        """Return the transitions and retries of an instance in order: `[t.step for t in durable.outcomes(order)]`."""
        value = target_value(target)
        if isinstance(value, str):
            ids = {t.instance_id for t in self._stepper.outcomes if t.correlation_key == value}
            value = max(ids, default=0)  # the latest instance that had the key
        return [t for t in self._stepper.outcomes if t.instance_id == value]

    @overload
    def published(self, target: Target, stream: Stream[ItemT], /) -> list[StreamItem[ItemT]]: ...
    @overload
    def published(self, target: Target, stream: str, /) -> list[StreamItem[Any]]: ...
    def published(self, target: Target, stream: Stream[Any] | str, /) -> list[StreamItem[Any]]:
        """Return the items that an instance has published to a stream so far.

            assert [item.value for item in durable.published(chat, Chat.tokens)] == ["Hel", "lo"]

        Raises:
            NoTargetError: there is no such instance.
        """
        source = _verbs.StreamFollow(self._run_now(_verbs.open_stream(target, stream, 0)))
        found: list[StreamItem[Any]] = []
        while page := list(self._run_now(source.plan())):
            found += page
        return found

    @contextmanager
    def crash_at(self, step: StepRef[Any] | str, when: CrashPoint = "before_commit", /) -> Generator[None]:
        """Simulate a crash of the process at this step: `drain` inside the block raises `Crash`, the next one recovers.

            with durable.crash_at(Checkout.ship), pytest.raises(Crash):
                durable.drain()
            durable.drain()                      # ship() runs again, as another attempt

        Args:
            step: the step, or its name.
            when: `"before_step"`: the step has not run. `"before_commit"`: the step has run, its outcome is not
                committed.

        Raises:
            UsageError: the point is unknown, or no registered machine has a step of this name.
        """
        name = step_name(step)
        self._check_crash_point(step, when)

        def crash(reached: str, point: CrashPoint) -> None:
            if (reached, point) == (name, when):
                raise Crash(f"{point} of {reached}")

        stepper = self._stepper
        before = stepper.crash, stepper.recovers
        stepper.crash, stepper.recovers = crash, False
        try:
            yield
        finally:
            stepper.crash, stepper.recovers = before

    def _check_crash_point(self, step: StepRef[Any] | str, when: object) -> None:
        """Refuse a point that no drain reaches, because the test would pass without a crash."""
        points = get_args(CrashPoint)
        if when not in points:
            raise UsageError(
                f"crash_at got the point {when!r}{did_you_mean(str(when), points)}",
                f"the points are {_listed(points)}",
            )
        known = sorted({name for machine in self._stepper.registry for name in machine.steps})
        if isinstance(step, str) and step not in known:
            raise UsageError(
                f"crash_at got the step '{step}'{did_you_mean(step, known)}",
                f"the steps of the registered machines are {_listed(known) or 'none'}; "
                "for another machine pass the step itself: durable.crash_at(Checkout.ship)",
            )

    def _in_status(self, target: Target, status: Status) -> Instance[Any, Any]:
        __tracebackhide__ = True
        instance = self._find(target)
        if instance.status is not status:
            _fail(f"{_name(instance)} is not {status}; {self._described(instance)}")
        return instance

    def _find(self, target: Target) -> Instance[Any, Any]:
        __tracebackhide__ = True
        row = self._run_now(snapshots.get(target_value(target)))
        if row is None:
            _fail(f"there is no instance {target_value(target)!r}")
        return _verbs.read(row, _verbs.definition_of_target(target) or self._definition_of(row))

    def _definition_of(self, row: Row) -> MachineDef | None:
        known = self._stepper.registry.get(row["fsm"], row["fsm_version"])
        return None if known is None else known.definition

    def _described(self, instance: Instance[Any, Any]) -> str:
        """Describe the current state of an instance, for a failed assertion."""
        parts = [f"it has status {instance.status} at step '{instance.step}'"]
        if instance.attempt:
            is_next = " is next" if instance.status is Status.RUNNABLE else ""
            parts.append(f"attempt {instance.attempt + 1}{is_next}")
        if instance.awaits and instance.status is Status.AWAITING_SIGNAL:
            parts.append(f"waiting for {_listed(instance.awaits)}")
        if instance.children_pending:
            parts.append(f"waiting for {instance.children_pending} children")
        if instance.cancel_reason:
            parts.append(f"cancel reason: {instance.cancel_reason}")
        if instance.last_error:
            parts.append(f"last error: {instance.last_error}")
        if instance.status is Status.RUNNABLE:
            is_known = self._stepper.registry.get(instance.machine, instance.version) is not None
            parts.append(
                "drain() runs it"
                if is_known
                else f"its machine is not registered: call durable.use({instance.machine})"
            )
        return ", ".join(parts)


def _name(instance: Instance[Any, Any]) -> str:
    return f"{instance.machine} {instance.id}"


def _listed(names: Any) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _fail(message: str) -> NoReturn:
    __tracebackhide__ = True
    raise AssertionError(message)
