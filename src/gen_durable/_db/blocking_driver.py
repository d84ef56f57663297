"""The blocking connection, which gives up when its server falls silent: psycopg itself would wait forever."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from typing import Any, Final, NoReturn, Self, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict

from ..errors import UsageError
from .failures import NoAnswerError, StatementError
from .reply_timeouts import GRACE, KEEPALIVE, ReplyTimeouts, on_server
from .runner import run_psycopg
from .watchdog import working

__all__ = ["Connection"]

T = TypeVar("T")
_log: Final = logging.getLogger("gen_durable.connections")
_PINNED_PATH: Final = "-c search_path=pg_catalog,pg_temp"
# tcp_user_timeout is new in libpq 12.
_USER_TIMEOUT_SINCE: Final = 120000


class Connection(psycopg.Connection[Any]):
    """Asks the server about a statement without an answer, and closes itself if no session works on it."""

    _reply_timeouts: ReplyTimeouts
    # Where to ask: the DSN for another connection. None behind a pooler, which gives out process ids of its own.
    _ask: Callable[[], str] | None

    @classmethod
    def open(
        cls, where: str, reply_timeouts: ReplyTimeouts, ask: Callable[[], str] | None, **options: Any
    ) -> Self:
        """Connect, with TCP keepalive unless the DSN says otherwise."""
        given = conninfo_to_dict(where)
        keepalive = reply_timeouts.keepalive()
        keepalive |= {name: int(str(given[name])) for name in KEEPALIVE if name in given}
        options |= keepalive
        if "options" in options:  # not behind a pooler, whose sessions have other clients as well
            pins = (f" -c {name}={value}" for name, value in on_server(keepalive).items())
            options["options"] += "".join(pins)
        if psycopg.pq.version() < _USER_TIMEOUT_SINCE:
            options.pop("tcp_user_timeout", None)
        conn = cls.connect(
            where,
            autocommit=True,
            connect_timeout=max(2, round(reply_timeouts.connect)),  # psycopg waits no shorter
            **options,
        )
        conn.watch(reply_timeouts, ask)
        return conn

    def watch(self, reply_timeouts: ReplyTimeouts, ask: Callable[[], str] | None) -> None:
        """Bound every later wait; `ask` gives the DSN to inquire about this session."""
        self._reply_timeouts, self._ask = reply_timeouts, ask

    def wait(self, gen: Any, *args: Any, **options: Any) -> Any:
        """Consume a generator of the driver, for as long as the server works on it."""
        return super().wait(self._watched(gen), *args, **options)

    def _watched(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """The generator of the driver, which is resumed several times a second while nothing arrives."""
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
                    else:  # the answer may be on its way
                        ends_at, looks_at = time.monotonic() + GRACE, ends_at
                wanted = gen.send(ready)
        except StopIteration as finished:
            result: T = finished.value
            return result

    def _is_working(self, ask: Callable[[], str]) -> bool:
        """Whether the server works on the statement. True if it cannot be asked, or does not answer this question."""
        bounds = self._reply_timeouts._replace(reply=self._reply_timeouts.connect)
        pid = self.info.backend_pid
        try:
            with Connection.open(ask(), bounds, None, options=_PINNED_PATH) as other:
                return pid in run_psycopg(other, working([pid]), "")
        except (psycopg.errors.ConnectionTimeout, NoAnswerError):
            return False
        except psycopg.OperationalError as error:
            return error.sqlstate is not None  # no server listens there any more
        except (psycopg.Error, StatementError, UsageError, OSError, ValueError):
            return True

    def _give_up(self, seconds: float) -> NoReturn:
        self.close()
        _log.warning(
            "connection silent: no answer on the connection of the blocking client for %.1f s; closed it",
            seconds,
        )
        raise psycopg.errors.ConnectionTimeout(f"no answer for {seconds:.1f} s")
