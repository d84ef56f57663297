"""The dispatcher: publishes what commits have put into the outbox, one service per sink.

Events are leased, published outside of any transaction, and marked. Whoever dies in between leaves a lease that runs
out, and the event is published again under the same id: at least once, and in order per line (instance and sink).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import secrets
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import msgspec

from .._db import outbox
from .._db.outbox import Leased, Mark
from .._db.pool import Database
from ..errors import UsageError
from ..events import CloudEvent, Rejected, Sink
from ..outcome import reason_text
from ..telemetry import OutboxDead, OutboxFailed, OutboxPublished, Telemetry
from .executor import as_exception, current_task, is_ours
from .service import Contact, Service
from .threads import Threads

__all__ = ["Dispatcher", "sink_of"]

_log: Final = logging.getLogger("gen_durable.outbox")
_BATCH: Final = 200
# How many lines are published side by side, by a sink that takes one event at a time.
_ABREAST: Final = 16
# As many as are ever published at once, for a function that is no coroutine.
_THREADS: Final = _ABREAST
_LONGEST_DELAY: Final = 300.0
# Seconds that a sink has to give back its connections.
_FAREWELL: Final = 2.0


class Dispatcher(Service):
    """Publishes the events of one sink."""

    name = "dispatcher"

    def __init__(
        self,
        label: str,
        sink: Sink,
        *,
        source: str,
        most_attempts: int,
        lease: timedelta,
        idle: timedelta,
        database: Database,
        telemetry: Telemetry,
        contact: Contact,
    ) -> None:
        super().__init__(contact)
        self._label = label
        self._sink = sink
        self._source = source
        self._most_attempts = most_attempts
        self._lease = lease
        self._idle = idle
        self._database = database
        self._telemetry = telemetry
        # Rounds in a row that the sink has failed.
        self._failures = 0

    async def tick(self) -> timedelta:
        token = secrets.randbits(62)
        events = await self._database.run(outbox.lease(self._label, _BATCH, token, self._lease))
        if not events:
            return self._idle
        # Half of the lease: what has not been published by then is handed back while it is surely still ours.
        round = _Round(self._sink, self._source, self._most_attempts, self._lease / 2)
        marks = await round.publish(events)
        await self._database.run_in_transaction(outbox.mark(self._label, marks, token))
        self._tell(marks)
        if round.error is None:
            self._failures = 0
            return timedelta(0)
        self._failures += 1
        if self._failures == 1:
            _log.warning("sink '%s' fails (%s); trying again until it works", self._label, round.error)
        return timedelta(seconds=min(60.0, 2.0 ** min(self._failures, 6)) * random.uniform(0.5, 1))

    async def close(self) -> None:
        """Give back what the sink holds, if it holds anything. Whatever comes of that, the shutdown goes on."""
        close = getattr(self._sink, "close", None)
        if close is None:
            return
        try:
            async with asyncio.timeout(_FAREWELL):
                await close()
        except Exception as error:  # noqa: BLE001 - the user's sink
            _log.warning("sink '%s' did not close: %s", self._label, reason_text(error))

    def _tell(self, marks: Sequence[Mark]) -> None:
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
            _log.error("event %s is given up: %s", mark.event.event_id, mark.error)
            self._telemetry.emit(
                OutboxDead(
                    id=mark.event.event_id, sink=self._label, type=mark.event.type, error=mark.error or ""
                )
            )


class _Round:
    """One leased batch on its way out: a mark for each event, whatever happens."""

    def __init__(self, sink: Sink, source: str, most_attempts: int, budget: timedelta) -> None:
        self._sink = sink
        self._source = source
        self._most_attempts = most_attempts
        self._ends = time.monotonic() + budget.total_seconds()
        self._marks: list[Mark] = []
        # Why the sink is left alone for the rest of this round.
        self.error: str | None = None

    async def publish(self, events: Sequence[Leased]) -> list[Mark]:
        """Publish these, as far as the sink goes along."""
        if self._sink.batch > 1:
            await self._in_batches(deque(events))
        else:
            await self._in_lines(events)
        return self._marks

    async def _in_lines(self, events: Sequence[Leased]) -> None:
        lines: defaultdict[int, deque[Leased]] = defaultdict(deque)
        for event in events:
            lines[event.instance_id].append(event)
        waiting = deque(lines.values())

        async def serve() -> None:
            while waiting:
                line = waiting.popleft()
                while line:
                    await self._one(line)

        async with asyncio.TaskGroup() as group:
            for _ in range(min(_ABREAST, len(waiting))):
                group.create_task(serve())

    async def _one(self, line: deque[Leased]) -> None:
        """The head of a line; if it fails, the rest of the line waits with it."""
        if self.error is not None or time.monotonic() > self._ends:
            self._release(line)
            return
        head = line.popleft()
        try:
            await self._send([head])
        except Rejected as error:
            self._marks.append(Mark(head, "dead", reason_text(error)))
        except Exception as error:  # noqa: BLE001 - the user's sink: whatever it raises, the event is kept
            delay = self._fail(head, error)
            if delay is not None:
                self._release(line, delay)
        else:
            self._marks.append(Mark(head, "published"))

    async def _in_batches(self, waiting: deque[Leased]) -> None:
        while waiting:
            if self.error is not None or time.monotonic() > self._ends:
                self._release(waiting)
                return
            batch = [waiting.popleft() for _ in range(min(self._sink.batch, len(waiting)))]
            try:
                await self._send(batch)
            except Rejected:
                # One of them; alone, each shows whether it was that one.
                await self._in_lines(batch)
            except Exception as error:  # noqa: BLE001 - as above
                self._fail_all(batch, error)
            else:
                self._marks.extend(Mark(event, "published") for event in batch)

    def _fail_all(self, batch: Sequence[Leased], error: Exception) -> None:
        """Nobody knows which of them it was: the head of each line has failed, the rest waits with it."""
        delays: dict[int, timedelta | None] = {}
        for event in batch:
            if event.instance_id not in delays:
                delays[event.instance_id] = self._fail(event, error)
            else:
                self._marks.append(Mark(event, "released", delay=delays[event.instance_id]))

    def _fail(self, event: Leased, error: Exception) -> timedelta | None:
        """Not now. How long the event waits; `None` if it is given up."""
        text = reason_text(error)
        self.error = text
        if event.attempts + 1 >= self._most_attempts:
            self._marks.append(Mark(event, "dead", text))
            return None
        seconds = min(_LONGEST_DELAY, 2.0 ** min(event.attempts, 10)) * random.uniform(0.75, 1.25)
        delay = timedelta(seconds=seconds)
        self._marks.append(Mark(event, "again", text, delay))
        return delay

    def _release(self, events: deque[Leased], delay: timedelta | None = None) -> None:
        self._marks.extend(Mark(event, "released", delay=delay) for event in events)
        events.clear()

    async def _send(self, events: Sequence[Leased]) -> None:
        left, task = max(0.01, self._ends - time.monotonic()), current_task()
        try:
            async with asyncio.timeout(left):
                await self._sink.publish([self._dressed(event) for event in events])
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:
            if is_ours(error, task):
                raise
            # What would end a task or a process ends neither: the sink has failed.
            raise as_exception(error) from error

    def _dressed(self, event: Leased) -> CloudEvent:
        return CloudEvent(
            id=event.event_id,
            source=self._source,
            type=event.type,
            subject=event.subject,
            time=event.created_at,
            data=msgspec.json.decode(event.data),
        )


class _Calling:
    """A function as a sink."""

    batch = 1

    def __init__(self, function: Callable[[CloudEvent], Awaitable[object] | object]) -> None:
        self._function = function
        # Of its own, and daemons: one that hangs holds up neither other sinks nor the exit.
        self._threads = Threads(_THREADS)

    async def publish(self, events: Sequence[CloudEvent]) -> None:
        for event in events:
            said: Any
            if inspect.iscoroutinefunction(self._function):
                said = self._function(event)
            else:
                said = await self._threads.run(self._function, event)
            if inspect.isawaitable(said):
                await said


def sink_of(given: object, name: str) -> Sink:
    """A sink, or a function as one."""
    if isinstance(given, Sink) and not inspect.isclass(given):
        return given
    if callable(given) and not inspect.isclass(given):
        return _Calling(given)
    raise UsageError(
        f"sink '{name}' is of type {type(given).__name__}, which publishes nothing",
        "give an object with `batch` and `publish`, or a function of one event",
    )
