"""`HttpSink`: the three modes of CloudEvents, read by the official SDK."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from cloudevents.core.v1.event import CloudEvent as Theirs

from gen_durable import Rejected, SinkUnavailable
from gen_durable.errors import UsageError
from gen_durable.sinks import ForbiddenAddressError, HttpSink, HttpStatusError, verify
from tests.sinks.cloud_events import event
from tests.sinks.receiver import Receiver, Request, receiver

SECRET = "0123456789abcdef0123456789abcdef"


@pytest.fixture
async def there() -> AsyncIterator[Receiver]:
    async with receiver() as found:
        yield found


def as_they_read_it(request: Request) -> Theirs:
    found = from_http_event(HTTPMessage(headers=request.headers, body=request.body))
    assert isinstance(found, Theirs)
    return found


@pytest.mark.parametrize("mode", ["structured", "binary"])
async def test_cloudevents_sdk_reads_the_requests(there: Receiver, mode: Any) -> None:
    sink = HttpSink(there.url, mode=mode, private=True, headers={"authorization": "Bearer x"})
    sent = event(subject='order "42" ü %')
    await sink.publish([sent])
    await sink.close()
    (request,) = there.got
    theirs = as_they_read_it(request)
    assert theirs.get_id() == sent.id
    assert theirs.get_source() == sent.source
    assert theirs.get_type() == sent.type
    assert theirs.get_subject() == sent.subject
    assert theirs.get_time() == sent.time
    assert theirs.get_specversion() == "1.0"
    assert theirs.get_data() == sent.data
    assert (request.method, request.path) == ("POST", "/events")
    assert request.headers["authorization"] == "Bearer x"
    assert request.headers["host"] == f"127.0.0.1:{there.port}"


async def test_batch_is_one_request(there: Receiver) -> None:
    sink = HttpSink(there.url, mode="batch", private=True)
    assert sink.batch == 100
    await sink.publish([event(1), event(2)])
    await sink.close()
    (request,) = there.got
    assert request.headers["content-type"].startswith("application/cloudevents-batch+json")
    assert [one["id"] for one in json.loads(request.body)] == ["7:3:1", "7:3:2"]


async def test_requests_are_signed(there: Receiver) -> None:
    sink = HttpSink(there.url, secret=SECRET, private=True)
    await sink.publish([event()])
    await sink.close()
    (request,) = there.got
    assert verify(SECRET, request.headers, request.body) == "7:3:1"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, Rejected),
        (410, Rejected),
        (422, Rejected),
        (401, HttpStatusError),
        (404, HttpStatusError),
        (429, SinkUnavailable),
        (500, HttpStatusError),
        (503, SinkUnavailable),
    ],
)
async def test_status_codes(there: Receiver, status: int, error: type[Exception]) -> None:
    there.status = status
    sink = HttpSink(there.url, private=True)
    with pytest.raises(error, match=f"answered {status}"):
        await sink.publish([event()])
    await sink.close()


@pytest.mark.parametrize(("size", "connections"), [(0, 1), (1000, 1), (1_000_000, 3)])
async def test_connection_is_reused_unless_an_answer_is_large(
    there: Receiver, size: int, connections: int
) -> None:
    there.status, there.body = 200, b"x" * size
    sink = HttpSink(there.url, private=True)
    for n in range(3):
        await sink.publish([event(n)])
    await sink.close()
    assert there.connections == connections


async def test_different_batches_have_different_ids(there: Receiver) -> None:
    """Retries split batches; a receiver that deduplicates by webhook-id must not drop a different batch."""
    sink = HttpSink(there.url, mode="batch", private=True, secret=SECRET)
    for batch in ([1, 2, 3], [1, 2], [1], [1, 2]):
        await sink.publish([event(n) for n in batch])
    await sink.close()
    ids = [request.headers["webhook-id"] for request in there.got]
    assert ids[1] == ids[3]
    assert len(set(ids)) == 3
    assert ids[2] == event(1).id


async def test_requests_are_not_logged(there: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        sink = HttpSink(there.url, private=True)
        await sink.publish([event()])
        await sink.close()
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7),
        ("0", 0),
        ("Fri, 31 Dec 1999 23:59:59 GMT", 0),
        ("Fri, 31 Dec 1999 23:59:59 -0000", 0),
        ("soon", None),
        ("", None),
        ("-5", None),
        ("9" * 400, None),
        ("Mon, 01 Jan 99999999999999999 00:00:00 GMT", None),
    ],
)
async def test_retry_after_is_passed_on(there: Receiver, header: str, seconds: int | None) -> None:
    there.status, there.more = 429, f"retry-after: {header}\r\n"
    sink = HttpSink(there.url, private=True)
    with pytest.raises(SinkUnavailable) as caught:
        await sink.publish([event()])
    await sink.close()
    assert caught.value.retry_after == (None if seconds is None else timedelta(seconds=seconds))


async def test_unreachable_receiver_is_unavailable() -> None:
    sink = HttpSink("http://127.0.0.1:1/", private=True)
    with pytest.raises(SinkUnavailable, match=r"ConnectError"):
        await sink.publish([event()])
    await sink.close()


async def test_redirects_are_not_followed(there: Receiver) -> None:
    there.status, there.more = 307, f"location: {there.url}/elsewhere\r\n"
    sink = HttpSink(there.url, private=True)
    with pytest.raises(HttpStatusError, match="answered 307"):
        await sink.publish([event()])
    await sink.close()
    assert len(there.got) == 1


async def test_request_times_out(there: Receiver) -> None:
    there.delay = 5
    sink = HttpSink(there.url, private=True, timeout=timedelta(milliseconds=200))
    with pytest.raises(TimeoutError):
        await sink.publish([event()])
    await sink.close()


async def test_private_addresses_are_refused_before_sending(there: Receiver) -> None:
    sink = HttpSink(there.url)
    with pytest.raises(ForbiddenAddressError):
        await sink.publish([event()])
    assert not there.got


async def test_checked_address_is_used_for_the_connection(
    there: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding has no effect: the name is resolved once."""
    asked: list[str] = []

    async def once(host: str, port: int, *, private: bool) -> str:
        asked.append(host)
        return "127.0.0.1"

    monkeypatch.setattr("gen_durable.sinks.http.resolve", once)
    sink = HttpSink(f"http://no.such.host.invalid:{there.port}/events")
    await sink.publish([event()])
    await sink.close()
    assert asked == ["no.such.host.invalid"]
    assert there.got[0].headers["host"] == f"no.such.host.invalid:{there.port}"


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("ftp://host/x", {}, "cannot be read"),
        ("nonsense", {}, "cannot be read"),
        ("http://x:99999/", {}, "cannot be read"),
        ("http://[::1", {}, "cannot be read"),
        ("http://a b/", {}, "cannot be read"),
        ("https://user:pw@host/x", {}, "at host contains a user name or password"),
        (
            "https://host/x",
            {"headers": {"authorization": "Bearer x\r\n"}},
            "header 'authorization' has characters",
        ),
        (
            "https://host/x",
            {"headers": {"authorization": "Bearer x "}},
            "header 'authorization' begins or ends with a space",
        ),
        (
            "https://host/x",
            {"headers": {"authorization": "\tBearer x"}},
            "header 'authorization' begins or ends with a space",
        ),
        ("https://host/x", {"headers": {"x y": "Bearer x"}}, "'x y' is not the name of a header"),
        ("https://host/x", {"mode": "loud"}, "there is no mode 'loud'"),
        ("https://host/x", {"secret": "short"}, "too short"),
    ],
)
def test_invalid_configuration_is_refused(url: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        HttpSink(url, **options)


TOKEN = "s3cr3t-t0ken"


@pytest.mark.parametrize(
    "url",
    [
        f"ftp://{TOKEN}@host/x",
        f"https://user:{TOKEN}@host/x",
        f"https://{TOKEN}@host/x",
        f"https://user:{TOKEN}#1@host:1/x",
        f"https://host:{TOKEN}/x",
        f"https://host/ {TOKEN}",
        f"//{TOKEN}",
    ],
)
def test_refused_url_is_not_shown(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        HttpSink(url)
    assert TOKEN not in f"{caught.value} {caught.value!r} {caught.value.__context__!r}"


@pytest.mark.parametrize("rest", [f"services/T0/B0/{TOKEN}", f"hook?token={TOKEN}", f"?{TOKEN}", f"#{TOKEN}"])
async def test_tokens_in_a_url_are_never_shown(
    there: Receiver, rest: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    seen = []
    for url, status in (
        (f"http://127.0.0.1:{there.port}/{rest}", 410),
        (f"http://127.0.0.1:{there.port}/{rest}", 500),
        (f"http://127.0.0.1:{there.port}/{rest}", 503),
        (f"http://127.0.0.1:1/{rest}", 0),
    ):
        there.status = status
        sink = HttpSink(url, private=True, headers={"authorization": f"Bearer {TOKEN}"}, secret=TOKEN * 2)
        with pytest.raises(Exception, match="http://127") as caught:
            await sink.publish([event()])
        await sink.close()
        seen += [repr(sink), str(sink), repr(caught.value)]
        seen += [str(caught.value), repr(caught.value.__cause__)]
    assert TOKEN not in " ".join([*seen, caplog.text])
    assert "http://127.0.0.1:1/" in " ".join(seen), "which receiver it was is shown"
