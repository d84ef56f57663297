"""The state of a job is a pure function of its executions."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from random import Random
from typing import Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gen_durable._core.records import job_state, record_of
from gen_durable.instance import ExecutionRecord, ExecutionStatus, JobState

LEASED, IN_PROGRESS, COMMITTED, DONE, ABORTED = ExecutionStatus
PENDING, RUNNING, SUCCEEDED, FAILED, CANCELLED = JobState
_numbers = itertools.count(1)

# Every state of an execution of a live job.
GOING_ON: Final = [
    *(
        (status, outcome)
        for status in (COMMITTED, DONE)
        for outcome in ("next", "await", "schedule_children")
    ),
    (COMMITTED, "done"),  # events are pending: the job has succeeded when this is DONE
]
GIVEN_BACK: Final = [(ABORTED, reason) for reason in ("retry", "shutdown", "lease")]
LIVE: Final = [(LEASED, None), (IN_PROGRESS, None)]
ENDS: Final = [
    ((DONE, "done"), SUCCEEDED),
    ((COMMITTED, "stop"), FAILED),
    ((DONE, "stop"), FAILED),
    ((ABORTED, "poison"), FAILED),
    ((ABORTED, "cancelled"), CANCELLED),
]


def _record(status: ExecutionStatus, outcome: str | None) -> ExecutionRecord:
    number = next(_numbers)
    return ExecutionRecord(
        exec_id=f"1:{number}",
        job_id=1,
        attempt=number,
        status=status,
        step="run",
        step_seq=1,
        step_attempt=0,
        outcome=outcome,
    )


def _state(*executions: tuple[ExecutionStatus, str | None]) -> JobState:
    return job_state([_record(*one) for one in executions])


def test_job_without_executions_is_pending() -> None:
    assert _state() is PENDING


@pytest.mark.parametrize("live", LIVE)
def test_leased_job_is_running(live: tuple[ExecutionStatus, None]) -> None:
    assert _state(live) is RUNNING
    assert _state(*GIVEN_BACK, live) is RUNNING


def test_job_with_only_aborted_executions_is_pending() -> None:
    assert _state(*GIVEN_BACK) is PENDING


@pytest.mark.parametrize("committed", GOING_ON)
def test_job_with_a_committed_transition_is_running(committed: tuple[ExecutionStatus, str]) -> None:
    assert _state(committed) is RUNNING
    assert _state(committed, *GIVEN_BACK) is RUNNING


@pytest.mark.parametrize(("end", "state"), ENDS)
def test_last_execution_decides_the_final_state(end: tuple[ExecutionStatus, str], state: JobState) -> None:
    assert _state(end) is state
    assert _state(*GIVEN_BACK, *GOING_ON, end) is state


@pytest.mark.parametrize(("end", "_"), ENDS[1:])
def test_retried_end_is_not_final(end: tuple[ExecutionStatus, str], _: JobState) -> None:
    retried = msgspec.structs.replace(_record(*end), retried_at=datetime(2030, 1, 1, tzinfo=UTC))
    assert job_state([retried]) is (PENDING if end[0] is ABORTED else RUNNING)
    assert job_state([retried, _record(LEASED, None)]) is RUNNING
    assert job_state([retried, _record(DONE, "done")]) is SUCCEEDED


HISTORY = st.lists(st.sampled_from([*GOING_ON, *GIVEN_BACK]), max_size=8)


@given(HISTORY, st.sampled_from([*LIVE, (ABORTED, "cancelled"), (DONE, "done")]), st.randoms())
def test_order_of_records_does_not_matter(
    history: list[tuple[ExecutionStatus, str]], last: tuple[ExecutionStatus, str | None], random: Random
) -> None:
    records = [_record(*one) for one in [*history, last]]
    expected = job_state(records)
    random.shuffle(records)
    assert job_state(records) is expected


@given(HISTORY, st.sampled_from(ENDS))
def test_end_is_final_whatever_came_before(
    history: list[tuple[ExecutionStatus, str]], end: tuple[tuple[ExecutionStatus, str], JobState]
) -> None:
    execution, state = end
    assert _state(*history, execution) is state


@given(HISTORY)
def test_job_returns_to_pending_only_without_a_commit(
    history: list[tuple[ExecutionStatus, str]],
) -> None:
    has_committed = any(status is not ABORTED for status, _ in history)
    assert _state(*history) is (RUNNING if has_committed else PENDING)


def test_view_row_is_converted_to_a_record() -> None:
    row = {
        "exec_id": "7:2",
        "job_id": 7,
        "attempt": 2,
        "lease_owner": "host:1:abc",
        "lease_expires_at": None,
        "status": "ABORTED",
        "leased_at": None,
        "started_at": None,
        "finished_at": None,
        "step": "run",
        "step_seq": 1,
        "step_attempt": 1,
        "outcome": "lease",
        "error": None,
        "retried_at": None,
        "to_step": None,
        "cause": "crash",
    }
    record = record_of(row)
    assert record.status is ABORTED
    assert {name: getattr(record, name) for name in row} == {**row, "status": ABORTED}
