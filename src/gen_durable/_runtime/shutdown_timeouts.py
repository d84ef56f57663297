"""How long a shutdown waits, in seconds. The exit must not depend on a database or a step that does not answer.

Whatever a timeout cuts off is recovered by the reaper of another worker.
"""

from __future__ import annotations

from typing import Final

__all__ = ["COMMITS", "LAST_STATEMENTS"]

COMMITS: Final = 5.0
"""For outcomes that are being committed, and to release unfinished executions."""
LAST_STATEMENTS: Final = 2.0
"""For the pick that is under way, and for the statements that finish executions and deregister the worker."""
