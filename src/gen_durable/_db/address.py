"""Resolve the DSN of the next connection: a string, or a function that is called before every connect."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import re
import threading
from collections.abc import Callable
from typing import Any, Final

from ..connections import Dsn
from ..errors import UnreachableError, UsageError
from .dsn import described, redacted

__all__ = [
    "AddressError",
    "resolve_dsn",
    "resolve_dsn_blocking",
    "shown",
    "unreachable",
]

# To redact in errors of the user's function: URIs, and everything after the word password.
_SECRETS: Final = re.compile(r"\S*://\S*|\bpassw(?:or)?d\b.*", re.IGNORECASE | re.DOTALL)
# Seconds for the user's function, which may fetch a password over the network.
_DSN_TIMEOUT: Final = 10.0


# Advice by the text of the error: psycopg has no SQLSTATE for a failed connect.
_ADVICE: Final = (
    (
        re.compile(
            r"\binvalid (DSN|literal|integer|port)|URI|port after its colon|after the question mark"
            r"|percent-encode|port must be|sslmode"
        ),
        "write it as postgresql://user:password@host:5432/database;",
    ),
    (re.compile(r'database "[^"]*" does not exist'), "create the database, or change the DSN;"),
    (
        re.compile(r'role "[^"]*" does not exist|authentication failed|no password supplied|pg_hba\.conf'),
        "check user, password and pg_hba.conf;",
    ),
    (re.compile(r"too many clients|connection slots"), "raise max_connections, or open fewer connections;"),
    (re.compile(r"not known|resolve host"), "check the host name;"),
    (
        re.compile(r"Permission denied"),
        "use an account that may open the socket (an embedded server serves the account that started it, and root);",
    ),
    (re.compile(r"no reply|timeout expired"), "check for a firewall;"),
)


class AddressError(OSError):
    """The DSN is invalid, or the function that returns it failed. A later try may succeed."""


async def resolve_dsn(dsn: Dsn) -> str:
    """Return the DSN for the next connection. A plain function is called on a thread, because it may block."""
    if isinstance(dsn, str):
        return dsn
    limit = asyncio.timeout(_DSN_TIMEOUT)
    try:
        async with limit:
            found: Any = dsn() if inspect.iscoroutinefunction(dsn) else await asyncio.to_thread(dsn)
            return _checked(dsn, await found if inspect.isawaitable(found) else found)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - the user's function
        problem = _timed_out(dsn) if limit.expired() else _failed(dsn, error)
    raise problem  # outside `except`: the error of the function, which may have a password, must not be its context


def resolve_dsn_blocking(dsn: Dsn) -> str:
    """`resolve_dsn` for a blocking connection."""
    if isinstance(dsn, str):
        return dsn
    try:
        if answer := _call_on_thread(dsn):
            return _checked(dsn, answer[0])
        problem = _timed_out(dsn)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - the user's function
        problem = _failed(dsn, error)
    raise problem


def _failed(dsn: Dsn, error: Exception) -> AddressError:
    return AddressError(f"{_called(dsn)} raised {type(error).__name__}: {_SECRETS.sub('***', str(error))}")


def _timed_out(dsn: Dsn) -> AddressError:
    return AddressError(f"{_called(dsn)} did not return within {_DSN_TIMEOUT:g} s")


def shown(dsn: Dsn) -> str:
    """Describe a DSN for messages: user, host, port and database, or the name of the function."""
    if isinstance(dsn, str):
        return described(dsn)
    return f"the DSN from {_called(dsn)}"


def _called(dsn: Dsn) -> str:
    return f"{getattr(dsn, '__qualname__', None) or type(dsn).__name__}()"


def unreachable(dsn: Dsn, error: BaseException, advice: str, where: str = "") -> UnreachableError:
    """Make the error for a failed connect: cause and advice, without secrets. `where`: the DSN of a function."""
    nothing = "no reply in time" if isinstance(error, TimeoutError) else type(error).__name__
    cause = str(error).strip().split("\n")[0] or nothing
    if not isinstance(error, AddressError):
        cause = redacted(cause, dsn if isinstance(dsn, str) else where)
    if "unsupported startup parameter" in cause:
        advice = 'if this is PgBouncer, set GEN_DURABLE_POOLER or settings.pooler to "transaction"'
    else:
        default = "" if isinstance(error, AddressError) else "check that the server is running; "
        first = next((f"{text} " for pattern, text in _ADVICE if pattern.search(cause)), default)
        advice = first + (advice or "check the DSN")
    return UnreachableError(shown(dsn), cause, advice)


def _checked(asked: Dsn, found: object) -> str:
    if not isinstance(found, str):
        raise UsageError(
            f"{_called(asked)} returned {type(found).__name__}",
            "return a DSN: postgresql://user:password@host/database",
        )
    return found


def _call_on_thread(dsn: Callable[[], Any]) -> list[object]:
    """Call the function; return its result in a list, or an empty list on timeout.

    On a thread, because the thread of the caller may run an event loop.
    """
    answer: list[object] = []
    errors: list[BaseException] = []

    async def wait(found: Any) -> object:
        return await found

    def call() -> None:
        try:
            found = dsn()
            answer.append(asyncio.run(wait(found)) if inspect.isawaitable(found) else found)
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asked
            errors.append(error)

    run = contextvars.copy_context().run
    thread = threading.Thread(target=run, args=(call,), name="gen_durable credentials", daemon=True)
    thread.start()
    thread.join(_DSN_TIMEOUT)
    if errors:
        raise errors[0]
    return answer
