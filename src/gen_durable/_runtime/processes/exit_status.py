"""How a process ended, as text."""

from __future__ import annotations

import signal
from contextlib import suppress

__all__ = ["exit_status"]


def exit_status(code: int) -> str:
    """Describe a return code of `subprocess`: an exit code, or minus the number of a signal."""
    if code >= 0:
        return f"exited with code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
