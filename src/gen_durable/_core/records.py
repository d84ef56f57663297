"""Execution records, and the state of a job derived from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..instance import ExecutionRecord, ExecutionStatus, JobState

__all__ = ["job_state", "record_of"]


def job_state(executions: Iterable[ExecutionRecord]) -> JobState:
    """Derive the state of a job from its executions.

    The execution that ended the job decides, unless the job was retried after it. A success counts once that execution
    is DONE; while it is COMMITTED, the job is RUNNING. Otherwise a job is RUNNING if an execution is live or has
    committed a transition, else PENDING.
    """
    state = JobState.PENDING
    for execution in executions:
        # A retried `stop` counts as a transition; a retried cancel or poison does not.
        outcome = "retry" if execution.retried_at is not None else execution.outcome
        match execution.status, outcome:
            case ExecutionStatus.DONE, "done":
                return JobState.SUCCEEDED
            case ((ExecutionStatus.COMMITTED | ExecutionStatus.DONE), "stop"):
                return JobState.FAILED
            case ExecutionStatus.ABORTED, "poison":
                return JobState.FAILED
            case ExecutionStatus.ABORTED, "cancelled":
                return JobState.CANCELLED
            case ExecutionStatus.ABORTED, _:
                pass
            case _:
                state = JobState.RUNNING
    return state


def record_of(row: Mapping[str, Any]) -> ExecutionRecord:
    """Build a record from a row of the view `gen_durable_executions`."""
    return ExecutionRecord(
        exec_id=row["exec_id"],
        job_id=row["job_id"],
        attempt=row["attempt"],
        status=ExecutionStatus(row["status"]),
        step=row["step"],
        step_seq=row["step_seq"],
        step_attempt=row["step_attempt"],
        outcome=row["outcome"],
        lease_owner=row["lease_owner"],
        lease_expires_at=row["lease_expires_at"],
        leased_at=row["leased_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        error=row["error"],
        retried_at=row["retried_at"],
        to_step=row["to_step"],
        cause=row["cause"],
    )
