"""An ASGI endpoint that turns CloudEvents and signed webhooks into signals.

    app = Inbound(client, secret="whsec_…")     # mount it in an ASGI application, or serve it alone: uvicorn hooks:app

    POST /                    a CloudEvent: subject is the correlation key, type the signal, data the payload
    POST /order:42/payment    a plain webhook: key and signal are in the path, the body is the payload

A signature covers id, time and body. A CloudEvent names its target in the body, so it is signed with the secret itself;
a plain webhook is signed with `bound_secret(secret, "order:42", "payment")`, which is valid for that path only.

A message is deduplicated by the id of the event (or `webhook-id`), across all targets, for `retention_events` (7 days),
also after the instance has ended: a repeated message is answered 200, one with another target 409.

Answers: 202 delivered, 200 delivered before. 410: the instance has ended. 404: no instance has this key; it may not
have been inserted yet. 429 with Retry-After: its inbox is full. 503 with Retry-After: the database is unreachable. 400,
413, 415, 422: the request will never be accepted. All events of a batch are tried; if some can be retried, the answer
is that of those.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from ._asgi import (
    Endpoint,
    Receive,
    Refusal,
    Scope,
    Send,
    Unavailable,
    headers_of,
    path_of,
    send_json,
    unavailable,
)
from ._db.failures import StatementError
from .async_client import AsyncClient
from .errors import (
    CodecError,
    InboxFullError,
    MessageReusedError,
    NoTargetError,
    NotConnectedError,
    UnreachableError,
    UsageError,
)
from .sinks.signing import SignatureError, bound_secret, verify

__all__ = ["Inbound"]

_STRUCTURED: Final = "application/cloudevents+json"
_BATCHED: Final = "application/cloudevents-batch+json"
_JSON: Final = "application/json"


# Seconds. Short for a full inbox, because the sender may pause all messages to this endpoint.
_FULL_RETRY_AFTER: Final = 1
# Which status of its events a batch is answered with: those worth a retry of the whole batch first.
_ORDER: Final = (429, 404, 422, 409, 410)


class _Incoming(msgspec.Struct, frozen=True):
    """A message that is delivered as a signal."""

    key: str
    name: str
    payload: Any
    dedup_key: str


class Inbound(Endpoint):
    """An ASGI application that delivers CloudEvents and signed webhooks as signals.

        app.mount("/hooks", Inbound(client, secret="whsec_…"))

    Served alone, it opens its client when the server starts and closes it when the server stops. Mounted in another
    application, it needs an open client: `FastAPI(lifespan=client.lifespan)`.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        secret: str | bytes | Iterable[str | bytes] | None,
        max_body: int = 2**21,
        max_events: int = 1000,
    ) -> None:
        """Configure the endpoint.

        Args:
            client: delivers the signals.
            secret: the secret that senders sign with (see `gen_durable.sinks.sign` and `bound_secret`); several during
                a rotation. `None` accepts every request: use it only behind a proxy that authenticates senders.
            max_body: maximum size of a request in bytes; larger ones are answered 413 before they are read. The default
                has room for an event with the largest payload.
            max_events: maximum number of events of a batch; larger ones are answered 413.

        Raises:
            UsageError: a secret is too short, or the list of secrets is empty.
        """
        super().__init__(client, secret)
        self._max_body = max_body
        self._max_events = max_events

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            raise Refusal(405, "only POST is allowed")
        headers = headers_of(scope)
        body = await self._body(headers, receive)
        path = path_of(scope)
        sender = self._sender(headers, body, path) if self._secrets else ""
        incoming = _read(path, headers, body, is_signed=bool(self._secrets))
        if len(incoming) > self._max_events:
            raise Refusal(413, f"the batch has {len(incoming)} events; send at most {self._max_events}")
        delivered, refusals = 0, list[Refusal]()
        for one in incoming:
            try:
                delivered += await self._deliver(one, sender)
            except Unavailable:
                raise
            except Refusal as refusal:
                refusals.append(refusal)
        if refusals:
            raise _of_batch(refusals, len(incoming))
        content = {"delivered": delivered, "duplicates": len(incoming) - delivered}
        await send_json(send, 202 if delivered else 200, content)

    async def _body(self, headers: Mapping[str, str], receive: Receive) -> bytes:
        length = headers.get("content-length", "0")
        # 12 digits are above every limit, and int() refuses texts of more than 4300 digits.
        if not (length.isascii() and length.isdigit() and len(length) <= 12) or int(length) > self._max_body:
            raise Refusal(413, f"at most {self._max_body} bytes")
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refusal(400, "the connection ended")
            body += message.get("body", b"")
            if len(body) > self._max_body:
                raise Refusal(413, f"at most {self._max_body} bytes")
            if not message.get("more_body", False):
                return bytes(body)

    def _sender(self, headers: Mapping[str, str], body: bytes, path: list[str]) -> str:
        """Check the signature and return a mark of the secret: message ids are unique only per sender."""
        is_bound, problem = len(path) == 2, ""
        for secret in self._secrets:
            try:
                verify(bound_secret(secret, *path) if is_bound else secret, headers, body)
            except SignatureError as error:
                problem = str(error)
            else:
                # A separate mark, so that a holder of a bound secret cannot occupy the ids of CloudEvents.
                mark = b"gen_durable.webhook" if is_bound else b"gen_durable.sender"
                return hmac.new(secret, mark, hashlib.sha256).hexdigest()[:16]
        if is_bound:
            problem += "; sign with bound_secret(secret, key, signal) of this path"
        raise Refusal(401, problem)

    async def _deliver(self, incoming: _Incoming, sender: str) -> bool:
        """Deliver one signal; return whether it is new."""
        message_id = f"{sender}:{incoming.dedup_key}"
        try:
            try:
                return await self._client._receive(  # noqa: SLF001 - used by this module only
                    message_id, incoming.key, incoming.name, incoming.payload, incoming.dedup_key
                )
            except NoTargetError:
                raise await self._missing(incoming.key) from None
        except MessageReusedError as error:
            raise Refusal(409, str(error)) from None
        except InboxFullError as error:
            raise Refusal(429, str(error), retry_after=_FULL_RETRY_AFTER) from None
        except (UsageError, CodecError) as error:
            raise Refusal(422, str(error)) from None
        except (NotConnectedError, StatementError, UnreachableError) as error:
            raise unavailable(
                error, f"signal not delivered: {incoming.name!r} to {incoming.key!r}"
            ) from error

    async def _missing(self, key: str) -> Refusal:
        instance = await self._client.get(key, with_deleted=True)
        if instance is not None and (instance.status.is_terminal or instance.deleted_at is not None):
            return Refusal(410, f"the instance with the key {key!r} has ended")
        return Refusal(404, f"no instance has the key {key!r}")


