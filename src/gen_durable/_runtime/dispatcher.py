"""The dispatcher: publishes committed events of the outbox, one service per sink.

Events are leased, published outside of any transaction, and marked. A dispatcher that dies in between leaves a lease
that expires, and another one publishes the event again under the same id: at least once, and in order per stream (the
events of one instance for one sink).

A round is one leased batch. An event that the sink does not accept delays its own stream only. The whole sink is paused
when it is unavailable, or when it accepted nothing while a round lasted.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import secrets
import socket
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec

from .._backoff import backoff_seconds
from .._db import outbox
from .._db.outbox import Leased, Mark
from .._db.pool import Database
from ..errors import UsageError
from ..events import CloudEvent, Rejected, Sink, SinkUnavailable
from ..outcome import reason_text
from ..telemetry import OutboxDead, OutboxFailed, OutboxPublished, Telemetry
from . import shutdown_timeouts
from .database_status import DatabaseStatus
from .service import Service
from .threads import Threads
from .user_exceptions import as_exception, current_task, is_task_cancelled

__all__ = ["Dispatcher", "sink_of"]

_log: Final = logging.getLogger("gen_durable.outbox")
_BATCH: Final = 200
# Rounds of one sink that may be open at once: an event on which the sink hangs does not delay the next round.
_ROUNDS: Final = 3
# Requests of one round in parallel, when each has one event.
_PARALLEL: Final = 16
# For sinks that are plain functions: one thread per request that may be open.
_THREADS: Final = _ROUNDS * _PARALLEL
# Seconds after which the results of an open round are marked, and the next round may begin.
_MARK_INTERVAL: Final = 0.5
# Seconds: the longest delay of an event, and the longest pauses of a sink. One that answers every event with an error
# is asked again within seconds, because the fault may be in the events.
_LONGEST_DELAY: Final = 300.0
_LONGEST_PAUSE: Final = 60.0
_LONGEST_PAUSE_AFTER_ERRORS: Final = 5.0
# Seconds: a receiver that asks for more is asked again all the same.
_LONGEST_RETRY_AFTER: Final = 3600.0


class Dispatcher(Service):
    """Publishes the events of one sink."""

    name = "dispatcher"

    def __init__(
        self,
        label: str,
        sink: Sink,
        *,
        source: str,
        lease: timedelta,
        idle: timedelta,
        database: Database,
        telemetry: Telemetry,
        database_status: DatabaseStatus,
    ) -> None:
        super().__init__(database_status)
        self._label = label
        self._sink = sink
        self._source = source
        self._lease = lease
        self._idle = idle
        self._database = database
        self._telemetry = telemetry
        self._rounds: dict[asyncio.Task[None], _Round] = {}
        # Failed rounds since the sink last accepted an event; the one in which it did counts if it ended unavailable.
        self._failures = 0
        self._paused_until = 0.0
        # Whether the log says that the sink accepts nothing.
        self._is_logged = False
        # When events of any round were last accepted.
        self._accepted_at = 0.0
        # What ended a round early; the next tick raises it.
        self._error: Exception | None = None

    async def run(self) -> None:
        """Run rounds until `stop`; then let the open rounds release the events that they have not sent."""
        try:
            await super().run()
            self._end_rounds()
            if self._rounds:
                await asyncio.wait(self._rounds)
        finally:
            for task in self._rounds:
                task.cancel()
            if self._rounds:
                await asyncio.wait(self._rounds)

    def stop(self) -> None:
        super().stop()
        self._end_rounds()

    async def tick(self) -> timedelta:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if (pause := self._paused_until - time.monotonic()) > 0:
            return timedelta(seconds=pause)
        if len(self._rounds) == _ROUNDS:
            await asyncio.wait(self._rounds, return_when=asyncio.FIRST_COMPLETED)
            return timedelta(0)
        token = secrets.randbits(62)
        round = _Round(self._sink, self._source, self._lease)
        events = await self._database.run(outbox.lease(self._label, _BATCH, token, self._lease))
        if not events:
            return self._idle
        task = asyncio.get_running_loop().create_task(self._serve(round, events, token))
        self._rounds[task] = round
        task.add_done_callback(self._rounds.pop)
        await asyncio.wait([task], timeout=_MARK_INTERVAL)
        return timedelta(0)

    async def close(self) -> None:
        """Close the sink if it can be closed. Its failure does not stop the shutdown."""
        close = getattr(self._sink, "close", None)
        if close is None:
            return
        try:
            async with asyncio.timeout(shutdown_timeouts.SINKS):
                await close()
        except Exception as error:  # noqa: BLE001 - the user's sink
            _log.warning("sink not closed: '%s': %s", self._label, reason_text(error))

    def _end_rounds(self) -> None:
        for round in self._rounds.values():
            round.end()

    async def _serve(self, round: _Round, events: Sequence[Leased], token: int) -> None:
        """Publish a round, and mark its results while it runs."""
        publishing = asyncio.get_running_loop().create_task(round.publish(events))
        try:
            is_done = False
            while not is_done:
                await asyncio.wait([publishing], timeout=_MARK_INTERVAL)
                is_done = publishing.done()
                if marks := round.take_marks():
                    if any(mark.verdict == "published" for mark in marks):
                        self._accepted_at = time.monotonic()
                    await self._database.run_in_transaction(outbox.mark(self._label, marks, token))
                    self._report(marks)
            publishing.result()
        except Exception as error:  # noqa: BLE001 - the next tick raises it
            self._error = error
            self.wake()
        finally:
            publishing.cancel()
            await asyncio.wait([publishing])
        self._pause_after(round)

    def _pause_after(self, round: _Round) -> None:
        if round.accepted:
            self._failures = 0
            if self._is_logged:
                self._is_logged = False
                _log.info("sink available again: '%s'", self._label)
        # A sink that hangs on the events of this round may have accepted those of others in the meantime.
        is_accepting = round.accepted or self._accepted_at > round.began
        if round.unavailable is None and (is_accepting or round.error is None):
            return
        self._failures += 1
        if not round.accepted and not self._is_logged:
            self._is_logged = True
            _log.warning(
                "sink unavailable: '%s' (%s); retrying with backoff",
                self._label,
                round.error,
            )
        # A Retry-After does not grow with failures: it may concern one event, and all events wait for it.
        seconds = _retry_after(round.unavailable) * random.uniform(1, 1.1)
        if not seconds:
            longest = _LONGEST_PAUSE_AFTER_ERRORS if round.unavailable is None else _LONGEST_PAUSE
            seconds = backoff_seconds(self._failures - 1, base=1.0, cap=longest)
        self._paused_until = time.monotonic() + seconds

    def _report(self, marks: Sequence[Mark]) -> None:
        published = sum(1 for mark in marks if mark.verdict == "published")
        failed = [mark for mark in marks if mark.verdict == "again"]
        dead = [mark for mark in marks if mark.verdict == "dead"]
        if published:
            self._telemetry.emit(OutboxPublished(count=published, sink=self._label))
        if failed:
            self._telemetry.emit(
                OutboxFailed(count=len(failed), sink=self._label, error=failed[0].error or "")
            )
        for mark in dead:
            _log.error(
                "dead letter: event %s for sink '%s': %s", mark.event.event_id, self._label, mark.error
            )
            self._telemetry.emit(
                OutboxDead(
                    id=mark.event.event_id, sink=self._label, type=mark.event.type, error=mark.error or ""
                )
            )


class _Round:
    """One leased batch: every event of it gets a mark.

    No request starts after a quarter of the lease, and none lasts beyond three quarters of it. So marks are written
    while the lease holds.
    """

    def __init__(self, sink: Sink, source: str, lease: timedelta) -> None:
        self._sink = sink
        self._source = source
        self.began = time.monotonic()
        self._starts_until = self.began + lease.total_seconds() / 4
        self._ends = self.began + lease.total_seconds() * 3 / 4
        self._marks: list[Mark] = []
        self.accepted = 0
        self.error: str | None = None
        """The first error that is not final."""
        self.unavailable: Exception | None = None
        """Why nothing more is sent in this round."""

    async def publish(self, events: Sequence[Leased]) -> None:
        """Publish these events, in order per stream."""
        streams: defaultdict[int, deque[Leased]] = defaultdict(deque)
        for event in events:
            streams[event.instance_id].append(event)
        if self._sink.batch == 1:
            await self._publish_streams(streams.values())
            return
        # Events that have failed go alone, so that new ones are never in a batch with them.
        failed = [stream for stream in streams.values() if stream[0].attempts > 0]
        fresh = deque(event for event in events if streams[event.instance_id][0].attempts == 0)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._publish_streams(failed))
            group.create_task(self._publish_batches(fresh))

    def take_marks(self) -> list[Mark]:
        """The marks since the last call."""
        marks, self._marks = self._marks, []
        return marks

    def end(self) -> None:
        """Send nothing more."""
        self._starts_until = 0.0

    @property
    def _is_over(self) -> bool:
        return self.unavailable is not None or time.monotonic() > self._starts_until

    async def _publish_streams(self, streams: Iterable[deque[Leased]]) -> None:
        waiting = deque(streams)

        async def serve() -> None:
            while waiting:
                await self._publish_stream(waiting.popleft())

        async with asyncio.TaskGroup() as group:
            for _ in range(min(_PARALLEL, len(waiting))):
                group.create_task(serve())

    async def _publish_stream(self, stream: deque[Leased]) -> None:
        """Publish the events of one instance in order; after a failure, delay the rest."""
        delay: timedelta | None = None
        while stream and delay is None and not self._is_over:
            delay = await self._publish_one(stream.popleft())
        self._release(stream, delay)

    async def _publish_one(self, event: Leased) -> timedelta | None:
        """Publish one event. Returns the delay of its retry if it failed."""
        try:
            await self._send([event])
        except Rejected as error:
            self._marks.append(Mark(event, "dead", reason_text(error)))
        except Exception as error:  # noqa: BLE001 - the user's sink: on any error the event is kept
            return self._fail(event, error)
        else:
            self._accept([event])
        return None

    async def _publish_batches(self, waiting: deque[Leased]) -> None:
        delays: dict[int, timedelta] = {}
        while waiting:
            batch = [waiting.popleft() for _ in range(min(self._sink.batch, len(waiting)))]
            await self._publish_batch(batch, delays)

    async def _publish_batch(self, batch: Sequence[Leased], delays: dict[int, timedelta]) -> None:
        """Publish a batch. After an error, halve it until the bad events are alone; after a timeout, do not.

        `delays` has the instances of which an event has failed: their later events are not sent.
        """
        behind = [event for event in batch if event.instance_id in delays]
        self._marks.extend(Mark(event, "released", delay=delays[event.instance_id]) for event in behind)
        events = [event for event in batch if event.instance_id not in delays]
        if self._is_over:
            self._release(events)
        elif len(events) == 1:
            if (delay := await self._publish_one(events[0])) is not None:
                delays[events[0].instance_id] = delay
        elif events:
            try:
                await self._send(events)
            except Exception as error:  # noqa: BLE001 - as above
                # After a timeout each half could take as long again. Next time all events go alone, in parallel.
                if _is_unavailable(error) or isinstance(error, TimeoutError) or self._is_over:
                    self._fail_all(events, error, delays)
                    return
                middle = len(events) // 2
                await self._publish_batch(events[:middle], delays)
                await self._publish_batch(events[middle:], delays)
            else:
                self._accept(events)

    def _fail_all(self, events: Sequence[Leased], error: Exception, delays: dict[int, timedelta]) -> None:
        """Fail the first event of each instance, and delay the rest: it is unknown which event caused the error."""
        for event in events:
            if event.instance_id in delays:
                self._marks.append(Mark(event, "released", delay=delays[event.instance_id]))
            else:
                delays[event.instance_id] = self._fail(event, error)

    def _fail(self, event: Leased, error: Exception) -> timedelta:
        """Mark a failed attempt. Returns the delay until the next one."""
        text = reason_text(error)
        self.error = self.error or text
        longest = _LONGEST_DELAY
        if _is_unavailable(error):
            # The sink is paused anyway. A shorter delay, so that events are not late when it is back.
            self.unavailable, longest = self.unavailable or error, _LONGEST_PAUSE
        seconds = backoff_seconds(event.attempts, base=1.0, cap=longest, jitter=(0.75, 1.25))
        delay = timedelta(seconds=max(seconds, _retry_after(error)))
        self._marks.append(Mark(event, "again", text, delay))
        return delay

    def _accept(self, events: Sequence[Leased]) -> None:
        self.accepted += len(events)
        self._marks.extend(Mark(event, "published") for event in events)

    def _release(self, events: Iterable[Leased], delay: timedelta | None = None) -> None:
        self._marks.extend(Mark(event, "released", delay=delay) for event in events)

    async def _send(self, events: Sequence[Leased]) -> None:
        left, task = self._ends - time.monotonic(), current_task()
        try:
            async with asyncio.timeout(left):
                await self._sink.publish([self._cloud_event(event) for event in events])
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:
            if is_task_cancelled(error, task):
                raise
            # SystemExit and the like count as a failure of the sink.
            raise as_exception(error) from error

    def _cloud_event(self, event: Leased) -> CloudEvent:
        return CloudEvent(
            id=event.event_id,
            source=self._source,
            type=event.type,
            subject=event.subject,
            time=event.created_at,
            data=msgspec.json.decode(event.data),
        )


def _is_unavailable(error: Exception) -> bool:
    """Whether the sink accepts no events at present."""
    return isinstance(error, SinkUnavailable | ConnectionError | socket.gaierror)


def _retry_after(error: Exception | None) -> float:
    """Return the seconds that the sink asks to wait."""
    asked = error.retry_after if isinstance(error, SinkUnavailable) else None
    return 0.0 if asked is None else min(_LONGEST_RETRY_AFTER, asked.total_seconds())


class _FunctionSink:
    """A function as a sink."""

    batch = 1

    def __init__(self, function: Callable[[CloudEvent], Awaitable[object] | object]) -> None:
        self._function = function
        # Daemon threads of its own: one that hangs delays neither other sinks nor the exit.
        self._threads = Threads(_THREADS)

    async def publish(self, events: Sequence[CloudEvent]) -> None:
        for event in events:
            result: Any
            if inspect.iscoroutinefunction(self._function):
                result = self._function(event)
            else:
                result = await self._threads.run(self._function, event)
            if inspect.isawaitable(result):
                await result


def sink_of(given: object, name: str) -> Sink:
    """Return the sink, or wrap a function as one."""
    if isinstance(given, Sink) and not inspect.isclass(given):
        return given
    if callable(given) and not inspect.isclass(given):
        return _FunctionSink(given)
    raise UsageError(
        f"sink '{name}' has type {type(given).__name__}, which cannot publish",
        "give an object with `batch` and `publish`, or a function of one event",
    )
