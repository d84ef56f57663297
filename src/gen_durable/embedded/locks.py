"""Locks that the kernel keeps: `flock` on a file, freed however its holder ends.

Such a lock belongs to the open file, which a forked child shares. A child that outlives its parent would keep
the parent's locks, so every child closes its copies right after the fork; what is started by exec never has them.
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

__all__ = ["Lock", "attempt"]


class Lock:
    """One held lock. It lasts until `release` or the end of the process: being collected does not free it."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def is_held_on(self, path: Path) -> bool:
        """Whether it still locks what is at `path`: it is not lost by a fork, and the file not replaced."""
        try:
            return self in _held and os.path.samestat(os.fstat(self._fd), path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Close the file. The lock stays in force for a process that was given the open file on purpose."""
        with _mutex:
            if self in _held:
                _held.discard(self)
                os.close(self._fd)


# Guarded by _mutex, which a fork takes first: no child is born between the opening of a file and its entry here.
_held: set[Lock] = set()
_mutex = threading.Lock()


def attempt(path: Path, *, shared: bool = False) -> Lock | None:
    """Lock the file, made if need be, or return None at once when somebody else's lock is in the way."""
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