def _of_batch(refusals: Sequence[Refusal], count: int) -> Refusal:
    """Return the answer for a request of which some events were refused."""
    if count == 1:
        return refusals[0]
    first = min(refusals, key=lambda refusal: _ORDER.index(refusal.status))
    problems = "; ".join(refusal.problem for refusal in refusals[:10])
    return Refusal(
        first.status,
        f"{len(refusals)} of {count} events were refused, the others are delivered: {problems}",
        retry_after=first.retry_after,
    )


def _read(path: list[str], headers: Mapping[str, str], body: bytes, *, is_signed: bool) -> list[_Incoming]:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if len(path) == 2:
        id = headers.get("webhook-id") or headers.get("ce-id")
        if not id:
            raise Refusal(400, "the header webhook-id is missing")
        return [_Incoming(path[0], path[1], _json(body), id)]
    if path:
        raise Refusal(404, "post a CloudEvent to /, or a webhook to /KEY/SIGNAL")
    if kind == _BATCHED:
        events = _json(body)
        if not isinstance(events, list):
            raise Refusal(400, "a batch is an array of CloudEvents")
        return [_from_cloud(event) for event in events]
    if kind == _STRUCTURED:
        return [_from_cloud(_json(body))]
    if "ce-specversion" in headers:
        if is_signed:
            # Headers are not signed: an observer could send the event to another instance or with another id.
            raise Refusal(415, f"CloudEvents attributes in headers are not signed; send {_STRUCTURED}")
        attributes = {name[3:]: unquote(value) for name, value in headers.items() if name.startswith("ce-")}
        if kind not in ("", _JSON):
            raise Refusal(415, f"the data must be {_JSON}")
        return [_from_cloud({**attributes, "data": _json(body) if body else None})]
    raise Refusal(415, f"send {_STRUCTURED}, or attributes as ce- headers")


def _from_cloud(event: Any) -> _Incoming:
    if not isinstance(event, dict) or event.get("specversion") != "1.0":
        raise Refusal(400, "this is not a CloudEvent 1.0")
    found: list[str] = []
    for name in ("id", "source", "type", "subject"):
        value = event.get(name)
        if not isinstance(value, str) or not value:
            raise Refusal(400, f"the CloudEvent has no {name}")
        found.append(value)
    id, source, kind, subject = found
    if "data_base64" in event or not _is_json(event.get("datacontenttype")):
        raise Refusal(415, "the data must be JSON, as data")
    # Ids are unique only per source. Escape # in the source, so the first # ends it.
    source = source.replace("%", "%25").replace("#", "%23")
    return _Incoming(subject, kind, event.get("data"), f"{source}#{id}")


def _is_json(content_type: object) -> bool:
    kind = str(content_type or _JSON).partition(";")[0].strip().lower()
    return kind == _JSON or kind.endswith("+json")


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, f"the body is not JSON: {error}") from None
