"""`Client`: the blocking variant of `AsyncClient`, for scripts and web frameworks without an event loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from . import _verbs
from ._db import migrate
from ._db.blocking import BlockingDatabase
from ._db.caller_connection import driver_of
from ._db.failures import StatementError
from ._db.plan import Plan
from ._dictionary import attribute_hint
from ._polling import Pace
from ._runtime.database_status import DatabaseRetry
from ._runtime.follow import Follow
from ._server import Server
from ._typing import KEEP, ItemT, PayloadT, ResultT, StateT
from ._verbs import Filters
from .audit import AuditEvent
from .batches import Batch, BatchPreview, InstanceVerb
from .config import AuditLevel, Settings
from .connections import Connection, Dsn
from .definition import StepRef
from .errors import NotConnectedError, UnreachableError, UsageError
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

__all__ = ["Client"]

T = TypeVar("T")


class Client:
    """The blocking variant of `AsyncClient`, with the same methods.

        with Client(dsn) as client:
            order = client.insert(Checkout, Order(42))
            receipt = client.wait(order).result

    `AsyncClient` documents the methods. Threads may share a client: it has one connection under a lock. `conn=` takes
    a psycopg, SQLAlchemy or Django connection.
    """

    if not TYPE_CHECKING:
        __getattr__ = attribute_hint("client")

    def __init__(self, dsn: Dsn | None = None, *, settings: Settings | None = None) -> None:
        self._given_dsn = dsn
        self.settings: Settings = Settings.given(settings)
        self._ahead = timedelta(0)
        self._server: Server | None = None
        self._opened: BlockingDatabase | None = None

    @property
    def dsn(self) -> str:
        """The DSN of its server, for connections of your own. It contains the password. See `AsyncClient.dsn`."""
        server = self._server or Server.choose(self._given_dsn)
        return server.dsn if isinstance(server.dsn, str) else self._database.where

    def __enter__(self) -> Self:
        if self._opened is not None:
            raise UsageError(f"this {type(self).__name__} is already open", "open it once and share it")
        self._server = Server.find(self._given_dsn)
        self._opened = BlockingDatabase(
            self._server.dsn,
            self.settings.schema,
            lease=self.settings.lease,
            advice=self._server.advice,
            pooler=self.settings.pooler,
        )
        try:
            self._opened.run_in_transaction(
                migrate.prepare(self.settings.schema, upgrade=self._server.upgrades)
            )
            self._server.follow(self._opened.where)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    @overload
    def insert(
        self,
        machine: Insertable[None, ResultT],
        /,
        *,
        conn: Connection | None = None,
        **options: Unpack[InsertOptions],
    ) -> InsertResult[None, ResultT]: ...
    @overload
    def insert(
        self,
        machine: Insertable[StateT, ResultT],
        /,
        state: StateT | Mapping[str, Any],
        *,
        conn: Connection | None = None,
        **options: Unpack[InsertOptions],
    ) -> InsertResult[StateT, ResultT]: ...
    @overload
    def insert(
        self,
        machine: Insertable[StateT, ResultT],
        /,
        *,
        args: StateT | Mapping[str, Any],
        conn: Connection | None = None,
        **options: Unpack[InsertOptions],
    ) -> InsertResult[StateT, ResultT]: ...
    def insert(
        self,
        machine: Any,
        /,
        state: Any = None,
        *,
        args: Any = None,
        conn: Connection | None = None,
        **options: Any,
    ) -> InsertResult[Any, Any]:
        """Insert one instance of a machine or job. See `AsyncClient.insert`."""
        spec = Spec(machine, _verbs.given_state(state, args), **options)
        return self._write(_verbs.insert(spec, self.settings, autocommit=self._autocommit(conn)), conn)

    @overload
    def insert_all(
        self, specs: Iterable[Spec[StateT, ResultT]], /, *, conn: Connection | None = None
    ) -> list[InsertResult[StateT, ResultT] | KeyTaken[StateT, ResultT]]: ...
    @overload
    def insert_all(
        self, specs: Iterable[AnySpec], /, *, conn: Connection | None = None
    ) -> list[InsertResult[Any, Any] | KeyTaken[Any, Any]]: ...
    def insert_all(
        self, specs: Iterable[AnySpec], /, *, conn: Connection | None = None
    ) -> list[InsertResult[Any, Any] | KeyTaken[Any, Any]]:
        """Insert many instances in one statement: all of them or, if it raises, none.

        See `AsyncClient.insert_all`.
        """
        return self._write(
            _verbs.insert_all(list(specs), self.settings, autocommit=self._autocommit(conn)),
            conn,
        )

    @overload
    def signal(
        self,
        target: Target,
        signal: Signal[None],
        /,
        *,
        dedup_key: Key | None = None,
        conn: Connection | None = None,
    ) -> Delivery: ...
    @overload
    def signal(
        self,
        target: Target,
        signal: Signal[PayloadT],
        payload: PayloadT,
        /,
        *,
        dedup_key: Key | None = None,
        conn: Connection | None = None,
    ) -> Delivery: ...
    @overload
    def signal(
        self,
        target: Target,
        signal: str,
        payload: Any = None,
        /,
        *,
        dedup_key: Key | None = None,
        conn: Connection | None = None,
    ) -> Delivery: ...
    def signal(
        self,
        target: Target,
        signal: Signal[Any] | str,
        payload: Any = None,
        /,
        *,
        dedup_key: Key | None = None,
        conn: Connection | None = None,
    ) -> Delivery:
        """Deliver a signal to a live instance, and wake it if it awaits the signal. See `AsyncClient.signal`."""
        return self._write(_verbs.signal(target, signal, payload, dedup_key, self.settings), conn)

    def cancel(
        self,
        target: Target,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        force: bool = False,
        undo: bool = True,
        cascade: bool = False,
        conn: Connection | None = None,
    ) -> CancelResult:
        """Cancel an instance. See `AsyncClient.cancel`."""
        return self._write(
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

    def cancel_all(
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
        """Cancel all live instances that match the filters of `list`, in batches. See `AsyncClient.cancel_all`."""
        return self._write(
            _verbs.cancel_all(
                machine, filters, reason, actor, force=force, undo=undo, autocommit=self._autocommit(None)
            ),
            None,
        )

    def soft_delete(
        self,
        target: Target,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        conn: Connection | None = None,
    ) -> Deleted:
        """Delete an instance softly: hide it and stop running it, but keep its row. See `AsyncClient.soft_delete`."""
        return self._write(_verbs.soft_delete(target, reason, actor, autocommit=self._autocommit(conn)), conn)

    def delete_all(
        self,
        machine: Insertable[Any, Any] | str | None = None,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        **filters: Unpack[Filters],
    ) -> int:
        """Delete softly all instances that match the filters of `list`, in batches. See `AsyncClient.delete_all`."""
        return self._write(
            _verbs.delete_all(machine, filters, reason, actor, autocommit=self._autocommit(None)), None
        )

    def restore(
        self,
        target: Target,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        conn: Connection | None = None,
    ) -> Restored:
        """Undo a soft delete. An instance that the delete cancelled stays cancelled; `retry` continues it.

        See `AsyncClient.restore`.
        """
        return self._write(_verbs.restore(target, reason, actor, autocommit=self._autocommit(conn)), conn)

    def retry(
        self,
        target: Target,
        /,
        *,
        state: Any = KEEP,
        step: StepRef[Any] | str | None = None,
        reason: str | None = None,
        actor: str | None = None,
        conn: Connection | None = None,
    ) -> RetryResult:
        """Continue a failed or cancelled instance at the step where it ended, with a new count of attempts.

        See `AsyncClient.retry`.
        """
        return self._write(
            _verbs.retry(
                target, state, step, reason, actor, self.settings, autocommit=self._autocommit(conn)
            ),
            conn,
        )

    def retry_all(
        self,
        machine: Insertable[Any, Any] | str | None = None,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        **filters: Unpack[Filters],
    ) -> int:
        """Retry all failed and cancelled instances that match the filters of `list`, in batches.

        See `AsyncClient.retry_all`.
        """
        return self._write(
            _verbs.retry_all(machine, filters, reason, actor, autocommit=self._autocommit(None)), None
        )

    def preview_batch(
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

        See `AsyncClient.preview_batch`.
        """
        change = _verbs.verb_of(verb, force=force, undo=undo)
        return self._database.run(_verbs.preview_matching(change, machine, filters))

    def start_batch(
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

        See `AsyncClient.start_batch`.
        """
        change = _verbs.verb_of(verb, reason=reason, actor=actor, force=force, undo=undo, cascade=cascade)
        return self._database.run(_verbs.start_matching(change, machine, filters, ids, expected))

    def start_replay(
        self, *, sink: str | None = None, reason: str | None = None, actor: str | None = None
    ) -> Batch:
        """Start a batch that publishes all dead letters again. See `AsyncClient.start_replay`."""
        return self._database.run(_verbs.start_replay(sink, reason, actor))

    def run_batch(self, batch: Batch | int, /, *, on_page: Callable[[Batch], object] | None = None) -> Batch:
        """Run a batch until it has ended or is stopped, and return it. See `AsyncClient.run_batch`."""
        run = _verbs.BatchRun(batch if isinstance(batch, int) else batch.id)
        while True:
            now, pause = self._write(run.plan(), None)
            if on_page is not None:
                on_page(now)
            if pause is None:
                return now
            time.sleep(pause)

    def stop_batch(
        self, batch: Batch | int, /, *, reason: str | None = None, actor: str | None = None
    ) -> Batch:
        """Stop a batch before its next page, and return it. See `AsyncClient.stop_batch`."""
        id = batch if isinstance(batch, int) else batch.id
        return self._database.run(_verbs.stop_batch(id, reason, actor))

    def get_batch(self, id: int, /) -> Batch:
        """Return a batch. See `AsyncClient.get_batch`."""
        return self._database.run(_verbs.get_batch(id))

    def batches(self, *, limit: int = 100) -> Sequence[Batch]:
        """Return the newest batches, newest first."""
        return self._database.run(_verbs.list_batches(limit))

    def edit(
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
        conn: Connection | None = None,
    ) -> EditResult:
        """Change the state or the step of an instance that is runnable, parked or failed.

        See `AsyncClient.edit`.
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
        return self._write(plan, conn)

    def fork(
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
        conn: Connection | None = None,
    ) -> Forked:
        """Insert a new instance that starts where another one was after a transition.

        See `AsyncClient.fork`.
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
        return self._write(plan, conn)

    @overload
    def get(
        self, target: Ref[StateT, ResultT], /, *, with_deleted: bool = False, conn: Connection | None = None
    ) -> Instance[StateT, ResultT] | None: ...
    @overload
    def get(
        self,
        target: Instance[Any, Any] | int | Key,
        /,
        *,
        with_deleted: bool = False,
        conn: Connection | None = None,
    ) -> Instance[Any, Any] | None: ...
    def get(
        self, target: Target, /, *, with_deleted: bool = False, conn: Connection | None = None
    ) -> Instance[Any, Any] | None:
        """Return an instance, or `None` if there is none. See `AsyncClient.get`."""
        return self._read(_verbs.get(target, with_deleted=with_deleted), conn)

    @overload
    def list(
        self,
        machine: Insertable[StateT, ResultT],
        /,
        *,
        limit: int = 100,
        before: int | None = None,
        conn: Connection | None = None,
        **filters: Unpack[Filters],
    ) -> Sequence[Instance[StateT, ResultT]]: ...
    @overload
    def list(
        self,
        machine: str | None = None,
        /,
        *,
        limit: int = 100,
        before: int | None = None,
        conn: Connection | None = None,
        **filters: Unpack[Filters],
    ) -> Sequence[Instance[Any, Any]]: ...
    def list(
        self,
        machine: Any = None,
        /,
        *,
        limit: int = 100,
        before: int | None = None,
        conn: Connection | None = None,
        **filters: Unpack[Filters],
    ) -> Sequence[Instance[Any, Any]]:
        """Return instances, newest first. See `AsyncClient.list`."""
        return self._read(_verbs.page(machine, limit, before, filters), conn)

    def count(
        self,
        machine: Insertable[Any, Any] | str | None = None,
        /,
        *,
        conn: Connection | None = None,
        **filters: Unpack[Filters],
    ) -> int:
        """Count instances, with the filters of `list`. See `AsyncClient.count`."""
        return self._read(_verbs.count(machine, filters), conn)

    def search(
        self,
        text: str,
        /,
        *,
        limit: int = 100,
        before: int | None = None,
        with_deleted: bool = False,
        conn: Connection | None = None,
    ) -> SearchPage:
        """Return a page of the instances that match a search. See `AsyncClient.search`."""
        return self._read(_verbs.find(text, limit, before, with_deleted=with_deleted), conn)

    def search_count(
        self, text: str, /, *, with_deleted: bool = False, conn: Connection | None = None
    ) -> SearchCount:
        """Count the instances that match a search, at a bounded cost. See `AsyncClient.search_count`."""
        return self._read(_verbs.find_count(text, with_deleted=with_deleted), conn)

    def complete(self, text: str, /, cursor: int | None = None) -> Completion:
        """Suggest names and values for the term of a search at the cursor. See `AsyncClient.complete`."""
        return self._read(_verbs.complete(text, cursor), None)

    def limits(self) -> Sequence[Limit]:
        """Return all limits, by name. See `AsyncClient.limits`."""
        return self._database.run(_verbs.limits())

    def set_limit(self, limit: Limit, /, *, reason: str | None = None, actor: str | None = None) -> None:
        """Set a limit; replaces the limit of the same kind and name. It applies from the next pick on.

        See `AsyncClient.set_limit`.
        """
        self._database.run(_verbs.set_limit(limit, reason, actor))

    def remove_limit(
        self,
        name: str,
        /,
        *,
        kind: LimitKind | None = None,
        reason: str | None = None,
        actor: str | None = None,
    ) -> bool:
        """Remove the limits of a name, or only the one of a kind. See `AsyncClient.remove_limit`."""
        return self._database.run(_verbs.remove_limit(name, kind, reason, actor))

    def children(
        self, target: Target, /, *, every: bool = False, conn: Connection | None = None
    ) -> Sequence[Instance[Any, Any]]:
        """Return the children of the last `ScheduleChildren` of an instance, in order. See `AsyncClient.children`."""
        return self._read(_verbs.children(target, every=every), conn)

    def history(
        self,
        target: Target,
        /,
        *,
        after: int | None = None,
        limit: int = 1000,
        conn: Connection | None = None,
    ) -> Sequence[Transition]:
        """Return the committed transitions of an instance, oldest first. The first one, number 0, is the insert.

        See `AsyncClient.history`.
        """
        return self._read(_verbs.history_of(target, after, limit), conn)

    def executions(self, target: Target, /) -> Sequence[ExecutionRecord]:
        """Return the executions of an instance, oldest first: the recorded ones and the live one.

        See `AsyncClient.executions`.
        """
        return self._database.run(_verbs.executions(target))

    def timeline(self, target: Target, /, *, limit: int = 100) -> Sequence[TimelineEntry]:
        """Return what happened to an instance, oldest first: executions, waits, signals, children and audit events.

        See `AsyncClient.timeline`.
        """
        return self._database.run(_verbs.timeline(target, limit))

    def events(
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

        See `AsyncClient.events`.
        """
        if after is None:
            return self._database.run(_verbs.events(target, sink, state, before, limit))
        return self._poll(_verbs.events_after(target, sink, state, before, after, limit))

    def follow_events(
        self,
        target: Target | None = None,
        /,
        *,
        sink: str | None = None,
        after: EventRecord | int = 0,
    ) -> Iterator[EventRecord]:
        """Iterate over the events of the outbox in the order of their numbers, and wait for further ones.

        See `AsyncClient.follow_events`.
        """
        yield from self._follow(_verbs.EventFollow(target, sink, after))

    def replay(
        self,
        events: Iterable[EventRecord | int],
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
    ) -> int:
        """Publish events again that were published or are dead, under their old ids. See `AsyncClient.replay`."""
        return self._database.run(_verbs.replay(events, reason, actor))

    def audit(
        self, target: Target, /, *, after: AuditEvent | int | None = None, limit: int = 1000
    ) -> Sequence[AuditEvent]:
        """Return the audit events of an instance, oldest first. See `AsyncClient.audit`."""
        return self._database.run(_verbs.audit(target, after, limit))

    def audit_log(self, *, before: AuditEvent | int | None = None, limit: int = 100) -> Sequence[AuditEvent]:
        """Return the latest audit events of all subjects, newest first. See `AsyncClient.audit_log`."""
        return self._database.run(_verbs.audit_log(before, limit))

    def audit_level(self) -> AuditLevel:
        """Return which audit events are written: `off`, `failures` (failures and changes by people) or `all`.

        See `AsyncClient.audit_level`.
        """
        return self._database.run(_verbs.audit_level())

    def set_audit(
        self,
        level: AuditLevel,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        conn: Connection | None = None,
    ) -> AuditLevel:
        """Set the audit level of the database; it applies to all processes at once. See `AsyncClient.set_audit`."""
        return self._write(_verbs.set_audit(level, reason, actor), conn)

    def put_schedule(
        self,
        schedule: Schedule,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        conn: Connection | None = None,
    ) -> ScheduleRecord:
        """Store a schedule; replaces the schedule of the same name. See `AsyncClient.put_schedule`."""
        return self._write(_verbs.schedules.put(schedule, self.settings, self._ahead, reason, actor), conn)

    def get_schedule(self, name: str, /) -> ScheduleRecord:
        """Return a stored schedule. See `AsyncClient.get_schedule`."""
        return self._database.run(_verbs.schedules.get(name))

    def schedules(self) -> Sequence[ScheduleRecord]:
        """Return all schedules, by name. See `AsyncClient.schedules`."""
        return self._database.run(_verbs.schedules.every())

    def pause_schedule(
        self,
        name: str,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        conn: Connection | None = None,
    ) -> ScheduleRecord:
        """Pause a schedule: once this has returned, it does not fire until it is resumed.

        See `AsyncClient.pause_schedule`.
        """
        return self._write(_verbs.schedules.pause(name, reason, actor), conn)

    def resume_schedule(
        self,
        name: str,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        conn: Connection | None = None,
    ) -> ScheduleRecord:
        """Resume a schedule with its next fire time. Fire times during the pause are skipped.

        See `AsyncClient.resume_schedule`.
        """
        return self._write(_verbs.schedules.resume(name, self._ahead, reason, actor), conn)

    def trigger_schedule(
        self,
        name: str,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        conn: Connection | None = None,
    ) -> Triggered:
        """Insert an instance of a schedule now, even if it is paused. Its `ctx.fire_time` is the current time.

        See `AsyncClient.trigger_schedule`.
        """
        return self._write(_verbs.schedules.trigger(name, self._ahead, reason, actor), conn)

    def delete_schedule(
        self,
        name: str,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        conn: Connection | None = None,
    ) -> None:
        """Delete a schedule. Its instances stay. A worker that declares the schedule stores it again on its next start.

        See `AsyncClient.delete_schedule`.
        """
        self._write(_verbs.schedules.delete(name, reason, actor), conn)

    def explain(self, target: Target, /) -> Explanation:
        """Explain why an instance does not run: all current reasons, with their facts. See `AsyncClient.explain`."""
        return self._database.run(_verbs.explain(target))

    def doctor(self) -> Sequence[Finding]:
        """Check the schema, the server and the workers for problems. Each finding says how to fix it.

        See `AsyncClient.doctor`.
        """
        return self._database.run(_verbs.doctor(self.settings))

    def check(self, *machines: Insertable[Any, Any] | ModuleType, every: bool = False) -> Sequence[Finding]:
        """Find live instances of this database that these machines cannot run, for example before a deploy.

        Finds instances at machines, versions or steps that the code does not have; states and unread signals that it
        cannot decode; awaited signals that it does not declare; live children of unknown machines. Reads only. Workers
        that have one of these machines count as replaced by this code.

        Args:
            machines: machine classes, machine objects, jobs, or modules that define these.
            every: read all live instances instead of a sample of 100 per machine, version, status and step.
        """
        return self._database.run(_verbs.check(machines, every=every))

    def workers(self) -> Sequence[WorkerInfo]:
        """Return the workers of this database, including workers that died in the last ten minutes.

        See `AsyncClient.workers`.
        """
        return self._database.run(_verbs.workers())

    def registered_machines(self) -> Sequence[MachineInfo]:
        """Return the machines and jobs that workers have registered. See `AsyncClient.registered_machines`."""
        return self._database.run(_verbs.registered_machines())

    def stats(self) -> Stats:
        """Return instances by machine and status, rates, slow steps and groups of failures. See `AsyncClient.stats`."""
        return self._database.run(_verbs.stats())

    def rates(self, range: TimeRange = "1h", machine: Insertable[Any, Any] | str | None = None) -> Rates:
        """Return what was executed, per interval. See `AsyncClient.rates`."""
        return self._database.run(_verbs.rates(range, machine))

    def step_rates(self, machine: Insertable[Any, Any] | str, range: TimeRange = "1h") -> MachineRates:
        """Return what one machine has executed, by step and transition. See `AsyncClient.step_rates`."""
        return self._database.run(_verbs.step_rates(machine, range))

    def census(self, machine: Insertable[Any, Any] | str | None = None) -> Census:
        """Count instances by machine, version, step and state. See `AsyncClient.census`."""
        return self._database.run(_verbs.census(machine))

    def queues(self) -> Sequence[QueueStatus]:
        """Return all queues with their workers and backlog. See `AsyncClient.queues`."""
        return self._database.run(_verbs.queues())

    def pause_queue(
        self,
        name: str,
        /,
        *,
        wait: bool = False,
        timeout: timedelta | None = None,
        reason: str | None = None,
        actor: str | None = None,
        conn: Connection | None = None,
    ) -> QueueControl:
        """Pause a queue: workers start nothing from it until it is resumed. Running steps finish.

        See `AsyncClient.pause_queue`.
        """
        confirmation = _verbs.pause_confirmation(name, wait=wait, timeout=timeout, has_conn=conn is not None)
        queue = self._write(_verbs.pause_queue(name, reason, actor), conn)
        return queue if confirmation is None else self._poll(confirmation)

    def resume_queue(
        self,
        name: str,
        /,
        *,
        reason: str | None = None,
        actor: str | None = None,
        conn: Connection | None = None,
    ) -> QueueControl:
        """Resume a paused queue. See `AsyncClient.resume_queue`."""
        return self._write(_verbs.resume_queue(name, reason, actor), conn)

    def set_queue(
        self,
        name: str,
        /,
        *,
        concurrency: int | None,
        reason: str | None = None,
        actor: str | None = None,
        conn: Connection | None = None,
    ) -> QueueControl:
        """Override the concurrency of a queue in every worker that serves it by name, within one `poll_interval`.

        See `AsyncClient.set_queue`.
        """
        return self._write(_verbs.set_queue(name, concurrency, reason, actor), conn)

    @overload
    def wait(
        self,
        target: Ref[StateT, ResultT],
        /,
        *,
        timeout: timedelta | None = None,
        until: Until = "finished",
        raise_failed: bool = False,
    ) -> Instance[StateT, ResultT]: ...
    @overload
    def wait(
        self,
        target: Instance[Any, Any] | int | Key,
        /,
        *,
        timeout: timedelta | None = None,
        until: Until = "finished",
        raise_failed: bool = False,
    ) -> Instance[Any, Any]: ...
    def wait(
        self,
        target: Target,
        /,
        *,
        timeout: timedelta | None = None,
        until: Until = "finished",
        raise_failed: bool = False,
    ) -> Instance[Any, Any]:
        """Wait until an instance has ended, or what `until` says, and return it. See `AsyncClient.wait`."""
        (instance,) = self._poll(_verbs.Wait([target], until, timeout))
        if raise_failed and instance.is_finished:
            _ = instance.result
        return instance

    @overload
    def wait_all(
        self,
        targets: Iterable[Ref[StateT, ResultT]],
        /,
        *,
        timeout: timedelta | None = None,
        until: Until = "finished",
    ) -> Sequence[Instance[StateT, ResultT]]: ...
    @overload
    def wait_all(
        self,
        targets: Iterable[Target],
        /,
        *,
        timeout: timedelta | None = None,
        until: Until = "finished",
    ) -> Sequence[Instance[Any, Any]]: ...
    def wait_all(
        self,
        targets: Iterable[Target],
        /,
        *,
        timeout: timedelta | None = None,
        until: Until = "finished",
    ) -> Sequence[Instance[Any, Any]]:
        """Wait for many instances, at most `timeout` in all. See `AsyncClient.wait_all`."""
        return self._poll(_verbs.Wait(tuple(targets), until, timeout))

    @overload
    def watch(
        self, target: Ref[StateT, ResultT], /, *, after: Change[Any, Any] | str | None = None
    ) -> Iterator[Change[StateT, ResultT]]: ...
    @overload
    def watch(
        self, target: Instance[Any, Any] | int | Key, /, *, after: Change[Any, Any] | str | None = None
    ) -> Iterator[Change[Any, Any]]: ...
    def watch(
        self, target: Target, /, *, after: Change[Any, Any] | str | None = None
    ) -> Iterator[Change[Any, Any]]:
        """Iterate over the changes of an instance until it has ended. See `AsyncClient.watch`."""
        cursor = self._database.run(_verbs.open_watch(target, after))
        yield from self._follow(_verbs.WatchFollow(target, cursor))

    @overload
    def stream(
        self, target: Target, stream: Stream[ItemT], /, *, after: StreamItem[Any] | int = 0
    ) -> Iterator[StreamItem[ItemT]]: ...
    @overload
    def stream(
        self, target: Target, stream: str, /, *, after: StreamItem[Any] | int = 0
    ) -> Iterator[StreamItem[Any]]: ...
    def stream(
        self, target: Target, stream: Stream[Any] | str, /, *, after: StreamItem[Any] | int = 0
    ) -> Iterator[StreamItem[Any]]:
        """Iterate over the items that an instance publishes to a stream, in order. See `AsyncClient.stream`."""
        cursor = self._database.run(_verbs.open_stream(target, stream, after))
        yield from self._follow(_verbs.StreamFollow(cursor))

    def _follow(self, follow: Follow[T]) -> Iterator[T]:
        pace, retry = Pace(), DatabaseRetry(follow.name, repair_within=0)
        while not follow.is_over:
            try:
                page = self._database.run(follow.plan())
            except StatementError as error:
                time.sleep(retry.pause(error))
                continue
            except UnreachableError as error:
                time.sleep(retry.pause(StatementError("", str(error))))
                continue
            retry.succeeded()
            is_empty = True
            for item in page:
                is_empty = False
                yield item
            if not is_empty:
                pace.reset()
            elif not follow.is_over:
                time.sleep(pace.pause() or 0.0)

    def _poll(self, poll: _verbs.Poll[T]) -> T:
        answer, pause = self._database.run(poll.plan())
        while pause is not None:
            time.sleep(pause)
            answer, pause = self._database.run(poll.plan())
        return answer

    def _autocommit(self, conn: Connection | None) -> bool:
        """Whether each statement is its own transaction, so that it can be retried after a lost race."""
        return conn is None

    def _read(self, plan: Plan[T], conn: Connection | None) -> T:
        if conn is None:
            return self._database.run(plan)
        result: T = driver_of(conn, blocking=True)(conn, plan, self.settings.schema)
        return result

    def _write(self, plan: Plan[tuple[T, set[str]]], conn: Connection | None) -> T:
        if conn is not None:
            result: T
            result, _ = driver_of(conn, blocking=True)(conn, plan, self.settings.schema)
            return result
        result, _ = self._database.run(plan)
        return result

    def _close(self) -> None:
        if self._opened is not None:
            self._opened.close()
        if self._server is not None:
            self._server.close()
        self._opened = self._server = None

    @property
    def _database(self) -> BlockingDatabase:
        if self._opened is None:
            raise NotConnectedError(type(self).__name__, "with")
        return self._opened
