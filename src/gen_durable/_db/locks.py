"""Find the session that holds a lock on which a statement timed out."""

from __future__ import annotations

import re

from .failures import StatementError
from .plan import Plan, statements

__all__ = ["describe"]

_SQL = statements("locks.sql")
_RELATION = re.compile(r'in relation "([^"]+)"')


def describe(error: StatementError, schema: str) -> Plan[str]:
    """Describe the table and the session that holds the lock. The session may have ended since."""
    found = _RELATION.search(getattr(error.__cause__, "context", None) or "")
    relation = found[1] if found else None
    rows = yield _SQL["holder"](schema=schema, relation=relation)
    if not rows:
        return f'a lock on table "{schema}"."{relation}"' if relation else f'a lock in schema "{schema}"'
    row = rows[0]
    holder = f"pid {row['pid']}" + (f", {row['application']}" if row["application"] else "")
    since = "" if row["seconds"] is None else f", transaction open for {row['seconds']:.0f} s"
    return f'a lock on table "{schema}"."{row["relation"]}" ({row["mode"]} of {holder}{since})'
