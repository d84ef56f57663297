"""Steps that leased rows are at and that the machines of this worker do not have."""

from __future__ import annotations

import logging
import random
import time
from datetime import timedelta
from typing import Final

from .._core.model import Execution
from ..definition import MachineDef

__all__ = ["UnknownSteps"]

_MIN_DELAY: Final = 1.0
_MAX_DELAY: Final = 600.0
# Of the time for which this worker has known of the step. So a row of a rolling deploy is not delayed for long, rows of
# a removed step cost little after a while, and a fix waits at most a tenth of the outage for its rows.
_SHARE: Final = 0.1


class UnknownSteps:
    """Decides when rows at such steps are due again. One warning per machine, version and step."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, int, str], float] = {}
        self._warned: set[tuple[str, int, str]] = set()

    def delay(self, execution: Execution) -> timedelta:
        """Return how long to leave a row to other workers. Jitter spreads rows that were deferred together."""
        now = time.monotonic()
        passed = now - self._since.setdefault(_key(execution), now)
        seconds = min(max(passed * _SHARE, _MIN_DELAY), _MAX_DELAY)
        return timedelta(seconds=seconds * random.uniform(0.9, 1.1))

    def warning(self, execution: Execution, machine: MachineDef) -> tuple[int, str] | None:
        """Return the log line for the first row at this step; `None` for the others."""
        key = _key(execution)
        if key in self._warned:
            return None
        self._warned.add(key)
        name, version, step = key
        return logging.WARNING, (
            f"step not known: {name} {execution.id} is at step {step} of version {version}; this worker has "
            f"{', '.join(machine.steps)}. Its instances are left to other workers; to run them here, keep the step, or "
            f"name it in was= of the step that replaces it"
        )


def _key(execution: Execution) -> tuple[str, int, str]:
    return execution.fsm, execution.version, execution.step
