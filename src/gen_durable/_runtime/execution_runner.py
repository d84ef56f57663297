"""Execute and commit: run leased executions of one queue, step after step, until each gives up its lease."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec

from .._core.model import CommitEntry, CommitResult, Committed, EffectFailed, Execution, Lease, Stale
from .._core.settle import rejoin, release
from .._db.failures import StatementError
from .._db.lease import CrashPolicy, reap_execution
from .._db.pool import Database
from .._running import running
from ..telemetry import ReaperReaped, SchedulerDrain
from . import shutdown_timeouts
from .capacity import Capacity
from .execution_reports import ExecutionReports
from .executor import Executor
from .flusher import Flusher
from .heartbeat import Heartbeat
from .in_flight import InFlight, Phase
from .paused_queues import PausedQueues
from .processes.process_pool import ProcessDiedError
from .step_tasks import StepTasks
from .stream_writer import StreamWriter
from .worker_context import WorkerContext

__all__ = ["ExecutionRunner"]


class ExecutionRunner:
    """Runs leased executions of one queue: step, commit, next step on the same lease.

    An execution holds capacity while its step runs, and gives it back during the commit. It has a task only while its
    step runs or its effect is committed.
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
        stream_writer: StreamWriter,
        on_bug: Callable[[BaseException], None],
    ) -> None:
        self.capacity = capacity
        capacity.on_granted = self._on_granted
        self.paused = PausedQueues()
        self.on_capacity_freed: Callable[[], None] = lambda: None
        """Called after steps have returned their capacity, and after executions have ended."""
        self._queue = queue
        self._context = context
        self._settings = context.settings
        self._telemetry = context.telemetry
        self._chain_steps = context.settings.chain_steps
        # A step that has held the interpreter lock is found after it has ended. Others cost one comparison.
        self._long_step = context.settings.loop_blocked_after.total_seconds() / 2 or math.inf
        self._chain_seconds = context.settings.chain_time.total_seconds()
        self._database = database
        self._executor = executor
        self._flusher = flusher
        self._heartbeat = heartbeat
        self._stream_writer = stream_writer
        self._published = stream_writer.buffers
        self._on_bug = on_bug
        self._loop = asyncio.get_running_loop()
        self._reports = ExecutionReports(queue, context)
        self._steps = StepTasks(self._run_step, on_pause=lambda: self.on_capacity_freed(), on_bug=on_bug)
        self._in_flight: dict[Lease, InFlight] = {}
        # Executions that have ended and whose leases are still renewed.
        self._ended: list[InFlight] = []
        self._may_chain = True
        # Set when an execution has ended, and when the wait for running steps is skipped.
        self._changed = asyncio.Event()
        self._is_drain_skipped = False
        self._is_drained = False

    @property
    def in_flight(self) -> int:
        """The number of leased executions: running, waiting for capacity, or being committed."""
        return len(self._in_flight)

    @property
    def running(self) -> int:
        """The number of executions whose step runs."""
        return len(self._at(Phase.IN_STEP))

    def start(self, executions: Iterable[InFlight]) -> None:
        """Run leased executions. The heartbeat already renews their leases."""
        for one in executions:
            self._in_flight[one.lease] = one
            self._admit(one)

    def undo_started(self, execution: Execution, step: str) -> None:
        """Report an instance whose undo a client has started, by a cancel at `step`."""
        self._reports.compensating(execution, step)

    def rejoin(self, one: InFlight) -> None:
        """Return a leased parent to its barrier, because a child is live again."""
        self._reports.rejoined(one.execution)
        self._in_flight[one.lease] = one
        self._submit(one, rejoin(one.execution))

    def cancel(self, lease: Lease) -> None:
        """Pass a cancel request to the step; interrupt the step if it has not started, or if it allows that."""
        one = self._in_flight.get(lease)
        if one is None or one.execution.cancellation.is_requested:
            return
        match one.phase:
            case Phase.WAITING | Phase.READY:
                one.execution.cancellation.is_requested = True
                self._withdraw(one)
                if one.granted is None:
                    # Every outcome ends as cancelled now.
                    self._submit(one, release(one.execution))
                elif not one.granted.done():
                    one.granted.set_result(None)
            case Phase.IN_STEP:
                one.execution.cancellation.is_requested = True
                if one.task is not None and self._executor.may_interrupt(one.execution):
                    # The task runs nothing else: the event loop is free, so the step is suspended.
                    one.is_interrupted = True
                    one.task.cancel()

    def on_lease_lost(self, lease: Lease) -> None:
        """Stop the step of a lost lease. Whatever it still does, it cannot commit."""
        one = self._in_flight.get(lease)
        if one is None or one.phase in (Phase.COMMITTING, Phase.STOPPED):
            return
        # A step in a thread cannot be interrupted; it can check this flag.
        one.execution.cancellation.is_requested = True
        one.is_lost = True
        self._reports.lost(one.execution)
        self._stop(one)

    def stop_chaining(self) -> None:
        """Commit each running step without starting the next."""
        self._may_chain = False
        self.capacity.withdraw()

    def skip_drain(self) -> None:
        """Stop waiting for running steps."""
        self._is_drain_skipped = True
        self._changed.set()

    async def drain(self, timeout: timedelta) -> None:
        """Wait for running steps, at most `timeout`; then release unfinished executions at no cost."""
        in_flight = self.in_flight
        # Executions that were leased ahead do not start any more.
        released = await self._give_back([*self._at(Phase.WAITING), *self._at(Phase.READY)])
        await self._wait_until(lambda: not self._in_flight or self._is_drain_skipped, timeout.total_seconds())
        # The commit of a step may still be acknowledged, but the next step does not start.
        self._is_drained = True
        released += await self._give_back(
            [*self._at(Phase.WAITING), *self._at(Phase.READY), *self._at(Phase.IN_STEP)]
        )
        await self._wait_until(lambda: not self._at(Phase.COMMITTING), shutdown_timeouts.COMMITS)
        for one in self._at(Phase.COMMITTING):
            # An effect that has not ended by now is rolled back, and runs again with its step.
            if one.task is not None:
                one.task.cancel()
        # A step that ignores its cancellation is left behind: its lease is released, so it cannot commit.
        self._telemetry.emit(SchedulerDrain(released=released, in_flight=in_flight, queue=self._queue))

    async def release(self, executions: Iterable[InFlight]) -> int:
        """Return executions to the queue at no cost, in one group commit. Returns how many were still leased."""
        tasks = []
        for one in executions:
            entry = release(one.execution)
            if one.running is not None:
                entry.started_at = self._context.clock.seconds_at(one.running[1])
            tasks.append(self._loop.create_task(self._flusher.commit(entry)))
        if not tasks:
            return 0
        done, late = await asyncio.wait(tasks, timeout=shutdown_timeouts.COMMITS)
        for task in late:
            task.cancel()
        return sum(isinstance(task.result(), Committed) for task in done)

    def _at(self, phase: Phase) -> list[InFlight]:
        return [one for one in self._in_flight.values() if one.phase is phase]

    async def _give_back(self, unfinished: list[InFlight]) -> int:
        for one in unfinished:
            self._stop(one)
        return await self.release(unfinished)

    async def _wait_until(self, is_over: Callable[[], bool], seconds: float) -> None:
        """Wait up to `seconds` for a condition that changes when an execution ends."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not is_over():
                    self._changed.clear()
                    await self._changed.wait()

    def _admit(self, one: InFlight) -> None:
        """Run the step of this execution once it has capacity."""
        if self._is_drained:
            self._submit(one, release(one.execution))
        elif self.capacity.acquire(one):
            one.phase = Phase.READY
            self._steps.add(one)
        else:
            one.phase = Phase.WAITING
            one.waiting_since = time.monotonic()

    def _on_granted(self, one: InFlight) -> None:
        one.waiting_since = None
        one.phase = Phase.READY
        if one.granted is None:
            self._steps.add(one)
        else:
            one.granted.set_result(None)

    def _withdraw(self, one: InFlight) -> None:
        """Give up the capacity of a step that has not started, or the wait for it."""
        if one.phase is Phase.WAITING:
            self.capacity.leave(one)
            one.waiting_since = None
        else:
            if one.granted is None:
                self._steps.remove(one)
            self.capacity.release()
        one.phase = Phase.COMMITTING

    def _stop(self, one: InFlight) -> None:
        """Stop an execution whose lease is lost or released, as far as it can be stopped."""
        if one.phase is not Phase.IN_STEP:
            self._withdraw(one)
        one.phase = Phase.STOPPED
        if one.task is None:
            self._end(one)
        else:
            one.task.cancel()

    async def _run_step(self, one: InFlight, task: asyncio.Task[Any]) -> None:
        execution = one.execution
        if execution.queue in self.paused.names:
            self.capacity.release()
            self._submit(one, release(execution))
            return
        one.steps += 1
        one.task = task
        started = time.monotonic()
        step = self._executor.run(execution, task, may_chain=self._may_chain_after(one))
        try:
            entry = await self._in_step(one, step, started)
        except ProcessDiedError as error:
            one.phase = Phase.COMMITTING
            await self._stream_writer.flush(one.lease)
            await self._count_crash(one, error)
            self._end(one)
        except BaseException:
            self._end(one)
            raise
        else:
            one.task = None
            one.seconds = time.monotonic() - started
            one.busy += one.seconds
            if one.seconds >= self._long_step:
                self._heartbeat.step_ended(execution, one.seconds)
            self._submit(one, entry)

    def _may_chain_after(self, one: InFlight) -> bool:
        return one.steps < self._chain_steps and one.busy < self._chain_seconds

    async def _in_step(
        self, one: InFlight, step: Coroutine[Any, Any, CommitEntry], started: float
    ) -> CommitEntry:
        """Await user code while holding capacity. Only here may a shutdown, a cancel or a lost lease interrupt."""
        one.phase = Phase.IN_STEP
        one.running = (one.execution.step_seq, started)
        try:
            entry = await step
            if self._published and one.lease in self._published:
                await self._stream_writer.flush(one.lease)
        except asyncio.CancelledError:
            if not one.is_interrupted or one.phase is Phase.STOPPED:
                if one.phase is Phase.IN_STEP and self._may_chain:
                    self._reports.cancelled_itself(one.execution)
                raise
            # Interrupted by `cancel`: every outcome ends as cancelled now.
            if one.task is not None:
                one.task.uncancel()
            await self._stream_writer.flush(one.lease)
            entry = release(one.execution)
        finally:
            one.is_interrupted = False
            one.running = None
            self.capacity.release()
        entry.started = started
        return entry

    def _submit(self, one: InFlight, entry: CommitEntry) -> None:
        """Hand an outcome to the group commit."""
        if one.phase is Phase.STOPPED:
            if one.is_lost:
                self._reports.committed(one, entry, Stale())
            self._end(one)
            return
        one.phase = Phase.COMMITTING
        self._prepare(one, entry)
        if entry.effect is None:
            self._flusher.submit(entry, partial(self._on_committed, one))
        else:
            one.task = self._loop.create_task(self._commit_with_effect(one, entry))
            one.task.add_done_callback(partial(self._on_effect_ended, one))

    def _prepare(self, one: InFlight, entry: CommitEntry) -> None:
        # Check after the step: during the step a shutdown may have begun, the queue been paused, or the time for
        # chained steps been used up. A step with another lease has to be picked anew.
        if entry.kind == "continue" and (
            not self._may_chain
            or one.busy > self._chain_seconds
            or one.execution.queue in self.paused.names
            or not self._has_same_lease(one.execution, entry)
        ):
            entry.kind = "next"
        if entry.started is not None:
            entry.started_at = self._context.clock.seconds_at(entry.started)

    def _on_committed(self, one: InFlight, entry: CommitEntry, result: CommitResult | BaseException) -> None:
        if isinstance(result, BaseException):
            self._end(one)
            self._on_bug(result)
            return
        self._reports.committed(one, entry, result)
        if (
            entry.kind == "continue"
            and isinstance(result, Committed)
            and result.status == "executing"
            and one.phase is Phase.COMMITTING
        ):
            one.execution = _next(one.execution, entry, result)
            self._admit(one)
        else:
            self._end(one)

    async def _commit_with_effect(self, one: InFlight, entry: CommitEntry) -> None:
        running.set(one.execution)
        started = entry.started or 0.0

        async def commit(entry: CommitEntry) -> CommitResult:
            if one.phase is Phase.STOPPED:
                return Stale()
            one.phase = Phase.COMMITTING
            self._prepare(one, entry)
            return await self._flusher.commit(entry)

        result = await self._flusher.commit(entry)
        if isinstance(result, EffectFailed):
            entry, result = await self._executor.recover(
                entry,
                result,
                commit,
                may_chain=self._may_chain_after(one),
                run=lambda handling: self._handle_effect(one, handling, started),
            )
        one.task = None
        self._on_committed(one, entry, result)

    async def _handle_effect(
        self, one: InFlight, handling: Coroutine[Any, Any, CommitEntry], started: float
    ) -> CommitEntry:
        """Await the handler of a failed effect while holding capacity."""
        if self._is_drained:
            handling.close()
            return release(one.execution)
        one.granted = self._loop.create_future()
        try:
            if self.capacity.acquire(one):
                one.phase = Phase.READY
            else:
                one.phase = Phase.WAITING
                one.waiting_since = time.monotonic()
                await one.granted
        except asyncio.CancelledError:
            handling.close()
            raise
        finally:
            one.granted = None
        if one.phase is not Phase.READY:
            # `cancel` has ended the wait.
            handling.close()
            return release(one.execution)
        try:
            return await self._in_step(one, handling, started)
        finally:
            self.on_capacity_freed()

    def _on_effect_ended(self, one: InFlight, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._end(one)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._on_bug(error)

    def _end(self, one: InFlight) -> None:
        """Give up an execution: its lease is not renewed any more."""
        self._in_flight.pop(one.lease, None)
        if self._published and one.lease in self._published:
            self._stream_writer.discard(one.lease)
        if not self._ended:
            self._loop.call_soon(self._forget_ended)
        self._ended.append(one)

    def _forget_ended(self) -> None:
        self._heartbeat.forget(self._ended)
        self._ended = []
        self._changed.set()
        self.on_capacity_freed()

    def _has_same_lease(self, execution: Execution, entry: CommitEntry) -> bool:
        fsm, version, leases = execution.fsm, execution.version, self._context.leases
        return not leases.own or leases.of(fsm, version, entry.step) == leases.of(
            fsm, version, execution.step
        )

    async def _count_crash(self, one: InFlight, error: ProcessDiedError) -> None:
        """Record a crash of the step's process at once, as the reaper would when the lease expires."""
        self._reports.crashed(one.execution, error)
        plan = reap_execution(one.lease, one.execution.step_seq, CrashPolicy.of(self._settings))
        try:
            reaped = await self._database.run_in_transaction(plan)
        except StatementError:
            return  # the heartbeat forgets the lease; it expires, and the reaper records the crash
        self._context.counts.crashed(reaped.crashes)
        self._telemetry.emit(
            ReaperReaped(count=len(reaped.ids), ids=tuple(reaped.ids), capped=tuple(reaped.capped))
        )
        if any(each.redirect == "undo" for each in reaped.redirected):
            self._reports.compensating(one.execution, one.execution.step)


def _next(execution: Execution, entry: CommitEntry, committed: Committed) -> Execution:
    """Build the execution of the next step on the same lease, as a pick of the row would."""
    return msgspec.structs.replace(
        execution,
        version=execution.version if entry.version is None else entry.version,
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
        failure=entry.failure,
        checkpoint=None,
        leased_at=committed.leased_at,
        has_signals=execution.has_signals or bool(committed.inbox),
        number=execution.number + 1,
    )
