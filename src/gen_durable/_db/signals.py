"""Deliver signals, and clear inboxes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..errors import InboxFullError, MessageReusedError
from .failures import StatementError
from .plan import Plan, statements
from .sqlstates import INBOX_FULL

__all__ = ["Delivery", "claim", "deliver", "sweep"]

_SQL = statements("signals.sql")


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """The result of a delivery."""

    id: int
    is_new: bool
    has_woken: bool
    queue: str


def sweep(ids: Sequence[int]) -> Plan[None]:
    """Clear the inboxes of instances that have ended."""
    yield _SQL["sweep"](ids=ids)


def claim(message_id: str, key: str, name: str) -> Plan[bool]:
    """Record the id of an incoming message; return whether it is new. Needs the transaction of the delivery.

    Raises:
        MessageReusedError: the id was delivered to another target or under another signal.
    """
    message = {"message_id": message_id, "correlation_key": key, "signal": name}
    if (yield _SQL["claim_message"](**message)):
        return True
    rows = yield _SQL["claimed_message"](**message)
    if not all(row["is_same"] for row in rows):
        raise MessageReusedError(message_id)
    # No row: the collector has just removed it, so the message is a duplicate older than the retention.
    return False


def deliver(
    target: int | str,
    name: str,
    payload: str,
    dedup_key: str | None,
    traceparent: str | None = None,
    max_inbox: int | None = None,
) -> Plan[Delivery | None]:
    """Add a signal to the inbox of a live instance; return `None` if there is no such instance.

    Args:
        max_inbox: bytes of unread payloads that the inbox may have. `None`: the default of the SQL function.
    """
    try:
        rows = yield _SQL["deliver"](
            target_id=target if isinstance(target, int) else None,
            target_key=target if isinstance(target, str) else None,
            name=name,
            payload=payload,
            dedup_key=dedup_key,
            traceparent=traceparent,
            max_inbox=max_inbox,
        )
    except StatementError as error:
        if error.sqlstate == INBOX_FULL:
            raise InboxFullError(
                error.message, "await these signals in the machine, or send fewer or smaller ones"
            ) from error
        raise
    for row in rows:
        return Delivery(row["id"], row["signal_id"] is not None, row["woken"], row["queue"])
    return None
