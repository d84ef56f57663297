"""Deliver signals and inbound messages."""

from __future__ import annotations

from typing import Any

import msgspec

from .._checks import checked_key, checked_name
from .._core.codec import encode
from .._db import audit, machines, signals, snapshots
from .._db.plan import Plan
from .._tracing import traceparent_of_signal
from ..config import Settings
from ..errors import NoTargetError
from ..instance import Delivered, Delivery, DuplicateSignal
from ..refs import Key, Target, key_text, target_value
from ..signals import Signal
from .common import checked_actor, checked_reason
from .edits import check_schema

__all__ = ["receive", "signal", "signal_with_reason"]


def signal(
    target: Target, signal: Signal[Any] | str, payload: Any, dedup_key: Key | None, settings: Settings
) -> Plan[tuple[Delivery, set[str]]]:
    """Deliver a signal."""
    name = signal.name if isinstance(signal, Signal) else checked_name(signal, "the name of a signal")
    payload_type = signal.payload_type if isinstance(signal, Signal) else Any
    text = encode(payload, payload_type, f"the payload of signal '{name}'", settings.max_payload)
    if dedup_key is not None:
        dedup_key = key_text(dedup_key, "dedup_key")
    value = target_value(target)
    arrival = yield from signals.deliver(
        value, name, text, dedup_key, traceparent_of_signal(), settings.max_inbox
    )
    if arrival is None:
        raise NoTargetError(value, f"signal '{name}'")
    if not arrival.is_new:
        return DuplicateSignal(arrival.id), set()
    return Delivered(arrival.id, arrival.has_woken), {arrival.queue} if arrival.has_woken else set()


def signal_with_reason(
    target: Target,
    name: str,
    payload: str,
    dedup_key: Key | None,
    settings: Settings,
    reason: str | None,
    actor: str | None,
    *,
    validate: bool,
) -> Plan[Delivery]:
    """Deliver a signal with JSON text as payload, and with actor and reason in its audit event. Needs a transaction.

    With `validate`, the payload is checked against what a worker has registered about the machine of the target. A
    signal that the machine does not declare is not checked.

    Raises:
        EncodeError: the payload does not match the schema of the signal.
    """
    if validate:
        yield from _check_payload(target, name, payload)
    raw = msgspec.Raw(payload.encode())
    delivery, _ = yield from signal(target, name, raw, dedup_key, settings)
    if isinstance(delivery, Delivered):
        yield from audit.give_reason(
            delivery.id, "signalled", checked_reason(reason), checked_actor(actor), {"signal": name}
        )
    return delivery


def _check_payload(target: Target, name: str, payload: str) -> Plan[None]:
    row = yield from snapshots.get(target_value(target))
    if row is None:
        return
    machine = yield from machines.registered(row["fsm"], row["fsm_version"])
    if (schema := machine.signals.get(name)) is not None:
        check_schema(payload, schema, f"the payload of signal '{name}'", machine, "its type in ")


def receive(
    message_id: str, key: str, name: str, payload: Any, dedup_key: str, settings: Settings
) -> Plan[tuple[bool, set[str]]]:
    """Deliver an inbound message as a signal, once over all targets; return whether it is new. Needs a transaction.

    Message ids outlive instances: a message that is repeated after its target has ended is recognised.
    """
    checked_name(name, "the name of a signal")
    checked_key(key, "the correlation key")
    checked_key(dedup_key, "the id of a message")
    if not (yield from signals.claim(message_id, key, name)):
        return False, set()
    delivery, queues = yield from signal(key, name, payload, dedup_key, settings)
    return isinstance(delivery, Delivered), queues
