"""What steps did, line by line, in a file that survives kills.

All processes append with one `write` per line, so lines are complete and in order.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["Journal", "lines_of"]


class Journal:
    """Appends to the file."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, what: str, **facts: Any) -> None:
        line = json.dumps({"what": what, "pid": os.getpid(), **facts}, separators=(",", ":")) + "\n"
        os.write(self._fd, line.encode())


def lines_of(path: Path) -> list[dict[str, Any]]:
    """All lines so far."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().splitlines()]
