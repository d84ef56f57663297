"""Executions as records, and what the state of a job is, given all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..instance import ExecutionRecord, ExecutionStatus, JobState

__all__ = ["job_state", "record_of"]


def job_state(executions: Iterable[ExecutionRecord]) -> JobState:
    """The state of a job as a function of its executions and of nothing else.

    The execution that ended it decides, unless the job was retried after it. A success counts when that execution is
    DONE; while it is COMMITTED, the job is RUNNING. Otherwise a job is RUNNING if an execution is live or has committed
    something, else PENDING.
    """
    state = JobState.PENDING
    for execution in executions:
        # A stop that was retried is a transition like any other; a cancel or poison that was is none.
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
    """A row of the view of executions."""
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
    )
