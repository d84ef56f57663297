"""Find out which source files have changed, by polling: that works on every file system and needs no dependency."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import cache_from_source
from pathlib import Path
from typing import Final, TypeAlias

__all__ = ["Scan", "Sources", "changes", "described_changes", "forget_bytecode"]

Scan: TypeAlias = Mapping[str, tuple[int, int]]
"""Time of change in nanoseconds, and size, by path."""

_POLL_INTERVAL: Final = 0.3
# A scan takes at most this part of the time, however many files there are.
_SHARE: Final = 0.05
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
_ENVIRONMENT: Final = "pyvenv.cfg"


class Sources:
    """Python files below some directories, and further files.

    Hidden directories, virtual environments and installed packages are left out.

    Args:
        directories: directories whose Python files count.
        others: files, and directories all of whose files count.
    """

    def __init__(self, directories: Iterable[Path], others: Iterable[Path] = ()) -> None:
        self._directories = [str(each) for each in directories]
        self._others = [str(each) for each in others]

    async def scan(self) -> Scan:
        """Read the times of all files, on a thread."""
        return await asyncio.to_thread(self._scan)

    async def changed(self, since: Scan) -> list[str]:
        """Wait until files differ from a scan, and then stay the same for one interval. Returns their paths."""
        before = since
        while True:
            began = time.monotonic()
            now = await self.scan()
            if now != since and now == before:
                return changes(since, now)
            before = now
            await asyncio.sleep(max(_POLL_INTERVAL, (time.monotonic() - began) / _SHARE))

    def _scan(self) -> Scan:
        found: dict[str, tuple[int, int]] = {}
        for directory in self._directories:
            found.update(_files(directory, only_python=True))
        for other in self._others:
            if os.path.isdir(other):  # noqa: PTH112 - a scan makes thousands of such calls
                found.update(_files(other, only_python=False))
            elif (entry := _entry(other)) is not None:
                found[other] = entry
        return found


def changes(before: Scan, after: Scan) -> list[str]:
    """Return the paths that differ, sorted."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def described_changes(paths: list[str]) -> str:
    """Name changed files: `shop.py changed`, `shop.py and 2 other files changed`."""
    first = os.path.relpath(paths[0])
    shown = paths[0] if first.startswith("..") else first
    others = len(paths) - 1
    more = f" and {others} other file{'s' * (others > 1)}" if others else ""
    return f"{shown}{more} changed"


def forget_bytecode(paths: Iterable[str]) -> None:
    """Delete compiled files: Python takes one for current if a file changed within a second and kept its size."""
    for path in paths:
        if path.endswith(".py"):
            Path(cache_from_source(path)).unlink(missing_ok=True)


def _files(directory: str, *, only_python: bool) -> Iterator[tuple[str, tuple[int, int]]]:
    folders = [directory]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(folder) as found:
                entries = [each for each in found if not each.name.startswith(".")]
        except OSError:  # removed, or not ours
            continue
        if folder != directory and any(each.name == _ENVIRONMENT for each in entries):
            continue
        for each in entries:
            if each.is_dir(follow_symlinks=False):
                if each.name not in _SKIPPED:
                    folders.append(each.path)
            elif (each.name.endswith(".py") or not only_python) and (entry := _entry(each.path)) is not None:
                yield each.path, entry


def _entry(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 - a scan makes thousands of such calls
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
