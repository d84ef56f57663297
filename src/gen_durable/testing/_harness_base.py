"""What both harnesses add to their client, but for `drain`: machines, time, assertions, crashes."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from inspect import signature
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, get_args, overload

from .. import _verbs
from .._checks import checked_delay
from .._db import snapshots
from .._db.plan import Plan, Row
from .._dictionary import did_you_mean
from .._typing import KEEP, ResultT, StateT
from ..async_client import AsyncClient
from ..definition import MachineDef, StepRef, definition_of, step_name
from ..errors import UsageError
from ..instance import Instance, Status
from ..refs import AnySpec, Insertable, Ref, Target, target_value
from ..schedules import Schedule
from ..signals import Signal, signal_name
from . import _clock as clock
from ._stepper import Crash, CrashPoint, Stepper, Transition

__all__ = ["HarnessBase"]

T = TypeVar("T")
_MAX_INSTANCES: Final = 10_000


class HarnessBase:
    """Everything here answers at once; in an async test, too, there is nothing to await and so nothing to forget."""

    _stepper: Stepper
    _ahead: timedelta

    def _run_now(self, plan: Plan[T]) -> T:
        """Run a plan now, blocking."""
        raise NotImplementedError

    def use(self, machine: Insertable[Any, Any], /) -> None:
        """Run this machine, or this very object with its fakes: `durable.use(Welcome(FakeMailer()))`.

        What is inserted through the harness, or scheduled as a child, is known without it.
        """
        self._stepper.use(machine)

    @property
    def resources(self) -> Any:
        """What steps find in `ctx.resources`; `None` until a test says what: `durable.resources = Fakes()`."""
        return self._stepper.resources

    @resources.setter
    def resources(self, resources: Any) -> None:
        self._stepper.resources = resources

    # The signatures are those of the client; all that is new is that the machine is known from then on.
    if not TYPE_CHECKING:

        def insert(self, machine, /, *args, **options):  # noqa: ANN001, ANN002, ANN003, ANN202
            self._stepper.learn(machine)
            return super().insert(machine, *args, **options)

        # What help() shows.
        insert.__doc__ = AsyncClient.insert.__doc__
        insert.__signature__ = signature(AsyncClient.insert)

        def insert_all(self, specs, /, **options):  # noqa: ANN001, ANN003, ANN202
            specs = list(specs)
            for spec in specs:
                if isinstance(spec, AnySpec):
                    self._stepper.learn(spec.definition)
            return super().insert_all(specs, **options)

        insert_all.__doc__ = AsyncClient.insert_all.__doc__
        insert_all.__signature__ = signature(AsyncClient.insert_all)

        def put_schedule(self, schedule, /, **options):  # noqa: ANN001, ANN003, ANN202
            if isinstance(schedule, Schedule):
                self._stepper.learn(schedule.spec.definition)
            return super().put_schedule(schedule, **options)

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
        """Let time pass: `durable.advance(hours=24)`. Nothing runs until the next `drain`.

        It is the database's time that passes, by moving what is stored into the past. A step that asks its own clock
        sees the real one. Schedules stay where they are on the calendar, and the calendar moves on: the next `drain`
        fires every slot that has come, as workers would that were there all the time; `catch_up` is the other case.
        """
        passed = by + timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        self._run_now(clock.advance(checked_delay(passed, "the time to advance by")))
        self._ahead += passed

    def catch_up(self) -> int:
        """Fire what is due as the first worker after an outage does: by what each schedule says of missed slots.

        Returns how many instances were inserted; `drain` runs them.
        """
        return self._run_now(clock.catch_up(self._ahead))

    def fire_timeouts(self) -> int:
        """Let the timeout or deadline of every `Await` have come, however far away it is; how many there were."""
        return self._run_now(clock.fire_timeouts())

    @overload
    def assert_done(self, target: Ref[Any, ResultT], result: object = KEEP, /) -> ResultT: ...
    @overload
    def assert_done(self, target: int | str, result: object = KEEP, /) -> Any: ...
    def assert_done(self, target: Target, result: object = KEEP, /) -> Any:
        """It is done, with this result if one is given. Returns the result."""
        __tracebackhide__ = True
        instance = self._in_status(target, Status.DONE)
        if result is not KEEP and instance.result != result:
            _fail(f"{_name(instance)} is done with {instance.result!r}, not with {result!r}")
        return instance.result

    def assert_failed(self, target: Target, /, *, match: str = "") -> Instance[Any, Any]:
        """It has failed, for a reason in which the regular expression `match` is found."""
        __tracebackhide__ = True
        instance = self._in_status(target, Status.FAILED)
        if re.search(match, instance.last_error or "") is None:
            _fail(f"{_name(instance)} failed with {instance.last_error!r}, in which {match!r} is not found")
        return instance

    def assert_cancelled(self, target: Target, /, *, match: str = "") -> Instance[Any, Any]:
        """It was cancelled, for a reason in which the regular expression `match` is found."""
        __tracebackhide__ = True
        instance = self._in_status(target, Status.CANCELLED)
        if re.search(match, instance.cancel_reason or "") is None:
            _fail(
                f"{_name(instance)} was cancelled for {instance.cancel_reason!r}, in which {match!r} is not found"
            )
        return instance

    def assert_awaiting(self, target: Target, /, *signals: Signal[Any] | str) -> Instance[Any, Any]:
        """It sleeps until a signal or a deadline wakes it, and each of these signals would."""
        __tracebackhide__ = True
        instance = self._in_status(target, Status.AWAITING_SIGNAL)
        missing = [name for name in map(signal_name, signals) if name not in instance.awaits]
        if missing:
            _fail(
                f"{_name(instance)} awaits {_listed(instance.awaits) or 'no signal'}, and not {_listed(missing)}"
            )
        return instance

    def assert_at(self, target: Target, step: StepRef[Any] | str, /) -> Instance[Any, Any]:
        """This step runs next; of an instance that has ended, it was the last."""
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
        """Every instance there is, of this machine if one is given, the oldest first."""
        definition = None if machine is None else definition_of(machine)
        wanted = (
            snapshots.Filter()
            if definition is None
            else snapshots.Filter(fsms=[definition.name], version=definition.version)
        )
        rows = self._run_now(snapshots.page(wanted, _MAX_INSTANCES, None))
        return [_verbs.read(row, definition or self._definition_of(row)) for row in reversed(rows)]

    def history(self, target: Target, /) -> list[Transition]:
        """What this harness has committed of an instance, in order: `[t.step for t in durable.history(order)]`."""
        value = target_value(target)
        if isinstance(value, str):
            ids = {t.instance_id for t in self._stepper.history if t.correlation_key == value}
            value = max(ids, default=0)  # of those that had the key, one after the other, the latest
        return [t for t in self._stepper.history if t.instance_id == value]

    @contextmanager
    def crash_at(self, step: StepRef[Any] | str, when: CrashPoint = "before_commit", /) -> Generator[None]:
        """Let the process die when it reaches this step: the drain inside raises `Crash`, the next one recovers.

            with durable.crash_at(Checkout.ship), pytest.raises(Crash):
                durable.drain()
            durable.drain()                      # ship() runs again, as another attempt

        Before the step nothing of it has happened; before the commit all of it has, and none of it counts.

        Raises:
            UsageError: there is no such point, or no machine that this harness knows has a step of that name.
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
        """Refuse a point that no drain reaches: the test would pass without a crash."""
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
                f"the steps of the machines known here are {_listed(known) or 'none'}; "
                "for another machine give the step itself: durable.crash_at(Checkout.ship)",
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
        """How it is instead, and why nothing more has happened."""
        parts = [f"it is {instance.status} at step '{instance.step}'"]
        if instance.attempt:
            parts.append(f"attempt {instance.attempt}")
        if instance.awaits and instance.status is Status.AWAITING_SIGNAL:
            parts.append(f"awaits {_listed(instance.awaits)}")
        if instance.children_pending:
            parts.append(f"waits for {instance.children_pending} children")
        if instance.cancel_reason:
            parts.append(f"cancelled for: {instance.cancel_reason}")
        if instance.last_error:
            parts.append(f"last error: {instance.last_error}")
        if instance.status is Status.RUNNABLE:
            is_known = self._stepper.registry.get(instance.machine, instance.version) is not None
            parts.append(
                "drain() runs it" if is_known else f"nobody runs it: durable.use({instance.machine}) first"
            )
        return ", ".join(parts)


def _name(instance: Instance[Any, Any]) -> str:
    return f"{instance.machine} {instance.id}"


def _listed(names: Any) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _fail(message: str) -> NoReturn:
    __tracebackhide__ = True
    raise AssertionError(message)
