"""Store the progress that steps report: the latest report of each step, at most one batch per second."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from .._core.model import Execution, Lease
from .._db import step_data
from .._db.failures import StatementError, is_data, is_outage
from .._db.pool import Database
from ..progress import Progress
from ..telemetry import ProgressStored, Telemetry

__all__ = ["ProgressWriter"]

_log: Final = logging.getLogger("gen_durable.worker")


class ProgressWriter:
    """Keeps the latest report of each execution, and writes those that are new.

    Steps report from any thread. The heartbeat writes, on its own thread.
    """

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        # Guarded by the lock.
        self._reports: dict[Lease, step_data.Report] = {}
        self._has_failed = False

    def report(self, execution: Execution, progress: Progress) -> None:
        """Keep a report until the next write."""
        with self._lock:
            self._reports[execution.lease] = step_data.Report(execution, progress)

    async def write(self, database: Database, is_running: Callable[[Execution], bool]) -> None:
        """Write the new reports of executions that still run. A failure is logged once; the next write repeats it."""
        with self._lock:
            reports, self._reports = self._reports, {}
        due = [report for report in reports.values() if is_running(report.execution)]
        if not due:
            return
        try:
            stored = await database.run(step_data.progress(due))
        except StatementError as error:
            stored = {report.execution.lease for report in due} if is_data(error) else set()
            # The heartbeat logs an outage.
            if not self._has_failed and not is_outage(error):
                _log.warning("progress not stored: %s", error)
            self._has_failed = True
        else:
            self._has_failed = False
            if stored:
                with suppress(RuntimeError):  # the worker's loop is closed
                    self._loop.call_soon_threadsafe(self._telemetry.emit, ProgressStored(count=len(stored)))
        # A row that another transaction has locked, perhaps the commit of this step.
        with self._lock:
            for report in due:
                if report.execution.lease not in stored:
                    self._reports.setdefault(report.execution.lease, report)
