"""Pick: lease due rows of one queue, as many as its capacity allows, and hand them to the execution runner."""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from .._core.model import Execution, Lease
from .._db import pick as picks
from .._db.failures import StatementError, is_outage, is_race
from .._db.pool import Database
from .._db.sqlstates import OUT_OF_MEMORY, QUERY_CANCELED, UNIQUE_VIOLATION
from .._db.workers import Override
from .._tracing import tracing
from ..config import Queue
from ..telemetry import PickStop, SchedulerSaturation
from .admission import Admission
from .capacity import SharedCapacity
from .execution_runner import ExecutionRunner
from .heartbeat import Heartbeat
from .in_flight import InFlight
from .pick_source import FromQueue, Source
from .service import Service
from .worker_context import WorkerContext

__all__ = ["Picker"]

_log: Final = logging.getLogger("gen_durable.worker")
# Seconds without work after which the pause between picks has grown to poll_interval.
_IDLE_AFTER: Final = 30.0
# Outages by their class. For a load they mean that the content took too long, or too much memory.
_TOO_LARGE: Final = (QUERY_CANCELED, OUT_OF_MEMORY)
# Leased executions per unit of capacity: one that runs, and one that is being committed.
_LEASED_PER_CAPACITY: Final = 2


class Picker(Service):
    """Leases work from one source for one execution runner.

    One round: compute the demand, pick, load inboxes and children, start the executions, and set aside a chunk of the
    rows that a concurrency key or a rate limit blocks.
    """

    def __init__(
        self,
        source: Source,
        queue_settings: Queue,
        context: WorkerContext,
        *,
        database: Database,
        admission: Admission,
        heartbeat: Heartbeat,
        runner: ExecutionRunner,
    ) -> None:
        super().__init__(context.database_status)
        self.name = source.name
        self._source = source
        self._queue_settings = queue_settings
        self._context = context
        self._settings = context.settings
        self._telemetry = context.telemetry
        self._database = database
        self._admission = admission
        self._heartbeat = heartbeat
        self._runner = runner
        self._capacity = runner.capacity
        # Queues that share capacity compete for it: one that waits would lose its share.
        self._is_shared = isinstance(runner.capacity, SharedCapacity)
        # Whether the last pick may have left due rows; if so, freed capacity triggers the next one.
        self._may_have_more = False
        # Whether the first due row is under a rate limit and waits for capacity: such a row is not leased ahead, and
        # neither is any row after it.
        self._is_awaiting_capacity = False
        # Keys whose first row can neither run nor be gated: the next pick asks for that many rows more.
        self._blocked_keys = 0
        # Keys and buckets that have more rows to set aside: picks pass over them, at least one and for as long as the
        # last chunk took. So the queue is served between two chunks, and a key that is free again does not wait long.
        self._passed = picks.Passed()
        self._passed_until = 0.0
        self._last_pick = 0.0
        # How long the last pick took.
        self._pick_time = timedelta(0)
        self._last_work = time.monotonic()
        runner.on_capacity_freed = self._on_capacity_freed
        self._capacity.on_offer = self.wake

    async def tick(self) -> timedelta | None:
        """Pick once. Returns the pause until the next pick; `None`: until freed capacity wakes this picker."""
        reserved = self._capacity.reserve()
        demand = self._demand(reserved)
        wait = None if demand <= 0 else self._wait_for_demand(demand)
        if wait is None or wait > timedelta(0):
            self._capacity.unreserve(reserved)
            self._may_have_more = True
            return wait
        demand = min(demand, picks.MAX_ROWS)
        passed = self._passed
        picked, ready = await self._pick(demand + self._blocked_keys, reserved, passed)
        if len(ready) < demand or time.monotonic() >= self._passed_until:
            self._passed = picks.Passed()
        self._runner.start(ready)
        self._is_awaiting_capacity = picked.is_awaiting_capacity
        self._may_have_more = picked.is_awaiting_capacity or len(ready) >= demand
        if not self._may_have_more:
            self._capacity.withdraw()
        self._report(len(ready), demand)
        if undo_steps := self._context.registry.undo_steps:
            await self._report_undo([one.execution for one in ready if one.execution.step in undo_steps])
        self._blocked_keys = 0
        if ready:
            self._last_work = time.monotonic()
        if picked.denied or picked.throttled:
            machines = self._source.known(self._context.registry.keys)
            begun = time.monotonic()
            self._blocked_keys, self._passed = await self._admission.set_aside(picked, machines)
            self._passed_until = 2 * time.monotonic() - begun
            # The rows after those that were set aside are next.
            is_next = bool(ready or passed or self._passed)
            return timedelta(0) if is_next else self._settings.min_poll_interval
        if not passed:
            self._admission.finish()
        if picked.is_awaiting_capacity:
            # Capacity that became free during the pick has not woken this picker.
            free = self._capacity.reserve()
            self._capacity.unreserve(free)
            return timedelta(0) if free else None
        return timedelta(0) if self._may_have_more or passed else self._pause()

    def stop(self) -> None:
        """Stop after the current pick, and chain no further steps."""
        super().stop()
        self._runner.stop_chaining()

    def apply_overrides(self, overrides: Mapping[str, Override]) -> None:
        """Apply operator settings: start nothing from paused queues, and change the concurrency of this queue."""
        own = overrides.get(self._source.label) if isinstance(self._source, FromQueue) else None
        limit = (own and own.concurrency) or self._queue_settings.concurrency
        paused = (queue for queue, override in overrides.items() if override.paused_at is not None)
        is_resumed = self._runner.paused.replace(paused)
        if is_resumed or limit != self._capacity.limit:
            self.wake()
        self._capacity.resize(limit)

    def _demand(self, reserved: int) -> int:
        """How many rows to lease. Executions being committed hold no capacity, but their number is bounded, too."""
        prefetch = 0 if self._is_awaiting_capacity else self._queue_settings.prefetch
        capacity = self._capacity
        return min(
            reserved + prefetch - capacity.waiting,
            _LEASED_PER_CAPACITY * capacity.limit + prefetch - self._runner.in_flight,
        )

    def _wait_for_demand(self, demand: int) -> timedelta:
        """How long to wait for a larger demand.

        Below `min_demand`, until poll_interval after the last pick. With a backlog, and below half of the capacity, for
        as long as the last pick took.
        """
        least = self._queue_settings.min_demand
        if self._is_awaiting_capacity:
            # Nothing is leased ahead, so the demand cannot exceed the capacity.
            least = min(least, self._capacity.limit)
        since = timedelta(seconds=time.monotonic() - self._last_pick)
        if demand < least:
            return self._settings.poll_interval - since
        if self._may_have_more and 2 * demand < self._capacity.limit and not self._is_shared:
            # A statement has a fixed cost, and picks of several workers read each other's locked rows. So wait for more
            # capacity, for no longer than the last pick took.
            return self._pick_time + min(self._pick_time, self._settings.min_poll_interval) - since
        return timedelta(0)

    async def _pick(
        self, demand: int, reserved: int, passed: picks.Passed
    ) -> tuple[picks.Picked, list[InFlight]]:
        """Lease rows; return also those that are ready to run. Capacity that they do not need becomes free again."""
        ready: list[InFlight] = []
        paused = self._runner.paused
        version = paused.version
        try:
            self._last_pick = time.monotonic()
            picked = await self._lease(demand, reserved, passed)
            self._pick_time = timedelta(seconds=time.monotonic() - self._last_pick)
            ready = await self._loaded(picked.executions)
        finally:
            self._capacity.unreserve(max(0, reserved - len(ready)))
        paused.picked({one.execution.queue for one in ready}, version)
        return picked, ready

    async def _lease(self, demand: int, startable: int, passed: picks.Passed) -> picks.Picked:
        """Run the pick statement. At most `startable` of the rows start at once; the others are leased ahead."""
        context = self._context
        while True:
            # A new random token per pick differs from every earlier lease of the row, this worker's own included.
            request = picks.PickRequest(
                self._source.known(context.registry.keys),
                demand,
                lease_token=secrets.randbits(62),
                worker=context.name,
                leases=context.leases,
                startable=startable,
                passed=passed,
                is_traced=tracing() is not None,
            )
            sent = time.monotonic()
            try:
                picked = await self._database.run(self._source.pick(request))
            except StatementError as error:
                # Another picker has taken the same slot of a concurrency key at the same time.
                if error.sqlstate != UNIQUE_VIOLATION:
                    raise
            else:
                if picked.executions and (leased_at := picked.executions[0].leased_at) is not None:
                    context.clock.observe(leased_at, sent, time.monotonic())
                return picked

    async def _loaded(self, executions: list[Execution]) -> list[InFlight]:
        """Load the inboxes and children of leased rows. Returns the executions that can run now."""
        of = self._context.leases.of
        executions = self._context.registry.with_current_steps(executions)
        leased = [InFlight.of(one, of(one.fsm, one.version, one.step)) for one in executions]
        # Keep the leases from here on: loading may take longer than a lease.
        self._heartbeat.keep(leased)
        if not any(one.needs_load for one in executions):
            return leased
        loaded: dict[Lease, Execution] = {}
        try:
            loaded = {one.lease: one for one in await self._load(executions)}
        except StatementError:
            # The failure is not caused by these executions: release them at no cost.
            await self._runner.release(leased)
            raise
        finally:
            self._heartbeat.forget([one for one in leased if one.lease not in loaded])
        ready: list[InFlight] = []
        for one in leased:
            if (execution := loaded.get(one.lease)) is None:
                continue
            one.execution = execution
            if execution.live_children:
                # A child was retried after the barrier was released: the joining step must not see a live child.
                self._runner.rejoin(one)
            else:
                ready.append(one)
        return ready

    async def _load(self, executions: list[Execution]) -> list[Execution]:
        """Load all in one statement; if that fails, one by one, without those that fail alone."""
        try:
            return await self._database.run(picks.load(executions))
        except StatementError as error:
            if not _is_caused_by_content(error):
                raise
        loaded: list[Execution] = []
        for one in executions:
            try:
                loaded += await self._database.run(picks.load([one])) if one.needs_load else [one]
            except StatementError as error:
                if not _is_caused_by_content(error):
                    raise
                # The heartbeat forgets the lease. It expires, and the reaper counts that as a crash.
                _log.error(
                    "signals and children not loaded: %s %d, step %s: %s; its lease will expire",
                    one.fsm,
                    one.id,
                    one.step,
                    error,
                )
        return loaded

    def _on_capacity_freed(self) -> None:
        if self._may_have_more:
            self.wake()

    def _pause(self) -> timedelta:
        """The pause after an incomplete pick: grows with the time without work. Jitter spreads the workers."""
        idle = min(1.0, (time.monotonic() - self._last_work) / _IDLE_AFTER)
        pause = max(self._settings.min_poll_interval, self._settings.poll_interval * idle)
        return pause * random.uniform(0.9, 1.0)

    async def _report_undo(self, executions: list[Execution]) -> None:
        """Report the undo that clients have started: no worker has seen the cancel of a waiting instance."""
        if not executions:
            return
        try:
            started = await self._database.run(picks.undo_starts(executions))
        except StatementError:
            return  # the executions run; telemetry may be lost
        for one in executions:
            if (step := started.get(one.id)) is not None:
                self._runner.undo_started(one, step)

    def _report(self, count: int, demand: int) -> None:
        telemetry, queue = self._telemetry, self._source.label
        if telemetry.is_wanted(PickStop):
            telemetry.emit(PickStop(count=count, demand=demand, queue=queue, worker=self._context.name))
        if telemetry.is_wanted(SchedulerSaturation):
            buffer = self._capacity.waiting
            telemetry.emit(
                SchedulerSaturation(
                    in_flight=self._runner.in_flight - buffer,
                    buffer=buffer,
                    concurrency=self._capacity.limit,
                    prefetch=self._queue_settings.prefetch,
                    queue=queue,
                )
            )


def _is_caused_by_content(error: StatementError) -> bool:
    """Whether the content makes the statement fail, rather than an outage or a race."""
    return error.sqlstate in _TOO_LARGE or not (is_outage(error) or is_race(error))
