"""`AsyncClient`: insert, signal, look, wait. Its blocking twin says the same in the same words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from . import _recurring, _verbs
from ._checks import checked_delay
from ._db import migrate
from ._db.address import shown
from ._db.caller_connection import driver_of
from ._db.plan import Plan
from ._db.pool import Database
from ._db.reply_timeouts import ReplyTimeouts
from ._dictionary import attribute_hint
from ._runtime.database_status import DatabaseStatus
from ._runtime.waiting import Waiting
from ._runtime.wake import Wakes
from ._server import Server
from ._typing import KEEP, PayloadT, ResultT, StateT
from ._verbs import Filters
from .audit import AuditEvent
from .config import AuditLevel, Settings
from .connections import AsyncConnection, Dsn
from .errors import NotConnectedError, UsageError
from .events import EventRecord, EventState
from .findings import Finding
from .instance import (
    CancelResult,
    Deleted,
    Delivery,
    ExecutionRecord,
    Instance,
    Restored,
    RetryResult,
    Until,
)
from .limits import Limit, LimitKind
from .operations import QueueControl, QueueStatus, WorkerInfo
from .reasons import Explanation
from .refs import AnySpec, Insertable, InsertOptions, InsertResult, Key, KeyTaken, Ref, Spec, Target
from .schedules import Schedule, ScheduleRecord, Triggered
from .signals import Signal

__all__ = ["AsyncClient"]

T = TypeVar("T")


class AsyncClient:
    """A producer: it inserts and addresses instances, and runs none.

        async with AsyncClient(dsn) as client:
            order = await client.insert(Checkout, Order(42), correlation_key="order:42")
            await client.signal(order, Checkout.payment, Payment(100))
            receipt = (await client.wait(order)).result

    A call returns what happened, as a value to look at or to ignore; it raises when what it was asked for did not
    happen. Verbs that write take `conn=`, a connection of the caller's: then they are part of the caller's
    transaction, and happen if and when that commits.
    """

    if not TYPE_CHECKING:
        __getattr__ = attribute_hint("client")

    def __init__(self, dsn: Dsn | None = None, *, settings: Settings | None = None) -> None:
        """Say where to work; nothing is opened yet.

        Args:
            dsn: where PostgreSQL is; left out, `GEN_DURABLE_DSN` says it, and else the embedded server is used. A
                function (plain or async) is asked for it before every new connection: for passwords that do not last.
            settings: left out, they come from the environment and the defaults.
        """
        self.dsn: Dsn | None = dsn
        self.settings: Settings = Settings.given(settings)
        # How far the clock of this client is ahead of the database's: that of a test may be.
        self._ahead = timedelta(0)
        self._wakes = Wakes()
        self._database_status = DatabaseStatus()
        self._server: Server | None = None
        self._opened: Database | None = None
        self._waiting: Waiting | None = None

    async def __aenter__(self) -> Self:
        if self._opened is not None:
            raise UsageError(f"this {type(self).__name__} is open already", "open it once, and pass it on")
        try:
            await self._open()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close()

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncGenerator[Mapping[str, Any]]:
        """For Starlette and FastAPI: `FastAPI(lifespan=client.lifespan)`.

        What it yields is the state by which `contrib.starlette` and `contrib.fastapi` find the client again. An
        application with more to open does it in a lifespan of its own, and passes that on:

            async with Mailer() as mailer, client.lifespan(app) as state:
                yield {**state, "mailer": mailer}
        """
        async with self:
            yield {"durable": self}

    @overload
    async def insert(
        self,
        machine: Insertable[None, ResultT],
        /,
        *,
        conn: AsyncConnection | None = None,
        **options: Unpack[InsertOptions],
    ) -> InsertResult[None, ResultT]: ...
    @overload
    async def insert(
        self,
        machine: Insertable[StateT, ResultT],
        /,
        state: StateT | Mapping[str, Any],
        *,
        conn: AsyncConnection | None = None,
        **options: Unpack[InsertOptions],
    ) -> InsertResult[StateT, ResultT]: ...
    @overload
    async def insert(
        self,
        machine: Insertable[StateT, ResultT],
        /,
        *,
        args: StateT | Mapping[str, Any],
        conn: AsyncConnection | None = None,
        **options: Unpack[InsertOptions],
    ) -> InsertResult[StateT, ResultT]: ...
    async def insert(
        self,
        machine: Any,
        /,
        state: Any = None,
        *,
        args: Any = None,
        conn: AsyncConnection | None = None,
        **options: Any,
    ) -> InsertResult[Any, Any]:
        """Insert one instance of a machine. `args=` is another name of `state=`.

        Args:
            machine: a machine or a job: its class, an object of it, or the function.
            state: the state that it begins with; of a job, its payload. A mapping is converted to the declared type:
                strictly, so a value of another type or an unknown key is refused.
            args: the same.
            conn: a connection of the caller's, to take part in its transaction.
            options: step, queue, priority, eligible_at, schedule_at, schedule_in, correlation_key, correlation_scope,
                unique_key, unique_scope, concurrency_key, idempotency_key, max_attempts, rate_limit,
                weight, traceparent; see `InsertOptions`.

        Returns:
            `Inserted`, or `Duplicate` when an instance has the correlation or unique key already. Both point at it.

        Raises:
            KeyTakenError: an instance of another machine has the key.
            EncodeError: the state is not of the machine's type, or cannot be stored.
        """
        spec = Spec(machine, _verbs.given_state(state, args), **options)
        return await self._write(_verbs.insert(spec, self.settings, is_alone=self._is_alone(conn)), conn)

    @overload
    async def insert_all(
        self, specs: Iterable[Spec[StateT, ResultT]], /, *, conn: AsyncConnection | None = None
    ) -> list[InsertResult[StateT, ResultT] | KeyTaken[StateT, ResultT]]: ...
    @overload
    async def insert_all(
        self, specs: Iterable[AnySpec], /, *, conn: AsyncConnection | None = None
    ) -> list[InsertResult[Any, Any] | KeyTaken[Any, Any]]: ...
    async def insert_all(
        self, specs: Iterable[AnySpec], /, *, conn: AsyncConnection | None = None
    ) -> list[InsertResult[Any, Any] | KeyTaken[Any, Any]]:
        """Insert many in one statement: all of them or, if it raises, none. One answer per spec, in order.

        Returns:
            For each spec `Inserted`, `Duplicate`, or `KeyTaken`: an instance of another machine has the key, and that
            spec alone is not inserted. Any use of a `KeyTaken`, such as to wait for it, raises a `KeyTakenError`.

        Raises:
            UsageError: they have more than 512 MiB together, which no statement can carry; make several calls of it.
        """
        return await self._write(
            _verbs.insert_all(list(specs), self.settings, is_alone=self._is_alone(conn)),
            conn,
        )

    @overload
    async def signal(
        self,
        target: Target,
        signal: Signal[None],
        /,
        *,
        dedup_key: Key | None = None,
        conn: AsyncConnection | None = None,
    ) -> Delivery: ...
    @overload
    async def signal(
        self,
        target: Target,
        signal: Signal[PayloadT],
        payload: PayloadT,
        /,
        *,
        dedup_key: Key | None = None,
        conn: AsyncConnection | None = None,
    ) -> Delivery: ...
    @overload
    async def signal(
        self,
        target: Target,
        signal: str,
        payload: Any = None,
        /,
        *,
        dedup_key: Key | None = None,
        conn: AsyncConnection | None = None,
    ) -> Delivery: ...
    async def signal(
        self,
        target: Target,
        signal: Signal[Any] | str,
        payload: Any = None,
        /,
        *,
        dedup_key: Key | None = None,
        conn: AsyncConnection | None = None,
    ) -> Delivery:
        """Put a signal into the inbox of a live instance, and wake it if it awaits that signal.

        Returns:
            `Delivered`, or `DuplicateSignal` when the instance has had this `dedup_key` before.

        Raises:
            NoTargetError: there is no such live instance; nothing is stored.
        """
        return await self._write(_verbs.signal(target, signal, payload, dedup_key, self.settings), conn)

    async def cancel(
        self,
        target: Target,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        force: bool = False,
        cascade: bool = False,
        conn: AsyncConnection | None = None,
    ) -> CancelResult:
        """Cancel an instance: at once if it is parked or runnable, and as soon as its step ends if one executes.

        An acknowledged cancel wins over every later outcome of the step: that is dropped, and its effect does not run.

        Args:
            target: a reference, an id, or a correlation key.
            reason: for whoever looks at it later.
            actor: who asked for it.
            force: do not wait for the step: revoke its lease now. It cannot commit any more, but it may still run.
            cascade: cancel whatever it has spawned, children and theirs, as well.
            conn: a connection of the caller's, to take part in its transaction.

        Raises:
            NoTargetError: there is no such instance.
        """
        return await self._write(
            _verbs.cancel(target, reason, actor, force=force, cascade=cascade, is_alone=self._is_alone(conn)),
            conn,
        )

    async def cancel_all(
        self,
        machine: Insertable[Any, Any] | str | None = None,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        force: bool = False,
        **filters: Unpack[Filters],
    ) -> int:
        """Cancel every live instance that the filters of `list` choose, in batches; how many there were."""
        return await self._write(
            _verbs.cancel_all(machine, filters, reason, actor, force=force, is_alone=self._is_alone(None)),
            None,
        )

    async def soft_delete(
        self,
        target: Target,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> Deleted:
        """Take an instance out of sight and out of work, and keep its row. A live one is cancelled; twice is once.

        Raises:
            NoTargetError: there is no such instance.
        """
        return await self._write(
            _verbs.soft_delete(target, reason, actor, is_alone=self._is_alone(conn)), conn
        )

    async def delete_all(
        self,
        machine: Insertable[Any, Any] | str | None = None,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        **filters: Unpack[Filters],
    ) -> int:
        """Delete softly every instance that the filters of `list` choose, in batches; how many there were."""
        return await self._write(
            _verbs.delete_all(machine, filters, reason, actor, is_alone=self._is_alone(None)), None
        )

    async def restore(
        self,
        target: Target,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> Restored:
        """Undo a soft delete. What it cancelled stays cancelled; `retry` lets it go on.

        A correlation key means the latest deleted instance that had it.

        Raises:
            NoTargetError: there is no such instance.
            UsageError: another instance has one of its keys now.
        """
        return await self._write(_verbs.restore(target, reason, actor, is_alone=self._is_alone(conn)), conn)

    async def retry(
        self,
        target: Target,
        /,
        *,
        state: Any = KEEP,
        reason: str | None = None,
        actor: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> RetryResult:
        """Let a failed or cancelled instance go on at the step where it ended, with a fresh count of attempts.

        Queue, keys and limits stay; the error is forgotten. The inbox went with the end, so what waited for a signal,
        or was woken by one, waits for it again, until the deadline that its `Await` had; if that has passed, it runs at
        once with `ctx.timed_out`. A parent waits for those of its children that are live. The parent of a
        retried child waits for it, unless the step that joins has begun. A step that was cancelled runs again under its
        old idempotency key; one that had failed makes another transition, under a new one.

        Args:
            target: a reference, an id, or a correlation key.
            state: instead of the one that it ended with.
            reason: for whoever looks at it later.
            actor: who asked for it.
            conn: a connection of the caller's, to take part in its transaction.

        Raises:
            NoTargetError: there is no such instance.
            UsageError: another instance has one of its keys now.
        """
        return await self._write(
            _verbs.retry(target, state, reason, actor, self.settings, is_alone=self._is_alone(conn)), conn
        )

    async def retry_all(
        self,
        machine: Insertable[Any, Any] | str | None = None,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        **filters: Unpack[Filters],
    ) -> int:
        """Retry every failed or cancelled instance that the filters of `list` choose, in batches; how many.

        One whose key another instance has now is left out.
        """
        return await self._write(
            _verbs.retry_all(machine, filters, reason, actor, is_alone=self._is_alone(None)), None
        )

    @overload
    async def get(
        self,
        target: Ref[StateT, ResultT],
        /,
        *,
        with_deleted: bool = False,
        conn: AsyncConnection | None = None,
    ) -> Instance[StateT, ResultT] | None: ...
    @overload
    async def get(
        self,
        target: Instance[Any, Any] | int | Key,
        /,
        *,
        with_deleted: bool = False,
        conn: AsyncConnection | None = None,
    ) -> Instance[Any, Any] | None: ...
    async def get(
        self, target: Target, /, *, with_deleted: bool = False, conn: AsyncConnection | None = None
    ) -> Instance[Any, Any] | None:
        """The instance as it is now, or `None`. By key, the one that has it, or else the latest that had it.

        One that is deleted softly shows only `with_deleted=True`. With `conn=` it is looked for in the caller's
        transaction, which sees what it has inserted itself; so for `list`, `count` and `children`.
        """
        return await self._read(_verbs.get(target, with_deleted=with_deleted), conn)

    @overload
    async def list(
        self,
        machine: Insertable[StateT, ResultT],
        /,
        *,
        limit: int = 100,
        before: int | None = None,
        conn: AsyncConnection | None = None,
        **filters: Unpack[Filters],
    ) -> Sequence[Instance[StateT, ResultT]]: ...
    @overload
    async def list(
        self,
        machine: str | None = None,
        /,
        *,
        limit: int = 100,
        before: int | None = None,
        conn: AsyncConnection | None = None,
        **filters: Unpack[Filters],
    ) -> Sequence[Instance[Any, Any]]: ...
    async def list(
        self,
        machine: Any = None,
        /,
        *,
        limit: int = 100,
        before: int | None = None,
        conn: AsyncConnection | None = None,
        **filters: Unpack[Filters],
    ) -> Sequence[Instance[Any, Any]]:
        """Instances, newest first. The next page begins below the last id of this one: `before=page[-1].id`."""
        return await self._read(_verbs.page(machine, limit, before, filters), conn)

    async def count(
        self,
        machine: Insertable[Any, Any] | str | None = None,
        /,
        *,
        conn: AsyncConnection | None = None,
        **filters: Unpack[Filters],
    ) -> int:
        """How many instances there are, by the same filters as `list`."""
        return await self._read(_verbs.count(machine, filters), conn)

    async def limits(self) -> Sequence[Limit]:
        """Every limit that is set, by name."""
        return await self._database.run(_verbs.limits())

    async def set_limit(
        self, limit: Limit, /, *, reason: str | None = None, actor: str | None = None
    ) -> None:
        """Set a limit, in place of what there was of its kind and name. It counts from the next pick on.

        More slots let waiting instances in at once; with fewer, the surplus of executions ends in its own time. After
        another rate, what waits for its turn is given a new one. Instances that name a rate limit which did not exist
        start now.
        """
        await self._database.run(_verbs.set_limit(limit, reason, actor))

    async def remove_limit(
        self,
        name: str,
        /,
        *,
        kind: LimitKind | None = None,
        reason: str | None = None,
        actor: str | None = None,
    ) -> bool:
        """Remove the limits of a name, or the one of a kind; whether there was any.

        A concurrency key is back to one slot. An instance with a rate limit that is gone does not start; workers
        report it as `rate_limit.unknown` until the limit is set again.
        """
        return await self._database.run(_verbs.remove_limit(name, kind, reason, actor))

    async def children(
        self, target: Target, /, *, every: bool = False, conn: AsyncConnection | None = None
    ) -> Sequence[Instance[Any, Any]]:
        """The children of the last `ScheduleChildren` of an instance, in order; or (`every`) all it ever had."""
        return await self._read(_verbs.children(target, every=every), conn)

    async def executions(self, target: Target, /) -> Sequence[ExecutionRecord]:
        """Every execution of an instance, oldest first: the ended ones as they are recorded, and the live one."""
        return await self._database.run(_verbs.executions(target))

    async def events(
        self,
        target: Target | None = None,
        /,
        *,
        sink: str | None = None,
        state: EventState | None = None,
        before: EventRecord | int | None = None,
        limit: int = 100,
    ) -> Sequence[EventRecord]:
        """Events of the outbox, the newest first: of one instance, of one sink, in one state.

        `before` (the last of a page, or its number) gives the next page.
        """
        return await self._database.run(_verbs.events(target, sink, state, before, limit))

    async def replay(
        self,
        events: Iterable[EventRecord | int],
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
    ) -> int:
        """Publish events again that were published or dead, under the same ids; how many there were."""
        return await self._database.run(_verbs.replay(events, reason, actor))

    async def audit(
        self, target: Target, /, *, after: AuditEvent | int | None = None, limit: int = 1000
    ) -> Sequence[AuditEvent]:
        """What has happened to an instance, oldest first: by itself, and by whom.

        `after` (the last of a page, or its number) gives the next page. Which events there are depends on the level.

        Raises:
            NoTargetError: there is no such instance, and no event of one.
        """
        return await self._database.run(_verbs.audit(target, after, limit))

    async def audit_log(
        self, *, before: AuditEvent | int | None = None, limit: int = 100
    ) -> Sequence[AuditEvent]:
        """Return the latest audit events of all instances, queues, limits and schedules, newest first.

        `before` (the last event of a page, or its number) returns the next page.
        """
        return await self._database.run(_verbs.audit_log(before, limit))

    async def audit_level(self) -> AuditLevel:
        """Which audit events are written: `off`, `failures` (what went wrong, and what people did) or `all`."""
        return await self._database.run(_verbs.audit_level())

    async def set_audit(
        self,
        level: AuditLevel,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> AuditLevel:
        """Write audit events of another level from now on, in every process; returns the level until now."""
        return await self._write(_verbs.set_audit(level, reason, actor), conn)

    async def put_schedule(
        self,
        schedule: Schedule,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> ScheduleRecord:
        """Store a schedule, in place of the one that has its name, if any. What is paused stays paused.

        While cron, interval and time zone are what they were, the next slot stays what it was.
        """
        return await self._write(_recurring.put(schedule, self.settings, self._ahead, reason, actor), conn)

    async def get_schedule(self, name: str, /) -> ScheduleRecord:
        """A schedule as it is stored.

        Raises:
            NoScheduleError: there is no such schedule.
        """
        return await self._database.run(_recurring.get(name))

    async def schedules(self) -> Sequence[ScheduleRecord]:
        """All schedules, by name."""
        return await self._database.run(_recurring.every())

    async def pause_schedule(
        self,
        name: str,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> ScheduleRecord:
        """Let the slots of a schedule pass by. Once this has returned, none is fired; twice is once.

        Raises:
            NoScheduleError: there is no such schedule.
        """
        return await self._write(_recurring.pause(name, reason, actor), conn)

    async def resume_schedule(
        self,
        name: str,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> ScheduleRecord:
        """Let a schedule go on with its next slot. Those that came while it was paused are gone.

        Raises:
            NoScheduleError: there is no such schedule.
        """
        return await self._write(_recurring.resume(name, self._ahead, reason, actor), conn)

    async def trigger_schedule(
        self,
        name: str,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> Triggered:
        """Insert what a schedule says now, beside its slots, paused or not; `ctx.fire_time` is this moment.

        Raises:
            NoScheduleError: there is no such schedule.
        """
        return await self._write(_recurring.trigger(name, self._ahead, reason, actor), conn)

    async def delete_schedule(
        self,
        name: str,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> None:
        """Remove a schedule; what it has inserted stays.

        A worker that declares it stores it again when it opens.

        Raises:
            NoScheduleError: there is no such schedule.
        """
        await self._write(_recurring.delete(name, reason, actor), conn)

    async def explain(self, target: Target, /) -> Explanation:
        """Why does it not run? All reasons that there are at this moment, with their facts.

            print(await client.explain("order:42"))

        Raises:
            NoTargetError: there is no such instance.
        """
        return await self._database.run(_verbs.explain(target))

    async def doctor(self) -> Sequence[Finding]:
        """Look for what is wrong with the schema, the server and the workers. Each finding says what to do about it."""
        return await self._database.run(_verbs.doctor(self.settings))

    async def workers(self) -> Sequence[WorkerInfo]:
        """The workers of this database: those that are there, and for ten minutes those that died."""
        return await self._database.run(_verbs.workers())

    async def queues(self) -> Sequence[QueueStatus]:
        """Every queue, how it is served, and how much waits in it.

        It costs little, however much that is: figures of 10,000 and above mean "at least".
        """
        return await self._database.run(_verbs.queues())

    async def pause_queue(
        self,
        name: str,
        /,
        *,
        wait: bool = False,
        timeout: timedelta | None = None,
        reason: str | None = None,
        actor: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> QueueControl:
        """Let nothing of a queue begin until it is resumed; what runs comes to its end.

        No execution of it begins later than one `poll_interval` after this has returned (or after the caller's
        transaction has committed), in no live worker, by queue or by prefix. What waits stays as it is; deadlines run
        on.

        Args:
            name: the queue.
            wait: return when every live worker has confirmed the pause: then nothing of the queue begins any more,
                chained steps included. A worker that dies meanwhile is waited for until it counts as dead, three
                heartbeats. If the queue is resumed meanwhile, this returns with `is_paused` false.
            timeout: how long to wait at most; left out, until all have confirmed.
            reason: recorded in the audit log.
            actor: who asks for it; recorded in the audit log.
            conn: a connection of the caller's, to take part in its transaction; not with `wait`.

        Raises:
            PauseTimeoutError: live workers have not confirmed in time. The queue stays paused.
        """
        confirming = _verbs.confirming(name, wait=wait, timeout=timeout, is_borrowed=conn is not None)
        said = await self._write(_verbs.pause_queue(name, reason, actor), conn)
        return said if confirming is None else await self._poll(confirming)

    async def resume_queue(
        self,
        name: str,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> QueueControl:
        """Serve a queue again."""
        return await self._write(_verbs.resume_queue(name, reason, actor), conn)

    async def set_queue(
        self,
        name: str,
        /,
        *,
        concurrency: int | None,
        reason: str | None = None,
        actor: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> QueueControl:
        """Give a queue another concurrency in every worker that serves it by name, within one `poll_interval`.

        `None` gives it back to what each worker was told. What runs beyond a lower number comes to its end.
        """
        return await self._write(_verbs.set_queue(name, concurrency, reason, actor), conn)

    @overload
    async def wait(
        self,
        target: Ref[StateT, ResultT],
        /,
        *,
        timeout: timedelta | None = None,
        until: Until = "finished",
        raise_failed: bool = False,
    ) -> Instance[StateT, ResultT]: ...
    @overload
    async def wait(
        self,
        target: Instance[Any, Any] | int | Key,
        /,
        *,
        timeout: timedelta | None = None,
        until: Until = "finished",
        raise_failed: bool = False,
    ) -> Instance[Any, Any]: ...
    async def wait(
        self,
        target: Target,
        /,
        *,
        timeout: timedelta | None = None,
        until: Until = "finished",
        raise_failed: bool = False,
    ) -> Instance[Any, Any]:
        """Wait until an instance has ended, at most `timeout`, and return it as it is then.

        `until="parked"` comes back also when it parks, for a signal or for its children. `.result` of what is returned
        gives the result or says why there is none, so a timeout needs no `try`:

            instance = await client.wait(order, timeout=timedelta(seconds=1))
            return instance.result if instance.is_finished else Response(status_code=202)

        Raises:
            NoTargetError: there is no such instance.
            NotDoneError: with `raise_failed=True`, it failed or was cancelled.
        """
        seconds = None if timeout is None else checked_delay(timeout, "timeout").total_seconds()
        parked = _verbs.checked_until(until)
        database, waiting = self._database, self._waiting
        assert waiting is not None  # noqa: S101 - opened with the database
        id = await database.run(_verbs.resolve(target, "wait"))
        try:
            async with asyncio.timeout(seconds):
                row = await waiting.until_at_rest(id, parked=parked)
            instance = _verbs.read(row, _verbs.definition_of_target(target))
        except TimeoutError:
            instance = await database.run(_verbs.current(target, id))
        if raise_failed and instance.is_finished:
            _ = instance.result
        return instance

    @overload
    async def wait_all(
        self,
        targets: Iterable[Ref[StateT, ResultT]],
        /,
        *,
        timeout: timedelta | None = None,
        until: Until = "finished",
    ) -> Sequence[Instance[StateT, ResultT]]: ...
    @overload
    async def wait_all(
        self,
        targets: Iterable[Target],
        /,
        *,
        timeout: timedelta | None = None,
        until: Until = "finished",
    ) -> Sequence[Instance[Any, Any]]: ...
    async def wait_all(
        self,
        targets: Iterable[Target],
        /,
        *,
        timeout: timedelta | None = None,
        until: Until = "finished",
    ) -> Sequence[Instance[Any, Any]]:
        """Wait for many, as for one; at most `timeout` in all. The answers are in the order of the targets."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self.wait(target, timeout=timeout, until=until)) for target in targets
                ]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None  # as waiting for one would
        return [task.result() for task in tasks]

    async def _poll(self, poll: _verbs.Poll[T]) -> T:
        answer, pause = await self._database.run(poll.plan())
        while pause is not None:
            await asyncio.sleep(pause)
            answer, pause = await self._database.run(poll.plan())
        return answer

    def _is_alone(self, conn: AsyncConnection | None) -> bool:
        """Whether each statement of a verb is a transaction of its own, and may be run again by itself."""
        return conn is None

    async def _read(self, plan: Plan[T], conn: AsyncConnection | None) -> T:
        """Look, in the caller's transaction or outside of any."""
        if conn is None:
            return await self._database.run(plan)
        result: T = await driver_of(conn, blocking=False)(conn, plan, self.settings.schema)
        return result

    async def _write(self, plan: Plan[tuple[T, set[str]]], conn: AsyncConnection | None) -> T:
        """Run a verb; what it woke is told at once, unless the caller's transaction has yet to commit."""
        if conn is not None:
            return await self._write_in(conn, plan)
        result, queues = await self._database.run(plan)
        self._wakes.work(queues)
        return result

    async def _receive(self, message_id: str, key: str, name: str, payload: Any, dedup_key: str) -> bool:
        """Deliver a message from outside as a signal; whether it is new. For `Inbound`."""
        plan = _verbs.receive(message_id, key, name, payload, dedup_key, self.settings)
        is_new, queues = await self._database.run_in_transaction(plan)
        self._wakes.work(queues)
        return is_new

    async def _write_in(self, conn: AsyncConnection, plan: Plan[tuple[T, set[str]]]) -> T:
        result: T
        result, _ = await driver_of(conn, blocking=False)(conn, plan, self.settings.schema)
        return result

    async def _open(self) -> None:
        self._wakes = Wakes()
        self._server = await Server.find_async(self.dsn)
        self._opened = await Database.open(
            self._server.dsn,
            self.settings.schema,
            name="the client",
            size=self._pool_size(),
            advice=self._server.advice,
            reply_timeouts=self._reply_timeouts,
            pooler=self.settings.pooler,
        )
        await self._prepare(self._opened)
        self._database_status = DatabaseStatus(shown(self._server.dsn), self._server.revive)
        self._waiting = Waiting(self._opened, self._database_status)
        self._wakes.on_rest(self._waiting.hint)

    async def _prepare(self, database: Database) -> None:
        await database.run_in_transaction(self._preparation())

    def _preparation(self) -> Plan[None]:
        assert self._server is not None  # noqa: S101 - found before
        return migrate.prepare(self.settings.schema, upgrade=self._server.is_embedded)

    async def _close(self) -> None:
        if self._waiting is not None:
            self._waiting.close()
        if self._opened is not None:
            await self._opened.close()
        if self._server is not None:
            await self._server.close_async()
        self._waiting = self._opened = self._server = None

    def _pool_size(self) -> int:
        return 10

    @property
    def _reply_timeouts(self) -> ReplyTimeouts:
        return ReplyTimeouts.of(self.settings.lease, is_pooled=self.settings.pooler == "transaction")

    @property
    def _database(self) -> Database:
        if self._opened is None:
            raise NotConnectedError(type(self).__name__, "async with")
        return self._opened
