"""Events for the tests of sinks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from gen_durable import CloudEvent


def event(n: int = 1, **changes: Any) -> CloudEvent:
    plain: dict[str, Any] = {
        "id": f"7:3:{n}",
        "source": "/gen_durable/gen_durable",
        "type": "order.paid.v1",
        "subject": "order:42",
        "time": datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
        "data": {"amount": 100, "to": "Zoë"},
    }
    return CloudEvent(**{**plain, **changes})
