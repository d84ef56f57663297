"""A side effect outside the database: a label printer, simulated by a file.

Every worker process appends to the file. A line is one printed label, so a step that ran twice has two lines.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

__all__ = ["Print", "print_label", "read_ledger"]


class Print(msgspec.Struct, frozen=True):
    """One printed label."""

    parcel_id: int
    key: str
    """The idempotency key of the step. A real printer service could use it to reject the second print."""
    pid: int


def print_label(ledger: str, parcel_id: int, key: str) -> None:
    """Append a line with one write, so that lines of several processes do not mix."""
    line = msgspec.json.encode(Print(parcel_id, key, os.getpid())) + b"\n"
    file = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def read_ledger(ledger: Path) -> list[Print]:
    """Return all labels printed so far."""
    if not ledger.exists():
        return []
    return [msgspec.json.decode(line, type=Print) for line in ledger.read_bytes().splitlines()]
