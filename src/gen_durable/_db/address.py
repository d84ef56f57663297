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

__all__ = [
    "AddressError",
    "ask",
    "ask_blocking",
    "hidden",
    "hosts_of",
    "redacted",
    "shown",
    "turned",
    "unreachable",
]

# Up to the last "@": a password may hold ":" and "@". Hiding too much is better than hiding too little.
_PASSWORDS: Final = (
    (re.compile(r"(//[^:/@\s]*):\S*@"), r"\1:***@"),
    (re.compile(r"(password\s*=\s*)('[^']*'|[^&\s]+)", re.IGNORECASE), r"\1***"),
)
# The services that give out passwords are asked while work waits for the connection.
_ANSWER_WITHIN: Final = 10.0


# What to ask whom, by the words of the cause: psycopg tells no code of a connection that was never made.
_ASKED: Final = (
    (
        re.compile(r"\binvalid (DSN|URI|literal|integer|port)|missing \"=\"|port must be|sslmode"),
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
    except Exception as error:
        if limit.expired():
            raise _unanswered(dsn) from None
        raise _failed(dsn, error) from error


def ask_blocking(dsn: Dsn) -> str:
    """The same for a blocking connection."""
    if isinstance(dsn, str):
        return dsn
    try:
        answer = _answer_on_thread(dsn)
    except Exception as error:
        raise _failed(dsn, error) from error
    if not answer:
        raise _unanswered(dsn)
    return _checked(dsn, answer[0])


def _failed(dsn: Dsn, error: Exception) -> AddressError:
    return AddressError(f"{shown(dsn)} raised {type(error).__name__}: {redacted(str(error))}")


def _unanswered(dsn: Dsn) -> AddressError:
    return AddressError(f"{shown(dsn)}: no answer within {_ANSWER_WITHIN:g} s")


def shown(dsn: Dsn) -> str:
    """The DSN for messages: without its password, or by the name of the function."""
    if isinstance(dsn, str):
        return redacted(dsn)
    return f"what {getattr(dsn, '__qualname__', None) or repr(dsn)}() says"


def redacted(text: str) -> str:
    """The text without a password of a DSN in it."""
    for password, hidden in _PASSWORDS:
        text = password.sub(hidden, text)
    return text


def hidden(cause: str, dsn: str) -> str:
    """The cause without the password. One with a bare "/" or "@" in it is taken for a port or a host, and quoted."""
    found = re.search(r"//[^:/@\s]*:(\S*)@", dsn)
    for part in re.split(r"[:/@?#]", found[1]) if found else ():
        if len(part) > 2:
            cause = cause.replace(part, "***")
    return redacted(cause)


def unreachable(dsn: Dsn, error: BaseException, advice: str, where: str = "") -> UnreachableError:
    """Why there is no connection, in one line; `where` is what a function said."""
    nothing = "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
    cause = str(error).strip().split("\n")[0] or nothing
    if "unsupported startup parameter" in cause:
        advice = 'is that PgBouncer? then set GEN_DURABLE_POOLER, or settings.pooler, to "transaction"'
    else:
        asked = next((asked for words, asked in _ASKED if words.search(cause)), "is it running?")
        advice = f"{asked} {advice or 'is the DSN right?'}"
    return UnreachableError(shown(dsn), hidden(cause, dsn if isinstance(dsn, str) else where), advice)


# A URI with its hosts: everything between the last "@" of the authority and the path.
_HOSTS: Final = re.compile(
    r"(?P<before>postgres(?:ql)?://(?:[^/?#]*@)?)(?P<hosts>[^/?#@]*)(?P<after>.*)", re.DOTALL
)


def hosts_of(dsn: str) -> int:
    """How many hosts a URI names."""
    found = _HOSTS.fullmatch(dsn)
    return 1 if found is None else found["hosts"].count(",") + 1


def turned(dsn: str, times: int) -> str:
    """The DSN with its first hosts moved to the end, one by one, so many times."""
    found = _HOSTS.fullmatch(dsn)
    if found is None:
        return dsn
    hosts = found["hosts"].split(",")
    times %= len(hosts)
    return found["before"] + ",".join(hosts[times:] + hosts[:times]) + found["after"]


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
