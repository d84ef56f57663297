"""Who may use the dashboard: roles, users, and how a request proves who sends it."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec
from starlette.requests import Request

from ..errors import UsageError
from ..sinks.signing import checked_secret
from .throttle import Throttle

__all__ = ["ROLES", "Access", "Authenticate", "Role", "User", "allows", "cookie_name", "root_of"]

Role: TypeAlias = Literal["read", "operate", "admin"]
"""`read` sees everything; `operate` also signals, cancels, retries, edits and pauses; `admin` also forks, deletes and
changes the audit level."""

ROLES: Final[tuple[Role, ...]] = ("read", "operate", "admin")
_COOKIE: Final = "gen_durable_session"
_SESSION_SECONDS: Final = 12 * 3600
_MIN_TOKEN: Final = 16


class User(msgspec.Struct, frozen=True):
    """The sender of a request."""

    name: str
    """The actor in the audit log."""
    role: Role = "read"


Authenticate: TypeAlias = Callable[[Request], Awaitable[User | None]]
"""A function of the host application that returns the user of a request, or `None`."""


def allows(role: Role, needed: Role) -> bool:
    """Whether a role includes another one."""
    return ROLES.index(role) >= ROLES.index(needed)


def root_of(request: Request) -> str:
    """Return the path at which the dashboard is mounted, without a slash at its end."""
    root: Any = request.scope.get("root_path", "")
    return str(root).rstrip("/")


def cookie_name(request: Request) -> str:
    """Return the name of the cookie of a session.

    Browsers send the cookies of a host to all its ports, so dashboards on several ports need several names.
    """
    port = re.search(r":(\d+)$", request.headers.get("host", ""))
    return re.sub(
        r"\W+", "_", f"{_COOKIE}_{port[1] if port else ''}{root_of(request)}", flags=re.ASCII
    ).rstrip("_")


class _Session(msgspec.Struct, frozen=True):
    """The content of the cookie."""

    name: str
    role: Role
    expires: int
    proof: str
    """A digest of the token or the password of the login; empty after a one-time token. A session ends with it."""
    nonce: str
    """Tells two sessions of a user apart: one of them can end."""


class Access:
    """Identifies the users of one dashboard.

    Sessions are signed cookies, so they survive a restart and are shared by processes if these have the same secret.
    """

    def __init__(
        self,
        *,
        authenticate: Authenticate | None = None,
        tokens: Mapping[str, User] | None = None,
        users: Mapping[str, tuple[str, Role]] | None = None,
        one_time: Mapping[str, User] | None = None,
        secret: str | bytes | None = None,
        read_only: bool = False,
    ) -> None:
        """Configure access; `create_app` documents the arguments."""
        self._authenticate = authenticate
        self._tokens = dict(tokens or {})
        self._users = dict(users or {})
        self._one_time = dict(one_time or {})
        self._used: dict[str, User] = {}
        # Sessions that were logged out, and when they would have expired.
        self._ended: dict[str, int] = {}
        self._key = secrets.token_bytes(32) if secret is None else checked_secret(secret)
        self._read_only = read_only
        self._throttle = Throttle()
        if not (authenticate or self._tokens or self._users or self._one_time):
            raise UsageError(
                "the dashboard has no authentication",
                "give authenticate= (a function of your application), tokens= or users=",
            )
        for token in self._tokens:
            if not re.fullmatch(r"[!-~]+", token):
                raise UsageError(
                    "a token has other characters than ASCII, or spaces", "use letters and digits"
                )
            if len(token) < _MIN_TOKEN:
                raise UsageError(
                    f"a token of {len(token)} characters is too short", f"use at least {_MIN_TOKEN}"
                )
        for user in (*self._tokens.values(), *self._one_time.values()):
            _check_role(user.role)
        for _, role in self._users.values():
            _check_role(role)

    @property
    def ways(self) -> list[str]:
        """How a person can log in: `token`, `password`; empty if only the host application knows."""
        return ["token"] * bool(self._tokens) + ["password"] * bool(self._users)

    @property
    def has_sessions(self) -> bool:
        """Whether the dashboard has sessions, which a logout ends. Those of the host application are not its own."""
        return self._authenticate is None or bool(self.ways)

    @property
    def hint(self) -> str:
        """What the login page says."""
        if self.ways:
            return "Log in to see your machines."
        if self._authenticate is None:
            return "Open the link that was printed when the dashboard was started."
        return "Log in to the application with an account that may use this dashboard, then reload this page."

    async def user_of(self, request: Request) -> User | None:
        """Return who sends a request; `None` if that is not known.

        Raises:
            ProblemError: 429, too many wrong passwords or tokens.
        """
        user = self._by_header(request) or self._by_cookie(request)
        if user is None and self._authenticate is not None:
            user = await self._authenticate(request)
            if user is not None:
                _check_role(user.role)
            elif self._has_wrong_token(request):
                self._refuse_token(request)
        if user is not None and self._read_only:
            user = User(user.name, "read")
        return user

    def is_ambient(self, request: Request) -> bool:
        """Whether a browser would send the proof with a request of another site. A bearer token is added by code.

        A proxy may add a bearer token for `authenticate` to every request, so only tokens of the dashboard count.
        """
        kind, value = _authorization(request)
        return kind != "bearer" or self._by_token(value) is None

    def redeem(self, token: str) -> User | None:
        """Return the user of a one-time token, and forget the token."""
        for known, user in self._one_time.items():
            if hmac.compare_digest(known.encode(), token.encode()):
                del self._one_time[known]
                self._used[_digest(known)] = user
                return user
        return None

    def is_used(self, token: str) -> bool:
        """Whether a token was valid once."""
        return _digest(token) in self._used

    def reissue(self, used: str) -> str | None:
        """Return a new one-time token for the user of a used one; `None` if there is one that is not used yet."""
        if self._one_time:
            return None
        token = secrets.token_urlsafe(24)
        self._one_time[token] = self._used[_digest(used)]
        return token

    def log_in(
        self, request: Request, *, token: str = "", name: str = "", password: str = ""
    ) -> tuple[User, str] | None:
        """Return the user whom a token, or a name and a password, belong to, and the value of the cookie.

        Raises:
            ProblemError: 429, too many wrong logins.
        """
        # Apart from the tokens of programs: a person who mistypes one does not block them.
        name = "(token)" if token else name or "-"
        self._throttle.check(_address(request), name)
        user = self._by_token(token) if token else self._by_password(name, password)
        if user is None:
            self._throttle.failed(_address(request), name)
            return None
        return user, self.session(user, self._proof(token or password))

    def session(self, user: User, proof: str = "") -> str:
        """Return the value of the cookie for a user."""
        expires = int(time.time()) + _SESSION_SECONDS  # noqa: TID251 - compared with the same clock
        content = urlsafe_b64encode(
            msgspec.json.encode(_Session(user.name, user.role, expires, proof, secrets.token_urlsafe(9)))
        )
        return f"{content.decode()}.{self._sign('session', content)}"

    def log_out(self, request: Request) -> None:
        """End the session of a request, also for a copy of its cookie. Other processes do not know of it."""
        session = self._session_of(request)
        if session is not None:
            now = time.time()  # noqa: TID251 - see session()
            self._ended = {known: expires for known, expires in self._ended.items() if expires >= now}
            self._ended[_cookie(request)] = session.expires

    def csrf(self, user: User) -> str:
        """Return the token that changes have to send in a header. Another site cannot read it."""
        return self._sign("csrf", user.name.encode())

    def has_csrf(self, request: Request, user: User) -> bool:
        """Whether a request has that token."""
        given = request.headers.get("x-csrf-token", "")
        return hmac.compare_digest(given.encode(), self.csrf(user).encode())

    def _by_header(self, request: Request) -> User | None:
        kind, value = _authorization(request)
        if kind == "bearer":
            user = None if self._throttle.is_blocked(_address(request)) else self._by_token(value)
            if user is None and self._authenticate is None and self._tokens:
                self._refuse_token(request)
            return user
        if kind != "basic" or not self._users:
            return None
        try:
            name, _, password = base64.b64decode(value, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            return None
        self._throttle.check(_address(request), name or "-")
        user = self._by_password(name, password)
        if user is None:
            self._throttle.failed(_address(request), name or "-")
        return user

    def _has_wrong_token(self, request: Request) -> bool:
        """Whether a request has a bearer token, which then is not one of the dashboard."""
        return bool(self._tokens) and _authorization(request)[0] == "bearer"

    def _refuse_token(self, request: Request) -> None:
        """Count a wrong bearer token; raise an error if there were too many."""
        self._throttle.check(_address(request))
        self._throttle.failed(_address(request))

    def _by_token(self, token: str) -> User | None:
        # All tokens are compared, so the time does not tell which one matches.
        found = [
            user
            for known, user in self._tokens.items()
            if hmac.compare_digest(known.encode(), token.encode())
        ]
        return found[0] if found else None

    def _by_password(self, name: str, password: str) -> User | None:
        known, role = self._users.get(name, ("", "read"))
        is_right = hmac.compare_digest(known.encode(), password.encode())
        return User(name, role) if is_right and known else None

    def _by_cookie(self, request: Request) -> User | None:
        session = self._session_of(request)
        if session is None or _cookie(request) in self._ended:
            return None
        if not session.proof:
            return User(session.name, session.role)
        return self._current(session)

    def _session_of(self, request: Request) -> _Session | None:
        content, dot, signature = _cookie(request).partition(".")
        if not dot or not hmac.compare_digest(
            self._sign("session", content.encode()).encode(), signature.encode()
        ):
            return None
        try:
            session = msgspec.json.decode(urlsafe_b64decode(content), type=_Session)
        except (binascii.Error, ValueError):  # signed by another version
            return None
        return None if session.expires < time.time() else session  # noqa: TID251 - see session()

    def _current(self, session: _Session) -> User | None:
        """Return the user of a login as it is configured now; `None` if the token or the password has changed."""
        for token, user in self._tokens.items():
            if hmac.compare_digest(self._proof(token), session.proof):
                return user
        password, role = self._users.get(session.name, ("", "read"))
        is_same = bool(password) and hmac.compare_digest(self._proof(password), session.proof)
        return User(session.name, role) if is_same else None

    def _proof(self, credential: str) -> str:
        return self._sign("proof", credential.encode())

    def _sign(self, purpose: str, content: bytes) -> str:
        digest = hmac.new(self._key, f"gen_durable.{purpose}:".encode() + content, hashlib.sha256).digest()
        return urlsafe_b64encode(digest).rstrip(b"=").decode()


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _cookie(request: Request) -> str:
    return request.cookies.get(cookie_name(request), "")


def _authorization(request: Request) -> tuple[str, str]:
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    return kind.lower(), value.strip()


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _check_role(role: Any) -> None:
    if role not in ROLES:
        raise UsageError(f"the role {role!r} does not exist", f"use one of {', '.join(ROLES)}")
