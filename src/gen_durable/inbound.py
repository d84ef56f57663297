"""An ASGI endpoint that turns CloudEvents and signed webhooks into signals.

    app = Inbound(client, secret="whsec_…")     # mount it in any ASGI application, or serve it as it is

    POST /                    a CloudEvent: subject is the correlation key, type the signal, data the payload
    POST /order:42/payment    a plain webhook: key and signal stand in the path, the body is the payload

The id of the event (or `webhook-id`) is the dedup key: what is delivered twice counts once, for as long as the instance
lives. After its end there is nobody to deliver to: 404.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import msgspec

from .async_client import AsyncClient
from .errors import CodecError, NoTargetError, UsageError
from .instance import DuplicateSignal
from .sinks.signing import SignatureError, checked_secret, verify

__all__ = ["Inbound"]

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_STRUCTURED: Final = "application/cloudevents+json"
_BATCHED: Final = "application/cloudevents-batch+json"
_JSON: Final = "application/json"


class _Refusal(Exception):  # noqa: N818 - an answer, not an error
    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status
        self.problem = problem


class _Incoming(msgspec.Struct, frozen=True):
    """What is to become a signal."""

    key: str
    name: str
    payload: Any
    dedup_key: str


class Inbound:
    """The endpoint. It needs an open client, and a secret by which it knows the senders.

    What comes twice counts once while the instance lives; after its end a redelivery is answered 404.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        secret: str | bytes | Iterable[str | bytes] | None,
        max_body: int = 2**20,
    ) -> None:
        """Say who may send.

        Args:
            client: delivers the signals.
            secret: that senders sign with (see `gen_durable.sinks.sign`); several while one is being changed. `None`
                lets everybody in: only behind something that has checked them already.
            max_body: larger requests are refused before they are read.
        """
        self._client = client
        secrets = [secret] if isinstance(secret, str | bytes) else list(secret or ())
        if secret is not None and not secrets:
            raise UsageError("there is no secret in secret=", "give one, or None to let everybody in")
        self._secrets = [checked_secret(one) for one in secrets]
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            raise UsageError(f"this endpoint got a connection of type {scope['type']}", "it speaks HTTP only")
        try:
            status, said = await self._answer(scope, receive)
        except _Refusal as refusal:
            status, said = refusal.status, {"error": refusal.problem}
        body = msgspec.json.encode(said)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, dict[str, Any]]:
        if scope["method"] != "POST":
            raise _Refusal(405, "only POST is understood here")
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        body = await self._body(headers, receive)
        if self._secrets:
            try:
                verify(self._secrets, headers, body)
            except SignatureError as error:
                raise _Refusal(401, str(error)) from None
        incoming = _read(_path(scope), headers, body, is_signed=bool(self._secrets))
        delivered, missing = 0, list[str]()
        for one in incoming:
            try:
                delivered += await self._deliver(one)
            except NoTargetError:
                missing.append(one.key)
        if missing:
            keys = ", ".join(repr(key) for key in missing[:10])
            raise _Refusal(
                404, f"nobody waits under {keys}; {len(incoming) - len(missing)} others are delivered"
            )
        return (202 if delivered else 200), {"delivered": delivered, "duplicates": len(incoming) - delivered}

    async def _body(self, headers: Mapping[str, str], receive: Receive) -> bytes:
        length = headers.get("content-length", "0")
        # Twelve digits are more than anybody may send, and less than Python refuses to read.
        if not (length.isascii() and length.isdigit() and len(length) <= 12) or int(length) > self._max_body:
            raise _Refusal(413, f"at most {self._max_body} bytes")
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Refusal(400, "the connection ended")
            body += message.get("body", b"")
            if len(body) > self._max_body:
                raise _Refusal(413, f"at most {self._max_body} bytes")
            if not message.get("more_body", False):
                return bytes(body)

    async def _deliver(self, incoming: _Incoming) -> bool:
        try:
            found = await self._client.signal(
                incoming.key, incoming.name, incoming.payload, dedup_key=incoming.dedup_key
            )
        except (UsageError, CodecError) as error:
            raise _Refusal(422, str(error)) from None
        return not isinstance(found, DuplicateSignal)


def _path(scope: Scope) -> list[str]:
    """The parts of the path below the place where this is mounted."""
    # As it was sent: in `path` an escaped slash of a key is a slash like any.
    raw: bytes | None = scope.get("raw_path")
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    parts = (
        path.split("/") if raw is None else map(unquote, raw.partition(b"?")[0].decode("latin-1").split("/"))
    )
    above = len([part for part in root.split("/") if part]) if root and path.startswith(root) else 0
    return [part for part in parts if part][above:]


def _read(path: list[str], headers: Mapping[str, str], body: bytes, *, is_signed: bool) -> list[_Incoming]:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if len(path) == 2:
        id = headers.get("webhook-id") or headers.get("ce-id")
        if not id:
            raise _Refusal(400, "there is no webhook-id to tell this message from others")
        return [_Incoming(path[0], path[1], _json(body), id)]
    if path:
        raise _Refusal(404, "post a CloudEvent to /, or a webhook to /KEY/SIGNAL")
    if kind == _BATCHED:
        events = _json(body)
        if not isinstance(events, list):
            raise _Refusal(400, "a batch is an array of CloudEvents")
        return [_from_cloud(event) for event in events]
    if kind == _STRUCTURED:
        return [_from_cloud(_json(body))]
    if "ce-specversion" in headers:
        if is_signed:
            # Whoever saw one could send it to another instance, or again under another id.
            raise _Refusal(415, f"attributes in headers are not signed; send {_STRUCTURED}")
        attributes = {name[3:]: unquote(value) for name, value in headers.items() if name.startswith("ce-")}
        if kind not in ("", _JSON):
            raise _Refusal(415, f"the data must be {_JSON}")
        return [_from_cloud({**attributes, "data": _json(body) if body else None})]
    raise _Refusal(415, f"send {_STRUCTURED}, or attributes as ce- headers")


def _from_cloud(event: Any) -> _Incoming:
    if not isinstance(event, dict) or event.get("specversion") != "1.0":
        raise _Refusal(400, "this is no CloudEvent 1.0")
    found: list[str] = []
    for name in ("id", "source", "type", "subject"):
        value = event.get(name)
        if not isinstance(value, str) or not value:
            raise _Refusal(400, f"the CloudEvent has no {name}")
        found.append(value)
    id, source, kind, subject = found
    if "data_base64" in event or not _is_json(event.get("datacontenttype")):
        raise _Refusal(415, "the data must be JSON, as data")
    # Ids are unique per source only.
    return _Incoming(subject, kind, event.get("data"), f"{source}#{id}")


def _is_json(content_type: object) -> bool:
    kind = str(content_type or _JSON).partition(";")[0].strip().lower()
    return kind == _JSON or kind.endswith("+json")


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        raise _Refusal(400, f"the body is no JSON: {error}") from None


async def _live(receive: Receive, send: Send) -> None:
    """Starts and stops with its server; the client is its owner's."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return
