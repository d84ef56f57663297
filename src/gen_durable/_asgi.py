"""What the ASGI endpoints share: requests, refusals, secrets, and the lifespan of their client."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import AsyncExitStack
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

import msgspec

from ._db.failures import StatementError, is_outage, is_race, is_repairable
from .async_client import AsyncClient
from .errors import NotConnectedError, UnreachableError, UsageError
from .sinks.signing import checked_secret

__all__ = [
    "Endpoint",
    "Receive",
    "Refusal",
    "Scope",
    "Send",
    "Unavailable",
    "headers_of",
    "path_of",
    "send_json",
    "unavailable",
]

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_log: Final = logging.getLogger("gen_durable.inbound")
_RETRY_AFTER: Final = 5


class Refusal(Exception):  # noqa: N818 - an answer, not an error
    """An answer with an error status."""

    def __init__(self, status: int, problem: str, *, retry_after: int | None = None) -> None:
        super().__init__(problem)
        self.status = status
        self.problem = problem
        self.retry_after = retry_after

    async def send(self, send: Send) -> None:
        """Send the answer."""
        retry = [] if self.retry_after is None else [(b"retry-after", str(self.retry_after).encode())]
        await send_json(send, self.status, {"error": self.problem}, retry)


class Unavailable(Refusal):
    """The request can be repeated later."""

    def __init__(self, problem: str = "the database is unreachable; retry") -> None:
        super().__init__(503, problem, retry_after=_RETRY_AFTER)


def unavailable(error: NotConnectedError | StatementError | UnreachableError, event: str) -> Unavailable:
    """Return the answer to an error of the database; log what an operator has to fix. Raise what no retry outlasts."""
    if isinstance(error, NotConnectedError):
        _log.error("%s: %s", event, error)
        return Unavailable("the client of this endpoint is not open; retry")
    if isinstance(error, StatementError) and not (is_outage(error) or is_race(error)):
        if not is_repairable(error):
            raise error
        _log.error("%s: %s", event, error)
    return Unavailable()


async def send_json(
    send: Send, status: int, content: object, more: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Send a complete answer."""
    body = msgspec.json.encode(content)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *more,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def headers_of(scope: Scope) -> Mapping[str, str]:
    """Return the headers of a request, names in lower case."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


def path_of(scope: Scope) -> list[str]:
    """Return the parts of the path below the mount point."""
    # raw_path: in `path` an escaped slash in a key cannot be distinguished from a separator.
    raw: bytes | None = scope.get("raw_path")
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    parts = (
        path.split("/") if raw is None else map(unquote, raw.partition(b"?")[0].decode("latin-1").split("/"))
    )
    above = len([part for part in root.split("/") if part]) if root and path.startswith(root) else 0
    return [part for part in parts if part][above:]


class Endpoint:
    """An ASGI application with a client and secrets. Subclasses answer one HTTP request as `_answer`."""

    def __init__(self, client: AsyncClient, secret: str | bytes | Iterable[str | bytes] | None) -> None:
        self._client = client
        secrets = [secret] if isinstance(secret, str | bytes) else list(secret or ())
        if secret is not None and not secrets:
            raise UsageError("secret= is empty", "give a secret, or None to accept every request")
        # None: every request is accepted.
        self._secrets = [checked_secret(one) for one in secrets]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _run_lifespan(self._client, receive, send)
            return
        if scope["type"] != "http":
            raise UsageError(f"this endpoint got a connection of type {scope['type']}", "use HTTP")
        try:
            await self._answer(scope, receive, send)
        except Refusal as refusal:
            await refusal.send(send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise NotImplementedError


async def _run_lifespan(client: AsyncClient, receive: Receive, send: Send) -> None:
    """Handle the ASGI lifespan: open the client at startup, unless its owner has opened it."""
    await receive()
    async with AsyncExitStack() as stack:
        if client._opened is None:  # noqa: SLF001 - used by the endpoints only
            try:
                await stack.enter_async_context(client)
            except Exception as error:  # noqa: BLE001 - servers ignore an exception of a lifespan
                await send({"type": "lifespan.startup.failed", "message": f"{type(error).__name__}: {error}"})
                return
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await send({"type": "lifespan.shutdown.complete"})
