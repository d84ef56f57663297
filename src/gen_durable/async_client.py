"""`AsyncClient`: insert, signal, read, wait and control. `Client` is the blocking variant."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from . import _verbs
from ._checks import checked_delay
from ._db import migrate
from ._db.address import shown
from ._db.caller_connection import driver_of
from ._db.plan import Plan
from ._db.pool import Database, OpenTransaction
from ._db.reply_timeouts import ReplyTimeouts
from ._dictionary import attribute_hint
from ._polling import poll
from ._runtime.database_status import DatabaseStatus
from ._runtime.follow import follow
from ._runtime.following import Following
from ._runtime.waiting import Waiting
from ._runtime.wake import HeldWakes, Wakes
from ._server import Server
from ._typing import KEEP, ItemT, PayloadT, ResultT, StateT
from ._verbs import Filters
from .audit import AuditEvent
from .batches import Batch, BatchPreview, InstanceVerb
from .config import AuditLevel, Settings
from .connections import AsyncConnection, Dsn
from .definition import StepRef
from .errors import NotConnectedError, UsageError
from .events import EventRecord, EventState
from .findings import Finding
from .instance import (
    CancelResult,
    Change,
    Deleted,
    Delivery,
    EditResult,
    ExecutionRecord,
    Forked,
    Instance,
    Restored,
    RetryResult,
    Transition,
)
from .limits import Limit, LimitKind
from .operations import MachineInfo, QueueControl, QueueStatus, WorkerInfo
from .rates import MachineRates, Rates, TimeRange
from .reasons import Explanation
from .refs import AnySpec, Insertable, InsertOptions, InsertResult, Key, KeyTaken, Ref, Spec, Target, Until
from .schedules import Schedule, ScheduleRecord, Triggered
from .search import Completion, SearchCount, SearchPage
from .signals import Signal
from .stats import Census, Stats
from .streams import Stream, StreamItem
from .timeline import TimelineEntry

__all__ = ["AsyncClient"]

T = TypeVar("T")


class AsyncClient:
    """A client that inserts, signals, reads and controls instances. It runs no steps.

        async with AsyncClient(dsn) as client:
            order = await client.insert(Checkout, Order(42), correlation_key="order:42")
            await client.signal(order, Checkout.payment, Payment(100))
            receipt = (await client.wait(order)).result

    A *target* is what `insert` returned, an `Instance`, an id, or a correlation key (text or tuple).

    Methods return what happened as a value (`Inserted`, `Duplicate`, …) and raise if they could not do what was asked.
    Methods that write take `conn=`, a connection of the caller (asyncpg, psycopg or SQLAlchemy): then the change is
    part of the caller's transaction and takes effect when that commits. `reason=` and `actor=` are recorded in the
    audit log.
    """

    if not TYPE_CHECKING:
        __getattr__ = attribute_hint("client")

    def __init__(self, dsn: Dsn | None = None, *, settings: Settings | None = None) -> None:
        """Configure the client; `async with` connects it.

        Args:
            dsn: the PostgreSQL DSN. Default: `GEN_DURABLE_DSN`, else the embedded server. A function (plain or async)
                is called before every new connection, for passwords that expire.
            settings: default: from the environment.
        """
        self._given_dsn = dsn
        self.settings: Settings = Settings.given(settings)
        # How far the clock of this client is ahead of that of the database; not zero in tests only.
        self._ahead = timedelta(0)
        self._wakes = Wakes()
        self._database_status = DatabaseStatus()
        self._server: Server | None = None
        self._opened: Database | None = None
        self._waiting: Waiting | None = None
        self._following: Following | None = None

    @property
    def dsn(self) -> str:
        """The DSN of its server, for connections of your own: `create_engine(worker.dsn)`. It contains the password.

        Before the client is open, it is the DSN that it would use, and an embedded server may not be running yet.

        Raises:
            NotConnectedError: the DSN is that of a function, and the client is not open.
        """
        server = self._server or Server.choose(self._given_dsn)
        return server.dsn if isinstance(server.dsn, str) else self._database.where

    async def __aenter__(self) -> Self:
        if self._opened is not None:
            raise UsageError(f"this {type(self).__name__} is already open", "open it once and share it")
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
        """Connect the client for the lifetime of a Starlette or FastAPI application.

            app = FastAPI(lifespan=client.lifespan)

        Yields the state in which `contrib.starlette` and `contrib.fastapi` find the client. An application with other
        resources calls this from its own lifespan:

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
            await client.insert(send_mail, Mail("ada"), schedule_in=timedelta(hours=1), conn=session)

        Args:
            machine: a machine class, a machine object, or a job.
            state: the first state; of a job, its payload. A mapping is converted to the declared type, strictly: values
                of another type and unknown keys are refused.
            args: an alias of `state`.
            conn: a connection of the caller: insert in its transaction.
            options: step, queue, priority, eligible_at, schedule_at, schedule_in, correlation_key, correlation_scope,
                unique_key, unique_scope, concurrency_key, idempotency_key, max_attempts, rate_limit, weight,
                traceparent; see `InsertOptions`.

        Returns:
            `Inserted`, or `Duplicate` if an instance has the correlation, unique or idempotency key already. Both refer
            to the instance.

        Raises:
            KeyTakenError: an instance of another machine has the key.
            EncodeError: the state does not match the type of the machine, or cannot be stored.
            LimitError: the rate limit does not exist, or the weight exceeds its burst.
            UsageError: an option is unknown or invalid.
        """
        spec = Spec(machine, _verbs.given_state(state, args), **options)
        return await self._write(_verbs.insert(spec, self.settings, autocommit=self._autocommit(conn)), conn)

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
        """Insert many instances in one statement: all of them or, if it raises, none.

            results = await client.insert_all([Spec(Checkout, Order(n)) for n in range(1000)])

        Returns:
            One result per spec, in order: `Inserted`, `Duplicate`, or `KeyTaken` if an instance of another machine has
            the key. Only that spec is not inserted; using a `KeyTaken` as a target raises `KeyTakenError`.

        Raises:
            EncodeError: a state does not fit the type of its machine, or cannot be stored.
            UsageError: the specs exceed 512 MiB together; use several calls.
        """
        return await self._write(
            _verbs.insert_all(list(specs), self.settings, autocommit=self._autocommit(conn)),
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
        """Deliver a signal to a live instance, and wake it if it awaits the signal.

            await client.signal("order:42", Checkout.payment, Payment(100), dedup_key="charge-9")

        A signal that the instance does not await yet stays in its inbox.

        Args:
            target: what `insert` returned, an id, or a correlation key.
            signal: a declared `Signal`, or a name.
            payload: a value of the type of the signal.
            dedup_key: the instance accepts a signal with this key once, also after it was consumed.
            conn: a connection of the caller: deliver in its transaction.

        Returns:
            `Delivered`, or `DuplicateSignal` if the instance has received this `dedup_key` before.

        Raises:
            NoTargetError: there is no such live instance; nothing is stored.
            EncodeError: the payload does not fit the type of the signal, or cannot be stored.
            InboxFullError: the inbox of the instance has reached `max_inbox`.
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
        undo: bool = True,
        cascade: bool = False,
        conn: AsyncConnection | None = None,
    ) -> CancelResult:
        """Cancel an instance.

            await client.cancel("order:42", reason="customer called", actor="ada", cascade=True)

        A runnable or parked instance ends at once; an executing one when its step ends. An acknowledged cancel wins
        over every later outcome of the step: the outcome is discarded, and its effect is rolled back.

        If the step has `on_cancel=`, the instance goes to that step instead of ending. Otherwise it runs the undo steps
        of its committed steps (`undo=`) before it ends; a parent waits for its live children first.

        Args:
            target: what `insert` returned, an id, or a correlation key.
            reason: recorded in the row and in the audit log.
            actor: the person or program that cancels it; recorded as well.
            force: end it now, without `on_cancel` and undo steps. The lease of an executing step is revoked: the step
                may keep running, but cannot commit.
            undo: `False` runs no `on_cancel` and undo steps, or no further undo steps.
            cascade: also cancel all descendants.
            conn: a connection of the caller: cancel in its transaction.

        Returns:
            `Cancelled`; `CancelRequested` if a step is executing or has to run first; `Compensating` if its undo steps
            already run; or `AlreadyFinished`.

        Raises:
            NoTargetError: there is no such instance.
        """
        return await self._write(
            _verbs.cancel(
                target,
                reason,
                actor,
                force=force,
                undo=undo,
                cascade=cascade,
                autocommit=self._autocommit(conn),
            ),
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
        undo: bool = True,
        **filters: Unpack[Filters],
    ) -> int:
        """Cancel all live instances that match the filters of `list`, in batches.

            await client.cancel_all(Checkout, queue="legacy", reason="migrated")

        Args:
            machine: only instances of this machine: a class, a job, or a name.
            reason: recorded in the rows and in the audit log.
            actor: the person or program that cancels them; recorded as well.
            force: as for `cancel`.
            undo: as for `cancel`.
            filters: see `Filters`; all of them must match. Without a machine and filters: all live instances.

        Returns:
            How many instances were cancelled or will be when their steps end.

        Raises:
            UsageError: a filter is unknown or invalid.
        """
        return await self._write(
            _verbs.cancel_all(
                machine, filters, reason, actor, force=force, undo=undo, autocommit=self._autocommit(None)
            ),
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
        """Delete an instance softly: hide it and stop running it, but keep its row.

            await client.soft_delete("order:42", reason="test order")

        A live instance is cancelled, without `on_cancel` and undo steps. Deleting a deleted instance changes nothing.
        `restore` undoes it. The collector removes the row after `settings.retention_deleted`.

        Args:
            target: what `insert` returned, an id, or a correlation key.
            reason: recorded in the row and in the audit log.
            actor: the person or program that deletes it; recorded in the audit log.
            conn: a connection of the caller: delete in its transaction.

        Raises:
            NoTargetError: there is no such instance.
        """
        return await self._write(
            _verbs.soft_delete(target, reason, actor, autocommit=self._autocommit(conn)), conn
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
        """Delete softly all instances that match the filters of `list`, in batches.

            await client.delete_all(Checkout, status="failed", inserted_before=last_year)

        Args:
            machine: only instances of this machine: a class, a job, or a name.
            reason: recorded in the rows and in the audit log.
            actor: the person or program that deletes them; recorded in the audit log.
            filters: see `Filters`; all of them must match. Without a machine and filters: all instances.

        Returns:
            How many instances were deleted.

        Raises:
            UsageError: a filter is unknown or invalid.
        """
        return await self._write(
            _verbs.delete_all(machine, filters, reason, actor, autocommit=self._autocommit(None)), None
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

            await client.restore("order:42")

        Args:
            target: what `insert` returned, an id, or a correlation key, which refers to the latest deleted instance
                that had it.
            reason: recorded in the audit log.
            actor: the person or program that restores it; recorded in the audit log.
            conn: a connection of the caller: restore in its transaction.

        Returns:
            The id and the status. Restoring an instance that is not deleted changes nothing.

        Raises:
            NoTargetError: there is no such instance.
            UsageError: another instance has one of its keys now.
        """
        return await self._write(
            _verbs.restore(target, reason, actor, autocommit=self._autocommit(conn)), conn
        )

    async def retry(
        self,
        target: Target,
        /,
        *,
        state: Any = KEEP,
        step: StepRef[Any] | str | None = None,
        reason: str | None = None,
        actor: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> RetryResult:
        """Continue a failed or cancelled instance at the step where it ended, with a new count of attempts.

            await client.retry("order:42", reason="bank is back")

        Queue, keys and limits stay; the error is cleared. Its inbox was deleted when it ended:

        - An instance that awaited a signal, or was woken by one, awaits it again until its old deadline. If that
          has passed, the step runs at once with `ctx.timed_out`.
        - A parent waits for its live children. The parent of a retried child waits for it, unless the joining step has
          begun.
        - A cancelled step runs again under its old idempotency key; a failed step under a new one.
        - If its undo steps have run, it starts at the first step that was undone. If an undo step failed or was
          stopped, it continues with that undo step.

        Args:
            target: what `insert` returned, an id, or a correlation key.
            state: replaces the state that it ended with.
            step: the step to run instead, at once: it waits neither for the former signals nor for the former children.
            reason: recorded in the audit log.
            actor: the person or program that retries it; recorded in the audit log.
            conn: a connection of the caller: retry in its transaction.

        Returns:
            `Retried`, or `NotRetried` if it has neither failed nor been cancelled.

        Raises:
            NoTargetError: there is no such instance.
            UsageError: another instance has one of its keys now.
            UnknownStepError: the machine does not have this step.
            EncodeError: the state does not match the type of the machine, or the schema that a worker has registered.
        """
        return await self._write(
            _verbs.retry(
                target, state, step, reason, actor, self.settings, autocommit=self._autocommit(conn)
            ),
            conn,
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
        """Retry all failed and cancelled instances that match the filters of `list`, in batches.

            await client.retry_all(Checkout, status="failed", inserted_after=yesterday)

        Instances whose key another instance has now are skipped.

        Args:
            machine: only instances of this machine: a class, a job, or a name.
            reason: recorded in the audit log.
            actor: the person or program that retries them; recorded in the audit log.
            filters: see `Filters`; all of them must match. Without a machine and filters: all of these instances.

        Returns:
            How many instances were retried.

        Raises:
            UsageError: a filter is unknown or invalid.
        """
        return await self._write(
            _verbs.retry_all(machine, filters, reason, actor, autocommit=self._autocommit(None)), None
        )

    async def preview_batch(
        self,
        verb: InstanceVerb,
        machine: Insertable[Any, Any] | str | None = None,
        /,
        *,
        force: bool = False,
        undo: bool = True,
        **filters: Unpack[Filters],
    ) -> BatchPreview:
        """Count the instances that a batch would visit, and predict what happens to them.

            shown = await client.preview_batch("retry", Checkout, inserted_after=yesterday)
            batch = await client.start_batch("retry", Checkout, inserted_after=yesterday, expected=shown.count)
            await client.run_batch(batch)

        Args:
            verb: `cancel`, `retry`, `delete` or `restore`.
            machine: only instances of this machine: a class, a job, or a name.
            force: as for `cancel`.
            undo: as for `cancel`.
            filters: see `Filters`. By default a cancel selects live instances, a retry failed and cancelled ones, and
                a restore deleted ones.

        Raises:
            UsageError: a filter is unknown or invalid.
        """
        change = _verbs.verb_of(verb, force=force, undo=undo)
        return await self._database.run(_verbs.preview_matching(change, machine, filters))

    async def start_batch(
        self,
        verb: InstanceVerb,
        machine: Insertable[Any, Any] | str | None = None,
        /,
        *,
        ids: Iterable[int] | None = None,
        expected: int | None = None,
        reason: str | None = None,
        actor: str | None = None,
        force: bool = False,
        undo: bool = True,
        cascade: bool = False,
        **filters: Unpack[Filters],
    ) -> Batch:
        """Start a change of many instances that can be followed, stopped, and continued after a crash.

        It changes nothing until `run_batch` runs it. Instances that are inserted later do not belong to it.

        Args:
            verb: `cancel`, `retry`, `delete` or `restore`.
            machine: only instances of this machine: a class, a job, or a name.
            ids: these instances instead of a machine and filters, at most 10,000.
            expected: `count` of the preview. The batch is refused if the count has moved by more than 10 % and by more
                than 10 instances.
            reason: recorded in the audit log, with each instance and with the batch.
            actor: the person or program that starts it; recorded as well.
            force: as for `cancel`.
            undo: as for `cancel`.
            cascade: as for `cancel`.
            filters: as for `preview_batch`.

        Raises:
            BatchCountError: the count has moved since the preview.
            UsageError: a filter is unknown or invalid.
        """
        change = _verbs.verb_of(verb, reason=reason, actor=actor, force=force, undo=undo, cascade=cascade)
        return await self._database.run(_verbs.start_matching(change, machine, filters, ids, expected))

    async def start_replay(
        self, *, sink: str | None = None, reason: str | None = None, actor: str | None = None
    ) -> Batch:
        """Start a batch that publishes all dead letters again, under their old ids.

            batch = await client.run_batch(await client.start_replay(sink="crm", reason="crm is back"))

        Events that die later do not belong to it.

        Args:
            sink: only the dead letters of this sink.
            reason: recorded in the audit log, with each event and with the batch.
            actor: the person or program that starts it; recorded as well.
        """
        return await self._database.run(_verbs.start_replay(sink, reason, actor))

    async def run_batch(
        self, batch: Batch | int, /, *, on_page: Callable[[Batch], object] | None = None
    ) -> Batch:
        """Run a batch until it has ended or is stopped, and return it.

        Each page of at most 500 instances is a transaction. If another process runs the batch, wait for it, and
        continue the batch if that process dies. If this call is cancelled, or the database fails, another call
        continues it.

        Args:
            batch: the batch, or its id.
            on_page: called with the batch after each page.

        Raises:
            NoBatchError: it does not exist.
        """
        run = _verbs.BatchRun(batch if isinstance(batch, int) else batch.id)

        async def page() -> tuple[Batch, float | None]:
            now, pause = await self._write(run.plan(), None)
            if on_page is not None:
                on_page(now)
            return now, pause

        return await poll(page)

    async def stop_batch(
        self, batch: Batch | int, /, *, reason: str | None = None, actor: str | None = None
    ) -> Batch:
        """Stop a batch before its next page and return it. What it has changed stays changed.

        Args:
            batch: the batch, or its id. One that has ended is left unchanged.
            reason: recorded in the audit log.
            actor: the person or program that stops it; recorded in the audit log.

        Raises:
            NoBatchError: it does not exist.
        """
        id = batch if isinstance(batch, int) else batch.id
        return await self._database.run(_verbs.stop_batch(id, reason, actor))

    async def get_batch(self, id: int, /) -> Batch:
        """Return a batch.

        Raises:
            NoBatchError: it does not exist.
        """
        return await self._database.run(_verbs.get_batch(id))

    async def batches(self, *, limit: int = 100) -> Sequence[Batch]:
        """Return the newest batches, newest first."""
        return await self._database.run(_verbs.list_batches(limit))

    async def edit(
        self,
        target: Target,
        /,
        *,
        state: Any = KEEP,
        step: StepRef[Any] | str | None = None,
        expected_step_seq: int | None = None,
        machine: Insertable[Any, Any] | None = None,
        wake: bool = False,
        validate: bool = True,
        reason: str | None = None,
        actor: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> EditResult:
        """Change the state or the step of an instance that is runnable, parked or failed.

            order = await client.get("order:42")
            await client.edit(order, state={**order.state, "amount": 100}, expected_step_seq=order.step_seq)

        Status, inbox, deadline, keys and limits stay: a parked instance keeps waiting, and runs the new step then; a
        failed one stays failed until `retry`. An edit is a transition: the next step runs with attempt 0 and under
        another idempotency key.

        Args:
            target: what `insert` returned, an `Instance`, an id, or a correlation key.
            state: replaces the state.
            step: the step to run next; refused while the instance runs undo steps, and after it.
            expected_step_seq: refuse the edit unless the instance has this `step_seq`: nothing has changed since you
                read it.
            machine: the machine of the instance, to check state and step, if `target` is not a reference. Without it,
                the steps and the JSON Schema that a worker has registered are used.
            wake: a parked instance stops waiting for its signals or children, and a delayed one is due now.
            validate: `False` skips the check against the registered steps and schema. The check of the schema needs the
                extra `cli`.
            reason: recorded in the audit log.
            actor: the person or program that edits it; recorded in the audit log.
            conn: a connection of the caller: edit in its transaction.

        Returns:
            `Edited`; or `NotEdited` if a step is executing, or the instance has moved on, has ended, is deleted or runs
            undo steps.

        Raises:
            NoTargetError: there is no such instance.
            UnknownStepError: the machine does not have this step.
            EncodeError: the state does not match the type or the schema of the machine.
        """
        plan = _verbs.edit(
            target,
            state,
            step,
            self.settings,
            expected_step_seq=expected_step_seq,
            machine=machine,
            wake=wake,
            validate=validate,
            reason=reason,
            actor=actor,
            autocommit=self._autocommit(conn),
        )
        return await self._write(plan, conn)

    async def fork(
        self,
        target: Target,
        /,
        *,
        at: int | None = None,
        state: Any = KEEP,
        step: StepRef[Any] | str | None = None,
        correlation_key: Key | None = None,
        unique_key: Key | None = None,
        machine: Insertable[Any, Any] | None = None,
        validate: bool = True,
        reason: str | None = None,
        actor: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> Forked:
        """Insert a new instance that starts where another one was after a transition.

            copy = await client.fork("order:42", at=3, reason="try the new carrier")

        The new instance has the machine, queue, priority and limits of its origin. It has no keys, signals or children
        of its origin, and does not undo its steps. An await is repeated. `Instance.forked_from` is the id of the
        origin. Its version is that of the state after the transition, so a newer machine upgrades it.

        Args:
            target: what `insert` returned, an `Instance`, an id, or a correlation key; in any status.
            at: the number of the transition, as in `history`; 0 is the insert. A transition before the last one needs
                `history="all"`, or `state=`. Default: the last one, with the current state.
            state: replaces the state of that transition, in the version of that state; of the origin if it was not
                kept. If the machine is known, keys that it computes from the state are computed from this one.
            step: the step to start at, instead of the one that followed; of the same version.
            correlation_key: the correlation key of the new instance.
            unique_key: the unique key of the new instance.
            machine: the machine of the instance, to check state and step, as in `edit`.
            validate: `False` skips the check against the registered steps and schema, as in `edit`.
            reason: recorded in the audit log.
            actor: the person or program that forks it; recorded in the audit log.
            conn: a connection of the caller: fork in its transaction.

        Returns:
            The ids of the new instance and of its origin, the transition, and the status of the new instance.

        Raises:
            NoTargetError: there is no such instance.
            UsageError: the state or the step of that transition is unknown, it waited for children, it is part of an
                undo, a key is taken, or a function of the machine that computes a key raises.
            LimitError: the computed rate limit does not exist.
        """
        plan = _verbs.fork(
            target,
            at,
            state,
            step,
            self.settings,
            correlation_key=correlation_key,
            unique_key=unique_key,
            machine=machine,
            validate=validate,
            reason=reason,
            actor=actor,
        )
        return await self._write(plan, conn)

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
        """Return an instance, or `None` if there is none.

            order = await client.get("order:42")

        A correlation key refers to the instance that has it now, else to the latest that had it.

        Args:
            target: what `insert` returned, an id, or a correlation key.
            with_deleted: also return an instance that is soft-deleted.
            conn: a connection of the caller: read in its transaction, which sees its own inserts.
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
        """Return instances, newest first.

            failed = await client.list(Checkout, status="failed", limit=50)
            older = await client.list(Checkout, status="failed", limit=50, before=failed[-1].id)

        Args:
            machine: only instances of this machine: a class, a job, or a name.
            limit: page size, at most 10,000.
            before: only instances with lower ids: the last id of the previous page.
            conn: a connection of the caller: read in its transaction.
            filters: see `Filters`; all of them must match.

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
        """Count instances, with the filters of `list`: `await client.count(Checkout, status="failed")`.

        Args:
            machine: only instances of this machine: a class, a job, or a name.
            conn: a connection of the caller: count in its transaction.
            filters: see `Filters`; all of them must match.

        Raises:
            UsageError: a filter is unknown or invalid.
        """
        return await self._read(_verbs.count(machine, filters), conn)

    async def search(
        self,
        text: str,
        /,
        *,
        limit: int = 100,
        before: int | None = None,
        with_deleted: bool = False,
        conn: AsyncConnection | None = None,
    ) -> SearchPage:
        """Return a page of the instances that match a search, newest first, with where to continue.

        Unlike `list`, it runs one statement: conditions without an index are checked on the newest 10,000 instances
        that the other terms select, and `bounded` of the page says so.

        Args:
            text: a search, such as `"machine:checkout status:failed error:~timeout"`.
            limit: maximum number of instances, 1 to 10,000.
            before: only instances with a smaller id: `next` of the last page.
            with_deleted: also soft-deleted instances.
            conn: read on this connection.

        Raises:
            SearchError: the text is not a search.
        """
        return await self._read(_verbs.find(text, limit, before, with_deleted=with_deleted), conn)

    async def search_count(
        self, text: str, /, *, with_deleted: bool = False, conn: AsyncConnection | None = None
    ) -> SearchCount:
        """Count the instances that match a search, among the newest 10,000 that its indexed terms select.

        Raises:
            SearchError: the text is not a search.
        """
        return await self._read(_verbs.find_count(text, with_deleted=with_deleted), conn)

    async def complete(self, text: str, /, cursor: int | None = None) -> Completion:
        """Suggest names and values for the term of a search at the cursor; default: at its end."""
        return await self._read(_verbs.complete(text, cursor), None)

    async def limits(self) -> Sequence[Limit]:
        """Return all limits, by name."""
        return await self._database.run(_verbs.limits())

    async def set_limit(
        self, limit: Limit, /, *, reason: str | None = None, actor: str | None = None
    ) -> None:
        """Set a limit; replaces the limit of the same kind and name. It applies from the next pick on.

            await client.set_limit(RateLimit("crm", 100, per=timedelta(minutes=1)))

        More slots start waiting instances at once; with fewer slots, running executions finish first. A new rate
        reschedules throttled instances. Instances whose rate limit did not exist start now.
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
        """Remove the limits of a name, or only the one of a kind.

            await client.remove_limit("tenant", kind="concurrency")

        Concurrency keys of that name have one slot again. Instances with a rate limit that does not exist do not start;
        workers report `rate_limit.unknown` until it is set again.

        Args:
            name: the name, without a partition.
            kind: `"concurrency"` or `"rate"`; default: both.
            reason: recorded in the audit log.
            actor: the person or program that removes it; recorded in the audit log.

        Returns:
            Whether there was a limit to remove.

        Raises:
            UsageError: the kind is unknown.
        """
        return await self._database.run(_verbs.remove_limit(name, kind, reason, actor))

    async def children(
        self, target: Target, /, *, every: bool = False, conn: AsyncConnection | None = None
    ) -> Sequence[Instance[Any, Any]]:
        """Return the children of the last `ScheduleChildren` of an instance, in order.

        Args:
            target: the parent.
            every: return the children of all rounds.
            conn: a connection of the caller: read in its transaction.

        Raises:
            NoTargetError: no instance has the correlation key.
        """
        return await self._read(_verbs.children(target, every=every), conn)

    async def history(
        self,
        target: Target,
        /,
        *,
        after: int | None = None,
        limit: int = 1000,
        conn: AsyncConnection | None = None,
    ) -> Sequence[Transition]:
        """Return the committed transitions of an instance, oldest first. The first one, number 0, is the insert.

            for transition in await client.history("order:42"):
                print(transition.step_seq, transition.step, transition.outcome, transition.changes)

        States, and the names of consumed signals, are kept for machines with `history="all"` or with
        `settings.history`; states also for edits. Transitions are kept as long as execution records, for
        `settings.retention_executions`; with `settings.executions` other than `all`, only some are recorded.

        Args:
            target: what `insert` returned, an id, or a correlation key.
            after: only transitions with a larger `step_seq`.
            limit: the maximum number of transitions, at most 10,000.
            conn: a connection of the caller: read in its transaction.

        Raises:
            NoTargetError: there is no such instance.
        """
        return await self._read(_verbs.history_of(target, after, limit), conn)

    async def executions(self, target: Target, /) -> Sequence[ExecutionRecord]:
        """Return the executions of an instance, oldest first: the recorded ones and the live one.

        Which executions are recorded depends on `settings.executions`.

        Args:
            target: what `insert` returned, an id, or a correlation key.

        Raises:
            NoTargetError: no instance has the correlation key.
        """
        return await self._database.run(_verbs.executions(target))

    async def timeline(self, target: Target, /, *, limit: int = 100) -> Sequence[TimelineEntry]:
        """Return what happened to an instance, oldest first: executions, waits, signals, children and audit events.

        Which executions are recorded depends on `settings.executions`. A signal that was consumed leaves an entry only
        with a `dedup_key` or with audit level `all`.

        Args:
            limit: the newest entries, at most 10,000. If as many are returned, earlier ones may be left out.

        Raises:
            NoTargetError: there is no such instance.
        """
        return await self._database.run(_verbs.timeline(target, limit))

    async def events(
        self,
        target: Target | None = None,
        /,
        *,
        sink: str | None = None,
        state: EventState | None = None,
        before: EventRecord | int | None = None,
        after: EventRecord | int | None = None,
        limit: int = 100,
    ) -> Sequence[EventRecord]:
        """Return events of the outbox: newest first, or with `after` the next events, oldest first.

            page = await client.events(after=last_seen)

        Pages with `after` have no gaps: an event that commits later than another one with a larger number does not get
        lost. So such a page ends at the first event that a running transaction may precede. It waits up to one second
        for these transactions, and may be empty afterwards.

        Args:
            target: only events of this instance.
            sink: only events for this sink.
            state: only events that are pending, published or dead.
            before: only older events: the last event of the previous page, or its number.
            after: only newer events: the last event of the previous page, or its number; 0: from the oldest event.
            limit: page size, at most 10,000.

        Raises:
            NoTargetError: no instance has the correlation key.
        """
        if after is None:
            return await self._database.run(_verbs.events(target, sink, state, before, limit))
        page = _verbs.events_after(target, sink, state, before, after, limit)
        return await poll(lambda: self._database.run(page.plan()))

    async def follow_events(
        self,
        target: Target | None = None,
        /,
        *,
        sink: str | None = None,
        after: EventRecord | int = 0,
    ) -> AsyncIterator[EventRecord]:
        """Iterate over the events of the outbox in the order of their numbers, and wait for further ones.

            async for event in client.follow_events(after=last_seen):
                await index(event)
                last_seen = event.number

        No event is left out, although events commit in another order. A transaction that stays open delays the events
        that were committed after it began. The iteration does not depend on sinks and does not change events; the
        collector removes published events after `settings.retention_events`. It continues after an outage of the
        database.

        Args:
            target: only events of this instance.
            sink: only events for this sink.
            after: continue behind this event or number; default: from the oldest event.

        Raises:
            NoTargetError: no instance has the correlation key.
        """
        source = _verbs.EventFollow(target, sink, after)
        # Not bound to the database: after the client was closed, this raises NotConnectedError.
        async for event in follow(lambda plan: self._database.run(plan), source, self._database_status):
            yield event

    async def replay(
        self,
        events: Iterable[EventRecord | int],
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
    ) -> int:
        """Publish events again that were published or are dead, under their old ids.

            await client.replay(await client.events(sink="crm", state="dead"), reason="crm is back")

        Args:
            events: what `events` returned, or numbers of events.
            reason: recorded in the audit log.
            actor: the person or program that replays them; recorded in the audit log.

        Returns:
            How many events will be published again.
        """
        return await self._database.run(_verbs.replay(events, reason, actor))

    async def audit(
        self, target: Target, /, *, after: AuditEvent | int | None = None, limit: int = 1000
    ) -> Sequence[AuditEvent]:
        """Return the audit events of an instance, oldest first.

        Which events are recorded depends on the audit level.

        Args:
            target: the instance.
            after: only newer events: the last event of the previous page, or its number.
            limit: page size, at most 10,000.

        Raises:
            NoTargetError: there is no such instance, and there are no events of one.
        """
        return await self._database.run(_verbs.audit(target, after, limit))

    async def audit_log(
        self, *, before: AuditEvent | int | None = None, limit: int = 100
    ) -> Sequence[AuditEvent]:
        """Return the latest audit events of all instances, queues, limits and schedules, newest first.

        Args:
            before: only older events: the last event of the previous page, or its number.
            limit: page size, at most 10,000.
        """
        return await self._database.run(_verbs.audit_log(before, limit))

    async def audit_level(self) -> AuditLevel:
        """Return which audit events are written: `off`, `failures` (failures and changes by people) or `all`."""
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
        """Set the audit level of the database; it applies to all processes at once.

            await client.set_audit("all")

        Args:
            level: `"off"`, `"failures"` (failures and changes by people) or `"all"`.
            reason: recorded in the audit log.
            actor: the person or program that sets it; recorded in the audit log.
            conn: a connection of the caller: set it in its transaction.

        Returns:
            The previous level.
        """
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
        """Store a schedule; replaces the schedule of the same name.

            await client.put_schedule(Schedule("nightly", Spec(Report), cron="0 2 * * *", tz="Europe/Berlin"))

        A paused schedule stays paused. The next fire time stays if cron, interval and time zone are unchanged.

        Returns:
            The stored schedule, with its next fire time.
        """
        return await self._write(
            _verbs.schedules.put(schedule, self.settings, self._ahead, reason, actor), conn
        )

    async def get_schedule(self, name: str, /) -> ScheduleRecord:
        """Return a stored schedule.

        Raises:
            NoScheduleError: there is no such schedule.
        """
        return await self._database.run(_verbs.schedules.get(name))

    async def schedules(self) -> Sequence[ScheduleRecord]:
        """Return all schedules, by name."""
        return await self._database.run(_verbs.schedules.every())

    async def pause_schedule(
        self,
        name: str,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> ScheduleRecord:
        """Pause a schedule: once this has returned, it does not fire until it is resumed.

        Raises:
            NoScheduleError: there is no such schedule.
        """
        return await self._write(_verbs.schedules.pause(name, reason, actor), conn)

    async def resume_schedule(
        self,
        name: str,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> ScheduleRecord:
        """Resume a schedule with its next fire time. Fire times during the pause are skipped.

        Raises:
            NoScheduleError: there is no such schedule.
        """
        return await self._write(_verbs.schedules.resume(name, self._ahead, reason, actor), conn)

    async def trigger_schedule(
        self,
        name: str,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> Triggered:
        """Insert an instance of a schedule now, even if it is paused. Its `ctx.fire_time` is the current time.

            instance = await client.trigger_schedule("nightly")
            await client.wait(instance.id)

        Returns:
            The id of the new instance, or of the one that has the key of the spec.

        Raises:
            NoScheduleError: there is no such schedule.
        """
        return await self._write(_verbs.schedules.trigger(name, self._ahead, reason, actor), conn)

    async def delete_schedule(
        self,
        name: str,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> None:
        """Delete a schedule. Its instances stay. A worker that declares the schedule stores it again on its next start.

        Raises:
            NoScheduleError: there is no such schedule.
        """
        await self._write(_verbs.schedules.delete(name, reason, actor), conn)

    async def explain(self, target: Target, /) -> Explanation:
        """Explain why an instance does not run: all current reasons, with their facts.

            print(await client.explain("order:42"))

        Raises:
            NoTargetError: there is no such instance.
        """
        return await self._database.run(_verbs.explain(target))

    async def doctor(self) -> Sequence[Finding]:
        """Check the schema, the server, the workers and the instances for problems.

            for finding in await client.doctor():
                print(finding)

        Returns:
            The findings, each with its fix; none if there is no problem.
        """
        return await self._database.run(_verbs.doctor(self.settings))

    async def check(
        self, *machines: Insertable[Any, Any] | ModuleType, every: bool = False
    ) -> Sequence[Finding]:
        """Find live instances of this database that these machines cannot run, for example before a deploy.

        Finds instances at machines, versions or steps that the code does not have; states and unread signals that it
        cannot decode; awaited signals that it does not declare; live children of unknown machines. Reads only. Workers
        that have one of these machines count as replaced by this code.

        Args:
            machines: machine classes, machine objects, jobs, or modules that define these.
            every: read all live instances instead of a sample of 100 per machine, version, status and step.

        Returns:
            The findings, each with its fix; none if the code can run all instances.

        Raises:
            DefinitionError: a machine is invalid, or two have the same name and version.
            UsageError: no machine is given.
        """
        return await self._database.run(_verbs.check(machines, every=every))

    async def workers(self) -> Sequence[WorkerInfo]:
        """Return the workers of this database, including workers that died in the last ten minutes."""
        return await self._database.run(_verbs.workers())

    async def registered_machines(self) -> Sequence[MachineInfo]:
        """Return the machines and jobs that workers have registered, and which live workers run them."""
        return await self._database.run(_verbs.registered_machines())

    async def stats(self) -> Stats:
        """Return instances by machine and status, rates, slow steps and groups of failures.

        The cost is bounded: counts of 10,000 mean "at least 10,000", and steps and failures are computed of a sample.
        """
        return await self._database.run(_verbs.stats())

    async def rates(
        self, range: TimeRange = "1h", machine: Insertable[Any, Any] | str | None = None
    ) -> Rates:
        """Return what was executed, per interval: counts, durations, waiting times and the backlog.

        Workers count in memory and store the counts every 2 seconds; a worker that is killed loses the latest ones.
        Counts are kept for 14 days. Without a machine, the result has all machines together, and the sums of each.
        """
        return await self._database.run(_verbs.rates(range, machine))

    async def step_rates(self, machine: Insertable[Any, Any] | str, range: TimeRange = "1h") -> MachineRates:
        """Return what one machine has executed: per step durations and failures, and how often each transition."""
        return await self._database.run(_verbs.step_rates(machine, range))

    async def census(self, machine: Insertable[Any, Any] | str | None = None) -> Census:
        """Count instances by machine, version, step and state, with the age of the oldest and what they await.

        The cost is bounded. Of one machine, each figure counts at most 10,000 instances; of all machines, at most 500
        of each, and 100 that are done or cancelled.
        """
        return await self._database.run(_verbs.census(machine))

    async def queues(self) -> Sequence[QueueStatus]:
        """Return all queues with their workers and backlog.

        The cost does not depend on the backlog: counts of 10,000 mean "at least 10,000".
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
        """Pause a queue: workers start nothing from it until it is resumed. Running steps finish.

            await client.pause_queue("mail", wait=True, timeout=timedelta(seconds=30), reason="smtp is down")

        Live workers stop starting steps of the queue within one `poll_interval` after this has returned (or after the
        caller's transaction has committed). Waiting instances stay as they are; deadlines keep running. A queue that no
        worker serves is paused as well, with a warning in the log `gen_durable.client`.

        Args:
            name: the queue.
            wait: return once every live worker has confirmed the pause; then no step of the queue starts any more,
                chained steps included. A worker that dies meanwhile is waited for until it counts as dead, three
                heartbeats. If the queue is resumed meanwhile, the result has `is_paused` false.
            timeout: the maximum wait; default: until all workers have confirmed.
            reason: recorded in the audit log.
            actor: the person or program that pauses it; recorded in the audit log.
            conn: a connection of the caller: pause in its transaction; not with `wait`.

        Raises:
            PauseTimeoutError: a live worker has not confirmed in time. The queue stays paused.
        """
        confirmation = _verbs.pause_confirmation(name, wait=wait, timeout=timeout, has_conn=conn is not None)
        queue = await self._write(_verbs.pause_queue(name, reason, actor), conn)
        if confirmation is None:
            return queue
        return await poll(lambda: self._database.run(confirmation.plan()))

    async def resume_queue(
        self,
        name: str,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        conn: AsyncConnection | None = None,
    ) -> QueueControl:
        """Resume a paused queue. Resuming a queue that is not paused changes nothing."""
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
        """Override the concurrency of a queue in every worker that serves it by name, within one `poll_interval`.

            await client.set_queue("mail", concurrency=5)

        Args:
            name: the queue.
            concurrency: how many of its instances each worker runs at once; `None` removes the override. After a
                reduction, running steps finish.
            reason: recorded in the audit log.
            actor: the person or program that sets it; recorded in the audit log.
            conn: a connection of the caller: set it in its transaction.

        Raises:
            UsageError: the concurrency is not positive.
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
        """Wait until an instance has ended, or what `until` says, and return it.

            order = await client.wait("order:42", timeout=timedelta(seconds=1))
            return order.result if order.is_finished else Response(status_code=202)

            order = await client.wait(order, until={Checkout.ship, "awaiting_signal"})

        `.result` of the instance returns its result, or raises if it failed, was cancelled or has not ended. A timeout
        raises nothing: check `is_finished`.

        Args:
            target: what `insert` returned, an id, or a correlation key.
            timeout: return the instance as it is after this time; default: wait forever.
            until: also return when it has this status, is `"parked"` (waits for a signal or for children), or has
                reached this step: `Checkout.ship`, or by name `("step", "ship")`; or one of a set of these. A step that
                the instance has executed since the wait began counts, a status counts only if a poll sees it.
            raise_failed: raise if it failed or was cancelled.

        Raises:
            NoTargetError: there is no such instance.
            UnknownStepError: the machine does not have the step. Of an id or a key: no version of it that workers have
                registered has it.
            NotDoneError: with `raise_failed=True`, it failed or was cancelled.
        """
        seconds = None if timeout is None else checked_delay(timeout, "timeout").total_seconds()
        condition = _verbs.checked_until(until, target)
        database, waiting = self._database, self._waiting
        assert waiting is not None  # noqa: S101 - created with the database
        id = await database.run(_verbs.open_wait(target, condition))
        try:
            async with asyncio.timeout(seconds):
                row = await waiting.until(id, condition)
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
        """Wait for many instances, at most `timeout` in all; see `wait`.

        Returns:
            The instances, in the order of the targets.
        """
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self.wait(target, timeout=timeout, until=until)) for target in targets
                ]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None  # the same error as `wait`
        return [task.result() for task in tasks]

    @overload
    def watch(
        self, target: Ref[StateT, ResultT], /, *, after: Change[Any, Any] | str | None = None
    ) -> AsyncIterator[Change[StateT, ResultT]]: ...
    @overload
    def watch(
        self, target: Instance[Any, Any] | int | Key, /, *, after: Change[Any, Any] | str | None = None
    ) -> AsyncIterator[Change[Any, Any]]: ...
    async def watch(
        self, target: Target, /, *, after: Change[Any, Any] | str | None = None
    ) -> AsyncIterator[Change[Any, Any]]:
        """Iterate over the changes of an instance: status, step, state, progress, what it awaits.

            async for change in client.watch(order):
                print(change.instance.status, change.instance.step, [one.step for one in change.executions])

        The first item is the instance as it is now, the last one its end. Changes that follow each other faster than
        they are read are one change, with the latest state and all executions that have ended since the last one. All
        instances that a client watches and awaits share one query. After an outage of the database, the iteration
        continues, and no execution is missed.

        Args:
            target: what `insert` returned, an id, or a correlation key.
            after: a change, or its position: the first item has the executions that have ended since.

        Raises:
            NoTargetError: there is no such instance; or it has been removed, for example because another process has
                ended it and its machine has `keep=False`.
        """
        waiting, database = self._waiting, self._database
        assert waiting is not None  # noqa: S101 - created with the database
        cursor = await database.run(_verbs.open_watch(target, after))
        async for row, executions in waiting.changes(cursor):
            yield _verbs.change_of(row, executions, cursor, target)

    @overload
    def stream(
        self, target: Target, stream: Stream[ItemT], /, *, after: StreamItem[Any] | int = 0
    ) -> AsyncIterator[StreamItem[ItemT]]: ...
    @overload
    def stream(
        self, target: Target, stream: str, /, *, after: StreamItem[Any] | int = 0
    ) -> AsyncIterator[StreamItem[Any]]: ...
    async def stream(
        self, target: Target, stream: Stream[Any] | str, /, *, after: StreamItem[Any] | int = 0
    ) -> AsyncIterator[StreamItem[Any]]:
        """Iterate over the items that an instance publishes to a stream, in order.

            async for item in client.stream(chat, Chat.tokens):
                print(item.value, end="")

        Ends when the instance has ended and all items are read, or when the stream is closed. Items that exist already
        come first. All streams that a client reads share one query. After an outage of the database, the iteration
        continues without gaps and duplicates.

        Args:
            target: what `insert` returned, an id, or a correlation key.
            stream: a declared `Stream`, or a name; by name, values are plain JSON data.
            after: continue behind this item, or behind the item at this position.

        Raises:
            NoTargetError: there is no such instance, or the collector has removed it.
            UsageError: the machine of the reference declares streams, and none with this name.
            DecodeError: an item does not fit the type of the stream.
        """
        following, database = self._following, self._database
        assert following is not None  # noqa: S101 - created with the database
        async for item in following.items(await database.run(_verbs.open_stream(target, stream, after))):
            yield item

    def _autocommit(self, conn: AsyncConnection | None) -> bool:
        """Whether each statement is its own transaction, so that it can be retried after a lost race."""
        return conn is None and not isinstance(self._opened, OpenTransaction)

    @asynccontextmanager
    async def _transaction(self) -> AsyncGenerator[Self]:
        """Begin a transaction; yield a client whose verbs run in it. For the dashboard.

        Verbs that change instances in several transactions (`cancel` with `cascade`, `cancel_all`) run in one here.
        """
        bound, wakes = copy.copy(self), HeldWakes()
        async with self._database.transaction() as opened:
            bound._opened, bound._wakes = opened, wakes  # noqa: SLF001 - of this class
            yield bound
        self._wakes.work(wakes.queues)

    async def _read(self, plan: Plan[T], conn: AsyncConnection | None) -> T:
        """Run a query, in the caller's transaction or in its own."""
        if conn is None:
            return await self._database.run(plan)
        result: T = await driver_of(conn, blocking=False)(conn, plan, self.settings.schema)
        return result

    async def _write(self, plan: Plan[tuple[T, set[str]]], conn: AsyncConnection | None) -> T:
        """Run a verb, and wake the local queues that have work now, unless a caller's transaction has yet to commit."""
        if conn is not None:
            return await self._write_in(conn, plan)
        result, queues = await self._database.run(plan)
        self._wakes.work(queues)
        return result

    async def _receive(self, message_id: str, key: str, name: str, payload: Any, dedup_key: str) -> bool:
        """Deliver an inbound message as a signal; return whether it is new. For `Inbound`."""
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
        self._server = await Server.find_async(self._given_dsn)
        self._opened = await Database.open(
            self._server.dsn,
            self.settings.schema,
            name="the client",
            size=self._pool_size(),
            advice=self._server.advice,
            reply_timeouts=self._reply_timeouts,
            pooler=self.settings.pooler,
        )
        if not isinstance(self._server.dsn, str):
            await asyncio.to_thread(self._server.follow, self._opened.where)
        await self._prepare(self._opened)
        self._database_status = DatabaseStatus(shown(self._server.dsn), self._server.revive)
        self._open_pollers(self._opened)
        self._wakes.is_awaited = self._is_read

    def _open_pollers(self, database: Database) -> None:
        self._waiting = Waiting(database, self._database_status)
        self._following = following = Following(database, self._waiting, self._database_status)
        self._waiting.is_needed = following.is_followed
        self._wakes.on_ended_or_parked(self._waiting.ended_or_parked)
        self._wakes.on_ended_or_parked(lambda _: following.hint())
        self._wakes.is_watching = self._waiting.is_watching
        self._wakes.changed = self._waiting.changed
        self._wakes.on_items(following.hint)

    def _close_pollers(self) -> None:
        for poller in (self._waiting, self._following):
            if poller is not None:
                poller.close()
        self._waiting = self._following = None

    def _is_read(self, id: int) -> bool:
        """Whether this client waits for an instance or reads a stream of it. It then deletes what is not kept."""
        assert self._waiting is not None  # noqa: S101 - created with the database
        assert self._following is not None  # noqa: S101 - as above
        is_awaited, is_followed = self._waiting.keep(id), self._following.keep(id)
        return is_awaited or is_followed

    async def _prepare(self, database: Database) -> None:
        await database.run_in_transaction(self._preparation())

    def _preparation(self) -> Plan[None]:
        assert self._server is not None  # noqa: S101 - found before
        return migrate.prepare(self.settings.schema, upgrade=self._server.upgrades)

    async def _close(self) -> None:
        self._close_pollers()
        if self._opened is not None:
            await self._opened.close()
        if self._server is not None:
            await self._server.close_async()
        self._opened = self._server = None

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
