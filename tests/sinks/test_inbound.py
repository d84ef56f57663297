"""`Inbound`: messages become signals, once, and only with a valid signature."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote

import httpx
import msgspec
import pytest

from gen_durable import (
    AsyncClient,
    Await,
    CloudEvent,
    Context,
    Done,
    Event,
    Machine,
    Outcome,
    Signal,
    Spec,
    Status,
    Worker,
    step,
)
from gen_durable._db.failures import StatementError
from gen_durable.errors import NotConnectedError, UnreachableError
from gen_durable.inbound import Inbound
from gen_durable.sinks import HttpSink, bound_secret, sign
from gen_durable.testing import AsyncHarness
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE

SECRET = "0123456789abcdef0123456789abcdef"
OTHER = "another secret, long enough"


class Order(Machine[None, dict[str, Any]]):
    paid = Signal("order.paid", dict[str, Any])

    @step
    async def begin(self, ctx: Context[None]) -> Outcome:
        return Await(self.paid, then=self.end)

    @step
    async def end(self, ctx: Context[None]) -> Outcome[dict[str, Any]]:
        return Done(ctx.awaited.get(self.paid) or {})


@pytest.fixture
async def door(async_durable: AsyncHarness) -> AsyncIterator[httpx.AsyncClient]:
    await async_durable.insert(Order, correlation_key="order:42")
    await async_durable.drain()
    app = Inbound(async_durable, secret=[OTHER, SECRET], max_body=10_000)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        yield client


def event(**changes: Any) -> dict[str, Any]:
    plain = CloudEvent(
        id="7:1:1",
        source="/shop",
        type="order.paid",
        subject="order:42",
        time=datetime(2026, 1, 2, tzinfo=UTC),
        data={"amount": 100},
    ).structured()
    return {name: value for name, value in {**plain, **changes}.items() if value is not None}


async def post(
    door: httpx.AsyncClient,
    body: Any,
    path: str = "/",
    kind: str = "application/cloudevents+json",
    id: str = "msg-1",
    **headers: str,
) -> httpx.Response:
    text = body if isinstance(body, bytes) else msgspec.json.encode(body)
    parts = [unquote(part) for part in path.split("/") if part]
    signed = sign(bound_secret(SECRET, *parts) if len(parts) == 2 else SECRET, id, text)
    return await door.post(path, content=text, headers={"content-type": kind, **signed, **headers})


async def test_cloud_event_is_delivered_once(async_durable: AsyncHarness, door: httpx.AsyncClient) -> None:
    first, again = await post(door, event()), await post(door, event())
    assert (first.status_code, first.json()) == (202, {"delivered": 1, "duplicates": 0})
    assert (again.status_code, again.json()) == (200, {"delivered": 0, "duplicates": 1})
    await async_durable.drain()
    found = (await async_durable.list(Order))[0]
    assert found.result == {"amount": 100}


BINARY = {
    "ce-specversion": "1.0",
    "ce-id": "1",
    "ce-source": "/shop",
    "ce-type": "order.paid",
    "ce-subject": "order%3A42",
}
BATCH = "application/cloudevents-batch+json"


async def test_binary_mode_without_signatures(async_durable: AsyncHarness) -> None:
    await async_durable.insert(Order, correlation_key="order:42")
    transport = httpx.ASGITransport(app=Inbound(async_durable, secret=None))
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as door:
        answer = await post(door, {"amount": 1}, kind="application/json", **BINARY)
    assert answer.status_code == 202


async def test_unsigned_headers_are_refused(door: httpx.AsyncClient) -> None:
    """A signature covers the body only: otherwise an observer could resend a request to another instance."""
    answer = await post(door, {"amount": 1}, kind="application/json", **BINARY)
    assert (answer.status_code, "not signed" in answer.text) == (415, True)


async def test_batches(async_durable: AsyncHarness, door: httpx.AsyncClient) -> None:
    batch = await post(door, [event(id="2"), event(id="3")], kind=BATCH)
    assert batch.json() == {"delivered": 2, "duplicates": 0}


async def test_missing_target_does_not_block_its_batch(
    async_durable: AsyncHarness, door: httpx.AsyncClient
) -> None:
    events = [event(id="1"), event(id="2", subject="missing"), event(id="3")]
    first = await post(door, events, kind=BATCH)
    assert first.status_code == 404
    assert (
        "1 of 3 events were refused, the others are delivered: no instance has the key 'missing'"
        in first.text
    )
    await async_durable.insert(Order, correlation_key="missing")
    again = await post(door, events, kind=BATCH)
    assert (again.status_code, again.json()) == (202, {"delivered": 1, "duplicates": 2})


@pytest.mark.clause("EVT-13")
async def test_ended_target_answers_410(async_durable: AsyncHarness, door: httpx.AsyncClient) -> None:
    assert (await post(door, event(id="1"))).status_code == 202
    await async_durable.drain()
    answer = await post(door, event(id="2"))
    assert (answer.status_code, "retry-after" in answer.headers) == (410, False)
    assert "'order:42' has ended" in answer.text
    again = await post(door, event(id="1"))
    assert (again.status_code, again.json()) == (200, {"delivered": 0, "duplicates": 1}), "it was delivered"
    ref = await async_durable.insert(Order, correlation_key="order:50")
    await async_durable.drain()
    await async_durable.cancel(ref)
    await async_durable.soft_delete(ref)
    assert (await post(door, event(subject="order:50"))).status_code == 410


@pytest.mark.clause("EVT-13")
async def test_full_inbox_answers_429(async_durable: AsyncHarness, door: httpx.AsyncClient, db: Any) -> None:
    await db.execute(
        "insert into gen_durable.signals (target_id, name, payload)"
        " select id, 'x', '1' from gen_durable.gen_durable, generate_series(1, 10000)"
    )
    await db.execute(
        "update gen_durable.gen_durable set has_signals = true, inbox_count = 10000, inbox_bytes = 10000"
    )
    answer = await post(door, event())
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")


@pytest.mark.clause("EVT-13")
@pytest.mark.parametrize(
    "error",
    [
        StatementError("", "the connection was lost"),
        StatementError("57P01", "terminating connection"),
        StatementError("42501", "permission denied for function deliver"),
        StatementError("55000", 'database "shop" is not currently accepting connections'),
        UnreachableError("there", "no", "start it"),
        NotConnectedError("the client", "async with"),
    ],
)
async def test_unreachable_database_answers_503(
    async_durable: AsyncHarness, door: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(async_durable, "_receive", fail)
    answer = await post(door, [event(id="1"), event(id="2")], kind=BATCH)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


async def post_when_served(app: Inbound, path: str) -> list[Any]:
    """Start `app` like a server, post one webhook, stop it; return the lifespan messages and the answer."""
    sent: list[Any] = []
    orders: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    started = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message)
        started.set()

    serving = asyncio.create_task(app({"type": "lifespan"}, orders.get, send))
    await orders.put({"type": "lifespan.startup"})
    await asyncio.wait_for(started.wait(), PATIENCE.total_seconds())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://here") as client:
        sent.append(await client.post(path, content=b"{}", headers={"webhook-id": "1"}))
    await orders.put({"type": "lifespan.shutdown"})
    await asyncio.wait_for(serving, PATIENCE.total_seconds())
    return sent


async def test_standalone_endpoint_opens_and_closes_its_client(async_durable: AsyncHarness) -> None:
    order = await async_durable.insert(Order, correlation_key="order:42")
    client = AsyncClient(async_durable.dsn, settings=async_durable.settings)
    started, answer, stopped = await post_when_served(Inbound(client, secret=None), "/order:42/order.paid")
    assert (started["type"], stopped["type"]) == ("lifespan.startup.complete", "lifespan.shutdown.complete")
    assert answer.status_code == 202
    with pytest.raises(NotConnectedError):
        await client.get(order)


async def test_standalone_endpoint_keeps_an_open_client_open(async_durable: AsyncHarness) -> None:
    order = await async_durable.insert(Order, correlation_key="order:42")
    async with AsyncClient(async_durable.dsn, settings=async_durable.settings) as client:
        assert (await post_when_served(Inbound(client, secret=None), "/order:42/x"))[1].status_code == 202
        assert await client.get(order)


async def test_standalone_endpoint_fails_startup_without_database(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = AsyncClient("postgresql://app@127.0.0.1:1/nowhere")
    started, answer = await post_when_served(Inbound(client, secret=None), "/order:42/x")
    assert started["type"] == "lifespan.startup.failed"
    assert started["message"].startswith("UnreachableError: ")
    assert (answer.status_code, "not open" in answer.text) == (503, True)
    assert "this AsyncClient is not open; use it inside" in caplog.text


async def test_batch_answer_prefers_retryable_status(
    async_durable: AsyncHarness, door: httpx.AsyncClient
) -> None:
    await post(door, event(id="1"))
    await async_durable.drain()
    bad = event(id="2", type="x" * 300)
    gone, missing = event(id="3"), event(id="4", subject="missing")
    assert (await post(door, [gone, missing, bad], kind=BATCH)).status_code == 404
    assert (await post(door, [gone, bad], kind=BATCH)).status_code == 422
    assert (await post(door, [gone, gone], kind=BATCH)).status_code == 410


@pytest.mark.clause("EVT-13")
async def test_batch_size_is_bounded(async_durable: AsyncHarness) -> None:
    app = Inbound(async_durable, secret=None, max_events=3)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://here") as door:
        answer = await post(door, [event(id=str(n)) for n in range(4)], kind=BATCH)
    assert (answer.status_code, "4 events; send at most 3" in answer.text) == (413, True)


@pytest.mark.clause("EVT-11")
async def test_batch_of_fifty_with_three_ended_targets(durable_dsn: str) -> None:
    """Batches from the outbox to another machine: 47 events are delivered, 3 are dead letters."""

    class Caller(Machine[str]):
        @step
        async def call(self, ctx: Context[str]) -> Outcome:
            return Done(emit=Event("order.paid", {"amount": 1}, subject=ctx.state))

    keys = [f"order:{n}" for n in range(50)]
    async with Worker([Caller, Order], dsn=durable_dsn, settings=CALM) as worker:
        orders = await worker.insert_all([Spec(Order, correlation_key=key) for key in keys])
        for place in (7, 8, 30):
            await worker.cancel(orders[place])
        calls = await worker.insert_all([Spec(Caller, key) for key in keys])
        for call in calls:
            await worker.wait(call, timeout=PATIENCE)
        assert len(await worker.events(state="pending")) == 50
    sink = HttpSink("http://127.0.0.1/", mode="batch", secret=SECRET, private=True)
    async with Worker([Caller, Order], dsn=durable_dsn, sinks=sink, settings=CALM) as worker:
        sink._transport = httpx.ASGITransport(app=Inbound(worker, secret=SECRET))
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while await worker.events(state="pending"):
                await asyncio.sleep(0.05)
        dead = await worker.events(state="dead")
        assert sorted(event.subject for event in dead) == ["order:30", "order:7", "order:8"]
        assert {event.last_error for event in dead} == {"Rejected: http://127.0.0.1/ answered 410"}
        ended = [await worker.wait(order, timeout=PATIENCE) for order in orders]
    assert sum(order.status is Status.DONE for order in ended) == 47


async def signed_for(door: httpx.AsyncClient, secret: str, path: str, id: str = "msg-1") -> httpx.Response:
    body = b'{"amount": 5}'
    headers = {"content-type": "application/json", **sign(secret, id, body)}
    return await door.post(path, content=body, headers=headers)


@pytest.mark.clause("EVT-12")
async def test_signature_is_valid_for_its_target_only(
    async_durable: AsyncHarness, door: httpx.AsyncClient
) -> None:
    await async_durable.insert(Order, correlation_key="order:43")
    own = bound_secret(SECRET, "order:42", "order.paid")
    for path in ("/order%3A43/order.paid", "/order%3A42/order.refunded", "/order%3A42%2Forder.paid/x", "/"):
        assert (await signed_for(door, own, path)).status_code == 401, path
    plain = await signed_for(door, SECRET, "/order%3A42/order.paid")
    assert (plain.status_code, "sign with bound_secret" in plain.text) == (401, True)
    assert (await signed_for(door, own, "/order:42/order.paid")).status_code == 202
    assert (await signed_for(door, own, "/order%3A42/order.paid")).status_code == 200


@pytest.mark.clause("EVT-12")
async def test_id_is_deduplicated_across_targets(
    async_durable: AsyncHarness, door: httpx.AsyncClient
) -> None:
    await async_durable.insert(Order, correlation_key="order:43")
    webhook = {"kind": "application/json", "id": "msg-7"}
    assert (await post(door, {}, path="/order:42/order.paid", **webhook)).status_code == 202
    other = await post(door, {}, path="/order:43/order.paid", **webhook)
    assert (other.status_code, "delivered to another target" in other.text) == (409, True)
    assert (await post(door, {}, path="/order:42/order.refunded", **webhook)).status_code == 409
    assert (await post(door, event())).status_code == 202
    assert (await post(door, event(subject="order:43"))).status_code == 409
    # Ids are unique only per sender.
    theirs = bound_secret(OTHER, "order:43", "order.paid")
    assert (await signed_for(door, theirs, "/order:43/order.paid", "msg-7")).status_code == 202


async def test_same_id_of_two_sources_is_not_a_duplicate(door: httpx.AsyncClient) -> None:
    for source, id in (("/a", "b#1"), ("/a#b", "1"), ("/a%23b", "1")):
        assert (await post(door, event(source=source, id=id))).status_code == 202, (source, id)


async def test_webhook_cannot_occupy_the_id_of_a_cloud_event(
    async_durable: AsyncHarness, door: httpx.AsyncClient
) -> None:
    """A holder of a bound secret may guess the event ids of another sender."""
    await async_durable.insert(Order, correlation_key="order:43")
    webhook = await post(door, {}, path="/order:43/order.paid", kind="application/json", id="/shop#7:1:1")
    assert webhook.status_code == 202
    assert (await post(door, event())).status_code == 202


async def test_half_a_surrogate_pair_in_a_path_is_refused(async_durable: AsyncHarness) -> None:
    answers: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}"}

    async def send(message: Any) -> None:
        answers.append(message)

    headers = [(name.encode(), value.encode()) for name, value in sign(SECRET, "1", b"{}").items()]
    scope = {"type": "http", "method": "POST", "path": "/\udc80/paid", "headers": headers}
    await Inbound(async_durable, secret=SECRET)(scope, receive, send)
    assert answers[0]["status"] == 401


async def test_refused_message_does_not_occupy_its_id(
    async_durable: AsyncHarness, door: httpx.AsyncClient
) -> None:
    assert (await post(door, event(subject="order:43"))).status_code == 404
    assert (await post(door, event())).status_code == 202


@pytest.mark.clause("EVT-12")
async def test_concurrent_duplicates_are_delivered_once(durable_dsn: str) -> None:
    async with AsyncClient(durable_dsn) as client:
        keys = [f"order:{n}" for n in range(8)]
        await client.insert_all([Spec(Order, correlation_key=key) for key in keys])
        transport = httpx.ASGITransport(app=Inbound(client, secret=SECRET))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as door:
            for round in range(5):
                posts = [post(door, event(id=f"{round}", subject=key)) for key in keys]
                statuses = sorted([answer.status_code for answer in await asyncio.gather(*posts)])
                assert statuses == [202] + [409] * 7


async def test_webhook_path_names_key_and_signal(door: httpx.AsyncClient) -> None:
    answer = await post(door, {"amount": 5}, path="/order%3A42/order.paid", kind="application/json")
    assert answer.status_code == 202


@pytest.mark.parametrize(
    ("body", "options", "status"),
    [
        (event(subject="order:43"), {}, 404),
        (event(subject=None), {}, 400),
        (event(id=""), {}, 400),
        (event(specversion="0.3"), {}, 400),
        ([event()], {}, 400),
        (b"{", {}, 400),
        (b"[" * 5000, {}, 400),
        (event(data="x" * 20_000), {}, 413),
        (event(type="x" * 300), {}, 422),
        (event(data=None, data_base64="AAAA"), {}, 415),
        (event(data="<a/>", datacontenttype="text/xml"), {}, 415),
        (event(), {"kind": "text/plain"}, 415),
        (event(), {"path": "/a/b/c"}, 404),
        (event(), {"webhook-signature": "v1,AAAA"}, 401),
        (event(), {"webhook-timestamp": "1"}, 401),
    ],
)
async def test_invalid_requests_are_refused(
    door: httpx.AsyncClient, body: Any, options: dict[str, str], status: int
) -> None:
    answer = await post(door, body, **options)
    assert answer.status_code == status, answer.text
    assert "error" in answer.json()


@pytest.mark.parametrize("key", ["a/b", "a%41", "100%", "ü", "a b?c"])
async def test_key_with_special_characters_in_the_path(
    async_durable: AsyncHarness, door: httpx.AsyncClient, key: str
) -> None:
    ref = await async_durable.insert(Order, correlation_key=key)
    await async_durable.drain()
    path = f"/{quote(key, safe='')}/order.paid"
    assert (await post(door, {"amount": 5}, path=path, kind="application/json")).status_code == 202
    await async_durable.drain()
    assert async_durable.assert_done(ref) == {"amount": 5}


@pytest.mark.parametrize("length", ["²", "9" * 5000, "-1", "x", "10001"])
async def test_invalid_content_length_is_refused(async_durable: AsyncHarness, length: str) -> None:
    app, sent = Inbound(async_durable, secret=None, max_body=10_000), []

    async def nothing() -> dict[str, Any]:
        raise AssertionError("it is refused before it is read")

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-length", length.encode("latin-1"))]
    await app({"type": "http", "method": "POST", "path": "/", "headers": headers}, nothing, send)
    assert sent[0]["status"] == 413


async def test_only_post_is_allowed(door: httpx.AsyncClient) -> None:
    assert (await door.get("/")).status_code == 405
