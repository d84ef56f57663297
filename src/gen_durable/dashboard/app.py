"""`create_app`: the dashboard as an ASGI application."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final
from urllib.parse import quote, unquote_plus, urlencode

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..async_client import AsyncClient
from ..errors import UsageError
from . import api as api
from . import assets
from .access import Access, Authenticate, Role, User, cookie_name, root_of
from .board import Board, Options
from .endpoints import Endpoint, body_of, endpoints
from .guard import Guard
from .live import TooManyStreamsError
from .openapi import document
from .problems import FAILED, Problem, ProblemError, answer
from .redaction import Redact, hide_secrets

__all__ = ["Dashboard", "create_app"]

_SLOWED: Final = 0.5
_MAX_STREAMS: Final = 200
_MAX_LOGIN: Final = 4096
# Seconds after which a stream checks again that its user is logged in.
_RECHECKED: Final = 60.0
# What the login page says after a link with a one-time token.
_HINTS: Final = {
    "invalid": "This link is not valid.",
    "used": "This link has been used. Start the dashboard again for a new one.",
    "renewed": "This link has been used. A new one has been printed where the dashboard was started.",
}
_TITLES: Final = {404: "There is nothing here", 405: "This method is not allowed"}
_LOGIN_URL: Final = re.compile(r"/(?!/)|https?://")


class _Login(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    token: str = ""
    name: str = ""
    password: str = ""


def create_app(
    client: AsyncClient,
    *,
    authenticate: Authenticate | None = None,
    tokens: Mapping[str, User] | None = None,
    users: Mapping[str, tuple[str, Role]] | None = None,
    one_time: Mapping[str, User] | None = None,
    allowed_hosts: Iterable[str] | None = None,
    secret: str | bytes | None = None,
    read_only: bool = False,
    redact: Redact = hide_secrets,
    environment: str = "",
    login_url: str = "",
    max_streams: int = _MAX_STREAMS,
) -> Dashboard:
    """Return the dashboard as an ASGI application.

        dashboard = create_app(client, authenticate=user_of_request)
        app = FastAPI(lifespan=dashboard.lifespan)
        app.mount("/durable", dashboard)

    At least one of `authenticate`, `tokens`, `users` and `one_time` is required.

    Args:
        client: the client whose database is shown, and that makes the changes. Served alone, the dashboard opens it.
        authenticate: returns the user of a request, or `None`: `User("ann", role="operate")`.
        tokens: users by bearer token; a person can log in with one as well.
        users: passwords and roles by name, for HTTP basic authentication and for the login page.
        one_time: users by a token that is valid for one visit of `/?token=…`.
        allowed_hosts: names under which browsers may reach the dashboard. Default: any.
        secret: signs the cookies of sessions. Default: a random one, so sessions end with the process.
        read_only: whether all users have the role `read`.
        redact: returns what is shown of a JSON value. Default: values of keys like `password` are hidden.
        environment: a word that is shown beside the logo, for example `production`.
        login_url: the login page of your application, which people without a login find: a path, or a URL with https.
            `{next}` in it is replaced by the path to return to: `/login?next={next}`.
        max_streams: the most live connections at a time.

    Raises:
        UsageError: there is no authentication, or a token, role, secret or URL is not valid.
    """
    if login_url and not _LOGIN_URL.match(login_url):
        raise UsageError(
            f"login_url={login_url!r} is neither a path nor a URL", "use /login?next={next}, or https://…"
        )
    access = Access(
        authenticate=authenticate,
        tokens=tokens,
        users=users,
        one_time=one_time,
        secret=secret,
        read_only=read_only,
    )
    options = Options(
        allowed_hosts=None if allowed_hosts is None else tuple(allowed_hosts),
        read_only=read_only,
        max_streams=max_streams,
        environment=environment,
        login_url=login_url,
    )
    return Dashboard(Board(client, access, options, redact))


class Dashboard:
    """An ASGI application that shows and changes the instances of one schema."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.on_new_token: Callable[[str], None] | None = None
        """Called with a new one-time token when a used one is opened. It must not reach the browser of this request."""
        routes = [
            *(_route(board, one) for one in sorted(endpoints.values(), key=_specificity)),
            Route("/api/login", self._log_in, methods=["POST"]),
            Route("/api/logout", self._log_out, methods=["POST"]),
            Route("/api/events", self._events),
            Route("/api/openapi.json", self._openapi),
            Route("/api/{path:path}", _nothing_here, methods=["GET", "POST"]),
            Route("/static/{version}/{path:path}", self._asset),
            Route("/{path:path}", self._page),
        ]
        starlette = Starlette(
            routes=routes,
            lifespan=self._lifespan,
            exception_handlers={HTTPException: _refused, ProblemError: _problem, Exception: _failed},
        )
        self._app = Guard(starlette, board.options.allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a connection."""
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def lifespan(self, app: object) -> AsyncGenerator[Mapping[str, Any]]:
        """Open the dashboard, and its client unless that is open, for the lifetime of a host application.

            app = FastAPI(lifespan=dashboard.lifespan)

        Yields the same state as the `lifespan` of the client. An application with other resources calls this from its
        own lifespan:

            async with Mailer() as mailer, dashboard.lifespan(app) as state:
                yield {**state, "mailer": mailer}
        """
        async with AsyncExitStack() as stack:
            client = self._board.client
            if client._opened is None:  # noqa: SLF001 - as the other endpoints do
                await stack.enter_async_context(client)
            await stack.enter_async_context(self.opened())
            yield {"durable": client}

    def opened(self) -> AbstractAsyncContextManager[None]:
        """Run batches, and close the connections at the end: `async with client, dashboard.opened(): …`."""
        return self._board.opened()

    def end_streams(self) -> None:
        """End the live connections, so that a server that waits for its connections can stop."""
        self._board.live.end_streams()

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncGenerator[None]:
        async with self.lifespan(app):
            yield

    async def _page(self, request: Request) -> Response:
        root = root_of(request)
        access = self._board.access
        token = request.query_params.get("token")
        if token is None or request.method == "HEAD":
            hint = _HINTS.get(request.query_params.get("login", ""), access.hint)
            return assets.page(root, access.ways, hint, self._board.options.login_url)
        # The token leaves the address, so it is not kept in the history of the browser.
        rest = [pair for pair in request.query_params.multi_items() if pair[0] not in ("token", "login")]
        user = access.redeem(token)
        if user is None and await access.user_of(request) is None:
            rest.append(("login", self._why_invalid(token)))
        # Without slashes at its begin: `//name/` would be another site.
        path = quote(request.path_params["path"].lstrip("/"))
        response = RedirectResponse(f"{root}/{path}{'?' if rest else ''}{urlencode(rest)}", 303)
        if user is not None:
            self._set_session(response, request, access.session(user))
        return response

    def _why_invalid(self, token: str) -> str:
        """Return a key of `_HINTS`. A used token was seen by its sender, so another one may be printed."""
        if not self._board.access.is_used(token):
            return "invalid"
        if self.on_new_token is None:
            return "used"
        new = self._board.access.reissue(token)
        if new is not None:
            self.on_new_token(new)
        return "renewed"

    def _set_session(self, response: Response, request: Request, session: str) -> None:
        response.set_cookie(
            cookie_name(request),
            session,
            path=root_of(request) or "/",
            httponly=True,
            secure=request.url.scheme == "https",
            samesite="strict",
        )

    async def _log_in(self, request: Request) -> Response:
        login = await body_of(request, _Login, _MAX_LOGIN)
        found = self._board.access.log_in(
            request, token=login.token, name=login.name, password=login.password
        )
        if found is None:
            await asyncio.sleep(_SLOWED)  # slows down guessing
            return answer(Problem(status=401, title="This login is not valid"))
        response = Response(status_code=204)
        self._set_session(response, request, found[1])
        return response

    async def _log_out(self, request: Request) -> Response:
        self._board.access.log_out(request)
        response = Response(status_code=204)
        response.delete_cookie(
            cookie_name(request), path=root_of(request) or "/", httponly=True, samesite="strict"
        )
        return response

    async def _events(self, request: Request) -> Response:
        board = self._board
        user = await board.access.user_of(request)
        if user is None:
            return answer(Problem(status=401, title="Log in first"))
        wanted = _topics(request)
        problem = board.live.check(wanted)
        if problem:
            return answer(Problem(status=422, title="The topics are not valid", detail=problem))
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        stream = board.live.stream(wanted, user.name)
        try:
            first = await anext(stream)
        except TooManyStreamsError:
            return answer(Problem(status=503, title="There are too many live connections"))

        async def events() -> AsyncGenerator[bytes]:
            try:
                yield first
                checked = time.monotonic()
                async for event in stream:
                    if time.monotonic() - checked >= _RECHECKED:
                        checked = time.monotonic()
                        if await board.access.user_of(request) is None:
                            return
                    yield event
            finally:
                await stream.aclose()

        headers = {"x-accel-buffering": "no"}  # nginx would hold events back
        return StreamingResponse(events(), media_type="text/event-stream", headers=headers)

    async def _openapi(self, request: Request) -> Response:
        if await self._board.access.user_of(request) is None:
            return answer(Problem(status=401, title="Log in first"))
        return Response(msgspec.json.encode(document()), media_type="application/json")

    async def _asset(self, request: Request) -> Response:
        found = assets.asset(request.path_params["path"], request.path_params["version"], request)
        return found or answer(Problem(status=404, title="There is no such file"))


def _topics(request: Request) -> list[str]:
    """Return the topics of a query. A comma in the name of a machine is escaped."""
    query: bytes = request.scope["query_string"]
    pairs = (pair.partition("=") for pair in query.decode("latin-1").split("&"))
    given = ",".join(value for name, _, value in pairs if name == "topics")
    return [unquote_plus(one) for one in given.split(",") if one]


def _route(board: Board, endpoint: Endpoint) -> Route:
    async def call(request: Request) -> Response:
        return await endpoint(board, request)

    function: Callable[[Request], Awaitable[Response]] = call
    path = endpoint.path
    for name, kind in endpoint.in_path.items():
        if kind is str:
            # Servers decode %2F before the path is matched, and names may contain slashes.
            path = path.replace(f"{{{name}}}", f"{{{name}:path}}")
    return Route(f"/api{path}", function, methods=[endpoint.method], name=endpoint.name)


def _specificity(endpoint: Endpoint) -> tuple[int, int]:
    """Sort /instances/counts before /instances/{id}, and /machines/{name}/rates before /machines/{name}.

    The first route that matches answers.
    """
    parts = endpoint.path.split("/")
    return -sum("{" not in part for part in parts), -len(parts)


async def _nothing_here(request: Request) -> Response:
    problem = ProblemError(404, "There is nothing here", f"{request.method} {request.url.path}")
    return answer(problem.problem)


async def _refused(request: Request, error: Exception) -> Response:
    """Answer a method that a path does not have, a path with a line break, and what `authenticate` of a host raises."""
    assert isinstance(error, HTTPException)  # noqa: S101 - the key of this handler
    title = _TITLES.get(error.status_code, str(error.detail))
    problem = Problem(status=error.status_code, title=title, detail=f"{request.method} {request.url.path}")
    response = answer(problem)
    response.headers.update(error.headers or {})
    return response


async def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)  # noqa: S101 - the key of this handler
    return answer(error.problem)


async def _failed(_: Request, __: Exception) -> Response:
    """Answer a bug. The server logs it."""
    return answer(FAILED)
