"""Group commit: outcomes gather while the previous batch is being committed, and go together.

There is no delay to tune: a lone outcome is committed at once, and under load the batch grows by itself. An outcome is
acknowledged, and its instance goes on, only after COMMIT.
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
from .._db.sqlstates import LOCK_NOT_AVAILABLE, QUERY_CANCELED
from ..errors import UsageError
from .database_status import DatabaseRetry, DatabaseStatus
from .effects import BrokenOffError, EffectError, RaceLostError, commit_with_effect
from .wake import Wakes

__all__ = ["Flusher"]

T = TypeVar("T")

_log: Final = logging.getLogger("gen_durable.worker")
_Waiting: TypeAlias = tuple[CommitEntry, "asyncio.Future[CommitResult]"]
# A batch that takes a few tens of milliseconds: larger ones gain nothing and make the first outcome wait for the last.
_MAX_BATCH: Final = 1000
# After so many connections that broke under one effect, while others did not, the effect is to blame. And after so many
# in all: it may be what takes the whole server along. After so many that broke under one batch it goes in parts.
_MAX_BREAKS: Final = 3
_MAX_OUTAGES: Final = 20
# After so many races that an effect has lost, a minute or more of them: what it meets does not pass. Timeouts likewise.
_MAX_RACES: Final = 20
_RESTING: Final = frozenset({"done", "failed", "cancelled", "awaiting_signal", "awaiting_children"})


class Flusher:
    """Commits entries in batches, one batch at a time; what is held up by others or large goes on its own."""

    # How long a batch waits for a row that somebody's open transaction holds, before it goes without that row: the
    # lock_timeout of the connections that it is given.
    PATIENCE: Final = "100ms"
    # How long a row that is held waits at a time, on its own connection: then the next in line has its turn with that.
    TURN: Final = "1s"

    def __init__(
        self,
        database: Database,
        stragglers: Database,
        effects: Database,
        recorder: commits.Recorder,
        wakes: Wakes,
        database_status: DatabaseStatus,
    ) -> None:
        self._database = database
        # Theirs alone, and few: whatever is held or large, and however many wait for it, the batches have connections.
        self._held_up = stragglers
        self._effects = effects
        self._recorder = recorder
        self._wakes = wakes
        # Filled by executions, emptied by run(); both on the event loop.
        self._waiting: list[_Waiting] = []
        self._arrived = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._stragglers: set[asyncio.Task[None]] = set()
        # Committed with an effect, not yet marked as done.
        self._unfinished: list[CommitEntry] = []
        self._database_status = database_status
        self._outage = DatabaseRetry("commit", database_status)
        # Of its own: on a full disk questions are answered, and commits are refused.
        self._asking = DatabaseRetry("commit status", database_status)

    async def commit(self, entry: CommitEntry) -> CommitResult:
        """Make an outcome durable; returns when it is, or when it turned out to be stale, or its effect failed."""
        if entry.effect is not None:
            return await self._commit_with_effect(entry)
        future: asyncio.Future[CommitResult] = self._loop.create_future()
        self._waiting.append((entry, future))
        self._arrived.set()
        return await future

    async def run(self) -> None:
        """Commit what arrives, until cancelled."""
        while True:
            await self._arrived.wait()
            batch = self._next_batch()
            if not self._waiting:
                self._arrived.clear()
            if batch:
                await self._flush(batch)
            await self.finish()

    def _next_batch(self) -> list[_Waiting]:
        """Who goes now. An outcome that would be large for a batch is on its own, and nobody waits for it."""
        batch = self._waiting[:_MAX_BATCH]
        batch = batch[next(chunks(entry.size for entry, _ in batch))]
        del self._waiting[: len(batch)]
        if len(batch) == 1 and not fits(batch[0][0].size):
            self._let_go(*batch[0], is_doubtful=False)
            return []
        return batch

    async def _flush(self, batch: list[_Waiting], *, is_doubtful: bool = False) -> None:
        """Commit these. Doubtful: a lost connection may yet commit them, and then ours finds them stale."""
        futures = {id(entry): future for entry, future in batch}
        pending = commits.in_lock_order(entry for entry, _ in batch)
        breaks = 0
        while pending:
            try:
                report = await self._send(pending)
            except StatementError as error:
                is_doubtful = is_doubtful or is_outage(error)
                pending = await self._recover(error, pending, futures, is_doubtful=is_doubtful)
                breaks += is_break(error)
                if breaks == _MAX_BREAKS:
                    # Perhaps because of what is in it. Whoever is to blame ends up alone, and holds up nobody.
                    await self._flush_in_parts(pending, futures, is_doubtful=is_doubtful)
                    return
            else:
                self._outage.succeeded()
                results = await self._look_again(pending, report.results) if is_doubtful else report.results
                self._acknowledge(pending, results, futures)
                self._wakes.work(report.queues)
                return

    async def _look_again(
        self, entries: list[CommitEntry], results: list[CommitResult]
    ) -> list[CommitResult]:
        """After an outage, "stale" may mean that the lost connection committed after all, while we sent it again."""
        stale = [entry for entry, result in zip(entries, results, strict=True) if isinstance(result, Stale)]
        if not stale:
            return results
        standings = dict(zip(map(id, stale), await self._standings(stale), strict=True))
        return [standings.get(id(entry)) or result for entry, result in zip(entries, results, strict=True)]

    async def _send(self, entries: Sequence[CommitEntry]) -> commits.CommitReport:
        if commits.is_one_statement(entries):
            return await self._database.run(commits.commit_plain(entries, self._recorder))
        return await self._database.run_in_transaction(commits.commit(entries, self._recorder))

    async def _recover(
        self,
        error: StatementError,
        entries: list[CommitEntry],
        futures: dict[int, asyncio.Future[CommitResult]],
        *,
        is_doubtful: bool,
    ) -> list[CommitEntry]:
        """What is left to commit after a batch was refused."""
        if error.sqlstate == LOCK_NOT_AVAILABLE:
            return await self._set_aside_held(entries, futures, is_doubtful=is_doubtful)
        if is_data(error):
            return await self._isolate(error, entries, futures, is_doubtful=is_doubtful)
        await asyncio.sleep(self._outage.pause(error))
        if is_outage(error):
            return await self._resolve(entries, futures)
        return entries

    async def _set_aside_held(
        self,
        entries: list[CommitEntry],
        futures: dict[int, asyncio.Future[CommitResult]],
        *,
        is_doubtful: bool,
    ) -> list[CommitEntry]:
        """Somebody's open transaction holds a row of the batch: that row waits alone, the others do not wait for it."""
        try:
            free, held = await self._database.run_in_transaction(commits.unlocked(entries))
        except StatementError as error:
            await asyncio.sleep(self._outage.pause(error))
            return entries
        if not held:
            # What is held is no row of the batch but something that it must touch: the next in line of a key, or the
            # key of a child.
            free, held = (
                [entry for entry in entries if not _touches_other_rows(entry)],
                [entry for entry in entries if _touches_other_rows(entry)],
            )
        for entry in held:
            self._let_go(entry, futures[id(entry)], is_doubtful=is_doubtful)
        return free

    def _let_go(self, entry: CommitEntry, future: asyncio.Future[CommitResult], *, is_doubtful: bool) -> None:
        """Let an outcome be committed on a connection of stragglers, whatever time it takes."""

        def ended(task: asyncio.Task[None]) -> None:
            self._stragglers.discard(task)
            # What no waiting can mend is raised where the outcome is waited for, or that would go on for ever.
            if not task.cancelled() and (error := task.exception()) is not None and not future.done():
                future.set_exception(error)

        task = self._loop.create_task(self._commit_alone(entry, future, is_doubtful=is_doubtful))
        self._stragglers.add(task)
        task.add_done_callback(ended)

    async def _commit_alone(
        self, entry: CommitEntry, future: asyncio.Future[CommitResult], *, is_doubtful: bool
    ) -> None:
        outage = DatabaseRetry("commit on its own", self._database_status)
        while True:
            try:
                plan = commits.commit([entry], self._recorder)
                report = await self._held_up.run_in_transaction(plan)
            except StatementError as error:
                if is_data(error) and entry.is_refused:
                    self._give_up(error, entry, {id(entry): future})
                    return
                if is_data(error):
                    entry = _refused(entry, error)
                    continue
                is_doubtful = is_doubtful or is_outage(error)
                if error.sqlstate != LOCK_NOT_AVAILABLE:
                    await asyncio.sleep(outage.pause(error))
                if is_outage(error) and not await self._resolve([entry], {id(entry): future}):
                    return
            else:
                results = await self._look_again([entry], report.results) if is_doubtful else report.results
                self._acknowledge([entry], results, {id(entry): future})
                self._wakes.work(report.queues)
                return

    async def _commit_with_effect(self, entry: CommitEntry) -> CommitResult:
        """On a connection of its own, in the task of its own execution: nobody waits for somebody else's effect."""
        outage = DatabaseRetry("commit with effect", self._database_status)
        is_doubtful, troubles = False, _Troubles()
        while True:
            connects = self._database.connects
            try:
                report = await commit_with_effect(self._effects, entry, self._recorder)
            except EffectError as error:
                return await self._effect_failed(entry, error.cause, is_doubtful=is_doubtful)
            except StatementError as error:
                if is_data(error):
                    return await self.commit(refused(entry, error))
                await asyncio.sleep(outage.pause(error))
                is_doubtful = is_doubtful or is_outage(error)
                if not await self._ask(lambda: commits.still_owns_lease(entry)):
                    return await self._commit_without_effect(entry, is_doubtful=is_doubtful)
                # Asked on a connection that stood before: nothing broke but the effect's own.
                is_alone = self._database.connects == connects
                if blame := troubles.count(error, is_alone=is_alone):
                    return await self._effect_failed(entry, blame, is_doubtful=is_doubtful)
            else:
                outage.succeeded()
                if report is None:
                    return await self._commit_without_effect(entry, is_doubtful=is_doubtful)
                # The row was locked before it was written: this cannot be stale.
                self._wakes.work(report.queues)
                return self._effect_committed(entry, report.results[0])

    async def _effect_failed(
        self, entry: CommitEntry, cause: Exception, *, is_doubtful: bool
    ) -> CommitResult:
        """Perhaps because its place is taken: by its heir, or by itself, if the lost COMMIT got through."""
        (standing,) = await self._standings([entry])
        if standing is None:
            return EffectFailed(cause)
        return self._effect_committed(entry, standing) if is_doubtful else Stale()

    async def _commit_without_effect(self, entry: CommitEntry, *, is_doubtful: bool) -> CommitResult:
        """Stale, or to be cancelled: the effect is undone, and the outcome that it belongs to must not stand either."""
        if is_doubtful:
            # Or it is committed: by the connection that was lost.
            (standing,) = await self._standings([entry])
            if standing is not None:
                return self._effect_committed(entry, standing)
        result = await self.commit(released(entry))
        if is_doubtful:
            (result,) = await self._look_again([entry], [result])
        return self._effect_committed(entry, result)

    def _effect_committed(self, entry: CommitEntry, result: CommitResult) -> CommitResult:
        if isinstance(result, Committed):
            if self._recorder.events(entry):
                self._wakes.events()
            else:
                self._unfinished.append(entry)
                self._arrived.set()
            self._wakes.rest()
        return result

    async def finish(self) -> None:
        """COMMITTED becomes DONE. If that fails, or this process dies before it, the reaper does it later."""
        # Forgotten only afterwards: whoever is cut short here may do it again.
        finished = list(self._unfinished)
        try:
            if finished:
                await self._database.run(commits.finish(finished))
        except StatementError as error:
            # Of an outage everybody has been told.
            _log.log(
                logging.INFO if is_outage(error) else logging.WARNING,
                "could not mark %d executions as done (%s); that is made up for",
                len(finished),
                error,
            )
        del self._unfinished[: len(finished)]

    async def _isolate(
        self,
        error: StatementError,
        entries: list[CommitEntry],
        futures: dict[int, asyncio.Future[CommitResult]],
        *,
        is_doubtful: bool,
    ) -> list[CommitEntry]:
        """A value of one entry is to blame: halve the batch until it stands alone, and end that instance only."""
        if len(entries) > 1:
            await self._flush_in_parts(entries, futures, is_doubtful=is_doubtful)
            return []
        if entries[0].is_refused:
            self._give_up(error, entries[0], futures)
            return []
        failed = _refused(entries[0], error)
        futures[id(failed)] = futures.pop(id(entries[0]))
        return [failed]

    async def _flush_in_parts(
        self,
        entries: list[CommitEntry],
        futures: dict[int, asyncio.Future[CommitResult]],
        *,
        is_doubtful: bool,
    ) -> None:
        """Commit these in two halves; a single one on its own."""
        if len(entries) == 1:
            self._let_go(entries[0], futures[id(entries[0])], is_doubtful=is_doubtful)
            return
        half = len(entries) // 2
        for part in (entries[:half], entries[half:]):
            await self._flush([(entry, futures[id(entry)]) for entry in part], is_doubtful=is_doubtful)

    def _give_up(
        self, error: StatementError, entry: CommitEntry, futures: dict[int, asyncio.Future[CommitResult]]
    ) -> None:
        """Not even its failure can be written: its lease runs out, and in the end the reaper fails it as poison."""
        _log.error("instance %d: the database refuses its failure too (%s)", entry.id, error)
        self._acknowledge([entry], [Stale(is_given_up=True)], futures)

    async def _resolve(
        self, entries: list[CommitEntry], futures: dict[int, asyncio.Future[CommitResult]]
    ) -> list[CommitEntry]:
        """The answer to COMMIT was lost: ask the rows what became of it, before anything is sent again."""
        standings = await self._standings(entries)
        known = [
            (entry, result) for entry, result in zip(entries, standings, strict=True) if result is not None
        ]
        self._acknowledge([entry for entry, _ in known], [result for _, result in known], futures)
        return [entry for entry, result in zip(entries, standings, strict=True) if result is None]

    async def _standings(self, entries: list[CommitEntry]) -> list[CommitResult | None]:
        """What became of these."""
        return await self._ask(lambda: commits.commit_status(entries))

    async def _ask(self, question: Callable[[], Plan[T]]) -> T:
        """Ask until the database answers."""
        while True:
            try:
                answer = await self._database.run(question())
            except StatementError as error:
                await asyncio.sleep(self._asking.pause(error))
            else:
                self._asking.succeeded()
                return answer

    def _acknowledge(
        self,
        entries: Sequence[CommitEntry],
        results: Sequence[CommitResult],
        futures: dict[int, asyncio.Future[CommitResult]],
    ) -> None:
        has_rest = has_events = False
        for entry, result in zip(entries, results, strict=True):
            future = futures[id(entry)]
            if not future.done():
                future.set_result(result)
            if isinstance(result, Committed):
                has_rest = has_rest or result.status in _RESTING
                has_events = has_events or bool(self._recorder.events(entry))
        if has_rest:
            self._wakes.rest()
        if has_events:
            self._wakes.events()


