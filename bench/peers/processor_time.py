"""Processor time of other processes. Linux only."""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["process_seconds", "server_seconds"]


def process_seconds(pid: int) -> float:
    """Return the processor time of a process, all its threads included, also those that have ended."""
    # The clock id of another process, as clock_getcpuclockid() computes it: CPUCLOCK_SCHED is 2.
    return time.clock_gettime(~pid << 3 | 2)


def server_seconds(backend: int) -> float:
    """Return the processor time of the PostgreSQL server of this backend, without that of the backend itself.

    It covers the whole server: client backends, background processes, and children that have ended.
    """
    postmaster = _parent(backend)
    while True:
        before = _reaped_seconds(postmaster)
        try:
            live = sum(process_seconds(pid) for pid in _children(postmaster) if pid != backend)
        except OSError:
            continue  # a child ended meanwhile
        if before == _reaped_seconds(postmaster):
            return before + live + process_seconds(postmaster)


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may contain spaces; the first is number 3 of proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _parent(pid: int) -> int:
    return int(_stat(pid)[1])


def _reaped_seconds(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
