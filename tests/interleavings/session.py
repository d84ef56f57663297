"""A session runs plans of the engine one statement at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypeAlias

import asyncpg
import msgspec

from gen_durable._core.model import CommitEntry, Committed
from gen_durable._db import commit as commits
from gen_durable._db.failures import StatementError
from gen_durable._db.lease import Reaped
from gen_durable._db.plan import Call, Plan, Script
from gen_durable._db.pool import _Transaction
from gen_durable._db.runner import from_asyncpg
from gen_durable._db.signals import Delivery
from gen_durable.errors import UsageError
from tests.interleavings.product import Product
from tests.interleavings.world import WORKER

Make: TypeAlias = "Callable[[Session], Plan[Any] | None]"

# No grace: a chained step may be reaped at once.
RECORDER: Final = commits.Recorder(WORKER, "all", timedelta(0))
_EXECUTING_OR_ENDED: Final = ("executing", "done", "failed", "cancelled")
# Plain reads hold no lock, so the end of their transaction does not matter.
_READS: Final = frozenset(
    {
        "inboxes",
        "children",
        "still_held",
        "commit_status",
        "stuck_keys",
        "due_schedules",
        "find_schedule",
        "newest_event",
        "are_earlier_complete",
        "tail_events",
        "get_batch",
        "progress_of_batch",
        "selection",
        "ids",
        "ids_upwards",
    }
)


class Work(msgspec.Struct, frozen=True):
    """One plan of a session, created when it runs: it may use earlier results, or be skipped."""

    make: Make
    in_transaction: bool
    isolation: str | None = None
    """Of a transaction that is not the engine's but its caller's."""
    locks_session: bool = False
    """Whether it takes locks that outlast its transaction."""


class Flushed(msgspec.Struct, frozen=True):
    """A flush and its results."""

    entries: list[CommitEntry]
    report: commits.CommitReport

    def committed(self) -> list[CommitEntry]:
        """The entries that took effect: not stale, and not cancelled."""
        return [entry for entry, _ in self.committed_results()]

    def committed_results(self) -> list[tuple[CommitEntry, Committed]]:
        """The entries that took effect, with their results."""
        return [
            (entry, result)
            for entry, result in zip(self.entries, self.report.results, strict=True)
            if isinstance(result, Committed) and result.status != "cancelled"
        ]


class Lane(msgspec.Struct, frozen=True):
    """The connections of one session."""

    transactions: Any
    """For plans that need a transaction, whose BEGIN names its isolation."""
    statements: Any
    """For plans that run in autocommit, under whatever isolation the connection has."""


class Session:
    """Runs its work step by step. A step is a statement, joined with its BEGIN, or a COMMIT.

    What the engine runs in autocommit is two steps as well: between a statement and its commit others can run into its
    locks.
    """

    def __init__(
        self, name: str, works: Sequence[Work], lane: Lane, product: Product, *, says_isolation: bool
    ) -> None:
        self.name = name
        self.results: list[Any] = []
        self.refusals: list[str] = []
        """SQLSTATEs of the races that it lost."""
        self.has_waited = False
        self._works = works
        self._lane = lane
        self._product = product
        self._says_isolation = says_isolation
        self._place = 0
        self._begin_work()

    @property
    def result(self) -> Any:
        """Of the last plan that ran."""
        return self.results[-1] if self.results else None

    @property
    def is_finished(self) -> bool:
        return self._plan is None

    @property
    def pid(self) -> int:
        return int(self._connection.get_server_pid())

    @property
    def next_step(self) -> str:
        return "COMMIT" if self._must_commit or self._call is None else self._call.statement.name

    async def step(self) -> None:
        """Do the next step.

        Raises:
            StatementError: PostgreSQL refused it.
        """
        if self._must_commit or self._call is None:
            await self._commit()
        else:
            await self._execute(self._call)

    async def roll_back(self) -> None:
        if self._connection.is_in_transaction():
            await self._connection.execute("rollback")

    async def unlock(self) -> None:
        """Release what outlasts a transaction; the next order uses the same connections."""
        if any(work.locks_session for work in self._works):
            await self._lane.transactions.execute("select pg_advisory_unlock_all()")

    async def start_again(self, error: StatementError) -> None:
        """Roll back, and start this transaction again from its first statement."""
        self.refusals.append(error.sqlstate)
        await self.roll_back()
        self._begin_work()

    def _begin_work(self) -> None:
        self._plan: Plan[Any] | None = None
        self._call: Call | None = None
        self._must_commit = False
        while self._place < len(self._works):
            work = self._works[self._place]
            self._connection = self._lane.transactions if work.in_transaction else self._lane.statements
            self._plan = work.make(self)
            if self._plan is not None:
                self._call = _checked(next(self._plan))
                return
            self._place += 1

    async def _execute(self, call: Call) -> None:
        assert self._plan is not None
        text = self._product.text(call.statement)
        work = self._works[self._place]
        try:
            if not self._connection.is_in_transaction():
                await self._begin(call, work)
            rows = await self._connection.fetch(text, *call.values)
        except asyncpg.PostgresError as error:
            failure = from_asyncpg(error)
            try:
                self._call = _checked(self._plan.throw(failure))
            except StopIteration as finished:
                # This plan handles the error.
                self._call, self._end = None, finished.value
                await self.roll_back()
                self._finish_work()
                return
            # The plan continues; in autocommit the failed statement left nothing.
            self.refusals.append(failure.sqlstate)
            await self.roll_back()
            return
        try:
            self._call = _checked(self._plan.send(rows))
        except StopIteration as finished:
            self._call = None
            self._end = finished.value
        self._must_commit = not work.in_transaction and self._connection.is_in_transaction()
        if self._call is None and not self._connection.is_in_transaction():
            self._finish_work()

    async def _begin(self, call: Call, work: Work) -> None:
        if work.isolation is not None:
            await self._connection.execute(f"begin isolation level {work.isolation}")
        elif work.in_transaction and self._says_isolation:
            await _Transaction(self._connection, {}).__aenter__()
        elif work.in_transaction or call.statement.name not in _READS:
            await self._connection.execute("begin")

    async def _commit(self) -> None:
        await _Transaction(self._connection, {}).__aexit__(None, None, None)
        self._must_commit = False
        if self._call is None:
            self._finish_work()

    def _finish_work(self) -> None:
        self.results.append(self._end)
        self._place += 1
        self._begin_work()


class EditAnswer(NamedTuple):
    """The answer to an edit."""

    id: int
    refusal: str | None


def transaction(make: Make) -> Work:
    return Work(make, in_transaction=True)


def autocommit(make: Make) -> Work:
    return Work(make, in_transaction=False)


def callers(isolation: str, make: Make) -> Work:
    """A plan on a connection and in a transaction of the caller's, under an isolation of the caller's choice."""
    return Work(make, in_transaction=True, isolation=isolation)


def refusable(work: Work) -> Work:
    """Work that may fail because a key is taken or an inbox is full; its result is then `None`."""

    def make(session: Session) -> Any:
        def plan() -> Any:
            try:
                return (yield from work.make(session))  # type: ignore[misc]  # never left out
            except UsageError:
                return None

        return plan()

    return autocommit(make)


def flush(*entries: CommitEntry) -> Work:
    """Commit outcomes as the engine's flusher would."""
    ordered = commits.in_lock_order(entries)
    if commits.is_one_statement(ordered, RECORDER):
        return autocommit(lambda _: commit_plain(ordered))
    return transaction(lambda _: commit(ordered))


