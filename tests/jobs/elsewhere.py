"""A job that another module imports."""

from __future__ import annotations

from gen_durable import job


@job("ops.notify.v1")
async def notify(text: str) -> int:
    return len(text)
