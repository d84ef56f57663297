"""Expensive directories, made once for all processes of pytest-xdist."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

__all__ = ["made_once"]


@contextmanager
def made_once(directories: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Iterator[Path]:
    """A directory that the first process creates and the last one removes."""
    own = directories.getbasetemp()
    common = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    path = common / name
    with (common / f"{name}.lock").open("w") as lock, (common / f"{name}.users").open("w") as users:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            make(path)
        fcntl.flock(users, fcntl.LOCK_SH)
        fcntl.flock(lock, fcntl.LOCK_UN)
        yield path
        fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(BlockingIOError):
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)
