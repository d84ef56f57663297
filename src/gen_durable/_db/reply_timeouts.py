"""How long to wait for a server that does not answer, derived from the lease."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple, Self

__all__ = ["GRACE", "KEEPALIVE", "ReplyTimeouts", "keep_alive", "on_server"]

GRACE: Final = 0.25
"""An answer may still be on its way when the server reports the session as idle: wait this many seconds for it."""

# Longer than the statement_timeout of our sessions, so it strikes only when no answer comes.
_LONGEST_REPLY: Final = 40.0
_LONGEST_CONNECT: Final = 10.0
_LONGEST_SUSPECT: Final = 10.0


class ReplyTimeouts(NamedTuple):
    """Bounds on waiting, in seconds."""

    suspect: float
    """After this time without an answer the connection is suspect: the server is asked about it."""
    connect: float
    """How long opening a connection may take, and an inquiry about a suspect one."""
    reply: float
    """After this time without an answer a statement is given up, whatever the server says."""

    @classmethod
    def of(cls, lease: timedelta, *, is_pooled: bool = False) -> Self:
        """The bounds for this lease.

        A suspect statement and the inquiry about it take one lease together. Behind a pooler the server cannot be
        asked, because the pooler gives out process ids of its own: there a statement is given up after one lease.
        """
        seconds = lease.total_seconds()
        return cls(
            suspect=_between(1.0, seconds / 3, _LONGEST_SUSPECT),
            connect=_between(2.0, seconds * 2 / 3, _LONGEST_CONNECT),
            reply=_between(5.0, seconds, _LONGEST_REPLY) if is_pooled else _LONGEST_REPLY,
        )

    @classmethod
    def of_heartbeat(cls, lease: timedelta) -> Self:
        """The bounds for renewing leases: a silent connection leaves time to renew on another one."""
        third = lease.total_seconds() / 3
        return cls(third, min(third, _LONGEST_CONNECT), min(third, _LONGEST_REPLY))

    def keepalive(self) -> dict[str, int]:
        """TCP settings under the names that libpq has for them: a dead peer is noticed after `suspect` seconds."""
        return {
            "keepalives": 1,
            "keepalives_idle": max(1, round(self.suspect / 2)),
            "keepalives_interval": max(1, round(self.suspect / 4)),
            "keepalives_count": 2,
            "tcp_user_timeout": round(self.suspect * 1000),
        }


KEEPALIVE: Final = frozenset(ReplyTimeouts(0, 0, 0).keepalive())
"""The names of these settings."""
# The names of the socket options differ: macOS calls the idle time TCP_KEEPALIVE, and has no TCP_USER_TIMEOUT.
_OPTIONS: Final = {
    "keepalives_idle": ("TCP_KEEPIDLE", "TCP_KEEPALIVE"),
    "keepalives_interval": ("TCP_KEEPINTVL",),
    "keepalives_count": ("TCP_KEEPCNT",),
    "tcp_user_timeout": ("TCP_USER_TIMEOUT",),
}


def keep_alive(sock: Any, values: Mapping[str, int]) -> None:
    """Let the kernel end the connection of a TCP socket whose peer is gone. As for libpq, 0 is the system's default."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, values["keepalives"])
    for name, options in _OPTIONS.items():
        for option in options:
            if hasattr(socket, option) and values[name]:
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), values[name])
                break


def on_server(values: Mapping[str, int]) -> dict[str, str]:
    """The same for the server's end, as settings of a session. The server ignores them on a Unix socket.

    With its defaults a server keeps the session of a client that has vanished for two hours, and such sessions count
    towards max_connections.
    """
    if not values["keepalives"]:
        return {}
    return {
        f"tcp_{name.removeprefix('tcp_')}": str(max(0, values[name])) for name in KEEPALIVE - {"keepalives"}
    }


def _between(least: float, value: float, most: float) -> float:
    return max(least, min(value, most))
