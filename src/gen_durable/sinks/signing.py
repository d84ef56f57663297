"""Signatures of webhooks, as the Standard Webhooks describe them: HMAC-SHA256 over id, time and body.

The URL is not signed. A secret that is bound to a target (`bound_secret`) makes a signature valid for that target only.
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
_LEAST: Final = 16
# Id, time and body are signed with dots between them. With such an id, `evt.100.200.{}` has two readings, and a message
# could be sent again as another one.
_LIKE_A_TIME: Final = re.compile(r"\.\d+(?:\.|\Z)", re.ASCII)


class SignatureError(GenDurableError):
    """A signature is missing, does not match, or is too old."""

    problem: str

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return f"signature refused: {self.problem}"


def checked_secret(secret: str | bytes) -> bytes:
    """A key from what a user gives: bytes, text, or base64 after `whsec_`."""
    if isinstance(secret, bytes):
        key = secret
    elif secret.startswith(_PREFIX):
        try:
            key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            raise UsageError("a secret that begins with whsec_ is no base64", "copy it whole") from None
    else:
        key = secret.encode()
    if len(key) < _LEAST:
        raise UsageError(
            f"a secret of {len(key)} bytes is too short", f"give at least {_LEAST}: secrets.token_urlsafe(32)"
        )
    return key


def bound_secret(secret: str | bytes, key: str, signal: str) -> str:
    """Derive the secret for webhooks to `/KEY/SIGNAL` of `Inbound`: what it signs is valid for no other target.

    It is the HMAC-SHA256, under the endpoint's secret, of `gen_durable.signal:KEY/SIGNAL`, both percent-encoded, in the
    form `whsec_…`. The sender uses it as any secret of the Standard Webhooks, and need not know the endpoint's secret.
    """
    target = f"gen_durable.signal:{_quoted(key)}/{_quoted(signal)}"
    derived = hmac.new(checked_secret(secret), target.encode(), hashlib.sha256).digest()
    return _PREFIX + base64.b64encode(derived).decode()


def sign(secret: str | bytes, id: str, body: bytes, *, at: int | None = None) -> dict[str, str]:
    """The headers that prove that this body, under this id, was sent now by a holder of the secret.

    Raises:
        UsageError: the secret is too short, or the id has a dot and digits, which could be read as the time.
    """
    if _LIKE_A_TIME.search(id):
        raise UsageError(f"the id {id!r} has a dot and digits, like a signed time", "use another separator")
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
    """Check the headers of a message (names in lower case); its id.

    Several secrets: any of them will do, so that they can be changed without a break.

    Raises:
        SignatureError: it is not signed, not by one of these, or not within five minutes of now.
    """
    keys = [secrets] if isinstance(secrets, str | bytes) else list(secrets)
    id, moment, given = headers.get(ID), headers.get(TIMESTAMP), headers.get(SIGNATURE)
    if not id or not moment or not given:
        raise SignatureError(f"send the headers {ID}, {TIMESTAMP} and {SIGNATURE}")
    if _LIKE_A_TIME.search(id):
        raise SignatureError(f"{ID} has a dot and digits, like a signed time")
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
    raise SignatureError("it does not match this body, id and time under the secret of this target")


def _quoted(part: str) -> str:
    # A path may hold half of a surrogate pair. It is refused later, with an answer, as it is by every other verb.
    return quote(part, safe="", errors="surrogatepass")


def _digest(key: bytes, id: str, moment: int, body: bytes) -> str:
    signed = hmac.new(key, f"{id}.{moment}.".encode() + body, hashlib.sha256)
    return base64.b64encode(signed.digest()).decode()
