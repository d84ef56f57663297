"""Where PostgreSQL is: a DSN, or a function that is asked for one before every new connection."""

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
    "ask",
    "ask_blocking",
    "shown",
    "unreachable",
]

# In what a user's function raises: a URI, or what follows the word password.
_SECRETS: Final = re.compile(r"\S*://\S*|\bpassw(?:or)?d\b.*", re.IGNORECASE | re.DOTALL)
# The services that give out passwords are asked while work waits for the connection.
_ANSWER_WITHIN: Final = 10.0


# What to ask whom, by the words of the cause: psycopg tells no code of a connection that was never made.
_ASKED: Final = (
    (
        re.compile(
            r"\binvalid (DSN|literal|integer|port)|URI|port after its colon|after the question mark"
            r"|percent-encode|port must be|sslmode"
        ),
        "write it as postgresql://user:password@host:5432/database;",
    ),
    (re.compile(r'database "[^"]*" does not exist'), "create that database, or name another;"),
    (
        re.compile(r'role "[^"]*" does not exist|authentication failed|no password supplied|pg_hba\.conf'),
        "may that user log in, with that password?",
    ),
    (re.compile(r"too many clients|connection slots"), "raise max_connections, or open fewer connections;"),
    (re.compile(r"not known|resolve host"), "is that the name of its host?"),
    (re.compile(r"no answer|timeout expired"), "is a firewall in between?"),
)


class AddressError(OSError):
    """The function that knows the DSN has failed: as with a server that does not answer, a later try may do better."""


async def ask(dsn: Dsn) -> str:
    """The DSN for the next connection. A plain function is called on a thread: it may go over the network."""
    if isinstance(dsn, str):
        return dsn
    limit = asyncio.timeout(_ANSWER_WITHIN)
    try:
        async with limit:
            found: Any = dsn() if inspect.iscoroutinefunction(dsn) else await asyncio.to_thread(dsn)
            return _checked(dsn, await found if inspect.isawaitable(found) else found)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - the user's function
        problem = _unanswered(dsn) if limit.expired() else _failed(dsn, error)
    raise problem  # not inside of `except`: its context could show a password


def ask_blocking(dsn: Dsn) -> str:
    """The same for a blocking connection."""
    if isinstance(dsn, str):
        return dsn
    try:
        if answer := _answer_on_thread(dsn):
            return _checked(dsn, answer[0])
        problem = _unanswered(dsn)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - the user's function
        problem = _failed(dsn, error)
    raise problem


def _failed(dsn: Dsn, error: Exception) -> AddressError:
    return AddressError(f"{shown(dsn)} raised {type(error).__name__}: {_SECRETS.sub('***', str(error))}")


def _unanswered(dsn: Dsn) -> AddressError:
    return AddressError(f"{shown(dsn)}: no answer within {_ANSWER_WITHIN:g} s")


def shown(dsn: Dsn) -> str:
    """The DSN for messages: user, host, port and database, or the name of the function."""
    if isinstance(dsn, str):
        return described(dsn)
    return f"what {getattr(dsn, '__qualname__', None) or type(dsn).__name__}() says"


def unreachable(dsn: Dsn, error: BaseException, advice: str, where: str = "") -> UnreachableError:
    """Why there is no connection, in one line; `where` is what a function said."""
    nothing = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
    cause = str(error).strip().split("\n")[0] or nothing
    if not isinstance(error, AddressError):
        cause = redacted(cause, dsn if isinstance(dsn, str) else where)
    if "unsupported startup parameter" in cause:
        advice = 'is that PgBouncer? then set GEN_DURABLE_POOLER, or settings.pooler, to "transaction"'
    else:
        asked = next((asked for words, asked in _ASKED if words.search(cause)), "is it running?")
        advice = f"{asked} {advice or 'is the DSN right?'}"
    return UnreachableError(shown(dsn), cause, advice)


def _checked(asked: Dsn, found: object) -> str:
    if not isinstance(found, str):
        raise UsageError(
            f"{shown(asked)} is of type {type(found).__name__}",
            "return a DSN: postgresql://user:password@host/database",
        )
    return found


def _answer_on_thread(dsn: Callable[[], Any]) -> list[object]:
    """What the function returns; empty if that takes too long. On a thread: that of the caller may have a loop."""
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
    thread.join(_ANSWER_WITHIN)
    if errors:
        raise errors[0]
    return answer