def commit(entries: list[CommitEntry]) -> Plan[Flushed]:
    """The long statement and what follows it."""
    return Flushed(entries, (yield from commits.commit(entries, RECORDER)))


def commit_plain(entries: list[CommitEntry]) -> Plan[Flushed]:
    """The short statement."""
    return Flushed(entries, (yield from commits.commit_plain(entries, RECORDER)))


def transitions(sessions: Iterable[Session]) -> Counter[int]:
    """The acknowledged transitions per instance: outcomes, edits, and moves by the reaper."""
    results = [result for session in sessions for result in session.results]
    made = Counter(
        result.id for result in results if isinstance(result, EditAnswer) and result.refusal is None
    )
    made.update(
        entry.id
        for result in results
        if isinstance(result, Flushed)
        for entry in result.committed()
        if entry.kind not in ("retry", "release", "rejoin", "defer")
    )
    made.update(id for result in results if isinstance(result, Reaped) for id in result.moved)
    for result in results:
        made.update(_redirected(result))
    return made


def _redirected(result: Any) -> Iterable[int]:
    """The instances that went to another step instead of ending, where that is not counted as an outcome."""
    match result:
        case Flushed():
            for entry, one in zip(result.entries, result.report.results, strict=True):
                if isinstance(one, Committed) and one.redirect and entry.kind in ("retry", "release"):
                    yield entry.id
        case Reaped():
            yield from (one.id for one in result.redirected)
        case list():
            for row in result:
                # The answers of a cancel. asyncpg.Record is not a Mapping.
                if (
                    hasattr(row, "keys")
                    and "was" in row.keys()  # noqa: SIM118
                    and row["was"] not in _EXECUTING_OR_ENDED
                    and row["status"] in ("runnable", "awaiting_children")
                ):
                    yield row["id"]
        case _:
            pass


def signals_gained(sessions: Iterable[Session]) -> Counter[int]:
    """The expected change of unread signals per instance, by acknowledged sends and commits."""
    gained: Counter[int] = Counter()
    for session in sessions:
        for result in session.results:
            for arrival in result if isinstance(result, list | tuple) else [result]:
                if isinstance(arrival, Delivery) and arrival.is_new:
                    gained[arrival.id] += 1
            if isinstance(result, Flushed):
                for entry, committed in result.committed_results():
                    # An end that leads to an undo step consumes the awaited signals as well.
                    awaited = entry.execution.awaited if committed.redirect is not None else ()
                    gained[entry.id] -= len({*entry.consumed, *(row.id for row in awaited)})
    return gained


def _checked(call: Call | Script) -> Call:
    assert isinstance(call, Call), "sessions run statements, not scripts"
    return call
