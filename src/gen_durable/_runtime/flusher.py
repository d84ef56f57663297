"""Group commit: outcomes queue while the previous batch commits, and the next batch takes all of them.

Two batches of one worker may commit at the same time, like those of two workers: both lock rows in the same order.

There is no delay to tune: a single outcome commits at once, and batches grow under load. An outcome is acknowledged,
and its instance continues, only after COMMIT.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, TypeVar

from .._core.model import CommitEntry, CommitResult, Committed, EffectFailed, Stale
from .._core.settle import refused, released
from .._db import commit as commits
from .._db.chunking import chunks, fits
from .._db.failures import StatementError, is_break, is_data, is_outage
from .._db.plan import Plan
from .._db.pool import Database
from .._db.sqlstates import LOCK_NOT_AVAILABLE
from .database_status import DatabaseRetry, DatabaseStatus
from .effects import EffectError, EffectRetries, commit_with_effect
from .wake import Wakes

__all__ = ["SECOND_BATCH", "Acknowledge", "Flusher"]

T = TypeVar("T")

_log: Final = logging.getLogger("gen_durable.worker")
Acknowledge: TypeAlias = Callable[[CommitEntry, CommitResult | BaseException], None]
"""Called once: with the entry that was written, which may replace a refused one, and the result of its commit; or with
an error that no retry outlasts."""
_Waiting: TypeAlias = tuple[CommitEntry, Acknowledge]
_Waiters: TypeAlias = dict[int, Acknowledge]
"""By the `id()` of their entries. One batch can hold two outcomes of the same instance."""

# Such a batch takes tens of milliseconds. A larger one is not faster per outcome, and its first outcome waits longer.
_MAX_BATCH: Final = 1000
SECOND_BATCH: Final = 300
"""The smallest batch that is sent while another one commits: the server works while Python builds the next one."""
# A batch under which this many connections broke is split: one of its outcomes may be the cause.
_MAX_BREAKS: Final = 3
_ENDED_OR_PARKED: Final = frozenset({"done", "failed", "cancelled", "awaiting_signal", "awaiting_children"})


class Flusher:
    """Commits outcomes in batches: one at a time, and a second one beside it under load.

    Blocked and large outcomes commit separately.
    """

    # lock_timeout of batches: a batch continues without a row that another transaction has locked for longer.
    BATCH_LOCK_TIMEOUT: Final = "100ms"
    # lock_timeout of separate commits: after it, the connection serves the next blocked outcome.
    SEPARATE_LOCK_TIMEOUT: Final = "1s"

    def __init__(
        self,
        database: Database,
        slow_commits: Database,
        effects: Database,
        recorder: commits.Recorder,
        wakes: Wakes,
        database_status: DatabaseStatus,
    ) -> None:
        self._database = database
        # A pool of its own: any number of blocked or large outcomes leaves the connections of batches free.
        self._slow_commits = slow_commits
        self._effects = effects
        self._recorder = recorder
        self._wakes = wakes
        # Filled by executions, emptied by run() and run_second(); all on the event loop.
        self._waiting: list[_Waiting] = []
        self._arrived = asyncio.Event()
        self._many_arrived = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._separate: set[asyncio.Task[None]] = set()
        # Committed with an effect, not yet marked as DONE.
        self._unfinished: list[CommitEntry] = []
        self._database_status = database_status
        self._batch_retry = DatabaseRetry("commit", database_status)
        # Separate from the commits: with a full disk, reads succeed and commits fail.
        self._status_retry = DatabaseRetry("commit status", database_status)

    async def commit(self, entry: CommitEntry) -> CommitResult:
        """Commit an outcome. Returns once it is durable or stale, or once its effect has failed."""
        if entry.effect is not None:
            return await self._commit_with_effect(entry)
        future: asyncio.Future[CommitResult] = self._loop.create_future()

        def acknowledge(_: CommitEntry, result: CommitResult | BaseException) -> None:
            if future.done():
                return  # cancelled
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.submit(entry, acknowledge)
        return await future

    def submit(self, entry: CommitEntry, acknowledge: Acknowledge) -> None:
        """Commit an outcome without an effect with the next batch, then call `acknowledge`."""
        self._waiting.append((entry, acknowledge))
        if len(self._waiting) == 1:
            self._arrived.set()
        elif len(self._waiting) == SECOND_BATCH:
            self._many_arrived.set()

    async def run(self) -> None:
        """Commit outcomes until cancelled."""
        while True:
            await self._arrived.wait()
            await self._flush_next()
            await self.finish()

    async def run_second(self) -> None:
        """Commit a second batch while `run` waits for the first, if many outcomes wait. Until cancelled."""
        while True:
            await self._many_arrived.wait()
            await self._flush_next()

    async def _flush_next(self) -> None:
        batch = self._next_batch()
        if not self._waiting:
            self._arrived.clear()
        if len(self._waiting) < SECOND_BATCH:
            self._many_arrived.clear()
        if batch:
            await self._flush(batch)

    def _next_batch(self) -> list[_Waiting]:
        """Take the next batch. An outcome that is too large for one commits separately, so it does not delay others."""
        batch = self._waiting[:_MAX_BATCH]
        batch = batch[next(chunks(entry.size for entry, _ in batch))]
        del self._waiting[: len(batch)]
        if len(batch) == 1 and not fits(batch[0][0].size):
            self._commit_separately(*batch[0], maybe_committed=False)
            return []
        return batch

    async def _flush(self, batch: list[_Waiting], *, maybe_committed: bool = False) -> None:
        """Commit a batch.

        `maybe_committed`: a failed attempt may have committed these outcomes, so a stale result has to be confirmed.
        """
        waiters = {id(entry): acknowledge for entry, acknowledge in batch}
        pending = commits.in_lock_order(entry for entry, _ in batch)
        if deletable := commits.deletable(pending, self._recorder):
            try:
                pending = await self._delete(deletable, pending, waiters)
            except StatementError as error:
                # The general commit below meets the same error, and recovers from it.
                maybe_committed = maybe_committed or _may_follow_a_commit(error)
        breaks = 0
        while pending:
            try:
                report = await self._send(pending)
            except StatementError as error:
                maybe_committed = maybe_committed or _may_follow_a_commit(error)
                pending = await self._recover(error, pending, waiters, maybe_committed=maybe_committed)
                breaks += is_break(error)
                if breaks == _MAX_BREAKS:
                    await self._flush_in_halves(pending, waiters, maybe_committed=maybe_committed)
                    return
            else:
                self._batch_retry.succeeded()
                results = await self._confirm(pending, report.results) if maybe_committed else report.results
                pending, results = await self._set_aside_redirected(
                    pending, results, waiters, maybe_committed=maybe_committed
                )
                self._acknowledge(pending, results, waiters)
                self._wakes.work(report.queues)
                return

    async def _set_aside_redirected(
        self,
        entries: list[CommitEntry],
        results: list[CommitResult],
        waiters: _Waiters,
        *,
        maybe_committed: bool,
    ) -> tuple[list[CommitEntry], list[CommitResult]]:
        """Commit stale outcomes whose lease is still held separately: their instances go to another step.

        Returns the other outcomes and their results.
        """
        stale = [entry for entry, result in zip(entries, results, strict=True) if isinstance(result, Stale)]
        if not stale:
            return entries, results
        statuses = await self._commit_status(stale)
        redirected = {id(entry) for entry, status in zip(stale, statuses, strict=True) if status is None}
        for entry in stale:
            if id(entry) in redirected:
                self._commit_separately(entry, waiters[id(entry)], maybe_committed=maybe_committed)
        left = [
            (entry, result)
            for entry, result in zip(entries, results, strict=True)
            if id(entry) not in redirected
        ]
        return [entry for entry, _ in left], [result for _, result in left]

    async def _confirm(self, entries: list[CommitEntry], results: list[CommitResult]) -> list[CommitResult]:
        """Replace stale results of outcomes that a failed attempt has committed."""
        stale = [entry for entry, result in zip(entries, results, strict=True) if isinstance(result, Stale)]
        if not stale:
            return results
        confirmed = dict(zip(map(id, stale), await self._commit_status(stale), strict=True))
        return [confirmed.get(id(entry)) or result for entry, result in zip(entries, results, strict=True)]

    async def _delete(
        self, deletable: list[CommitEntry], entries: list[CommitEntry], waiters: _Waiters
    ) -> list[CommitEntry]:
        """Commit outcomes by deleting their rows. Returns the outcomes that are still to be committed."""
        results = (await self._database.run(commits.delete_done(deletable))).results
        self._batch_retry.succeeded()
        done = [
            (entry, result)
            for entry, result in zip(deletable, results, strict=True)
            if isinstance(result, Committed)
        ]
        self._acknowledge([entry for entry, _ in done], [result for _, result in done], waiters)
        deleted = {id(entry) for entry, _ in done}
        return [entry for entry in entries if id(entry) not in deleted]

    async def _send(self, entries: Sequence[CommitEntry]) -> commits.CommitReport:
        if commits.is_one_statement(entries, self._recorder):
            return await self._database.run(commits.commit_plain(entries, self._recorder))
        return await self._database.run_in_transaction(commits.commit(entries, self._recorder))

    async def _recover(
        self, error: StatementError, entries: list[CommitEntry], waiters: _Waiters, *, maybe_committed: bool
    ) -> list[CommitEntry]:
        """Handle the error of a batch. Returns the outcomes that are still to be committed in it."""
        if error.sqlstate == LOCK_NOT_AVAILABLE:
            return await self._set_aside_locked(entries, waiters, maybe_committed=maybe_committed)
        if is_data(error):
            return await self._isolate(error, entries, waiters, maybe_committed=maybe_committed)
        await asyncio.sleep(self._batch_retry.pause(error))
        if is_outage(error):
            return await self._resolve(entries, waiters)
        return entries

    async def _set_aside_locked(
        self, entries: list[CommitEntry], waiters: _Waiters, *, maybe_committed: bool
    ) -> list[CommitEntry]:
        """Commit outcomes whose rows another transaction has locked separately. Returns the other outcomes."""
        try:
            free, locked = await self._database.run_in_transaction(commits.unlocked(entries))
        except StatementError as error:
            await asyncio.sleep(self._batch_retry.pause(error))
            return entries
        if not locked:
            # The locked row is not in the batch: it is the next row of a key, or the holder of a child's unique key.
            free = [entry for entry in entries if not _touches_other_rows(entry)]
            locked = [entry for entry in entries if _touches_other_rows(entry)]
        for entry in locked:
            self._commit_separately(entry, waiters[id(entry)], maybe_committed=maybe_committed)
        return free

    def _commit_separately(
        self, entry: CommitEntry, acknowledge: Acknowledge, *, maybe_committed: bool
    ) -> None:
        """Start a task that commits one outcome on a connection for slow commits."""

        def ended(task: asyncio.Task[None]) -> None:
            self._separate.discard(task)
            # An error that no retry outlasts.
            if not task.cancelled() and (error := task.exception()) is not None:
                acknowledge(entry, error)

        task = self._loop.create_task(
            self._run_separate_commit(entry, acknowledge, maybe_committed=maybe_committed)
        )
        self._separate.add(task)
        task.add_done_callback(ended)

    async def _run_separate_commit(
        self, entry: CommitEntry, acknowledge: Acknowledge, *, maybe_committed: bool
    ) -> None:
        retry = DatabaseRetry("separate commit", self._database_status)
        while True:
            try:
                plan = commits.commit([entry], self._recorder)
                report = await self._slow_commits.run_in_transaction(plan)
            except StatementError as error:
                if is_data(error) and entry.is_refused:
                    self._give_up(error, entry, {id(entry): acknowledge})
                    return
                if is_data(error):
                    entry = _refused(entry, error)
                    continue
                maybe_committed = maybe_committed or is_outage(error)
                if error.sqlstate != LOCK_NOT_AVAILABLE:
                    await asyncio.sleep(retry.pause(error))
                if is_outage(error) and not await self._resolve([entry], {id(entry): acknowledge}):
                    return
            else:
                results = await self._confirm([entry], report.results) if maybe_committed else report.results
                self._acknowledge([entry], results, {id(entry): acknowledge})
                self._wakes.work(report.queues)
                return

    async def _commit_with_effect(self, entry: CommitEntry) -> CommitResult:
        """Commit an outcome and its effect in their own transaction, so a slow effect does not delay other outcomes."""
        retry = DatabaseRetry("commit with effect", self._database_status)
        maybe_committed, retries = False, EffectRetries()
        while True:
            connects = self._database.connects
            try:
                report = await commit_with_effect(self._effects, entry, self._recorder)
            except EffectError as error:
                return await self._effect_failed(entry, error.cause, maybe_committed=maybe_committed)
            except StatementError as error:
                if is_data(error):
                    return await self.commit(refused(entry, error))
                await asyncio.sleep(retry.pause(error))
                maybe_committed = maybe_committed or is_outage(error)
                if not await self._ask(lambda: commits.still_owns_lease(entry)):
                    return await self._commit_without_effect(entry, maybe_committed=maybe_committed)
                # `_ask` used a connection from before the error: only the effect's own connection broke.
                others_work = self._database.connects == connects
                if failure := retries.count(error, others_work=others_work):
                    return await self._effect_failed(entry, failure, maybe_committed=maybe_committed)
            else:
                retry.succeeded()
                if report is None:
                    return await self._commit_without_effect(entry, maybe_committed=maybe_committed)
                # Cannot be stale: the row was locked before the outcome was written.
                self._wakes.work(report.queues)
                return self._effect_committed(entry, report.results[0])

    async def _effect_failed(
        self, entry: CommitEntry, cause: Exception, *, maybe_committed: bool
    ) -> CommitResult:
        """Return the failure, unless the transition has been committed meanwhile.

        Either another execution has committed it, or a lost COMMIT of this one has succeeded.
        """
        (status,) = await self._commit_status([entry])
        if status is None:
            return EffectFailed(cause)
        return self._effect_committed(entry, status) if maybe_committed else Stale()

    async def _commit_without_effect(self, entry: CommitEntry, *, maybe_committed: bool) -> CommitResult:
        """Release an execution whose effect was rolled back, because it lost its lease or is to be cancelled."""
        if maybe_committed:
            (status,) = await self._commit_status([entry])
            if status is not None:
                return self._effect_committed(entry, status)
        result = await self.commit(released(entry))
        if maybe_committed:
            (result,) = await self._confirm([entry], [result])
        return self._effect_committed(entry, result)

    def _effect_committed(self, entry: CommitEntry, result: CommitResult) -> CommitResult:
        if isinstance(result, Committed):
            if self._recorder.events(entry):
                self._wakes.events()
            else:
                self._unfinished.append(entry)
                self._arrived.set()
            self._wakes.ended_or_parked([entry.id])
            self._wakes.changed([entry.id])
        return result

    def close(self) -> None:
        """Give up outcomes whose rows are still locked by other transactions: their leases expire."""
        for task in self._separate:
            task.cancel()

    async def finish(self) -> None:
        """Mark executions with effects as DONE. If this fails or the process dies, the reaper does it later."""
        # Removed from the list only afterwards, so that a cancelled call can be repeated.
        finished = list(self._unfinished)
        try:
            if finished:
                await self._database.run(commits.finish(finished))
        except StatementError as error:
            # An outage has been logged already.
            _log.log(
                logging.INFO if is_outage(error) else logging.WARNING,
                "executions not marked as done: %d (%s); the reaper will mark them",
                len(finished),
                error,
            )
        del self._unfinished[: len(finished)]

    async def _isolate(
        self, error: StatementError, entries: list[CommitEntry], waiters: _Waiters, *, maybe_committed: bool
    ) -> list[CommitEntry]:
        """Find the outcome that the database refuses, by halving the batch, and fail its instance only."""
        if len(entries) > 1:
            await self._flush_in_halves(entries, waiters, maybe_committed=maybe_committed)
            return []
        if entries[0].is_refused:
            self._give_up(error, entries[0], waiters)
            return []
        failed = _refused(entries[0], error)
        waiters[id(failed)] = waiters.pop(id(entries[0]))
        return [failed]

    async def _flush_in_halves(
        self, entries: list[CommitEntry], waiters: _Waiters, *, maybe_committed: bool
    ) -> None:
        """Commit two halves one after the other; a single outcome separately."""
        if len(entries) == 1:
            self._commit_separately(entries[0], waiters[id(entries[0])], maybe_committed=maybe_committed)
            return
        half = len(entries) // 2
        for part in (entries[:half], entries[half:]):
            await self._flush(
                [(entry, waiters[id(entry)]) for entry in part], maybe_committed=maybe_committed
            )

    def _give_up(self, error: StatementError, entry: CommitEntry, waiters: _Waiters) -> None:
        """Leave an instance whose failure cannot be written. Its lease expires, and the reaper fails it as poison."""
        _log_refusal(entry, "failure refused by the database", error, "its lease will expire")
        self._acknowledge([entry], [Stale(is_given_up=True)], waiters)

    async def _resolve(self, entries: list[CommitEntry], waiters: _Waiters) -> list[CommitEntry]:
        """After a lost COMMIT, acknowledge the outcomes that it has decided. Returns those to send again."""
        statuses = await self._commit_status(entries)
        known = [
            (entry, result) for entry, result in zip(entries, statuses, strict=True) if result is not None
        ]
        self._acknowledge([entry for entry, _ in known], [result for _, result in known], waiters)
        return [entry for entry, result in zip(entries, statuses, strict=True) if result is None]

    async def _commit_status(self, entries: list[CommitEntry]) -> list[CommitResult | None]:
        """Read from the rows whether these outcomes are committed. `None`: not committed, and the lease is held."""
        return await self._ask(lambda: commits.commit_status(entries, self._recorder))

    async def _ask(self, question: Callable[[], Plan[T]]) -> T:
        """Run a query until the database answers."""
        while True:
            try:
                answer = await self._database.run(question())
            except StatementError as error:
                await asyncio.sleep(self._status_retry.pause(error))
            else:
                self._status_retry.succeeded()
                return answer

    def _acknowledge(
        self, entries: Sequence[CommitEntry], results: Sequence[CommitResult], waiters: _Waiters
    ) -> None:
        has_ended_or_parked = has_events = False
        has_alerts = self._recorder.alerts is not None
        for entry, result in zip(entries, results, strict=True):
            waiters[id(entry)](entry, result)
            if isinstance(result, Committed):
                has_ended_or_parked = has_ended_or_parked or result.status in _ENDED_OR_PARKED
                if entry.events or has_alerts:
                    has_events = has_events or bool(self._recorder.events(entry))
        if has_ended_or_parked:
            self._wakes.ended_or_parked([entry.execution.id for entry in entries])
        if self._wakes.is_watching():
            self._wakes.changed([entry.execution.id for entry in entries])
        if has_events:
            self._wakes.events()


def _may_follow_a_commit(error: StatementError) -> bool:
    """Whether outcomes may be committed despite the error: the reply was lost, or a later statement failed.

    Only the first statement waits for locks.
    """
    return error.sqlstate != LOCK_NOT_AVAILABLE


def _touches_other_rows(entry: CommitEntry) -> bool:
    """Whether its commit locks rows that are not in the batch: the next row of a key, children, or a bucket."""
    return entry.execution.concurrency_key is not None or bool(entry.children) or entry.returns_tokens


def _refused(entry: CommitEntry, error: StatementError) -> CommitEntry:
    _log_refusal(entry, "outcome refused by the database", error, "the instance fails")
    return refused(entry, error)


def _log_refusal(entry: CommitEntry, event: str, error: StatementError, consequence: str) -> None:
    execution = entry.execution
    _log.error(
        "%s: %s %d, step %s: %s; %s", event, execution.fsm, execution.id, execution.step, error, consequence
    )
