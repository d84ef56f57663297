"""Log lines, telemetry and counts of executions: what became of their outcomes."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Final

from .._core.model import CommitEntry, CommitResult, Committed, Execution, Stale
from ..telemetry import CompensationStarted, HandlerMissing, OutcomeStale, StepMissing, StepStop
from .executor import log_failure
from .in_flight import InFlight
from .worker_context import WorkerContext

__all__ = ["ExecutionReports"]

_log: Final = logging.getLogger("gen_durable.worker")


class ExecutionReports:
    """Reports the executions of one queue."""

    def __init__(self, queue: str, context: WorkerContext) -> None:
        self._queue = queue
        self._context = context
        self._telemetry = context.telemetry
        self._count = context.counts.count

    def committed(self, one: InFlight, entry: CommitEntry, result: CommitResult) -> None:
        """Report the result of a commit."""
        execution, telemetry = one.execution, self._telemetry
        if not isinstance(result, Committed):
            self._count(one, entry, None)
            if isinstance(result, Stale) and not result.is_given_up and not one.is_lost:
                self.lost(execution)
            telemetry.emit(
                OutcomeStale(
                    id=execution.id, fsm=execution.fsm, step=execution.step, step_seq=execution.step_seq + 1
                )
            )
            return
        self._count(one, entry, result.redirect or result.status)
        if result.redirect == "undo":
            self.compensating(execution, execution.step)
        if entry.log_line is not None or result.refused or result.status == "failed":
            self._log_committed(execution, entry, result)
        if entry.kind == "defer":
            telemetry.emit(
                StepMissing(
                    id=execution.id, fsm=execution.fsm, version=execution.version, step=execution.step
                )
            )
            return
        if entry.started is not None and telemetry.is_wanted(StepStop):
            telemetry.emit(
                StepStop(
                    duration=timedelta(seconds=one.seconds),
                    id=execution.id,
                    fsm=execution.fsm,
                    step=execution.step,
                    kind="next" if entry.kind == "continue" else entry.kind,
                )
            )

    def compensating(self, execution: Execution, step: str) -> None:
        """Report that an instance, which failed or was cancelled at `step`, runs its undo steps before it ends."""
        _log.info("undo started: %s %d, step %s", execution.fsm, execution.id, step)
        self._telemetry.emit(CompensationStarted(id=execution.id, fsm=execution.fsm, step=step))

    def lost(self, execution: Execution) -> None:
        """Log that the lease of an execution is lost."""
        _log.warning(
            "lease lost: %s %d, step %s (worker %s); outcome discarded",
            execution.fsm,
            execution.id,
            execution.step,
            self._context.name,
        )

    def cancelled_itself(self, execution: Execution) -> None:
        """Log that a step has cancelled the task that runs it."""
        _log.warning(
            "step cancelled its own task: %s %d, step %s; runs again when its lease expires",
            execution.fsm,
            execution.id,
            execution.step,
        )

    def rejoined(self, execution: Execution) -> None:
        """Log that a leased parent returns to its barrier."""
        _log.info(
            "step waits for children again: %s %d, step %s; %d children were retried",
            execution.fsm,
            execution.id,
            execution.step,
            execution.live_children,
        )

    def crashed(self, execution: Execution, error: Exception) -> None:
        """Log that the process of a step has died."""
        _log.error("step crashed: %s %d, step %s: %s", execution.fsm, execution.id, execution.step, error)

    def _log_committed(self, execution: Execution, entry: CommitEntry, result: Committed) -> None:
        registry = self._context.registry
        if result.status == "failed" and registry.get(execution.fsm, execution.version) is None:
            _log.warning(
                "machine not registered: %s %d failed; this worker serves %s and has no version %d of the machine",
                execution.fsm,
                execution.id,
                self._queue,
                execution.version,
            )
            self._telemetry.emit(
                HandlerMissing(id=execution.id, fsm=execution.fsm, version=execution.version)
            )
        if result.refused:
            _log.warning(
                "children not inserted: %s %d, step %s; the keys of %d of %d children are taken",
                execution.fsm,
                execution.id,
                execution.step,
                result.refused,
                len(entry.children),
            )
        log_failure(entry)
