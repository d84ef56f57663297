"""Stop a server that lost its keeper, found by the pid in its data directory."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

from .keeper import open_owned
from .processes import command_of

__all__ = ["end_orphan"]

_PAUSE_S = 0.01
# Signals and the seconds to wait after each: SIGINT closes sessions and writes a checkpoint, SIGQUIT leaves that to
# recovery.
_SIGNALS = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))


def end_orphan(data: Path, owner: int) -> None:
    """Stop the server of this data directory, if one runs.

    Only for a client that holds the start lock and found no keeper. On Linux the kernel has already signalled such a
    server, and this waits for its end; on macOS it would run on.
    """
    pid = _recorded_pid(data, owner)
    for number, seconds in _SIGNALS:
        if pid is None or not _is_server_of(data, pid):
            return
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        give_up = time.monotonic() + seconds
        while _is_server_of(data, pid) and time.monotonic() < give_up:
            time.sleep(_PAUSE_S)


def _recorded_pid(data: Path, owner: int) -> int | None:
    opened = open_owned(data, "postmaster.pid", os.O_RDONLY, owner)
    if opened is None:
        return None
    try:
        with os.fdopen(opened, "rb") as file:
            pid = int(file.readline())
    except ValueError:
        return None
    return pid if pid > 0 else None


def _is_server_of(data: Path, pid: int) -> bool:
    """Whether that process was started on this data directory; the pid may have been reused."""
    command = command_of(pid)
    if sys.platform == "linux":
        return command.split(b"\0")[1:3] == [b"-D", os.fsencode(data)]
    else:  # noqa: RET505  type checkers skip the branches of other platforms
        return os.fsencode(f" -D {data} ") in command
