"""Webhook signatures by the Standard Webhooks specification: HMAC-SHA256 over id, timestamp and body.

The URL is not signed. A signature with a secret of `bound_secret` is valid for one target only.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import time
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import quote

from ..errors import GenDurableError, UsageError

__all__ = ["SignatureError", "bound_secret", "checked_secret", "sign", "verify"]

ID: Final = "webhook-id"
TIMESTAMP: Final = "webhook-timestamp"
SIGNATURE: Final = "webhook-signature"
TOLERANCE: Final = 300
"""Seconds by which the clocks of sender and receiver may differ."""
_PREFIX: Final = "whsec_"
_MIN_BYTES: Final = 16
# Id, time and body are signed with dots between them. With such an id `evt.100.200.{}` is ambiguous, and a message
# could be replayed as another one.
_DOT_AND_DIGITS: Final = re.compile(r"\.\d+(?:\.|\Z)", re.ASCII)


class SignatureError(GenDurableError):
    """A signature is missing, does not match, or its timestamp is too old."""

    problem: str

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"signature refused: {self.problem}"


def checked_secret(secret: str | bytes) -> bytes:
    """Return the key of a secret: bytes, text, or base64 after `whsec_`."""
    if isinstance(secret, bytes):
        key = secret
    elif secret.startswith(_PREFIX):
        try:
            key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            raise UsageError("a secret that begins with whsec_ is not base64", "copy it completely") from None
    else:
        key = secret.encode()
    if len(key) < _MIN_BYTES:
        raise UsageError(
            f"a secret of {len(key)} bytes is too short",
            f"give at least {_MIN_BYTES}: secrets.token_urlsafe(32)",
        )
    return key


def bound_secret(secret: str | bytes, key: str, signal: str) -> str:
    """Derive the secret for webhooks to `/KEY/SIGNAL` of `Inbound`. Its signatures are valid for this target only.

    It is the HMAC-SHA256, keyed with the secret of the endpoint, of `gen_durable.signal:KEY/SIGNAL`, both
    percent-encoded, in the form `whsec_…`. The sender uses it as any Standard Webhooks secret, and does not know that
    of the endpoint.
    """
    target = f"gen_durable.signal:{_quoted(key)}/{_quoted(signal)}"
    derived = hmac.new(checked_secret(secret), target.encode(), hashlib.sha256).digest()
    return _PREFIX + base64.b64encode(derived).decode()


def sign(secret: str | bytes, id: str, body: bytes, *, at: int | None = None) -> dict[str, str]:
    """Return the signature headers of a message.

    Args:
        secret: at least 16 bytes; text that begins with `whsec_` is base64.
        id: the id of the message, for deduplication.
        body: the body that is sent.
        at: the time in seconds; default: now.

    Raises:
        UsageError: the secret is too short, or the id has a dot followed by digits, which is ambiguous with the
            timestamp.
    """
    if _DOT_AND_DIGITS.search(id):
        raise UsageError(
            f"the id {id!r} has a dot followed by digits, which is ambiguous with the timestamp",
            "use another separator",
        )
    moment = int(time.time()) if at is None else at  # noqa: TID251 - the receiver compares it with its own clock
    return {
        ID: id,
        TIMESTAMP: str(moment),
        SIGNATURE: f"v1,{_digest(checked_secret(secret), id, moment, body)}",
    }


def verify(
    secrets: str | bytes | Iterable[str | bytes],
    headers: Mapping[str, str],
    body: bytes,
    *,
    now: int | None = None,
) -> str:
    """Check the signature of a message and return its id.

    Args:
        secrets: one secret, or several during a rotation; any of them is accepted.
        headers: the headers, names in lower case.
        body: the body as received.
        now: the time in seconds; default: now.

    Raises:
        SignatureError: the signature is missing, does not match, or is more than five minutes from now.
    """
    keys = [secrets] if isinstance(secrets, str | bytes) else list(secrets)
    id, moment, given = headers.get(ID), headers.get(TIMESTAMP), headers.get(SIGNATURE)
    if not id or not moment or not given:
        raise SignatureError(f"send the headers {ID}, {TIMESTAMP} and {SIGNATURE}")
    if _DOT_AND_DIGITS.search(id):
        raise SignatureError(f"{ID} has a dot followed by digits, which is ambiguous with the timestamp")
    if not moment.isascii() or not moment.isdigit() or len(moment) > 12:
        raise SignatureError(f"{TIMESTAMP} is not a time in seconds")
    current = int(time.time()) if now is None else now  # noqa: TID251 - as above
    if abs(current - int(moment)) > TOLERANCE:
        raise SignatureError(f"{TIMESTAMP} is more than {TOLERANCE} seconds from now")
    claims = [part.partition(",")[2] for part in given.split(" ") if part.startswith("v1,")]
    for key in keys:
        wanted = _digest(checked_secret(key), id, int(moment), body)
        if any(hmac.compare_digest(wanted.encode(), claim.encode()) for claim in claims):
            return id
    raise SignatureError("it does not match body, id and timestamp with the secret of this target")


def _quoted(part: str) -> str:
    # A path may contain a lone surrogate; the endpoint refuses it later, with an HTTP status.
    return quote(part, safe="", errors="surrogatepass")


def _digest(key: bytes, id: str, moment: int, body: bytes) -> str:
    signed = hmac.new(key, f"{id}.{moment}.".encode() + body, hashlib.sha256)
    return base64.b64encode(signed.digest()).decode()
