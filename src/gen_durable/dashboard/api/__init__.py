"""The endpoints of the JSON API, one module per subject. Importing them registers them."""

from __future__ import annotations

from . import (
    attention,
    audit,
    batches,
    failures,
    instance,
    instances,
    jump,
    machine_now,
    machine_rates,
    machines,
    outbox,
    overview,
    queues,
    schedules,
    session,
    system,
    workers,
)

__all__ = [
    "attention",
    "audit",
    "batches",
    "failures",
    "instance",
    "instances",
    "jump",
    "machine_now",
    "machine_rates",
    "machines",
    "outbox",
    "overview",
    "queues",
    "schedules",
    "session",
    "system",
    "workers",
]