def _touches_other_rows(entry: CommitEntry) -> bool:
    """Whether its commit locks rows that are not in the batch: the next row of a key, or children."""
    return entry.execution.concurrency_key is not None or bool(entry.children)


def _refused(entry: CommitEntry, error: StatementError) -> CommitEntry:
    _log.error("instance %d: the database refused its outcome (%s); it fails", entry.id, error)
    return refused(entry, error)


class _Troubles:
    """What one effect has met, and was run again for."""

    def __init__(self) -> None:
        self._breaks = self._outages = self._races = self._timeouts = 0

    def count(self, error: StatementError, *, is_alone: bool) -> UsageError | None:
        """One more. Returns what the effect is to blame for, if it was one too many."""
        if isinstance(error, RaceLostError):
            self._races += 1
            return _racing(self._races, error) if self._races == _MAX_RACES else None
        if error.sqlstate == QUERY_CANCELED:  # of our own statements: what the effect raises is not run again
            self._timeouts += 1
            return _delaying(self._timeouts, error) if self._timeouts == _MAX_RACES else None
        if isinstance(error, BrokenOffError):
            self._breaks, self._outages = self._breaks + is_alone, self._outages + 1
            if self._breaks == _MAX_BREAKS or self._outages == _MAX_OUTAGES:
                return _breaking(self._outages, self._breaks, error)
        return None


def _racing(times: int, error: StatementError) -> UsageError:
    return UsageError(
        f"other transactions were in the way of the effect {times} times ({error})",
        "who keeps what it needs? Or does it raise that by itself?",
    )


def _delaying(times: int, error: StatementError) -> UsageError:
    return UsageError(
        f"what had to be written after the effect took too long {times} times ({error})",
        "does it set a timeout of its own, or leave much to be done at the end of the transaction?",
    )


def _breaking(times: int, alone: int, error: StatementError) -> UsageError:
    return UsageError(
        f"the connection broke {times} times while the effect ran, {alone} times when others did not ({error})",
        "has the server a limit that it meets, or somebody who ends its sessions?",
    )
