"""Endpoints of the JSON API: typed functions, registered by `@get` and `@post`.

    @get("/queues", summary="Queues and their backlog")
    async def queues(board: Board) -> QueuesPage: ...

    @post("/queues/{name}/pause", role="operate", summary="Pause a queue")
    async def pause(board: Board, user: User, name: str, body: Reason) -> QueueControl: ...

Parameters of the path are arguments. Keyword-only arguments are parameters of the query. `body` is the JSON of a
change, as a Struct. The answer is written as JSON.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal, TypeAlias, TypeVar, get_type_hints

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from .._dictionary import did_you_mean
from .access import Role, User, allows
from .board import Board
from .idempotency import answer_once, digest_of, key_of
from .problems import ProblemError, answer, problem_of

__all__ = ["Endpoint", "Reason", "body_of", "endpoints", "get", "post"]

StructT = TypeVar("StructT", bound=msgspec.Struct)

Function: TypeAlias = Callable[..., Awaitable[Any]]
Then: TypeAlias = Callable[[Board, Any], object]

_PARAMETER: Final = re.compile(r"\{(\w+)\}")
_UNKNOWN_FIELD: Final = re.compile(r"Object contains unknown field `(.*?)`(?: - at `\$\.?(.*)`)?", re.DOTALL)
_FIELD: Final = re.compile(r" - at `\$\.(\w+)`")
_MAX_BODY: Final = 4 * 2**20
_BODY_SECONDS: Final = 30.0


class Reason(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of a change that needs nothing but a reason. Bodies refuse unknown fields: typos are not ignored."""

    reason: str = ""
    """For the audit log."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path."""

    method: Literal["GET", "POST"]
    path: str
    summary: str
    role: Role
    function: Function
    in_path: Mapping[str, Any]
    """Types by name of the parameter."""
    in_query: Mapping[str, tuple[Any, Any]]
    """Types and defaults."""
    body: type[msgspec.Struct] | None
    answer: Any
    takes_user: bool
    every: float
    """Seconds between two requests of a page that shows it; 0: it does not ask again, or answers differ by user."""
    then: Then | None = None
    """Called with the answer of a change after its transaction, also with the one of an earlier request."""

    @property
    def name(self) -> str:
        """The operation, for OpenAPI."""
        return self.function.__name__

    async def __call__(self, board: Board, request: Request) -> Response:
        """Answer a request. Errors of the library and the database become problems."""
        try:
            return await self._answer(board, request)
        except Exception as error:
            problem = problem_of(error)
            if problem is None:
                raise
            return answer(problem)

    async def _answer(self, board: Board, request: Request) -> Response:
        user = await board.access.user_of(request)
        if user is None:
            raise ProblemError(401, "Log in first", "The request has no valid session or token.")
        if not allows(user.role, self.role):
            raise ProblemError(
                403,
                "Your role does not allow this",
                f"{user.name} has the role {user.role}; this needs {self.role}.",
            )
        given: dict[str, Any] = {"user": user} if self.takes_user else {}
        given |= self._of_path(request)
        given |= self._of_query(request)
        if self.method == "POST":
            if board.access.is_ambient(request) and not board.access.has_csrf(request, user):
                raise ProblemError(
                    403,
                    "The CSRF token is missing or wrong",
                    "A change needs the header X-CSRF-Token.",
                    "Send the token that /api/session returns, or authenticate by a bearer token.",
                )
            content = await _read(request, _MAX_BODY)
            if self.body is not None:
                given["body"] = _decoded(content, self.body)
            return await self._change(board, request, user, given, content)
        if self.every:
            key = f"{user.role} {request.scope['path']}?{sorted(request.query_params.items())}"
            content = await board.shared(key, self.every, lambda: self._content(board, given))
        else:
            content = await self._content(board, given)
        return Response(content, media_type="application/json")

    async def _content(self, board: Board, given: Mapping[str, Any]) -> bytes:
        return msgspec.json.encode(await self.function(board, **given))

    async def _change(
        self, board: Board, request: Request, user: User, given: Mapping[str, Any], body: bytes
    ) -> Response:
        headers = {}
        if (key := key_of(request)) is None:
            made = await self.function(board, **given)
            content = msgspec.json.encode(made)
        else:
            digest = digest_of(self.method, self.path, self._of_path(request), body)
            content, is_earlier = await answer_once(
                board, user, key, digest, lambda bound: self.function(bound, **given)
            )
            made = msgspec.json.decode(content, type=self.answer)
            headers = {"idempotency-replayed": "true"} if is_earlier else {}
        if self.then is not None:
            self.then(board, made)
        board.forget()
        return Response(content, headers=headers, media_type="application/json")

    def _of_path(self, request: Request) -> dict[str, Any]:
        try:
            return {name: _converted(request.path_params[name], kind) for name, kind in self.in_path.items()}
        except msgspec.ValidationError as error:
            raise ProblemError(404, "There is nothing here", str(error)) from None

    def _of_query(self, request: Request) -> dict[str, Any]:
        unknown = set(request.query_params) - set(self.in_query)
        if unknown:
            known = ", ".join(self.in_query) or "none"
            raise ProblemError(
                422, "The query is not valid", f"unknown parameter {min(unknown)!r}; known: {known}"
            )
        for name, (_, default) in self.in_query.items():
            if default is inspect.Parameter.empty and name not in request.query_params:
                raise ProblemError(422, "The query is not valid", f"the parameter {name!r} is missing")
        found = {}
        for name, value in request.query_params.items():
            try:
                found[name] = _converted(value, self.in_query[name][0])
            except msgspec.ValidationError as error:
                raise ProblemError(422, "The query is not valid", f"{name}={value!r}: {error}") from None
        for name, (_, default) in self.in_query.items():
            if default is inspect.Parameter.empty and name not in found:
                raise ProblemError(422, "The query is not valid", f"the parameter {name!r} is missing")
        return found


