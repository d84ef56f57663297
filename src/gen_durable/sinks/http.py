"""`HttpSink`: CloudEvents 1.0 over HTTP, in structured, binary or batch mode, with signatures."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import quote, urlsplit

import msgspec

from ..errors import GenDurableError, UsageError
from ..events import CloudEvent, Rejected, SinkUnavailable
from .addresses import resolve
from .extra import needs
from .signing import checked_secret, sign

if TYPE_CHECKING:
    import httpx

__all__ = ["HttpSink", "HttpStatusError", "Mode"]

Mode: TypeAlias = Literal["structured", "binary", "batch"]

# Permanent rejections: the same request will never be accepted. Other errors, such as a wrong path or a missing
# permission, can be repaired on either side.
_FINAL: Final = frozenset({400, 410, 413, 415, 422})
# The receiver accepts no requests at present.
_UNAVAILABLE: Final = frozenset({429, 503})
_STRUCTURED: Final = "application/cloudevents+json; charset=utf-8"
_BATCHED: Final = "application/cloudevents-batch+json; charset=utf-8"
_BATCH: Final = 100
# At most this many bytes of an answer are read; they are discarded.
_MAX_ANSWER_BYTES: Final = 2**16
_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_MODES: Final = ("structured", "binary", "batch")


class HttpStatusError(GenDurableError):
    """The receiver answered with a status that is neither a success nor a permanent rejection; the event is retried."""

    status: int

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message, status)
        self.status = status

    def __str__(self) -> str:
        return str(self.args[0])


class HttpSink:
    """A sink that posts events to a URL.

        Worker([Checkout], sinks=HttpSink("https://example.com/hooks", secret="whsec_…"))

    Status 2xx accepts the event. 400, 410, 413, 415 and 422 reject it permanently: it becomes a dead letter. 429, 503
    and failed connections pause the sink, for `Retry-After` if the receiver sends it. After any other answer, a
    redirect included, and after a timeout, the event is retried.

    The sink resolves the host name for every connection, refuses addresses that are not public, and connects to the
    address that it checked. Needs the extra `http`.
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
        """Configure the sink.

        Args:
            url: the URL of the receiver, https or http.
            mode: `structured`: one event per request, in the body; `binary`: one event per request, attributes as
                headers; `batch`: up to 100 events per request.
            secret: sign every request with it (see `sign`); the receiver checks with `verify`.
            headers: additional headers, for example `authorization`.
            timeout: timeout of one request.
            private: allow addresses that are not public.

        Raises:
            UsageError: an argument is invalid, or httpx is not installed.
        """
        # Any part of a URL but the host may contain a token, so errors show only the host.
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        is_odd = any(character.isspace() or not character.isprintable() for character in url)
        if parts.scheme not in ("http", "https") or not parts.hostname or is_odd:
            raise UsageError("the URL of a sink cannot be read", "give https://host/path")
        if parts.username is not None or parts.password is not None:
            raise UsageError(
                f"the URL of the sink at {parts.hostname} contains a user name or password",
                "use headers= or secret=",
            )
        if mode not in _MODES:
            raise UsageError(f"there is no mode {mode!r}", f"give one of {', '.join(_MODES)}")
        self.batch: int = _BATCH if mode == "batch" else 1
        self._httpx: Any = needs("httpx", "http")
        self._url = url
        self._shown = _without_secrets(
            parts.scheme, parts.netloc, has_more=parts.path not in ("", "/") or "?" in url
        )
        self._host = parts.hostname
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._mode = mode
        self._secret = None if secret is None else checked_secret(secret)
        self._headers = {name: _checked_header(name, value) for name, value in (headers or {}).items()}
        self._timeout = timeout.total_seconds()
        self._private = private
        # Created on the event loop that publishes.
        self._transport: httpx.AsyncBaseTransport | None = None

    def __repr__(self) -> str:
        return f"HttpSink({self._shown!r}, mode={self._mode!r})"

    async def publish(self, events: Sequence[CloudEvent]) -> None:
        """Post these events; see `Sink.publish`."""
        if self._mode == "batch":
            body = msgspec.json.encode([event.structured() for event in events])
            await self._post(_batch_id(events), body, {"content-type": _BATCHED})
            return
        for event in events:
            if self._mode == "structured":
                body, headers = msgspec.json.encode(event.structured()), {"content-type": _STRUCTURED}
            else:
                body, headers = msgspec.json.encode(event.data), _binary_headers(event)
            await self._post(event.id, body, headers)

    async def close(self) -> None:
        """Close the connections."""
        if self._transport is not None:
            await self._transport.aclose()
            self._transport = None

    async def _post(self, id: str, body: bytes, headers: dict[str, str]) -> None:
        sent = {**self._headers, **headers}
        if self._secret is not None:
            sent |= sign(self._secret, id, body)
        try:
            async with asyncio.timeout(self._timeout):
                answer = await self._send(body, sent)
        except self._httpx.TransportError as error:
            raise SinkUnavailable(f"{self._shown}: {type(error).__name__}: {str(error)[:200]}") from error
        status: int = answer.status_code
        if 200 <= status < 300:
            return
        problem = f"{self._shown} answered {status}"
        if status in _FINAL:
            raise Rejected(problem)
        if status in _UNAVAILABLE:
            raise SinkUnavailable(problem, retry_after=_retry_after(answer.headers.get("retry-after", "")))
        raise HttpStatusError(problem, status)

    async def _send(self, body: bytes, headers: Mapping[str, str]) -> httpx.Response:
        if self._transport is None:
            # Not httpx.AsyncClient, which logs the URL of every request at INFO.
            self._transport = self._httpx.AsyncHTTPTransport(trust_env=False)
        address = await resolve(self._host, self._port, private=self._private)
        url = self._httpx.URL(self._url)
        request = self._httpx.Request(
            "POST",
            url.copy_with(host=address),
            content=body,
            headers={**headers, "host": url.netloc.decode("ascii")},
            # Verify the certificate for the host name, not for the address.
            extensions={"sni_hostname": self._host},
        )
        answer: httpx.Response = await self._transport.handle_async_request(request)
        try:
            # The connection is reused only if the answer was read to its end.
            size = 0
            async for part in answer.aiter_raw():
                size += len(part)
                if size > _MAX_ANSWER_BYTES:
                    break
        except self._httpx.TransportError:
            pass  # the status is known, and the rest of the answer is not needed
        finally:
            await answer.aclose()
        return answer


