"""The command line of a running process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

__all__ = ["command_of", "shown_command"]

_PASSWORD = re.compile(r"(://[^:/@\s]*):[^@\s]*@")


def command_of(pid: int) -> bytes:
    """Return the command line: on Linux the arguments, each ended by NUL, elsewhere a text. Empty if it has ended."""
    if sys.platform == "linux":
        # Unlike /proc/<pid>/cwd it is readable in every container; it is empty for a zombie.
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return b""
    else:
        command = ["ps", "-ww", "-o", "command=", "-p", str(pid)]
        return subprocess.run(command, capture_output=True, check=False).stdout


def shown_command(pid: int) -> str:
    """Return the command line as text, without passwords in URLs."""
    text = os.fsdecode(command_of(pid).replace(b"\0", b" ")).strip()
    return _PASSWORD.sub(r"\1:***@", text)
