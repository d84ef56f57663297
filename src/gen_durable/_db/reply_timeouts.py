"""Timeouts for a server that does not reply, derived from the lease."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple, Self

__all__ = ["GRACE", "KEEPALIVE", "ReplyTimeouts", "keep_alive", "on_server"]

GRACE: Final = 0.25
"""Seconds to wait for a reply after the server has reported the session as idle: the reply may be in transit."""

# Above the statement_timeout of our sessions, so it ends only statements without a reply.
_LONGEST_REPLY: Final = 40.0
_LONGEST_CONNECT: Final = 10.0
_LONGEST_SUSPECT: Final = 10.0


class ReplyTimeouts(NamedTuple):
    """Timeouts in seconds."""

    suspect: float
    """After this time without a reply the server is asked whether the session still works on the statement."""
    connect: float
    """For opening a connection, and for asking the server about another one."""
    reply: float
    """After this time without a reply the statement fails, even if the server still works on it."""

    @classmethod
    def of(cls, lease: timedelta, *, is_pooled: bool = False) -> Self:
        """The timeouts for this lease.

        `suspect` and `connect` add up to one lease. Behind a pooler the server cannot be asked about a session,
        because clients get process ids of the pooler: there a statement fails after one lease without a reply.
        """
        seconds = lease.total_seconds()
        return cls(
            suspect=_between(1.0, seconds / 3, _LONGEST_SUSPECT),
            connect=_between(2.0, seconds * 2 / 3, _LONGEST_CONNECT),
            reply=_between(5.0, seconds, _LONGEST_REPLY) if is_pooled else _LONGEST_REPLY,
        )

    @classmethod
    def of_heartbeat(cls, lease: timedelta) -> Self:
        """The timeouts for renewing leases: a third of the lease, so that another connection can still renew it."""
        third = lease.total_seconds() / 3
        return cls(third, min(third, _LONGEST_CONNECT), min(third, _LONGEST_REPLY))

    def keepalive(self) -> dict[str, int]:
        """TCP settings under their libpq names: the kernel detects a dead peer after `suspect` seconds."""
        return {
            "keepalives": 1,
            "keepalives_idle": max(1, round(self.suspect / 2)),
            "keepalives_interval": max(1, round(self.suspect / 4)),
            "keepalives_count": 2,
            "tcp_user_timeout": round(self.suspect * 1000),
        }


KEEPALIVE: Final = frozenset(ReplyTimeouts(0, 0, 0).keepalive())
"""The libpq names of the TCP settings."""
# Socket options by platform: macOS calls the idle time TCP_KEEPALIVE, and has no TCP_USER_TIMEOUT.
_OPTIONS: Final = {
    "keepalives_idle": ("TCP_KEEPIDLE", "TCP_KEEPALIVE"),
    "keepalives_interval": ("TCP_KEEPINTVL",),
    "keepalives_count": ("TCP_KEEPCNT",),
    "tcp_user_timeout": ("TCP_USER_TIMEOUT",),
}


def keep_alive(sock: Any, values: Mapping[str, int]) -> None:
    """Set TCP keepalive on a socket. As in libpq, 0 means the default of the system."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, values["keepalives"])
    for name, options in _OPTIONS.items():
        for option in options:
            if hasattr(socket, option) and values[name]:
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), values[name])
                break


def on_server(values: Mapping[str, int]) -> dict[str, str]:
    """The same for the server, as settings of the session. The server ignores them on a Unix socket.

    By default a server keeps the session of a vanished client for two hours, and it counts towards max_connections.
    """
    if not values["keepalives"]:
        return {}
    return {
        f"tcp_{name.removeprefix('tcp_')}": str(max(0, values[name])) for name in KEEPALIVE - {"keepalives"}
    }


def _between(least: float, value: float, most: float) -> float:
    return max(least, min(value, most))
