"""How long a shutdown waits, in seconds. It must end even if the database, a step or a process does not respond.

The reaper of another worker recovers whatever a timeout cuts off.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "CANCELLED_TASKS",
    "COMMITS",
    "KILLED_PROCESSES",
    "LAST_STATEMENTS",
    "ORPHANED_WORKER",
    "SINKS",
    "SUPERVISED_WORKER",
]

COMMITS: Final = 5.0
"""For outcomes that are being committed, and for the release of unfinished executions."""
LAST_STATEMENTS: Final = 2.0
"""For the pick that is under way, and for the statements that finish executions and deregister the worker."""
CANCELLED_TASKS: Final = 1.0
"""For tasks that ignored their first cancellation to handle the second one, before the event loop closes."""
KILLED_PROCESSES: Final = 2.0
"""For killed processes of the process pool to exit."""
SINKS: Final = 2.0
"""For a sink to close its connections."""
SUPERVISED_WORKER: Final = 15.0
"""For a supervised worker to exit, beyond its drain_timeout, before the supervisor kills it."""
ORPHANED_WORKER: Final = 10.0
"""For a worker to release its executions after its supervisor has died, before it exits."""
