"""Execute and commit: run leased executions of one queue, step after step, until each gives up its lease."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from datetime import timedelta
from functools import partial
from typing import Any, Final

import msgspec

from .._core.model import CommitEntry, CommitResult, Committed, EffectFailed, Execution, Lease, Stale
from .._core.settle import rejoin, release
from .._db.failures import StatementError
from .._db.lease import CrashPolicy, reap_execution
from .._db.pool import Database
from .._running import running
from ..telemetry import HandlerMissing, OutcomeStale, ReaperReaped, SchedulerDrain, StepStop
from . import shutdown_timeouts
from .capacity import Capacity
from .executor import Executor, log_failure
from .flusher import Flusher
from .heartbeat import Heartbeat
from .paused_queues import PausedQueues
from .processes.process_pool import ProcessDiedError
from .worker_context import WorkerContext

__all__ = ["ExecutionRunner"]

_log: Final = logging.getLogger("gen_durable.worker")


class _InFlight:
    """A leased execution of this worker, and the task that runs it."""

    __slots__ = ("execution", "is_in_step", "is_interrupted", "is_lost", "lease", "started", "task")
    task: asyncio.Task[None]

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        """The current step. Chaining replaces it; the lease stays."""
        self.lease = execution.lease
        self.is_in_step = False
        """Whether the task runs a step or waits for capacity to run it, rather than for a commit."""
        self.started: float | None = None
        """When the current step started (monotonic); `None` while it waits for capacity."""
        self.is_interrupted = False
        """Whether a cancel has interrupted the step and the step has yet to end."""
        self.is_lost = False
        """Whether the loss of the lease has been logged."""


class ExecutionRunner:
    """Runs leased executions of one queue: step, commit, next step on the same lease.

    Each execution is a task. It holds capacity while its step runs, and gives it back during the commit.
    """

    def __init__(
        self,
        queue: str,
        capacity: Capacity,
        context: WorkerContext,
        *,
        database: Database,
        executor: Executor,
        flusher: Flusher,
        heartbeat: Heartbeat,
        on_bug: Callable[[BaseException], None],
    ) -> None:
        self.capacity = capacity
        self.paused = PausedQueues()
        self.on_capacity_freed: Callable[[], None] = lambda: None
        """Called when a step has returned its capacity, and when an execution has ended."""
        self._queue = queue
        self._context = context
        self._settings = context.settings
        self._telemetry = context.telemetry
        self._chain_seconds = context.settings.chain_time.total_seconds()
        self._database = database
        self._executor = executor
        self._flusher = flusher
        self._heartbeat = heartbeat
        self._on_bug = on_bug
        self._in_flight: dict[Lease, _InFlight] = {}
        self._may_chain = True
        self._is_drain_skipped = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """The number of leased executions: running, waiting for capacity, or being committed."""
        return len(self._in_flight)

    @property
    def running(self) -> int:
        """The number of executions whose step runs."""
        return sum(one.is_in_step and one.started is not None for one in self._in_flight.values())

    def start(self, execution: Execution) -> None:
        """Run a leased execution in a task of its own."""
        one = _InFlight(execution)
        self._track(one, self._run(one))

    def rejoin(self, execution: Execution) -> None:
        """Return a leased parent to its barrier, because a child is live again."""
        self._track(_InFlight(execution), self._rejoin(execution))

    def cancel(self, lease: Lease) -> None:
        """Pass a cancel request to the step; interrupt the step if it has not started, or if it allows that."""
        one = self._in_flight.get(lease)
        if one is None or not one.is_in_step or one.execution.cancellation.is_requested:
            return
        one.execution.cancellation.is_requested = True
        if one.started is None or self._executor.may_interrupt(one.execution):
            one.is_interrupted = True
            one.task.cancel()

    def on_lease_lost(self, lease: Lease) -> None:
        """Stop the step of a lost lease. Whatever it still does, it cannot commit."""
        one = self._in_flight.get(lease)
        if one is None or not one.is_in_step:
            return
        one.is_in_step = False
        # A step in a thread cannot be interrupted; it can check this flag.
        one.execution.cancellation.is_requested = True
        one.task.cancel()
        one.is_lost = True
        self._log_lost(one.execution)

    def stop_chaining(self) -> None:
        """Commit each running step without starting the next."""
        self._may_chain = False
        self.capacity.withdraw()

    def skip_drain(self) -> None:
        """Stop waiting for running steps."""
        self._is_drain_skipped.set()

    async def drain(self, timeout: timedelta) -> None:
        """Wait for running steps, at most `timeout`; then release unfinished executions at no cost."""
        in_flight = self.in_flight
        # Executions that were leased ahead do not start any more. After this, each of them waits for capacity.
        await asyncio.sleep(0)
        released = await self._give_back([one for one in self._in_step() if one.started is None])
        await self._wait_for_steps(timeout)
        unfinished = self._in_step()
        released += await self._give_back(unfinished)
        committing = [one.task for one in self._in_flight.values() if one not in unfinished]
        if committing:
            _, late = await asyncio.wait(committing, timeout=shutdown_timeouts.COMMITS)
            # An effect that has not ended by now is rolled back, and runs again with its step.
            for task in late:
                task.cancel()
        # A step that ignores its cancellation is left behind: its lease is released, so it cannot commit.
        self._telemetry.emit(SchedulerDrain(released=released, in_flight=in_flight, queue=self._queue))

    async def release(self, executions: Iterable[Execution]) -> int:
        """Return executions to the queue at no cost, in one group commit. Returns how many were still leased."""
        tasks = []
        for execution in executions:
            one = self._in_flight.get(execution.lease)
            entry = release(execution)
            entry.started_at = None if one is None else self._started_at(one.started)
            tasks.append(asyncio.get_running_loop().create_task(self._flusher.commit(entry)))
        if not tasks:
            return 0
        done, late = await asyncio.wait(tasks, timeout=shutdown_timeouts.COMMITS)
        for task in late:
            task.cancel()
        return sum(isinstance(task.result(), Committed) for task in done)

    def _in_step(self) -> list[_InFlight]:
        return [one for one in self._in_flight.values() if one.is_in_step]

    async def _give_back(self, unfinished: list[_InFlight]) -> int:
        for one in unfinished:
            one.is_in_step = False
            one.task.cancel()
        return await self.release(one.execution for one in unfinished)

    async def _wait_for_steps(self, timeout: timedelta) -> None:
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                while self._in_flight and not self._is_drain_skipped.is_set():
                    skipped = asyncio.get_running_loop().create_task(self._is_drain_skipped.wait())
                    tasks = [one.task for one in self._in_flight.values()]
                    try:
                        await asyncio.wait([skipped, *tasks], return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        skipped.cancel()
        except TimeoutError:
            pass

    def _track(self, one: _InFlight, work: Coroutine[Any, Any, None]) -> None:
        self._in_flight[one.lease] = one
        one.task = asyncio.get_running_loop().create_task(work)
        one.task.add_done_callback(lambda task: self._ended(one.lease, task))

    def _ended(self, lease: Lease, task: asyncio.Task[None]) -> None:
        self._heartbeat.forget(lease)
        self._in_flight.pop(lease, None)
        self.on_capacity_freed()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_bug(error)

    async def _run(self, one: _InFlight) -> None:
        """Run and commit one step after the other while the lease is kept."""
        busy = 0.0
        steps = self._settings.chain_steps
        for step_number in range(1, steps + 1):
            execution = one.execution
            running.set(execution)
            may_chain = step_number < steps and busy < self._chain_seconds
            try:
                entry = await self._with_capacity(one, self._executor.run(execution, may_chain=may_chain))
            except ProcessDiedError as error:
                await self._count_crash(one, error)
                return
            seconds = 0.0 if entry.started is None else time.monotonic() - entry.started
            busy += seconds
            result = await self._commit(execution, entry, busy)
            if isinstance(result, EffectFailed):
                entry, result = await self._executor.recover(
                    entry,
                    result,
                    partial(self._commit, execution, busy=busy),
                    may_chain=may_chain,
                    run=partial(self._with_capacity, one, started=entry.started),
                )
            self._report(one, entry, result, seconds)
            if entry.kind != "continue" or not isinstance(result, Committed) or result.status != "executing":
                return
            one.execution = _next(execution, entry, result)

    async def _with_capacity(
        self, one: _InFlight, step: Coroutine[Any, Any, CommitEntry], started: float | None = None
    ) -> CommitEntry:
        """Await user code while holding capacity. Only here may a shutdown, a cancel or a lost lease interrupt."""
        execution, lease = one.execution, one.lease
        one.is_in_step = True
        try:
            await self.capacity.acquire(lambda: self._heartbeat.step_waits(lease))
        except asyncio.CancelledError:
            step.close()
            self._heartbeat.step_ends(lease)
            if not self._is_interrupted(one):
                raise
            one.is_in_step = False
            return release(execution)
        if started is None and execution.queue in self.paused:
            step.close()
            self._heartbeat.step_ends(lease)
            one.is_in_step = False
            self.capacity.release()
            return release(execution)
        one.started = started = started or time.monotonic()
        started_at = self._context.clock.at(started, execution.leased_at)
        self._heartbeat.step_begins(lease, execution.step_seq, started, started_at)
        try:
            entry = await step
        except asyncio.CancelledError:
            if not self._is_interrupted(one):
                if one.is_in_step and self._may_chain:
                    _log.warning(
                        "step cancelled its own task: %s %d, step %s; runs again when its lease expires",
                        execution.fsm,
                        execution.id,
                        execution.step,
                    )
                raise
            entry = release(execution)
        finally:
            one.is_interrupted = one.is_in_step = False
            one.started = None
            self._heartbeat.step_ends(lease)
            self.capacity.release()
            self.on_capacity_freed()
        entry.started = started
        return entry

    def _is_interrupted(self, one: _InFlight) -> bool:
        """Whether `cancel` has interrupted the step. The task continues: every outcome now ends as cancelled."""
        if not one.is_interrupted or not one.is_in_step:
            return False
        one.is_interrupted = False
        one.task.uncancel()
        return True

    async def _commit(self, execution: Execution, entry: CommitEntry, busy: float) -> CommitResult:
        # Check after the step: during the step a shutdown may have begun, the queue been paused, or the time for
        # chained steps been used up. A step with another lease has to be picked anew.
        if entry.kind == "continue" and (
            not self._may_chain
            or busy > self._chain_seconds
            or execution.queue in self.paused
            or not self._has_same_lease(execution, entry)
        ):
            entry.kind = "next"
        entry.started_at = self._started_at(entry.started)
        return await self._flusher.commit(entry)

    def _has_same_lease(self, execution: Execution, entry: CommitEntry) -> bool:
        fsm, version, leases = execution.fsm, execution.version, self._context.leases
        return leases.of(fsm, version, entry.step) == leases.of(fsm, version, execution.step)

    def _started_at(self, started: float | None) -> float | None:
        """Convert the start of a step to the database's clock."""
        return None if started is None else self._context.clock.seconds_at(started)

    async def _count_crash(self, one: _InFlight, error: ProcessDiedError) -> None:
        """Record a crash of the step's process at once, as the reaper would when the lease expires."""
        execution = one.execution
        _log.error("step crashed: %s %d, step %s: %s", execution.fsm, execution.id, execution.step, error)
        plan = reap_execution(one.lease, execution.step_seq, CrashPolicy.of(self._settings))
        try:
            reaped = await self._database.run_in_transaction(plan)
        except StatementError:
            return  # the heartbeat forgets the lease; it expires, and the reaper records the crash
        self._telemetry.emit(
            ReaperReaped(count=len(reaped.ids), ids=tuple(reaped.ids), capped=tuple(reaped.capped))
        )

    async def _rejoin(self, execution: Execution) -> None:
        _log.info(
            "step waits for children again: %s %d, step %s; %d children were retried",
            execution.fsm,
            execution.id,
            execution.step,
            execution.live_children,
        )
        await self._flusher.commit(rejoin(execution))

    def _report(self, one: _InFlight, entry: CommitEntry, result: CommitResult, seconds: float) -> None:
        execution, telemetry = one.execution, self._telemetry
        if isinstance(result, Committed):
            self._log_committed(execution, entry, result)
        if isinstance(result, Stale):
            if not result.is_given_up and not one.is_lost:
                self._log_lost(execution)
            telemetry.emit(
                OutcomeStale(
                    id=execution.id, fsm=execution.fsm, step=execution.step, step_seq=execution.step_seq + 1
                )
            )
        elif entry.started is not None and telemetry.is_wanted(StepStop):
            telemetry.emit(
                StepStop(
                    duration=timedelta(seconds=seconds),
                    id=execution.id,
                    fsm=execution.fsm,
                    step=execution.step,
                    kind="next" if entry.kind == "continue" else entry.kind,
                )
            )

    def _log_committed(self, execution: Execution, entry: CommitEntry, result: Committed) -> None:
        registry = self._context.registry
        if result.status == "failed" and registry.get(execution.fsm, execution.version) is None:
            _log.warning(
                "machine not registered: %s %d failed; this worker serves %s and has no version %d of the machine",
                execution.fsm,
                execution.id,
                self._queue,
                execution.version,
            )
            self._telemetry.emit(
                HandlerMissing(id=execution.id, fsm=execution.fsm, version=execution.version)
            )
        if result.refused:
            _log.warning(
                "children not inserted: %s %d, step %s; the keys of %d of %d children are taken",
                execution.fsm,
                execution.id,
                execution.step,
                result.refused,
                len(entry.children),
            )
        log_failure(entry)

    def _log_lost(self, execution: Execution) -> None:
        _log.warning(
            "lease lost: %s %d, step %s (worker %s); outcome discarded",
            execution.fsm,
            execution.id,
            execution.step,
            self._context.name,
        )


def _next(execution: Execution, entry: CommitEntry, committed: Committed) -> Execution:
    """Build the execution of the next step on the same lease, as a pick of the row would."""
    return msgspec.structs.replace(
        execution,
        step=entry.step,
        step_seq=execution.step_seq + 1,
        attempt=0,
        state=execution.state if entry.payload is None else entry.payload,
        awaits=None,
        timed_out=False,
        inbox=committed.inbox,
        children=(),
        has_children=False,
        rate_limit=None,
        leased_at=committed.leased_at,
        has_signals=execution.has_signals or bool(committed.inbox),
        number=execution.number + 1,
    )
