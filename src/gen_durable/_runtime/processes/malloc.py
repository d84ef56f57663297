"""Large buffers go back to the system when they are freed.

glibc serves large requests by mmap, but raises the limit between small and large, up to 32 MB, each time such a buffer
is freed. From then on buffers of that size come from the heap. Small objects that live longer, those of a new
connection for example, end up between them, and the heap cannot shrink: the memory of a worker grows for hours although
what it uses does not. With a fixed limit it stays flat (PERFORMANCE.md has the curves).
"""

from __future__ import annotations

import ctypes
from typing import Final

from ...config import malloc_is_tuned

__all__ = ["return_large_buffers"]

_M_MMAP_THRESHOLD: Final = -3
# What glibc begins with.
_LARGE: Final = 128 * 1024


def return_large_buffers() -> None:
    """Fix the limit, for a process that is all ours. Another C library, or settings of the user's, are left alone."""
    if malloc_is_tuned():
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGE)
