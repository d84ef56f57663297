"""`AsyncClient`: insert, signal, read, wait and control. `Client` is the blocking variant."""

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
    """A client: inserts, signals, reads and controls instances. It does not run them.

        async with AsyncClient(dsn) as client:
            order = await client.insert(Checkout, Order(42), correlation_key="order:42")
            await client.signal(order, Checkout.payment, Payment(100))
            receipt = (await client.wait(order)).result

    Methods return their result as a value and raise if they could not do what was asked. Methods that write take
    `conn=`, a connection of the caller (asyncpg, psycopg or SQLAlchemy): the change is then part of its transaction.
    """

    if not TYPE_CHECKING:
        __getattr__ = attribute_hint("client")

    def __init__(self, dsn: Dsn | None = None, *, settings: Settings | None = None) -> None:
        """Configure the client; `async with` opens it.

        Args:
            dsn: the DSN of PostgreSQL; default: `GEN_DURABLE_DSN`, or the embedded server. A plain or async function
                is called for the DSN before every new connection, for passwords that expire.
            settings: the settings; default: from the environment.
        """
        self.dsn: Dsn | None = dsn
        self.settings: Settings = Settings.given(settings)
        # How far the clock of this client is ahead of that of the database; not zero in tests only.
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
        """Open the client for the lifetime of a Starlette or FastAPI application: `FastAPI(lifespan=client.lifespan)`.

        It yields the state by which `contrib.starlette` and `contrib.fastapi` find the client. An application with
        more resources merges it in its own lifespan:

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
        """Insert one instance of a machine or job.

            order = await client.insert(Checkout, Order(42), correlation_key="order:42")

        Args:
            machine: a machine class, an object of one, or a job.
            state: the first state; for a job, its payload. A mapping is converted to the declared type. The conversion
                is strict: values of another type and unknown keys are refused.
            args: an alias of `state`.
            conn: a connection of the caller; the insert is then part of its transaction.
            options: step, queue, priority, eligible_at, schedule_at, schedule_in, correlation_key, correlation_scope,
                unique_key, unique_scope, concurrency_key, idempotency_key, max_attempts, rate_limit, weight,
                traceparent; see `InsertOptions`.

        Returns:
            `Inserted`, or `Duplicate` if an instance of this machine already has the correlation or unique key. Both
            are references to the instance.

        Raises:
            KeyTakenError: an instance of another machine has the key.
            EncodeError: the state does not match the type of the machine, or cannot be stored.
            LimitError: the rate limit does not exist, or the weight exceeds its burst.
            UsageError: an option is unknown or invalid.
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
        """Insert many instances in one transaction: all of them, or none if it raises.

            await client.insert_all([Spec(Thumbnail, Image(url)) for url in urls])

        Args:
            specs: the inserts, of one or several machines.
            conn: a connection of the caller; the insert is then part of its transaction.

        Returns:
            For each spec, in order, `Inserted`, `Duplicate` or `KeyTaken`. `KeyTaken` means that an instance of another
            machine has the key and this spec was not inserted; every use of it raises `KeyTakenError`.

        Raises:
            EncodeError: a state does not match the type of its machine, or cannot be stored.
            UsageError: the specs have more than 512 MiB together; split them.
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
        """Add a signal to the inbox of a live instance, and wake the instance if it waits for this signal.

            await client.signal("order:42", Checkout.payment, Payment(100), dedup_key="evt-7")

        Args:
            target: a reference, an id, or a correlation key.
            signal: the `Signal`, or its name.
            payload: the payload; none for a signal without payload.
            dedup_key: signals with the same key are delivered to an instance once.
            conn: a connection of the caller; the delivery is then part of its transaction.

        Returns:
            `Delivered`, or `DuplicateSignal` if the instance already got a signal with this `dedup_key`.

        Raises:
            NoTargetError: there is no such live instance; nothing is stored.
            InboxFullError: the inbox holds `settings.max_inbox` bytes.
            EncodeError: the payload does not match its type, or cannot be stored.
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
        """Cancel an instance: at once, or, if a step executes, when that step ends.

        After this call returns, the outcome of an executing step is discarded, and its effect does not run.

        Args:
            target: a reference, an id, or a correlation key.
            reason: recorded with the instance and in the audit log.
            actor: who cancels; recorded in the audit log.
            force: revoke the lease of an executing step now. The step may still run, but cannot commit.
            cascade: also cancel all descendants.
            conn: a connection of the caller; the cancel is then part of its transaction.

        Returns:
            `Cancelled`, `CancelRequested` if a step executes, or `AlreadyFinished`.

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
        """Cancel all live instances that match the filters of `list`, in batches; return how many there were."""
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
        """Soft-delete an instance: it is hidden, never runs, and is removed after `settings.retention_deleted`.

        A live instance is also cancelled. Repeating the call changes nothing; `restore` undoes it.

        Args:
            target: a reference, an id, or a correlation key.
            reason: recorded with the instance and in the audit log.
            actor: who deletes; recorded in the audit log.
            conn: a connection of the caller; the delete is then part of its transaction.

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
        """Soft-delete all instances that match the filters of `list`, in batches; return how many there were."""
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
        """Undo a soft delete. An instance that the delete cancelled stays cancelled; `retry` continues it.

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
        """Continue a failed or cancelled instance at the step where it ended, with `attempt` 0.

        Queue, keys and limits stay; the error is cleared. Consumed signals are gone: an instance that waited for a
        signal, or was woken by one, waits for it again, until the deadline of its `Await`. If that has passed, it runs
        at once with `ctx.timed_out`. A parent waits for those of its children that are live. The parent of a retried
        child waits for the child, unless its joining step has started. A cancelled step runs again with its old
        idempotency key; a failed one is a new transition with a new key.

        Args:
            target: a reference, an id, or a correlation key.
            state: a new state; default: the state at its end.
            reason: recorded in the audit log.
            actor: who retries; recorded in the audit log.
            conn: a connection of the caller; the retry is then part of its transaction.

        Returns:
            `Retried`, or `NotRetried` if the instance is live, done or deleted.

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
        """Retry all failed or cancelled instances that match the filters of `list`, in batches; return how many.

        An instance whose key another instance has now is skipped.
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
        """Return an instance, or `None`.

        Args:
            target: a reference, an id, or a correlation key: the instance that has the key, or the latest that had it.
            with_deleted: also return a soft-deleted instance.
            conn: a connection of the caller; the read then sees the inserts of its transaction.
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
        """Return a page of instances, newest first.

            failed = await client.list(Checkout, status="failed", limit=50)
            more = await client.list(Checkout, status="failed", limit=50, before=failed[-1].id)

        Args:
            machine: only instances of this machine; default: all.
            limit: the size of the page.
            before: only ids below this one, for the next page.
            conn: a connection of the caller; the read then sees its transaction.
            filters: version, step, status, queue, correlation_key, unique_key, concurrency_key, parent, schedule,
                inserted_after, inserted_before, with_deleted.

        Raises:
            UsageError: a filter is unknown or invalid.
        """
        return await self._read(_verbs.page(machine, limit, before, filters), conn)

    async def count(
        self,
        machine: Insertable[Any, Any] | str | None = None,
        /,
        *,
        conn: AsyncConnection | None = None,
        **filters: Unpack[Filters],
    ) -> int:
        """Return the number of instances that match the filters of `list`."""
        return await self._read(_verbs.count(machine, filters), conn)

    async def limits(self) -> Sequence[Limit]:
        """Return all limits, ordered by name."""
        return await self._database.run(_verbs.limits())

    async def set_limit(
        self, limit: Limit, /, *, reason: str | None = None, actor: str | None = None
    ) -> None:
        """Set a limit, replacing one of the same kind and name. It applies from the next pick on.

        With more slots, waiting instances start at once. With fewer, running executions end normally. After a change
        of a rate, waiting instances get new start times. Instances that named a missing rate limit become due.
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
        """Remove the limits of a name, or only that of one kind; return whether there was any.

        A concurrency key without a limit has one slot. Instances with a removed rate limit do not start; workers
        report them as `rate_limit.unknown` until the limit is set again.
        """
        return await self._database.run(_verbs.remove_limit(name, kind, reason, actor))

    async def children(
        self, target: Target, /, *, every: bool = False, conn: AsyncConnection | None = None
    ) -> Sequence[Instance[Any, Any]]:
        """Return the children of the last `ScheduleChildren` of an instance, in order; with `every`, of all of them."""
        return await self._read(_verbs.children(target, every=every), conn)

    async def executions(self, target: Target, /) -> Sequence[ExecutionRecord]:
        """Return all recorded executions of an instance, oldest first, and the running one."""
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
        """Return a page of events of the outbox, newest first.

        Args:
            target: only events of this instance.
            sink: only events of this sink.
            state: only events in this state: `pending`, `published` or `dead`.
            limit: the size of the page.
            before: the last event of a page, or its number, for the next page.
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
        """Publish published or dead events again, with the same ids; return how many there were."""
        return await self._database.run(_verbs.replay(events, reason, actor))

    async def audit(
        self, target: Target, /, *, after: AuditEvent | int | None = None, limit: int = 1000
    ) -> Sequence[AuditEvent]:
        """Return a page of audit events of an instance, oldest first.

        Which events exist depends on the audit level. `after` (the last event of a page, or its number) returns the
        next page.

        Raises:
            NoTargetError: neither the instance nor an audit event of it exists.
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
        """Return which audit events are written: `off`, `failures` (errors and actions of people) or `all`."""
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
        """Set the audit level for all processes; return the level before."""
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
        """Store a schedule, replacing one of the same name. A paused schedule stays paused.

        The next fire time changes only if cron, interval or time zone change.
        """
        return await self._write(_recurring.put(schedule, self.settings, self._ahead, reason, actor), conn)

    async def get_schedule(self, name: str, /) -> ScheduleRecord:
        """Return a stored schedule.

        Raises:
            NoScheduleError: there is no such schedule.
        """
        return await self._database.run(_recurring.get(name))

    async def schedules(self) -> Sequence[ScheduleRecord]:
        """Return all schedules, ordered by name."""
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
        """Pause a schedule. After this call returns, it inserts nothing. Repeating the call changes nothing.

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
        """Resume a paused schedule with its next fire time. Fire times during the pause are skipped.

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
        """Insert an instance of a schedule now, paused or not. Its fire times do not change; `ctx.fire_time` is now.

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
        """Remove a schedule; its instances stay.

        A worker that declares the schedule stores it again when it starts.

        Raises:
            NoScheduleError: there is no such schedule.
        """
        await self._write(_recurring.delete(name, reason, actor), conn)

    async def explain(self, target: Target, /) -> Explanation:
        """Return all reasons why an instance does not run.

            print(await client.explain("order:42"))

        Raises:
            NoTargetError: there is no such instance.
        """
        return await self._database.run(_verbs.explain(target))

    async def doctor(self) -> Sequence[Finding]:
        """Check schema, server and workers for problems; each finding says how to fix it."""
        return await self._database.run(_verbs.doctor(self.settings))

    async def workers(self) -> Sequence[WorkerInfo]:
        """Return the workers of this database, including those that crashed within the last ten minutes."""
        return await self._database.run(_verbs.workers())

    async def queues(self) -> Sequence[QueueStatus]:
        """Return all queues with their counts.

        The cost does not depend on the number of instances: counts stop at 10,000, which means "at least".
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
        """Pause a queue: workers start nothing from it until it is resumed. Running steps end normally.

        All live workers stop starting its instances within one `poll_interval` after this call returns, or after the
        transaction of the caller commits. Waiting instances do not change; deadlines continue.

        Args:
            name: the queue.
            wait: return only when every live worker has confirmed the pause; after that no step of the queue starts,
                chained steps included. A worker that crashes meanwhile delays this for up to three heartbeats. If the
                queue is resumed meanwhile, the call returns with `is_paused` false.
            timeout: how long to wait for confirmation; default: without limit.
            reason: recorded in the audit log.
            actor: who pauses; recorded in the audit log.
            conn: a connection of the caller; the pause is then part of its transaction. Not with `wait`.

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
        """Resume a paused queue."""
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
        """Set the concurrency of a queue in every worker that serves it by name, within one `poll_interval`.

        `None` restores the `queues=` of each worker. Running steps above a lower number end normally.
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
        """Wait until an instance has ended, or until `timeout`, and return it.

            instance = await client.wait(order, timeout=timedelta(seconds=1))
            return instance.result if instance.is_finished else Response(status_code=202)

        A timeout does not raise: `.result` of the returned instance returns the result, or raises and says why there
        is none.

        Args:
            target: a reference, an id, or a correlation key.
            until: `"parked"` also returns when the instance waits for a signal or for children.
            timeout: how long to wait; default: without limit.
            raise_failed: raise if the instance failed or was cancelled.

        Raises:
            NoTargetError: there is no such instance.
            NotDoneError: with `raise_failed=True`, the instance failed or was cancelled.
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
        """Wait for several instances like `wait`, with one `timeout` for all.

        Return them in the order of the targets.
        """
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self.wait(target, timeout=timeout, until=until)) for target in targets
                ]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None  # the same error as `wait`
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
