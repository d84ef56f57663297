"""File locks by `flock`, which the kernel releases when the holder exits.

The lock belongs to the open file, which a forked child shares. A child that outlives its parent would keep the lock, so
every child closes its copies right after the fork. Files are close-on-exec.
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

__all__ = ["Lock", "attempt"]


class Lock:
    """A held lock. It lasts until `release` or the end of the process; garbage collection does not release it."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def is_held_on(self, path: Path) -> bool:
        """Whether it still locks the file at `path`: not lost by a fork, and the file was not replaced."""
        try:
            return self in _held and os.path.samestat(os.fstat(self._fd), path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Close the file. The lock persists if another process was given the open file."""
        with _mutex:
            if self in _held:
                _held.discard(self)
                os.close(self._fd)


# Guarded by _mutex, which a fork acquires first: no fork happens between opening a file and adding it here.
_held: set[Lock] = set()
_mutex = threading.Lock()


def attempt(path: Path, *, shared: bool = False) -> Lock | None:
    """Lock the file, created if necessary; return `None` at once if another process holds the lock."""
    with _mutex:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except BaseException:
            os.close(fd)
            raise
        lock = Lock(fd)
        _held.add(lock)
        return lock


def _forget_all() -> None:
    for lock in _held:
        os.close(lock.fileno())
    _held.clear()
    _mutex.release()


os.register_at_fork(before=_mutex.acquire, after_in_parent=_mutex.release, after_in_child=_forget_all)
