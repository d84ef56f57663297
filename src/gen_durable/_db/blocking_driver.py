"""A psycopg connection that fails when the server stops replying; psycopg itself waits forever."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from typing import Any, Final, NoReturn, Self, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from ..errors import UsageError
from .failures import NoReplyError, StatementError
from .reply_timeouts import GRACE, KEEPALIVE, ReplyTimeouts, on_server
from .runner import run_psycopg
from .watchdog import working

__all__ = ["Connection"]

T = TypeVar("T")
_log: Final = logging.getLogger("gen_durable.connections")
_PINNED_PATH: Final = "-c search_path=pg_catalog,pg_temp"
# libpq 12 added tcp_user_timeout.
_USER_TIMEOUT_SINCE: Final = 120000


class Connection(psycopg.Connection[Any]):
    """Checks on the server whether a statement without a reply still runs, and closes itself if not."""

    _reply_timeouts: ReplyTimeouts
    # Returns the DSN for that check. None behind a pooler, where process ids are those of the pooler.
    _ask: Callable[[], str] | None

    @classmethod
    def open(
        cls, where: str, reply_timeouts: ReplyTimeouts, ask: Callable[[], str] | None, **options: Any
    ) -> Self:
        """Connect, with TCP keepalive unless the DSN sets it."""
        given = conninfo_to_dict(where)
        keepalive = reply_timeouts.keepalive()
        keepalive |= {name: int(str(given[name])) for name in KEEPALIVE if name in given}
        options |= keepalive
        if "options" in options:  # not behind a pooler, whose sessions are shared
            pins = (f" -c {name}={value}" for name, value in on_server(keepalive).items())
            options["options"] += "".join(pins)
        if psycopg.pq.version() < _USER_TIMEOUT_SINCE:
            options.pop("tcp_user_timeout", None)
        conn = cls.connect(
            where,
            autocommit=True,
            connect_timeout=max(2, round(reply_timeouts.connect)),  # psycopg's minimum is 2 s
            **options,
        )
        conn.watch(reply_timeouts, ask)
        return conn

    def watch(self, reply_timeouts: ReplyTimeouts, ask: Callable[[], str] | None) -> None:
        """Apply the timeouts to every later wait; `ask` returns the DSN for checks."""
        self._reply_timeouts, self._ask = reply_timeouts, ask

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        """Run a generator of psycopg, as long as the server works on it."""
        return super().wait(self._watched(gen), *args, **options)

    def _watched(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """Check the timeouts in a generator of psycopg, which is resumed several times a second."""
        begun = time.monotonic()
        looks_at, ends_at = begun + self._reply_timeouts.suspect, begun + self._reply_timeouts.reply
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                now = time.monotonic()
                if ready:
                    looks_at = now + self._reply_timeouts.suspect
                elif now >= ends_at:
                    gen.close()
                    self._give_up(now - begun)
                elif now >= looks_at and self._ask is not None:
                    if self._is_working(self._ask):
                        looks_at = time.monotonic() + self._reply_timeouts.suspect
                    else:  # the reply may be in transit
                        ends_at, looks_at = time.monotonic() + GRACE, ends_at
                wanted = gen.send(ready)
        except StopIteration as finished:
            result: T = finished.value
            return result

    def _is_working(self, ask: Callable[[], str]) -> bool:
        """Whether the server runs the statement. True if the check itself fails for another reason."""
        bounds = self._reply_timeouts._replace(reply=self._reply_timeouts.connect)
        pid = self.info.backend_pid
        try:
            with Connection.open(ask(), bounds, None, options=_PINNED_PATH) as other:
                return pid in run_psycopg(other, working([pid]), "")
        except (psycopg.errors.ConnectionTimeout, NoReplyError):
            return False
        except psycopg.OperationalError as error:
            return error.sqlstate is not None  # without a code: nothing listens there
        except (psycopg.Error, StatementError, UsageError, OSError, ValueError):
            return True

    def _give_up(self, seconds: float) -> NoReturn:
        self.close()
        _log.warning(
            "connection silent: no reply for %.1f s on the connection of the blocking client; closed it",
            seconds,
        )
        raise psycopg.errors.ConnectionTimeout(f"no reply for {seconds:.1f} s")
