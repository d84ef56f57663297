"""What comes in from outside becomes a signal, once, and only from those who know the secret."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest

from gen_durable import Await, CloudEvent, Context, Done, Machine, Outcome, Signal, step
from gen_durable.inbound import Inbound
from gen_durable.sinks import sign
from gen_durable.testing import AsyncHarness

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
    **headers: str,
) -> httpx.Response:
    text = body if isinstance(body, bytes) else msgspec.json.encode(body)
    signed = sign(SECRET, "msg-1", text)
    return await door.post(path, content=text, headers={"content-type": kind, **signed, **headers})


async def test_a_cloud_event_becomes_a_signal_and_counts_once(
    async_durable: AsyncHarness, door: httpx.AsyncClient
) -> None:
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


async def test_binary_mode_where_nobody_signs(async_durable: AsyncHarness) -> None:
    await async_durable.insert(Order, correlation_key="order:42")
    transport = httpx.ASGITransport(app=Inbound(async_durable, secret=None))
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as door:
        answer = await post(door, {"amount": 1}, kind="application/json", **BINARY)
    assert answer.status_code == 202


async def test_what_is_not_signed_decides_nothing(door: httpx.AsyncClient) -> None:
    """A signature covers the body: whoever saw a request could else send it on to another instance."""
    answer = await post(door, {"amount": 1}, kind="application/json", **BINARY)
    assert (answer.status_code, "not signed" in answer.text) == (415, True)


async def test_batches(async_durable: AsyncHarness, door: httpx.AsyncClient) -> None:
    batch = await post(door, [event(id="2"), event(id="3")], kind=BATCH)
    assert batch.json() == {"delivered": 2, "duplicates": 0}


async def test_whom_nobody_knows_does_not_keep_others_of_the_batch(
    async_durable: AsyncHarness, door: httpx.AsyncClient
) -> None:
    events = [event(id="1"), event(id="2", subject="nobody"), event(id="3")]
    first = await post(door, events, kind=BATCH)
    assert (first.status_code, "'nobody'; 2 others" in first.text) == (404, True)
    await async_durable.insert(Order, correlation_key="nobody")
    again = await post(door, events, kind=BATCH)
    assert (again.status_code, again.json()) == (202, {"delivered": 1, "duplicates": 2})


async def test_a_plain_webhook_says_whom_in_its_path(door: httpx.AsyncClient) -> None:
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
async def test_what_does_not_belong_here_is_refused(
    door: httpx.AsyncClient, body: Any, options: dict[str, str], status: int
) -> None:
    answer = await post(door, body, **options)
    assert answer.status_code == status, answer.text
    assert "error" in answer.json()


@pytest.mark.parametrize("key", ["a/b", "a%41", "100%", "ü", "a b?c"])
async def test_a_key_of_any_characters_can_be_said_in_the_path(
    async_durable: AsyncHarness, door: httpx.AsyncClient, key: str
) -> None:
    ref = await async_durable.insert(Order, correlation_key=key)
    await async_durable.drain()
    path = f"/{quote(key, safe='')}/order.paid"
    assert (await post(door, {"amount": 5}, path=path, kind="application/json")).status_code == 202
    await async_durable.drain()
    assert async_durable.assert_done(ref) == {"amount": 5}


@pytest.mark.parametrize("length", ["²", "9" * 5000, "-1", "x", "10001"])
async def test_a_length_that_is_none_is_refused(async_durable: AsyncHarness, length: str) -> None:
    app, told = Inbound(async_durable, secret=None, max_body=10_000), []

    async def nothing() -> dict[str, Any]:
        raise AssertionError("it is refused before it is read")

    async def tell(message: Any) -> None:
        told.append(message)

    headers = [(b"content-length", length.encode("latin-1"))]
    await app({"type": "http", "method": "POST", "path": "/", "headers": headers}, nothing, tell)
    assert told[0]["status"] == 413


async def test_only_posts_are_taken(door: httpx.AsyncClient) -> None:
    assert (await door.get("/")).status_code == 405
