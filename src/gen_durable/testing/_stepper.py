"""Runs instances with the statements of a worker, one step at a time, until none is due."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar, get_args

import msgspec

from .._core.model import CommitEntry, CommitResult, Committed, EffectFailed, Execution, Kind
from .._core.registry import Registry
from .._core.settle import Bounds, refused, rejoin, release, released
from .._db import admission, machines, snapshots, step_data
from .._db import commit as commits
from .._db import lease as leases
from .._db import pick as picks
from .._db.failures import StatementError, is_data
from .._db.plan import Plan
from .._db.pool import Database
from .._running import running
from .._runtime.clock import DatabaseClock
from .._runtime.effects import EffectError, commit_with_effect
from .._runtime.executor import Executor, log_failure
from .._runtime.step_channel import WorkerChannel
from .._runtime.stream_writer import StreamWriter
from .._runtime.threads import Threads
from .._runtime.user_exceptions import current_task
from .._runtime.wake import Wakes
from ..config import Settings
from ..definition import StepDef, definition_of
from ..errors import DefinitionError, UnknownStepError, UsageError
from ..instance import Status
from ..jobs import Job
from ..machine import Machine
from ..outcome import Outcome, ScheduleChildren
from ..progress import Progress
from ..refs import Insertable
from . import _clock as clock

__all__ = ["CommittedOutcome", "Crash", "CrashPoint", "DrainCounts", "Plans", "Stepper"]

T = TypeVar("T")
CrashPoint: TypeAlias = Literal["before_step", "before_commit"]
TransitionKind: TypeAlias = Literal[
    "next", "retry", "await", "schedule_children", "done", "stop", "cancel", "undo", "undone", "on_cancel"
]


class Crash(Exception):  # noqa: N818 - not an error: the test asks for it
    """Raised by `drain` at the point of `crash_at`. For the database, the process has crashed."""


class DrainCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The number of outcomes that a drain committed, by kind.

    `assert durable.drain() == DrainCounts(next=2, done=1)`.
    """

    next: int = 0
    retry: int = 0
    awaiting: int = 0
    children: int = 0
    done: int = 0
    stopped: int = 0
    cancelled: int = 0
    redirected: int = 0
    """Instances that went to an undo or `on_cancel` step instead of ending."""


_FIELDS: Final = {
    "next": "next",
    "retry": "retry",
    "await": "awaiting",
    "schedule_children": "children",
    "done": "done",
    "stop": "stopped",
    "cancel": "cancelled",
    "undo": "redirected",
    "undone": "redirected",
    "on_cancel": "redirected",
}


_ENDED: Final[dict[str, Kind]] = {"cancelled": "cancel", "failed": "stop"}


class CommittedOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One committed outcome, retries included, as `durable.outcomes` returns it."""

    instance_id: int
    machine: str
    step: str
    """The step that ran."""
    kind: TransitionKind
    """The kind of its outcome, as in telemetry."""
    step_seq: int
    """`ctx.step_seq` of the step; all attempts at one transition have the same."""
    correlation_key: str | None = None


class Plans(Protocol):
    """Runs plans on a database."""

    async def run(self, plan: Plan[T]) -> T: ...
    async def run_in_transaction(self, plan: Plan[T]) -> T: ...


class Stepper:
    """The machines of one test, the history of their transitions, and the code that runs them."""

    def __init__(self, dsn: str, settings: Settings) -> None:
        self.registry: Registry = Registry()
        self.outcomes: list[CommittedOutcome] = []
        self.crash: Callable[[str, CrashPoint], None] | None = None
        """Called at every point where a process can crash; raises `Crash` to crash there."""
        self.recovers: bool = False
        """Whether a drain continues after a crash, as the next process would."""
        self._dsn = dsn
        self._settings = settings
        self._name = f"test:{os.getpid()}:{secrets.token_hex(3)}"
        self._threads = Threads(settings.threads)
        self._bounds = Bounds(settings.max_payload, settings.max_children)
        # Done instances are kept, whatever their `keep`: tests read their results.
        self._recorder = commits.Recorder(
            self._name,
            settings.executions,
            settings.renew_after(),
            settings.alerts or None,
            is_awaited=lambda _: True,
        )
        self._executor = _LearningExecutor(self.registry, self._bounds, self._threads, self.learn)
        self._clock = DatabaseClock()
        self._is_draining = False
        # The last progress that the running step has reported.
        self._report: step_data.Report | None = None
        self.has_new_machines = False
        """Whether machines are not stored in the database yet."""

    @property
    def max_payload(self) -> int:
        """The most bytes of a state."""
        return self._bounds.max_payload

    @property
    def resources(self) -> Any:
        """`ctx.resources` of the steps."""
        return self._executor.resources

    @resources.setter
    def resources(self, resources: Any) -> None:
        self._executor.resources = resources

    def close(self) -> None:
        """End the threads."""
        self._threads.close()

    def learn(self, machine: Insertable[Any, Any]) -> None:
        """Register a machine, unless it is registered already."""
        definition = definition_of(machine)
        known = self.registry.get(definition.name, definition.version)
        if known is not None and known.definition is definition:
            return
        try:
            self.registry.add(machine)
        except DefinitionError as error:
            if known is None:
                error.add_note(f"In a test, register an object before: durable.use({definition.name}(…))")
            raise
        self._on_new_machine()

    def use(self, machine: Insertable[Any, Any]) -> None:
        """Register a machine, replacing another one with its name and version."""
        self.registry.add(machine, replace=True)
        self._on_new_machine()

    def _on_new_machine(self) -> None:
        self.has_new_machines = True
        histories = self.registry.histories(self._settings.history)
        self._recorder = msgspec.structs.replace(self._recorder, histories=histories)

    async def drain(
        self, database: Plans, *, ahead: timedelta, collapse: bool, max_steps: int
    ) -> DrainCounts:
        """Run all due instances; see `Harness.drain`."""
        if self._is_draining:
            raise UsageError("this harness is already draining", "do not call drain in a step or in parallel")
        self._is_draining = True
        self._stream_writer = StreamWriter(database.run, Wakes())
        self._executor.channel = WorkerChannel(
            self.registry, self._bounds, database.run, self._on_progress, self._stream_writer
        )
        # Beside the steps: a checkpoint waits until the items before it are stored.
        writing = asyncio.get_running_loop().create_task(self._stream_writer.run())
        counts: Counter[str] = Counter()
        fired = 0
        try:
            while True:
                try:
                    await self._recover(database)
                    while True:
                        await self._run_all(database, counts, collapse=collapse, max_steps=max_steps)
                        # One fire time after the other: its instances run before the next one fires.
                        if not await database.run(clock.fire_next(ahead)):
                            break
                        fired += 1
                        if fired > max_steps:
                            raise AssertionError(_too_many_fire_times(max_steps))
                except Crash:
                    if not self.recovers:
                        raise
                else:
                    fields: Counter[str] = Counter()
                    for kind, count in counts.items():
                        fields[_FIELDS[kind]] += count
                    return DrainCounts(**fields)
        finally:
            writing.cancel()
            self._is_draining = False

    def register(self) -> Plan[None]:
        """Store the registered machines in the database, as a worker does when it starts."""
        yield from machines.register(self.registry.descriptions, self._recorder.histories)
        self.has_new_machines = False

    async def _register(self, database: Plans) -> None:
        if self.has_new_machines:
            await database.run(self.register())

    async def _recover(self, database: Plans) -> None:
        """Register new machines and take back expired leases, as a new process would."""
        await self._register(database)
        ours, others = await database.run(clock.end_leases(self._name))
        if not ours and not others:
            return
        # No grace period: the server of a test may have started just now.
        policy = leases.CrashPolicy.of(self._settings)
        while (await database.run_in_transaction(leases.reap(timedelta(0), policy))).ids:
            pass
        await database.run(clock.make_due(ours))

    async def _run_all(
        self, database: Plans, counts: Counter[str], *, collapse: bool, max_steps: int
    ) -> None:
        while True:
            has_progress = False
            began = await database.run(snapshots.now())
            for queue in await database.run(clock.due_queues(self.registry.keys)):
                while (execution := await self._pick(database, queue)) is not None:
                    if counts.total() >= max_steps:
                        await self._commit(database, release(execution))
                        raise AssertionError(self._too_many_steps(execution, max_steps))
                    counts.update(await self._step(database, execution))
                    await self._register(database)  # the machines of its children
                    has_progress = True
            if has_progress:
                continue
            if await database.run(leases.expire()):
                continue
            if not (collapse and await database.run(clock.collapse(self.registry.keys, began))):
                return

    async def _pick(self, database: Plans, queue: str) -> Execution | None:
        while True:
            request = picks.PickRequest(
                self.registry.keys,
                demand=1,
                lease_token=secrets.randbits(62),
                worker=self._name,
                leases=picks.Leases(self._settings.lease),
            )
            sent = time.monotonic()
            picked = await database.run(picks.pick(queue, request))
            if picked.executions:
                self._observe(picked.executions[0], sent)
                current = self.registry.with_current_steps(picked.executions)
                (execution,) = await database.run(picks.load(current))
                if not execution.live_children:
                    return execution
                await self._commit(database, rejoin(execution))
                continue
            # The key is held by another worker in this test, or a bucket is empty: defer these rows, then pick again.
            moved = 0
            if keys := [row.concurrency_key for row in picked.denied]:
                moved += (await database.run_in_transaction(admission.gate(keys))).total()
            if picked.throttled:
                deferral = admission.defer_throttled(picked.throttled, self.registry.keys)
                moved += (await database.run_in_transaction(deferral)).total()
            if not moved:
                return None

    def _on_progress(self, execution: Execution, progress: Progress) -> None:
        self._report = step_data.Report(execution, progress)

    def _observe(self, execution: Execution, sent: float) -> None:
        assert execution.leased_at is not None  # noqa: S101 - it has just been leased
        self._clock.observe(execution.leased_at, sent, time.monotonic())

    async def _step(self, database: Plans, execution: Execution) -> list[str]:
        """Execute and commit one step; return the kind of its outcome, or nothing if the lease was lost."""
        self._crash_if_due(execution, "before_step")
        watched = running.set(execution)
        try:
            return await self._execute(database, execution)
        finally:
            running.reset(watched)

    async def _execute(self, database: Plans, execution: Execution) -> list[str]:
        started = time.monotonic()
        entry = await self._executor.run(execution, current_task(), may_chain=False)
        await self._stream_writer.flush(execution.lease)
        if (unknown := self._executor.unknown) is not None:
            self._executor.unknown = None
            raise unknown
        if entry.kind == "defer":
            # A worker would leave the row to others. In a test there are none.
            await self._commit(database, release(execution))
            machine = self.registry.find(execution.fsm, execution.version).definition
            where = f"{execution.fsm} {execution.id}, version {execution.version}"
            raise UnknownStepError(machine.name, execution.step, tuple(machine.steps), where)
        if self._report is not None:
            await database.run(step_data.progress([self._report]))
            self._report = None
        self._crash_if_due(execution, "before_commit")
        commit = partial(self._commit_begun, database, started)
        result = await commit(entry)
        if isinstance(result, EffectFailed):
            entry, result = await self._executor.recover(entry, result, commit, may_chain=False)
        if not isinstance(result, Committed) or (
            result.status == Status.AWAITING_CHILDREN and entry.kind == "rejoin"
        ):
            return []
        log_failure(entry)
        # The status decides: a cancel wins over the outcome, and the database may refuse it.
        kind = result.redirect or _ENDED.get(result.status, entry.kind)
        self.outcomes.append(_transition(execution, kind))
        return [kind]

    async def _commit_begun(self, database: Plans, started: float, entry: CommitEntry) -> CommitResult:
        """Commit the outcome of a step that began at `started`. An outcome that the database refuses fails."""
        entry.started, entry.started_at = started, self._clock.seconds_at(started)
        # `handle` of a failed effect may have published as well.
        await self._stream_writer.flush(entry.lease)
        try:
            return await self._commit(database, entry)
        except StatementError as error:
            if not is_data(error):
                raise
            return await self._commit(database, refused(entry, error))

    async def _commit(self, database: Plans, entry: CommitEntry) -> CommitResult:
        if entry.effect is not None:
            return await self._commit_with_effect(database, entry)
        if commits.is_one_statement([entry], self._recorder):
            report = await database.run(commits.commit_plain([entry], self._recorder))
            if isinstance(report.results[0], Committed):
                return report.results[0]
        # Also if it was left out above: the instance may go to an undo step.
        report = await database.run_in_transaction(commits.commit([entry], self._recorder))
        return report.results[0]

    async def _commit_with_effect(self, database: Plans, entry: CommitEntry) -> CommitResult:
        """Commit with an effect, on a connection of the event loop that runs the steps."""
        async with await Database.open(
            self._dsn, self._settings.schema, size=1, pooler=self._settings.pooler, for_effects=True
        ) as effects:
            try:
                report = await commit_with_effect(effects, entry, self._recorder)
            except EffectError as error:
                return EffectFailed(error.cause)
            if report is None:
                return await self._commit(database, released(entry))
            await effects.run(commits.finish([entry]))
        return report.results[0]

    def _crash_if_due(self, execution: Execution, point: CrashPoint) -> None:
        if self.crash is not None:
            self.crash(execution.step, point)

    def _too_many_steps(self, execution: Execution, max_steps: int) -> str:
        last = " → ".join(t.step for t in self.outcomes[-5:] if t.instance_id == execution.id)
        return (
            f"{execution.fsm} {execution.id} still runs after {max_steps} steps "
            f"(last steps: {last or 'of other instances'}); if it polls, use drain(collapse=False), "
            "if it has many steps, use drain(max_steps=…)"
        )


class _LearningExecutor(Executor):
    """Registers the machines of children when a step schedules them."""

    def __init__(
        self,
        registry: Registry,
        bounds: Bounds,
        threads: Threads,
        learn: Callable[[Insertable[Any, Any]], None],
    ) -> None:
        super().__init__(registry, bounds, threads)
        self._learn = learn
        self.unknown: DefinitionError | None = None
        """Why a child cannot be registered: an error of the test, which must not go to `handle` of the machine."""

    async def _call(self, step: StepDef, machine: Machine[Any, Any] | Job[Any, Any], context: Any) -> object:
        return self._learned(await super()._call(step, machine, context))

    async def _decide(
        self, machine: Machine[Any, Any] | Job[Any, Any], failure: Exception, context: Any
    ) -> Outcome[Any]:
        return self._learned(await super()._decide(machine, failure, context))

    def _learned(self, outcome: T) -> T:
        if isinstance(outcome, ScheduleChildren):
            try:
                for spec in outcome.children:
                    self._learn(spec.definition)
            except DefinitionError as error:
                self.unknown = error
        return outcome


def _too_many_fire_times(max_steps: int) -> str:
    return (
        f"schedules fired more than {max_steps} times; advance by less, "
        "or call durable.catch_up() before drain()"
    )


def _transition(execution: Execution, kind: Any) -> CommittedOutcome:
    # The harness does not chain steps, and a released execution makes no transition.
    assert kind in get_args(TransitionKind)  # noqa: S101
    return CommittedOutcome(
        instance_id=execution.id,
        machine=execution.fsm,
        step=execution.step,
        kind=kind,
        step_seq=execution.step_seq + 1,
        correlation_key=execution.correlation_key,
    )
