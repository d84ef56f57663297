"""Contexts and snapshots."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gen_durable.context import Children, Context
from gen_durable.errors import InstanceCancelledError, InstanceFailedError, InstanceUnfinishedError
from gen_durable.instance import LIVE_STATUSES, TERMINAL_STATUSES, Child, Instance, Status
from gen_durable.machine import Machine, step
from gen_durable.outcome import Done, Outcome

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Square(Machine[int, int | None]):
    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state**2)


class Other(Square, name="other"):
    pass


def child(id: int, machine: str, status: Status, result: int | None = None) -> Child[Any]:
    return Child(id=id, machine=machine, status=status, state=id, result=result, last_error=None)


CHILDREN = Children(
    [
        child(1, "Square", Status.DONE, 1),
        child(2, "other", Status.DONE, 4),
        child(3, "Square", Status.FAILED),
        child(4, "Square", Status.CANCELLED),
        child(5, "Square", Status.DONE, None),
    ]
)


def test_children_are_selected_by_machine() -> None:
    assert [one.id for one in CHILDREN.of(Square)] == [1, 3, 4, 5]
    assert [one.id for one in CHILDREN.of(Other())] == [2]


def test_results_are_of_done_children_only() -> None:
    assert CHILDREN.results(Square) == [1, None]


def test_failed_lists_children_that_are_not_done() -> None:
    assert [one.id for one in CHILDREN.failed] == [3, 4]
    assert [one.is_done for one in CHILDREN] == [True, True, False, False, True]


def test_children_are_a_sequence() -> None:
    assert len(CHILDREN) == 5
    assert CHILDREN[0].id == 1
    assert [one.id for one in CHILDREN[3:]] == [4, 5]
    assert not Children()
    assert repr(Children()) == "Children([])"


def test_context_has_its_idempotency_key() -> None:
    ctx = Context(id=7, machine="Square", version=1, step="run", attempt=0, step_seq=1, state=3)
    assert ctx.idempotency_key == "7:1"
    assert (len(ctx.awaited), len(ctx.inbox), len(ctx.children), ctx.timed_out) == (0, 0, 0, False)
    ctx.state = 4
    assert ctx.state == 4


def instance(
    status: Status, result: int | None = None, error: str | None = None
) -> Instance[int, int | None]:
    return Instance(
        id=7,
        machine="Square",
        version=1,
        step="run",
        status=status,
        state=3,
        stored_result=result,
        last_error=error if status is not Status.CANCELLED else "of a step",
        cancel_reason=error if status is Status.CANCELLED else None,
        inserted_at=NOON,
        updated_at=NOON,
        eligible_at=NOON,
    )


def test_done_instance_has_a_result() -> None:
    assert instance(Status.DONE, 9).result == 9
    assert instance(Status.DONE, None).result is None


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (Status.FAILED, InstanceFailedError),
        (Status.CANCELLED, InstanceCancelledError),
        *((status, InstanceUnfinishedError) for status in LIVE_STATUSES),
    ],
)
def test_result_of_an_unfinished_instance_raises(status: Status, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"instance 7 .* has no result: {status.value} at step 'run': too late"):
        _ = instance(status, error="too late").result


def test_every_status_is_live_or_terminal() -> None:
    assert (*LIVE_STATUSES, *TERMINAL_STATUSES) == tuple(Status)
    assert [status for status in Status if status.is_terminal] == list(TERMINAL_STATUSES)
    assert [status for status in Status if instance(status).is_finished] == list(TERMINAL_STATUSES)
    assert [status for status in Status if instance(status).is_parked] == [
        "awaiting_signal",
        "awaiting_children",
    ]