def _without_secrets(scheme: str, netloc: str, *, has_more: bool) -> str:
    """Return a URL for errors and logs, without path and query, which often contain tokens."""
    return f"{scheme}://{netloc}/{'…' if has_more else ''}"


def _checked_header(name: str, value: str) -> str:
    """Check a header. httpx would show its value in an error."""
    if not value.isascii() or any(not character.isprintable() and character != "\t" for character in value):
        raise UsageError(
            f"the value of header {name!r} has characters that cannot be sent", "give printable ASCII"
        )
    if value != value.strip():
        raise UsageError(f"the value of header {name!r} begins or ends with a space", "strip it")
    if not _HEADER.fullmatch(name):
        raise UsageError(f"{name!r} is not the name of a header", "give letters, digits and hyphens")
    return value


def _batch_id(events: Sequence[CloudEvent]) -> str:
    """Return an id for exactly these events, so that a receiver can deduplicate batches."""
    if len(events) == 1:
        return events[0].id
    ids = "\n".join(event.id for event in events)
    return f"batch_{hashlib.sha256(ids.encode()).hexdigest()[:32]}"


def _retry_after(value: str) -> timedelta | None:
    """Parse the header `Retry-After`: seconds or a date; `None` if it is neither."""
    if value.isascii() and value.isdigit() and len(value) <= 9:
        return timedelta(seconds=int(value))
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    # A date without a zone is in UTC.
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return max(timedelta(0), moment - datetime.now(UTC))


def _binary_headers(event: CloudEvent) -> dict[str, str]:
    attributes = event.attributes()
    headers = {"content-type": attributes.pop("datacontenttype")}
    # The HTTP binding of CloudEvents: printable ASCII except quote and percent sign; the rest is percent-encoded UTF-8.
    printable = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
    return headers | {f"ce-{name}": quote(value, safe=printable) for name, value in attributes.items()}
