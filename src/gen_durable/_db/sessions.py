"""Sessions on the server, by application."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .plan import Plan, statements

__all__ = ["SessionCount", "by_application"]

_SQL = statements("sessions.sql")


class SessionCount(NamedTuple):
    """The number of sessions of one application."""

    application: str
    """`application_name`; empty if the application sets none."""
    sessions: int


def by_application() -> Plan[Sequence[SessionCount]]:
    """Count the sessions of other clients, in all databases."""
    rows = yield _SQL["by_application"]()
    return [SessionCount(row["application"], row["sessions"]) for row in rows]
