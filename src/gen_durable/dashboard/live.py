"""Live figures: one poller per topic, however many pages look at it, and nothing without readers.

`GET /api/events?topics=queues,machine:shop.checkout` streams topics as server-sent events. A topic is sent when it has
changed. LISTEN/NOTIFY is not used.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final

import msgspec

from .._db.plan import Plan
from .pace import Pace
from .problems import FAILED, problem_of
from .redaction import Redact, hide_secrets

__all__ = ["Live", "TooManyStreamsError", "Topic", "topic", "topics"]

_log: Final = logging.getLogger("gen_durable.dashboard")
_OUTAGE: Final = 503
# A comment on a silent stream, for proxies and to find readers that have gone.
_HEARTBEAT: Final = 15.0
# The longest time without an answer of the database before pages say so.
_PATIENCE: Final = 5.0
_RETRY: Final = 2000
_MAX_TOPICS: Final = 20
# Topics that are polled at a time: one of each instance on a page, and so on.
_MAX_FEEDS: Final = 500
# A stream ends after this time, and the page opens it again: then its login is checked again.
_MAX_SECONDS: Final = 3600.0


class TooManyStreamsError(Exception):
    """Too many streams are open."""


class Topic(msgspec.Struct, frozen=True):
    """Something that pages look at."""

    name: str
    every: float
    """Seconds between two polls, if they are fast."""
    plan: Callable[..., Plan[Any]]
    """Returns the plan of a poll. It gets the text after the colon, if the topic takes one."""
    takes: bool
    hide: Callable[[Any, Redact], Any] | None
    """Hides secrets in the answer of a poll."""


topics: Final[dict[str, Topic]] = {}
"""All topics by name."""


def topic(
    name: str, *, every: float, takes: bool = False, hide: Callable[[Any, Redact], Any] | None = None
) -> Callable[[Callable[..., Plan[Any]]], Callable[..., Plan[Any]]]:
    """Register a plan as a topic."""

    def register(plan: Callable[..., Plan[Any]]) -> Callable[..., Plan[Any]]:
        topics[name] = Topic(name, every, plan, takes, hide)
        return plan

    return register


class _Feed:
    """The poller of one topic. It runs while a stream reads it."""

    def __init__(self, text: str, topic: Topic, plan: Callable[[], Plan[Any]]) -> None:
        self.text = text
        self.topic = topic
        self.plan = plan
        self.readers: set[_Reader] = set()
        self.last: bytes | None = None
        self.task: asyncio.Task[None] | None = None


class _Reader:
    """One stream: what it has not sent yet, the newest message of each topic."""

    def __init__(self) -> None:
        self.pending: dict[str, bytes] = {}
        self.woken = asyncio.Event()

    def put(self, text: str, message: bytes) -> None:
        self.pending[text] = message
        self.woken.set()


class Live:
    """The pollers of one process."""

    def __init__(
        self,
        read: Callable[[Plan[Any]], Awaitable[Any]],
        max_streams: int,
        redact: Redact = hide_secrets,
    ) -> None:
        self._read = read
        self._redact = redact
        self._max_streams = max_streams
        self._streams: Counter[str] = Counter()
        self._has_ended = asyncio.Event()
        self._feeds: dict[str, _Feed] = {}

    @property
    def polled(self) -> list[str]:
        """The topics that are polled now."""
        return [*self._feeds]

    def end_streams(self) -> None:
        """End all streams: the server stops."""
        self._has_ended.set()
        for feed in self._feeds.values():
            for reader in feed.readers:
                reader.woken.set()

    async def close(self) -> None:
        """Stop all pollers."""
        tasks = [feed.task for feed in self._feeds.values() if feed.task is not None]
        self._feeds.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def check(self, wanted: list[str]) -> str:
        """Return what is wrong with the names of topics; empty if nothing is."""
        if not 1 <= len(wanted) <= _MAX_TOPICS:
            return f"give 1 to {_MAX_TOPICS} topics, got {len(wanted)}"
        for text in wanted:
            name, colon, rest = text.partition(":")
            if name not in topics:
                return f"there is no topic {name!r}; topics: {', '.join(sorted(topics))}"
            if topics[name].takes != bool(colon and rest):
                return f"the topic {name!r} takes {'a name: ' + name + ':…' if topics[name].takes else 'no name'}"
        return ""

    async def stream(self, wanted: list[str], user: str) -> AsyncGenerator[bytes]:
        """Yield the events of topics until the reader goes away. One user has at most half of all streams."""
        is_full = self._streams.total() >= self._max_streams or len(self._feeds) >= _MAX_FEEDS
        if is_full or self._streams[user] >= max(self._max_streams // 2, 1):
            raise TooManyStreamsError
        self._streams[user] += 1
        end = time.monotonic() + _MAX_SECONDS
        reader = _Reader()
        try:
            yield f"retry: {_RETRY}\n\n".encode()
            for text in dict.fromkeys(wanted):
                self._join(text, reader)
            while not self._has_ended.is_set() and time.monotonic() < end:
                try:
                    async with asyncio.timeout(_HEARTBEAT):
                        await reader.woken.wait()
                except TimeoutError:
                    yield b":\n\n"
                    continue
                reader.woken.clear()
                messages, reader.pending = reader.pending, {}
                yield b"".join(messages.values())
        finally:
            self._streams[user] -= 1
            self._streams += Counter()  # drops users without a stream
            for text in wanted:
                self._leave(text, reader)

    def _join(self, text: str, reader: _Reader) -> None:
        feed = self._feeds.get(text)
        if feed is None:
            name, _, rest = text.partition(":")
            found = topics[name]
            plan = (lambda: found.plan(rest)) if found.takes else found.plan
            feed = self._feeds[text] = _Feed(text, found, plan)
        feed.readers.add(reader)
        if feed.last is not None:
            reader.put(text, feed.last)
        if feed.task is None:
            feed.task = asyncio.get_running_loop().create_task(self._poll(feed))

    def _leave(self, text: str, reader: _Reader) -> None:
        feed = self._feeds.get(text)
        if feed is None:
            return
        feed.readers.discard(reader)
        if not feed.readers:
            del self._feeds[text]
            if feed.task is not None:
                feed.task.cancel()

    async def _poll(self, feed: _Feed) -> None:
        pace = Pace(feed.topic.every)
        while feed.readers:
            began = time.monotonic()
            message = await self._answer(feed)
            took = time.monotonic() - began
            self._put(feed, message)
            await asyncio.sleep(pace.next(took))

    async def _answer(self, feed: _Feed) -> bytes:
        """Wait for a poll. Pages learn after a while that it has no answer: a broken network is noticed late."""
        poll = asyncio.get_running_loop().create_task(self._message(feed))
        try:
            await asyncio.wait({poll}, timeout=_PATIENCE)
            if not poll.done():
                self._put(feed, _event("down", feed.text, f"no reply for {_PATIENCE:.0f} s"))
            return await poll
        finally:
            poll.cancel()

    def _put(self, feed: _Feed, message: bytes) -> None:
        if message != feed.last:
            feed.last = message
            for reader in feed.readers:
                reader.put(feed.text, message)

    async def _message(self, feed: _Feed) -> bytes:
        hide = feed.topic.hide
        try:
            found = await self._read(feed.plan())
            return _event("topic", feed.text, found if hide is None else hide(found, self._redact))
        except Exception as error:  # noqa: BLE001 - a poller that ends would leave its pages stale
            # Pages keep what they show, and grey it out in an outage. The next poll tries again.
            problem = problem_of(error)
            if problem is None:
                problem = FAILED
                if feed.last is None or not feed.last.startswith(b"event: problem"):
                    _log.exception("cannot poll the topic %s", feed.text)
            kind = "down" if problem.status == _OUTAGE else "problem"
            return _event(kind, feed.text, problem)


def _event(kind: str, text: str, data: Any) -> bytes:
    # JSON has no line breaks, so it is one line of data.
    return f"event: {kind}\ndata: ".encode() + msgspec.json.encode({"topic": text, "data": data}) + b"\n\n"
