"""The world outside the database: a label printer that cannot take back what it printed.

Every worker process appends to one file. A line is one printed label, so a step that ran twice shows up twice,
whatever the database says about it.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

__all__ = ["Print", "print_label", "read_ledger"]


class Print(msgspec.Struct, frozen=True):
    """One label that came out of the printer."""

    parcel_id: int
    key: str
    """The idempotency key of the step that printed it: a good printer would have refused the second one."""
    pid: int


def print_label(ledger: str, parcel_id: int, key: str) -> None:
    """Print. One write of one short line, so that lines of several processes never mix."""
    line = msgspec.json.encode(Print(parcel_id, key, os.getpid())) + b"\n"
    file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def read_ledger(ledger: Path) -> list[Print]:
    """Everything printed so far."""
    if not ledger.exists():
        return []
    return [msgspec.json.decode(line, type=Print) for line in ledger.read_bytes().splitlines()]
