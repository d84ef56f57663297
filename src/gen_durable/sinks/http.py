"""Events over HTTP: CloudEvents 1.0 in structured, binary or batch mode, signed, to an address that was checked."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import quote, urlsplit

import msgspec

from ..errors import UsageError
from ..events import CloudEvent, Rejected
from .addresses import resolve
from .extra import needs
from .signing import checked_secret, sign

if TYPE_CHECKING:
    import httpx

__all__ = ["HttpSink", "Mode"]

Mode: TypeAlias = Literal["structured", "binary", "batch"]

# These say that the event itself is at fault; everything else may be mended on either side.
_NEVER: Final = frozenset({400, 413, 415, 422})
_STRUCTURED: Final = "application/cloudevents+json; charset=utf-8"
_BATCHED: Final = "application/cloudevents-batch+json; charset=utf-8"
_BATCH: Final = 100
_MODES: Final = ("structured", "binary", "batch")


class HttpSink:
    """Posts events to a URL.

    2xx: taken. 400, 413, 415, 422: rejected for good. Anything else, redirects too, and a time without an answer: again
    later. The name of the host is resolved for every connection, addresses that are not public are refused, and the
    connection goes to the address that was checked.
    """

    def __init__(
        self,
        url: str,
        *,
        mode: Mode = "structured",
        secret: str | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: timedelta = timedelta(seconds=10),
        private: bool = False,
    ) -> None:
        """Say where, and how.

        Args:
            url: of the receiver, https or http.
            mode: one event per request, in its body (`structured`) or with its attributes as headers (`binary`); or
                up to 100 per request (`batch`).
            secret: sign every request (see `sign`); the receiver checks it with `verify`.
            headers: to send along, for example an authorization.
            timeout: of one request.
            private: whether it may go to addresses that are not public.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        is_odd = any(character.isspace() or not character.isprintable() for character in url)
        if parts.scheme not in ("http", "https") or not parts.hostname or is_odd:
            raise UsageError(f"{url!r} is no address for events", "give https://host/path")
        if parts.username is not None or parts.password is not None:
            raise UsageError("the URL of a sink has a password in it", "use headers= or secret=")
        if mode not in _MODES:
            raise UsageError(f"there is no mode {mode!r}", f"give one of {', '.join(_MODES)}")
        self.batch: int = _BATCH if mode == "batch" else 1
        self._httpx: Any = needs("httpx", "http")
        self._url = url
        self._host = parts.hostname
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._mode = mode
        self._secret = None if secret is None else checked_secret(secret)
        self._headers = dict(headers or {})
        self._timeout = timeout.total_seconds()
        self._private = private
        # Made on the loop that publishes.
        self._client: httpx.AsyncClient | None = None

    def __repr__(self) -> str:
        return f"HttpSink({self._url!r}, mode={self._mode!r})"

    async def publish(self, events: Sequence[CloudEvent]) -> None:
        if self._mode == "batch":
            body = msgspec.json.encode([event.structured() for event in events])
            await self._post(events[0].id, body, {"content-type": _BATCHED})
            return
        for event in events:
            if self._mode == "structured":
                body, headers = msgspec.json.encode(event.structured()), {"content-type": _STRUCTURED}
            else:
                body, headers = msgspec.json.encode(event.data), _binary_headers(event)
            await self._post(event.id, body, headers)

    async def close(self) -> None:
        """Give the connections back."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _post(self, id: str, body: bytes, headers: dict[str, str]) -> None:
        if self._client is None:
            self._client = self._httpx.AsyncClient(follow_redirects=False, trust_env=False, timeout=None)
        sent = {**self._headers, **headers}
        if self._secret is not None:
            sent |= sign(self._secret, id, body)
        async with asyncio.timeout(self._timeout):
            address = await resolve(self._host, self._port, private=self._private)
            url = self._httpx.URL(self._url)
            request = self._client.build_request(
                "POST",
                url.copy_with(host=address),
                content=body,
                headers={**sent, "host": url.netloc.decode("ascii")},
                # The certificate must be that of the name, not of the address.
                extensions={"sni_hostname": self._host},
            )
            answer = await self._client.send(request, stream=True)
            await answer.aclose()
        if 200 <= answer.status_code < 300:
            return
        said = f"{self._url} answered {answer.status_code}"
        if answer.status_code in _NEVER:
            raise Rejected(said)
        raise ConnectionError(said)


def _binary_headers(event: CloudEvent) -> dict[str, str]:
    attributes = event.attributes()
    headers = {"content-type": attributes.pop("datacontenttype")}
    # Printable ASCII but for the quote and the percent sign, as the HTTP binding asks for; the rest as UTF-8, escaped.
    printable = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
    return headers | {f"ce-{name}": quote(value, safe=printable) for name, value in attributes.items()}
