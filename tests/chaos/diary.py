"""What steps did, line by line, in a file that survives every kill.

One `write` per line to a file that all processes append to: lines are whole, and their order is the order in which they
were written, whichever process wrote them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["Diary", "lines_of"]


class Diary:
    """The end of the file that a process writes to."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def note(self, what: str, **facts: Any) -> None:
        line = json.dumps({"what": what, "pid": os.getpid(), **facts}, separators=(",", ":")) + "\n"
        os.write(self._fd, line.encode())


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Everything so far."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().splitlines()]
