"""Leases: while a process holds one, the keeper does not stop the server as idle.

A lease is a shared lock on one file, and a lock on a file of its own. The former keeps the server running; the latter
is named after the process, so that `gen-durable db status` can list the clients.
"""

from __future__ import annotations

import itertools
import os

from . import locks
from .home import Home
from .locks import Lock
from .waiting import wait_for_lock

__all__ = ["Lease", "holders"]

_numbers = itertools.count(1)


class Lease:
    """A held lease. It lasts until `release` or the end of the process."""

    __slots__ = ("_clients", "_entry", "_home")

    def __init__(self, home: Home) -> None:
        """Take it; wait while a server that has no clients stops."""
        self._home = home
        self._clients = wait_for_lock(home, home.clients_lock, shared=True)
        try:
            self._entry = _make_entry(home)
        except BaseException:
            self._clients.release()
            raise

    def is_held_on(self, home: Home) -> bool:
        """Whether it still keeps the server of this home running: not lost by a fork, and the home was not replaced."""
        return self._clients.is_held_on(home.clients_lock)

    def release(self) -> None:
        """End the lease."""
        entry, lock = self._entry
        if lock.is_held_on(self._home.leases / entry):  # not in a forked child
            (self._home.leases / entry).unlink(missing_ok=True)
        lock.release()
        self._clients.release()


def holders(home: Home) -> list[int]:
    """List the processes with a lease, by pid; remove the files of processes that were killed."""
    found = set()
    for entry in home.leases.glob("*-*"):
        free = locks.attempt(entry)
        if free is None:
            found.add(int(entry.name.partition("-")[0]))
            continue
        entry.unlink(missing_ok=True)
        free.release()
    return sorted(found)


def _make_entry(home: Home) -> tuple[str, Lock]:
    while True:
        name = f"{os.getpid()}-{next(_numbers)}"
        lock = locks.attempt(home.leases / name)
        if lock is None:  # `holders` is looking at it
            continue
        if lock.is_held_on(home.leases / name):
            return name, lock
        lock.release()  # `holders` has removed it