def _converted(text: str, kind: Any) -> Any:
    """Read a parameter. PostgreSQL stores no NUL character, and no integer of more than 64 bits."""
    value = msgspec.convert(text, kind, strict=False)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise msgspec.ValidationError("Integer out of range")
    if "\0" in text:
        raise msgspec.ValidationError("It contains a NUL character")
    return value


async def body_of(request: Request, kind: type[StructT], most: int) -> StructT:
    """Read the JSON body of a request; `most` is its limit in bytes.

    Raises:
        ProblemError: it is not JSON, not of this type, too large, or does not arrive in time.
    """
    return _decoded(await _read(request, most), kind)


async def _read(request: Request, most: int) -> bytes:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise ProblemError(415, "The body has to be JSON", f"content-type is {content_type or 'missing'!r}")
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > most:
                    raise ProblemError(413, "The body is too large", f"It may have {most:,} bytes.")
    except TimeoutError:
        raise ProblemError(408, "The body did not arrive in time", f"{_BODY_SECONDS:.0f} s") from None
    return bytes(body)


def _decoded(body: bytes, kind: type[StructT]) -> StructT:
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = str(error)
        field = _FIELD.search(text)
        facts = {"field": field[1]} if field and not _UNKNOWN_FIELD.fullmatch(text) else {}
        raise ProblemError(422, "The body is not valid", _described(text, kind), facts=facts) from None


def _described(error: str, kind: type[msgspec.Struct]) -> str:
    """Return the text of an error. An unknown field gets a hint: its name may be misspelt."""
    if (found := _UNKNOWN_FIELD.fullmatch(error)) is None:
        return error
    name, place = found.groups()
    known = [] if place else [field.encode_name for field in msgspec.structs.fields(kind)]
    fields = f". Fields: {', '.join(known)}" if known else f", at {place}"
    return f"unknown field {name!r}{did_you_mean(name, known) if known else ''}{fields}"


endpoints: Final[dict[tuple[str, str], Endpoint]] = {}
"""All endpoints by method and path."""


def get(path: str, *, summary: str, role: Role = "read", every: float = 0) -> Callable[[Function], Function]:
    """Register a function that reads. `every`: one answer is shared for about this time, see `Endpoint.every`."""
    return _register("GET", path, summary, role, every)


def post(path: str, *, summary: str, role: Role, then: Then | None = None) -> Callable[[Function], Function]:
    """Register a function that changes something by `board.client` and `board.change`.

    They may be bound to a transaction. What has to follow its commit is in `then`, see `Endpoint.then`.
    """
    return _register("POST", path, summary, role, then=then)


def _register(
    method: Literal["GET", "POST"],
    path: str,
    summary: str,
    role: Role,
    every: float = 0,
    then: Then | None = None,
) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        types = get_type_hints(function)
        signature = inspect.signature(function)
        in_path = {name: types[name] for name in _PARAMETER.findall(path)}
        in_query = {
            name: (types[name], parameter.default)
            for name, parameter in signature.parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        }
        endpoints[method, path] = Endpoint(
            method=method,
            path=path,
            summary=summary,
            role=role,
            function=function,
            in_path=in_path,
            in_query=in_query,
            body=types.get("body"),
            answer=types["return"],
            takes_user=types.get("user") is User,
            every=every,
            then=then,
        )
        return function

    return register
