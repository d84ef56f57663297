"""Webhook signatures."""

from __future__ import annotations

import base64
import re

import pytest

from gen_durable.errors import UsageError
from gen_durable.sinks import SignatureError, bound_secret, sign, verify
from gen_durable.sinks.signing import _digest

SECRET = "0123456789abcdef0123456789abcdef"
BODY = b'{"x": 1}'
NOW = 1_700_000_000
# printf gen_durable.signal:order%%3A42/payment | openssl dgst -sha256 -hmac $SECRET -binary | base64
BOUND = "whsec_lWxmNQ9/Q7aa1AkjTRfmLlRpdHVtzuWH/Fh0I7k3p8E="


def test_signed_message_is_accepted() -> None:
    headers = sign(SECRET, "evt-1", BODY, at=NOW)
    assert verify(SECRET, headers, BODY, now=NOW + 299) == "evt-1"
    assert verify(["another secret of 16", SECRET], headers, BODY, now=NOW) == "evt-1"


def test_signature_matches_standard_webhooks() -> None:
    """A published example of Standard Webhooks."""
    headers = sign(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        b'{"test": 2432232314}',
        at=1614265330,
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"webhook-id": "evt-2"}, "does not match"),
        ({"webhook-timestamp": str(NOW + 1)}, "does not match"),
        ({"webhook-timestamp": "soon"}, "not a time in seconds"),
        ({"webhook-timestamp": "٣"}, "not a time in seconds"),
        ({"webhook-timestamp": "9" * 400}, "not a time in seconds"),
        ({"webhook-signature": ""}, "send the headers"),
        ({"webhook-signature": "v1,AAAA"}, "does not match"),
        ({"webhook-signature": "v1,é"}, "does not match"),
    ],
)
def test_changed_headers_are_refused(change: dict[str, str], says: str) -> None:
    headers = {**sign(SECRET, "evt-1", BODY, at=NOW), **change}
    with pytest.raises(SignatureError, match=says):
        verify(SECRET, headers, BODY, now=NOW)


@pytest.mark.parametrize("now", [NOW - 301, NOW + 301])
def test_timestamp_out_of_tolerance_is_refused(now: int) -> None:
    with pytest.raises(SignatureError, match="more than 300 seconds from now"):
        verify(SECRET, sign(SECRET, "evt-1", BODY, at=NOW), BODY, now=now)


def test_changed_body_is_refused() -> None:
    with pytest.raises(SignatureError):
        verify(SECRET, sign(SECRET, "evt-1", BODY, at=NOW), b"{}", now=NOW)


@pytest.mark.parametrize(
    "secret", ["short", b"short", "whsec_!!", "whsec_" + base64.b64encode(b"short").decode()]
)
def test_invalid_secret_is_refused(secret: str | bytes) -> None:
    with pytest.raises(UsageError):
        sign(secret, "evt-1", BODY)


def test_bound_secret_signs_like_any_secret() -> None:
    """A reference value for implementations in other languages."""
    bound = bound_secret(SECRET, "order:42", "payment")
    assert bound == BOUND
    assert verify(bound, sign(bound, "evt-1", BODY, at=NOW), BODY, now=NOW) == "evt-1"
    others = {
        bound_secret(SECRET, *target) for target in [("order:42/payment", "x"), ("order:4", "2/payment")]
    }
    assert len(others | {bound}) == 3


@pytest.mark.parametrize(
    ("id", "body"), [("evt-1", f"{NOW}.5"), ("evt-1", f"{NOW}.7.5"), (f"evt.{NOW}", "5")]
)
def test_id_ambiguous_with_the_timestamp_is_refused(id: str, body: str) -> None:
    """Id, time and body are signed with dots between them: `evt-1.100.200.5` is ambiguous."""
    moment = NOW - 100
    signature = f"v1,{_digest(SECRET.encode(), id, moment, body.encode())}"
    text = f"{id}.{moment}.{body}"
    for end, start in ((match.start(), match.end()) for match in re.finditer(rf"\.({NOW}|{moment})\.", text)):
        headers = {
            "webhook-id": text[:end],
            "webhook-timestamp": text[end + 1 : start - 1],
            "webhook-signature": signature,
        }
        if re.search(r"\.\d+(\.|$)", text[:end]):
            with pytest.raises(SignatureError, match="webhook-id"):
                verify(SECRET, headers, text[start:].encode(), now=NOW)
            with pytest.raises(UsageError, match="a dot and digits"):
                sign(SECRET, text[:end], b"")


def test_id_may_contain_dots() -> None:
    for id in ("evt.a.b", "1.2a", "évé.nement", "7:1:1"):
        assert verify(SECRET, sign(SECRET, id, BODY, at=NOW), BODY, now=NOW) == id
