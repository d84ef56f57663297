"""Server-sent events: topics are polled once for all readers, and not at all without readers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import httpx
import pytest

from gen_durable import AsyncClient
from gen_durable._db.failures import StatementError
from gen_durable._db.plan import Plan, Rows, Script, only
from gen_durable.dashboard import Dashboard
from gen_durable.dashboard.endpoints import endpoints
from gen_durable.dashboard.live import Live, TooManyStreamsError, topic, topics
from tests.dashboard.conftest import TOKEN_OF, http_as


async def events(site: str, topics: str) -> AsyncIterator[tuple[str, Any]]:
    headers = {"authorization": f"Bearer {TOKEN_OF['read']}"}
    async with (
        httpx.AsyncClient(timeout=20, headers=headers) as http,
        http.stream("GET", f"{site}/api/events?topics={topics}") as answer,
    ):
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        kind = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield kind, json.loads(line.removeprefix("data: "))


async def test_topic_is_sent_again_when_it_has_changed(site: str, client: AsyncClient) -> None:
    async with asyncio.timeout(15):
        seen = []
        stream = events(site, "queues")
        async for kind, message in stream:
            assert (kind, message["topic"]) == ("topic", "queues")
            seen.append({one["name"]: one["is_paused"] for one in message["data"]["queues"]})
            if len(seen) == 1:
                await client.pause_queue("mail")
            else:
                break
        await stream.aclose()  # type: ignore[attr-defined]
    assert seen == [{}, {"mail": True}]


@pytest.mark.parametrize(
    "wanted", ["", "nothing", "queues:mail", "queues," * 30, "queues%0Adata: x", "machine:"]
)
async def test_unknown_topics_are_refused(http: httpx.AsyncClient, wanted: str) -> None:
    answer = await http.get(f"/api/events?topics={wanted}")
    assert answer.status_code == 422


class _Reads:
    """Answers polls without a database, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    async def __call__(self, _: Plan[Any]) -> int:
        self.count += 1
        return self.count


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(topics, "counted", topics["queues"])

    @topic("counted", every=0.01)
    def _counted() -> Plan[Any]:
        rows: Rows = yield from only(Script(""))
        return rows


@pytest.mark.usefixtures("counted")
async def test_readers_share_one_poller_that_ends_with_the_last_one() -> None:
    reads = _Reads()
    live = Live(reads, 10)
    streams = [live.stream(["counted"], "ann") for _ in range(3)]
    for stream in streams:
        assert (await anext(stream)).startswith(b"retry")
    async with asyncio.timeout(5):
        messages = [await anext(stream) for stream in streams]
    assert all(b'"counted"' in message for message in messages)
    assert live.polled == ["counted"]
    for stream in streams:
        await stream.aclose()
    assert live.polled == []
    before = reads.count
    await asyncio.sleep(0.1)
    assert reads.count == before


@pytest.mark.usefixtures("counted")
async def test_slow_reader_gets_only_the_newest_message() -> None:
    live = Live(_Reads(), 10)
    stream = live.stream(["counted"], "ann")
    await anext(stream)
    await anext(stream)
    await asyncio.sleep(0.2)
    message = await anext(stream)
    assert message.count(b"event: ") == 1
    await stream.aclose()


@pytest.mark.usefixtures("counted")
async def test_topic_that_is_slow_to_read_is_polled_less_often() -> None:
    reads = _Reads()

    async def read_slowly(plan: Plan[Any]) -> int:
        await asyncio.sleep(0.05)
        return await reads(plan)

    live = Live(read_slowly, 10)
    stream = live.stream(["counted"], "ann")
    await anext(stream)
    await anext(stream)
    await asyncio.sleep(1)
    assert reads.count > 0
    # A single slow read does not count; after the second one, the pause is 5 s.
    assert reads.count <= 2
    await stream.aclose()


