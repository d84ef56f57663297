"""One queue: as many executions at once as it may have, picked as slots come free, each carried to its commit."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from .._core.model import CommitEntry, CommitResult, Committed, EffectFailed, Execution, Lease, Stale
from .._core.registry import Registry
from .._core.settle import rejoin, release
from .._db import pick as picks
from .._db.failures import StatementError, is_outage, is_race
from .._db.lease import reap_execution
from .._db.pool import Database
from .._db.sqlstates import OUT_OF_MEMORY, QUERY_CANCELED, UNIQUE_VIOLATION
from .._db.workers import Override
from .._running import running
from ..config import Queue, Settings
from ..telemetry import (
    HandlerMissing,
    OutcomeStale,
    PickStop,
    ReaperReaped,
    SchedulerDrain,
    SchedulerSaturation,
    StepStop,
    Telemetry,
)
from .admission import Admission
from .capacity import Budget, Capacity, SharedCapacity
from .clock import DatabaseClock
from .database_status import DatabaseStatus
from .executor import Executor, log_note
from .flusher import Flusher
from .heartbeat import Heartbeat
from .pick_source import FromQueue, Source
from .processes.process_pool import ProcessDiedError
from .service import Service

__all__ = ["Scheduler"]

_log: Final = logging.getLogger("gen_durable.worker")
# After so long without work a queue is looked at only once per poll_interval.
_CALM_AFTER: Final = 30.0
_TOO_MUCH: Final = (QUERY_CANCELED, OUT_OF_MEMORY)
# For each step that may run, how many executions may be leased: one that runs, one that is being committed.
_LAG: Final = 2
# How long a shutdown waits for its last commits: a database that is away must not hold up the exit.
_LAST_WORDS: Final = 5.0


class Scheduler(Service):
    """Picks work for one queue of this worker and sees it through."""

    def __init__(
        self,
        source: Source,
        limits: Queue,
        *,
        worker: str,
        settings: Settings,
        registry: Registry,
        database: Database,
        gates: Database,
        executor: Executor,
        flusher: Flusher,
        heartbeat: Heartbeat,
        telemetry: Telemetry,
        database_status: DatabaseStatus,
        on_bug: Callable[[BaseException], None],
        on_way_made: Callable[[int], None],
        budget: Budget | None = None,
    ) -> None:
        super().__init__(database_status)
        self.name = source.name
        self._source = source
        self._queue = source.label
        self._limits = limits
        self._slots = (
            Capacity(limits.concurrency)
            if budget is None
            else SharedCapacity(limits.concurrency, budget, limits.weight, self.wake)
        )
        # The queues that are paused, as far as we have heard; and how often we have heard.
        self._paused: frozenset[str] = frozenset()
        self._heard = 0
        self._worker = worker
        self._settings = settings
        self._registry = registry
        self._chain_seconds = settings.chain_time.total_seconds()
        self._leases = picks.Leases(settings.lease, registry.leases)
        self._database = database
        self._admission = Admission(database, gates, telemetry, on_way_made)
        self._executor = executor
        self._flusher = flusher
        self._heartbeat = heartbeat
        self._clock = DatabaseClock()
        self._telemetry = telemetry
        self._on_bug = on_bug
        # Lease → the task that works on it; and what of these is inside a step just now, as against its commit.
        # Written by this class only, on the event loop.
        self._in_flight: dict[Lease, asyncio.Task[None]] = {}
        self._in_step: dict[Lease, Execution] = {}
        # Since when (monotonic), for those of them that have a slot.
        self._began: dict[Lease, float] = {}
        self._may_have_more = False
        # Whether the next in line needs a free slot: as long as it has none, nothing behind it is leased ahead.
        self._is_held_back = False
        self._last_look = 0.0
        # Keys whose first row can neither run nor get out of the way: the next pick looks past so many rows.
        self._in_the_way = 0
        self._last_work = time.monotonic()
        # Leases whose step was cut off because its instance is cancelled, until the step has noticed.
        self._interrupted: set[Lease] = set()
        # Leases whose loss is logged, until their task has ended.
        self._lost: set[Lease] = set()
        self._hurried = asyncio.Event()

    async def tick(self) -> timedelta | None:
        """Fill the free slots. What is being committed holds none, but there is an end to how far commits may lag."""
        slots, prefetch = self._slots, 0 if self._is_held_back else self._limits.prefetch
        claimed = slots.claim()
        demand = min(claimed + prefetch - slots.waiting, _LAG * slots.limit + prefetch - len(self._in_flight))
        if demand <= 0:
            slots.unclaim(claimed)
            self._may_have_more = True
            return None  # the end of an execution wakes us
        least = min(self._limits.min_demand, slots.limit) if self._is_held_back else self._limits.min_demand
        if demand < least and (patience := self._patience()) > timedelta(0):
            slots.unclaim(claimed)
            self._may_have_more = True
            return patience
        heard = self._heard
        picked = await self._pick_for(claimed, demand + self._in_the_way)
        if heard == self._heard:  # nothing newer: what the database gives is of queues that are open
            self._paused -= {execution.queue for execution in picked.executions}
        for execution in picked.executions:
            self._start(execution)
        self._is_held_back = picked.is_held_back
        self._may_have_more = picked.is_held_back or len(picked.executions) >= demand
        if not self._may_have_more:
            slots.rest()
        self._report(len(picked.executions), demand)
        self._in_the_way = 0
        if picked.executions:
            self._last_work = time.monotonic()
        if picked.denied or picked.throttled:
            self._in_the_way = await self._admission.gate(picked.denied)
            await self._admission.defer_throttled(picked.throttled, self._source.known(self._registry.keys))
            # What stood behind them is at the head now.
            return timedelta(0) if picked.executions else self._settings.min_poll_interval
        if picked.is_held_back:
            return None  # the end of an execution wakes us
        return timedelta(0) if self._may_have_more else self._pause()

    def stop(self) -> None:
        """Let the current round be the last."""
        super().stop()
        self._slots.rest()

    @property
    def running(self) -> int:
        """How many steps run, as against those that wait for a slot or for their commit."""
        return sum(lease in self._began for lease in self._in_step)

    def lose(self, lease: Lease) -> None:
        """This lease is no longer ours: whatever the step still does, it may not commit."""
        execution = self._in_step.pop(lease, None)
        if execution is not None:
            # A step on a thread cannot be interrupted: it looks at this.
            execution.cancellation.is_requested = True
            self._in_flight[lease].cancel()
            self._lost.add(lease)
            self._log_lost(execution)

    def cancel(self, lease: Lease) -> None:
        """Somebody wants this instance cancelled: its step may look, and one that wants it so is cut off.

        One that waits for its turn does not begin.
        """
        execution = self._in_step.get(lease)
        if execution is None or execution.cancellation.is_requested:
            return
        execution.cancellation.is_requested = True
        if lease not in self._began or self._executor.may_interrupt(execution):
            self._interrupted.add(lease)
            self._in_flight[lease].cancel()

    def heed(self, overrides: Mapping[str, Override]) -> None:
        """Take in what was said about queues: of a paused one nothing begins, and ours may have another concurrency."""
        paused = frozenset(queue for queue, override in overrides.items() if override.paused_at is not None)
        own = overrides.get(self._queue, Override()) if isinstance(self._source, FromQueue) else Override()
        limit = own.concurrency or self._limits.concurrency
        if self._paused - paused or limit != self._slots.limit:
            self.wake()
        self._paused = paused
        self._heard += 1
        self._slots.resize(limit)

    async def drain(self, timeout: timedelta) -> None:
        """Let running steps end, at most so long; what is unfinished then goes back to the queue at no cost."""
        in_flight = len(self._in_flight)
        # What was leased ahead need not begin any more. All of it has asked for its slot by now.
        await asyncio.sleep(0)
        ahead = {lease: one for lease, one in self._in_step.items() if lease not in self._began}
        released = await self._give_back(ahead)
        await self._let_end(timeout)
        unfinished = dict(self._in_step)
        released += await self._give_back(unfinished)
        if committing := [task for lease, task in self._in_flight.items() if lease not in unfinished]:
            _, late = await asyncio.wait(committing, timeout=_LAST_WORDS)
            # An effect that is not over by now is rolled back; whoever runs the step again runs it again.
            for task in late:
                task.cancel()
        # A step that does not react to its cancellation is left behind: its lease is gone, it cannot commit.
        self._telemetry.emit(SchedulerDrain(released=released, in_flight=in_flight, queue=self._queue))

    async def _give_back(self, unfinished: Mapping[Lease, Execution]) -> int:
        for lease in unfinished:
            del self._in_step[lease]
            self._in_flight[lease].cancel()
        return await self._release(list(unfinished.values()))

    def hurry(self) -> None:
        """Wait no longer for running steps."""
        self._hurried.set()

    async def _let_end(self, timeout: timedelta) -> None:
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                while self._in_flight and not self._hurried.is_set():
                    hurried = asyncio.get_running_loop().create_task(self._hurried.wait())
                    try:
                        await asyncio.wait(
                            [hurried, *self._in_flight.values()], return_when=asyncio.FIRST_COMPLETED
                        )
                    finally:
                        hurried.cancel()
        except TimeoutError:
            pass

    async def _release(self, unfinished: list[Execution]) -> int:
        """Give executions back, in one group commit."""
        tasks = []
        for execution in unfinished:
            entry = release(execution)
            entry.started_at = self._moment(execution, self._began.get(_lease_of(execution)))
            tasks.append(asyncio.get_running_loop().create_task(self._flusher.commit(entry)))
        if not tasks:
            return 0
        done, waiting = await asyncio.wait(tasks, timeout=_LAST_WORDS)
        for task in waiting:
            task.cancel()
        return sum(isinstance(task.result(), Committed) for task in done)

    def _patience(self) -> timedelta:
        """How long this queue may still wait for a demand that is worth a look."""
        return self._settings.poll_interval - timedelta(seconds=time.monotonic() - self._last_look)

    async def _pick_for(self, claimed: int, demand: int) -> picks.Picked:
        """Look for work; slots that were claimed for what is not there are free again."""
        begun = 0
        try:
            self._last_look = time.monotonic()
            picked = await self._pick(demand, claimed)
            begun = len(picked.executions)
        finally:
            self._slots.unclaim(max(0, claimed - begun))
        return picked

    async def _pick(self, demand: int, room: int) -> picks.Picked:
        picked = await self._lease(demand, room)
        # Kept from here on: to load what they carry may take longer than a lease.
        for one in picked.executions:
            self._heartbeat.hold(_lease_of(one), self._leases.of(one.fsm, one.version, one.step))
        loaded: list[Execution] = []
        try:
            loaded = await self._load(picked.executions)
        except StatementError:
            # None of them is to blame: they go back at no cost.
            await self._release(picked.executions)
            raise
        finally:
            for lease in set(map(_lease_of, picked.executions)) - set(map(_lease_of, loaded)):
                self._heartbeat.let_go(lease)
        # A child was retried after it had released the barrier: the step that joins must not see it live.
        for one in loaded:
            if one.live_children:
                self._track(_lease_of(one), self._rejoin(one))
        ready = [one for one in loaded if not one.live_children]
        return msgspec.structs.replace(picked, executions=ready)

    async def _lease(self, demand: int, room: int) -> picks.Picked:
        while True:
            # One random token per pick: nobody else's, and not this worker's own of an earlier lease either.
            token = secrets.randbits(62)
            plan = self._source.pick(self._registry.keys, demand, room, token, self._worker, self._leases)
            sent = time.monotonic()
            try:
                picked = await self._database.run(plan)
            except StatementError as error:
                # Two pickers chose rows of one key at the same moment; the other one has it now.
                if error.sqlstate != UNIQUE_VIOLATION:
                    raise
            else:
                if picked.executions and (leased_at := picked.executions[0].leased_at) is not None:
                    self._clock.observe(leased_at, sent, time.monotonic())
                return picked

    async def _load(self, executions: list[Execution]) -> list[Execution]:
        """These with what they carry; if that is too much at once, one by one, without those for which it still is."""
        if not any(one.is_laden for one in executions):
            return executions
        try:
            return await self._database.run(picks.load(executions))
        except StatementError as error:
            if not _is_too_much(error):
                raise
        loaded: list[Execution] = []
        for one in executions:
            try:
                loaded += await self._database.run(picks.load([one])) if one.is_laden else [one]
            except StatementError as error:
                if not _is_too_much(error):
                    raise
                # Nobody keeps its lease from now on: it runs out, and the reaper counts that.
                _log.error("%s %d: its signals and children cannot be loaded: %s", one.fsm, one.id, error)
        return loaded

    async def _rejoin(self, execution: Execution) -> None:
        _log.info(
            "%s %d: step '%s' waits again: %d of its children were retried",
            execution.fsm,
            execution.id,
            execution.step,
            execution.live_children,
        )
        await self._flusher.commit(rejoin(execution))

    def _start(self, execution: Execution) -> None:
        lease = _lease_of(execution)
        self._track(lease, self._work(execution, lease))

    def _track(self, lease: Lease, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._in_flight[lease] = task
        task.add_done_callback(lambda task: self._ended(lease, task))

    def _ended(self, lease: Lease, task: asyncio.Task[None]) -> None:
        self._heartbeat.let_go(lease)
        self._in_flight.pop(lease, None)
        self._in_step.pop(lease, None)
        self._began.pop(lease, None)
        self._lost.discard(lease)
        if self._may_have_more:
            self.wake()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_bug(error)

    async def _work(self, execution: Execution, lease: Lease) -> None:
        """Execute and commit, step after step, as long as the lease is kept."""
        busy = 0.0
        steps = self._settings.chain_steps
        for step_number in range(1, steps + 1):
            running.set(execution)
            may_chain = step_number < steps and busy < self._chain_seconds
            step = self._executor.run(execution, may_chain=may_chain)
            try:
                entry = await self._inside(lease, execution, step)
            except ProcessDiedError as error:
                await self._crashed(lease, execution, error)
                return
            seconds = 0.0 if entry.started is None else time.monotonic() - entry.started
            busy += seconds
            result = await self._commit(execution, entry, busy)
            if isinstance(result, EffectFailed):
                first, started = result.error, entry.started
                recovery = self._executor.recover(first, execution, may_chain=may_chain)
                entry = await self._inside(lease, execution, recovery, started)
                result = await self._commit(execution, entry, busy)
                if isinstance(result, EffectFailed):
                    entry = self._executor.give_up(first, result.error, execution)
                    entry.started = started
                    result = await self._commit(execution, entry, busy)
            self._observe(execution, entry, result, seconds)
            if entry.kind != "continue" or not isinstance(result, Committed) or result.status != "executing":
                return
            execution = _next(execution, entry, result)

    async def _crashed(self, lease: Lease, execution: Execution, error: ProcessDiedError) -> None:
        """The process of a step has died, as this one may: it counts as the reaper would count it, but at once."""
        _log.error("%s %d: step '%s': %s", execution.fsm, execution.id, execution.step, error)
        settings = self._settings
        plan = reap_execution(
            lease, execution.step_seq, settings.crash_limit, settings.executions, settings.alerts or None
        )
        try:
            reaped = await self._database.run_in_transaction(plan)
        except StatementError:
            return  # nobody keeps the lease from now on: it runs out, and the reaper does the rest
        self._telemetry.emit(
            ReaperReaped(count=len(reaped.ids), ids=tuple(reaped.ids), capped=tuple(reaped.capped))
        )

    async def _inside(
        self,
        lease: Lease,
        execution: Execution,
        step: Coroutine[Any, Any, CommitEntry],
        started: float | None = None,
    ) -> CommitEntry:
        """Await what a user wrote, in a slot: only here may a shutdown or a lost lease cut in."""
        self._in_step[lease] = execution
        try:
            await self._slots.take(lambda: self._heartbeat.wait(lease))
        except asyncio.CancelledError:
            step.close()
            self._heartbeat.end(lease)
            if not self._is_interrupted(lease):
                raise
            del self._in_step[lease]
            return release(execution)
        if started is None and execution.queue in self._paused:
            step.close()
            self._heartbeat.end(lease)
            del self._in_step[lease]
            self._slots.give()
            return release(execution)
        self._began[lease] = started = started or time.monotonic()
        self._heartbeat.begin(lease, execution.step_seq, started, self._moment(execution, started))
        try:
            entry = await step
        except asyncio.CancelledError:
            if not self._is_interrupted(lease):
                if lease in self._in_step and not self._is_stopping:
                    _log.warning(
                        "%s %d: step '%s' cancelled the task that it runs in; it runs again when its lease is over, "
                        "as after a crash",
                        execution.fsm,
                        execution.id,
                        execution.step,
                    )
                raise
            entry = release(execution)
        finally:
            self._interrupted.discard(lease)
            self._heartbeat.end(lease)
            self._in_step.pop(lease, None)
            self._began.pop(lease, None)
            self._slots.give()
            if self._may_have_more:
                self.wake()
        entry.started = started
        return entry

    def _is_interrupted(self, lease: Lease) -> bool:
        """Whether not this task but its step was meant. Whatever is committed then ends as cancelled."""
        if lease not in self._interrupted or lease not in self._in_step:
            return False
        self._interrupted.discard(lease)
        _uncancelled()
        return True

    async def _commit(self, execution: Execution, entry: CommitEntry, busy: float) -> CommitResult:
        # Asked after the step: while it ran, a shutdown may have begun, its queue been paused, or its turn have passed.
        # And a step with a lease of another length has to be leased anew.
        if entry.kind == "continue" and (
            self._is_stopping
            or busy > self._chain_seconds
            or execution.queue in self._paused
            or not self._same_lease(execution, entry)
        ):
            entry.kind = "next"
        entry.started_at = self._moment(execution, entry.started)
        return await self._flusher.commit(entry)

    def _moment(self, execution: Execution, started: float | None) -> datetime | None:
        """When a step began, by the database's clock."""
        return None if started is None else self._clock.at(started, execution.leased_at)

    def _same_lease(self, execution: Execution, entry: CommitEntry) -> bool:
        fsm, version = execution.fsm, execution.version
        return self._leases.of(fsm, version, entry.step) == self._leases.of(fsm, version, execution.step)

    def _observe(
        self, execution: Execution, entry: CommitEntry, result: CommitResult, seconds: float
    ) -> None:
        is_failed = isinstance(result, Committed) and result.status == "failed"
        if is_failed and self._registry.get(execution.fsm, execution.version) is None:
            _log.warning(
                "%s %d fails: this worker owns %s and has no machine of that name and version %d",
                execution.fsm,
                execution.id,
                self._queue,
                execution.version,
            )
            self._telemetry.emit(
                HandlerMissing(id=execution.id, fsm=execution.fsm, version=execution.version)
            )
        if isinstance(result, Committed) and result.refused:
            _log.warning(
                "%s %d: step '%s' scheduled %d children, and %d of them were not inserted: their keys are taken",
                execution.fsm,
                execution.id,
                execution.step,
                len(entry.children),
                result.refused,
            )
        if isinstance(result, Committed):
            log_note(entry)
        if isinstance(result, Stale):
            if not result.is_given_up and _lease_of(execution) not in self._lost:
                self._log_lost(execution)
            self._telemetry.emit(
                OutcomeStale(
                    id=execution.id, fsm=execution.fsm, step=execution.step, step_seq=execution.step_seq + 1
                )
            )
        elif entry.started is not None and self._telemetry.is_wanted(StepStop):
            self._telemetry.emit(
                StepStop(
                    duration=timedelta(seconds=seconds),
                    id=execution.id,
                    fsm=execution.fsm,
                    step=execution.step,
                    kind="next" if entry.kind == "continue" else entry.kind,
                )
            )

    def _log_lost(self, execution: Execution) -> None:
        _log.warning(
            "lease lost: %s %d, step %s (worker %s); outcome discarded",
            execution.fsm,
            execution.id,
            execution.step,
            self._worker,
        )

    def _report(self, count: int, demand: int) -> None:
        if self._telemetry.is_wanted(PickStop):
            self._telemetry.emit(PickStop(count=count, demand=demand, queue=self._queue, worker=self._worker))
        if self._telemetry.is_wanted(SchedulerSaturation):
            # What was picked just now has not asked for its slot yet.
            buffer = self._slots.waiting + max(0, count - self._slots.room)
            self._telemetry.emit(
                SchedulerSaturation(
                    in_flight=len(self._in_flight) - buffer,
                    buffer=buffer,
                    concurrency=self._slots.limit,
                    prefetch=self._limits.prefetch,
                    queue=self._queue,
                )
            )

    def _pause(self) -> timedelta:
        """Short after work, growing with silence, with jitter so that many workers do not look at one moment."""
        silence = min(1.0, (time.monotonic() - self._last_work) / _CALM_AFTER)
        pause = max(self._settings.min_poll_interval, self._settings.poll_interval * silence)
        return pause * random.uniform(0.9, 1.0)


def _lease_of(execution: Execution) -> Lease:
    return (execution.id, execution.lease_token)


def _is_too_much(error: StatementError) -> bool:
    """Whether it is what a statement asks for that fails it, as against a database that is away or busy."""
    return error.sqlstate in _TOO_MUCH or not (is_outage(error) or is_race(error))


def _uncancelled() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


def _next(execution: Execution, entry: CommitEntry, committed: Committed) -> Execution:
    """The next step on the lease that is held: what a fresh pick of this row would bring."""
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
