"""Wait for a keeper or a lock, and explain a failure with the log of the server."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

from gen_durable.errors import UnreachableError

from . import locks
from .home import Home
from .locks import Lock

__all__ = ["OWN_SERVER", "TIMEOUT_S", "failure", "has_keeper", "pauses", "wait_for_lock"]

TIMEOUT_S = 60.0
"""How long a start may take."""
OWN_SERVER = "or set GEN_DURABLE_DSN to a server of your own."
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.02
_REASON = re.compile(r"(?:FATAL|PANIC|error|\w*Error): .*")


def has_keeper(home: Home) -> bool:
    """Whether a keeper runs."""
    # Shared, so that clients that check at the same time do not see each other as the keeper.
    free = locks.attempt(home.keeper_lock, shared=True)
    if free is None:
        return True
    free.release()
    return False


def wait_for_lock(home: Home, path: Path, *, shared: bool = False) -> Lock:
    """Lock the file; wait for other holders, which keep it briefly or while they stop a server."""
    for _ in pauses():
        lock = locks.attempt(path, shared=shared)
        if lock is not None:
            return lock
    raise failure(home, f"{path} was still locked after {TIMEOUT_S:.0f} s")


def pauses(seconds: float = TIMEOUT_S) -> Iterator[None]:
    """Yield at once, and then after growing pauses, until the timeout."""
    give_up = time.monotonic() + seconds
    pause = _FIRST_PAUSE_S
    yield
    while time.monotonic() < give_up:
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE_S)
        yield


def failure(home: Home, problem: str, log_start: int | None = None) -> UnreachableError:
    """Return the error, with the cause that the log names after offset `log_start`."""
    reason = "" if log_start is None else _reason(home.log, log_start)
    cause = f"{problem}: {reason}" if reason else problem
    return UnreachableError(home.dsn, cause, f"See {home.log}, {OWN_SERVER}")


def _reason(log: Path, start: int) -> str:
    """The line of the log, from offset `start`, that most likely names the cause."""
    try:
        text = log.read_bytes()[start:].decode(errors="replace")
    except FileNotFoundError:
        return ""
    lines = _REASON.findall(text) or text.split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
