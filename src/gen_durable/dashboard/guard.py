"""What every request passes first: its host and origin are checked, and the answer gets security headers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .problems import Problem, answer

__all__ = ["LOOPBACK", "Guard"]

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_SAFE: Final = ("GET", "HEAD", "OPTIONS")
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Guard:
    """Refuse requests for other hosts (DNS rebinding) and changes from other sites."""

    def __init__(self, app: ASGIApp, allowed_hosts: Iterable[str] | None) -> None:
        self._app = app
        self._allowed = None if allowed_hosts is None else {host.lower() for host in allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        problem = self._problem(scope, Headers(scope=scope))
        app = self._app if problem is None else answer(problem)
        await app(scope, receive, send_guarded)

    def _problem(self, scope: Scope, headers: Headers) -> Problem | None:
        host = headers.get("host", "")
        if self._allowed is not None and _name(host) not in self._allowed:
            return Problem(
                status=421,
                title="This host is not allowed",
                detail=f"The request is for {host!r}.",
                fix="Use an allowed name, or add it: --allow-host NAME, create_app(allowed_hosts=…).",
            )
        origin = headers.get("origin")
        is_change = scope["method"] not in _SAFE
        if (origin is not None and (is_change or "/api/" in scope["path"])) and _site(origin) != host.lower():
            return Problem(
                status=403, title="The request comes from another site", detail=f"Its origin is {origin!r}."
            )
        if is_change and headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return Problem(status=403, title="The request comes from another site")
        return None


def _name(host: str) -> str:
    """Return a host without its port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _site(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""