async def test_answer_that_is_slow_to_read_is_kept_longer(dashboard: Dashboard) -> None:
    made: list[str] = []

    async def read(name: str, seconds: float) -> None:
        made.append(name)
        await asyncio.sleep(seconds)

    for _ in range(2):
        for name, seconds in (("slow", 0.05), ("fast", 0)):
            await dashboard._board.shared(name, 0.01, partial(read, name, seconds))
        await asyncio.sleep(0.5)
    assert made == ["slow", "fast", "fast"]


async def test_streams_are_bounded() -> None:
    live = Live(_Reads(), 1)
    stream = live.stream(["queues"], "ann")
    await anext(stream)
    with pytest.raises(TooManyStreamsError):
        await anext(live.stream(["queues"], "ann"))
    await stream.aclose()
    await live.close()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StatementError("57P01", "terminating connection"), "down"),
        (StatementError("57014", "canceling statement due to statement timeout"), "problem"),
        (StatementError("22021", "invalid byte sequence"), "problem"),
        (RecursionError("hunter2"), "problem"),
    ],
)
@pytest.mark.usefixtures("counted")
async def test_poller_continues_after_an_error(error: Exception, kind: str) -> None:
    """Only an outage greys out the page. A bug is logged, and its text is not sent."""
    reads = _Reads()

    async def read(plan: Plan[Any]) -> int:
        if reads.count < 3:
            await reads(plan)
            raise error
        return await reads(plan)

    live = Live(read, 10)
    stream = live.stream(["counted"], "ann")
    seen = ""
    async with asyncio.timeout(5):
        async for message in stream:
            seen += message.decode()
            if "event: topic" in seen:
                break
    await stream.aclose()
    assert [line for line in seen.splitlines() if line.startswith("event: ")] == [
        f"event: {kind}",
        "event: topic",
    ]
    assert '"title":"' in seen
    assert "hunter2" not in seen


@pytest.mark.usefixtures("counted")
async def test_database_without_a_reply_counts_as_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection through a broken network is closed only after 20 s."""
    monkeypatch.setattr("gen_durable.dashboard.live._PATIENCE", 0.05)
    answers = asyncio.Event()
    reads = _Reads()

    async def read(plan: Plan[Any]) -> int:
        await answers.wait()
        return await reads(plan)

    live = Live(read, 10)
    stream = live.stream(["counted"], "ann")
    await anext(stream)
    async with asyncio.timeout(5):
        assert (await anext(stream)).startswith(b"event: down")
        answers.set()
        assert (await anext(stream)).startswith(b"event: topic")
    await stream.aclose()


async def test_name_of_a_topic_may_contain_a_comma(site: str) -> None:
    async with asyncio.timeout(15):
        stream = events(site, "machine:a%2Cb%2Bc,queues")
        seen = {message["topic"] for _, message in [await anext(stream), await anext(stream)]}
        await stream.aclose()  # type: ignore[attr-defined]
    assert seen == {"machine:a,b+c", "queues"}


async def test_tabs_share_the_answers_that_they_poll(
    dashboard: Dashboard, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gen_durable.dashboard.board._SHARED", 0.9)
    board = dashboard._board
    read, reads = board.read, []

    async def counted(plan: Any) -> Any:
        reads.append(plan)
        return await read(plan)

    monkeypatch.setattr(board, "read", counted)
    async with http_as(dashboard, "admin") as admin, http_as(dashboard, "read") as reader:
        for path in ("/api/instances?q=status:failed", "/api/schedules"):
            reads.clear()
            answers = await asyncio.gather(*[admin.get(path) for _ in range(10)])
            assert {answer.status_code for answer in answers} == {200}
            assert len({answer.content for answer in answers}) == 1
            assert len(reads) == 1
            assert (await reader.get(path)).status_code == 200
        reads.clear()
        await admin.get("/api/instances?q=status:done")
        await admin.post("/api/queues/mail/pause", json={})
        await admin.get("/api/instances?q=status:done")
        assert len(reads) >= 2  # a change is seen at once by its sender


def test_shared_answers_do_not_depend_on_the_user() -> None:
    assert [
        one.path for one in endpoints.values() if one.every and (one.takes_user or one.method != "GET")
    ] == []
