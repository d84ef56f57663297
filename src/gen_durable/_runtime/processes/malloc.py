"""Return freed large buffers to the operating system.

glibc serves large allocations by mmap, but raises the threshold for "large", up to 32 MB, whenever such a buffer is
freed. Buffers of that size then come from the heap. Long-lived small objects, such as those of a new connection, end up
between them, and the heap cannot shrink: the memory of a worker grows for hours although its live data does not.
A fixed threshold prevents that (PERFORMANCE.md has the curves).
"""

from __future__ import annotations

import ctypes
from typing import Final

from ...config import malloc_is_tuned

__all__ = ["return_large_buffers"]

_M_MMAP_THRESHOLD: Final = -3
# The initial value of glibc.
_THRESHOLD: Final = 128 * 1024


def return_large_buffers() -> None:
    """Fix the mmap threshold of this process. Does nothing without glibc, or if the user has tuned malloc."""
    if malloc_is_tuned():
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_MMAP_THRESHOLD, _THRESHOLD)
