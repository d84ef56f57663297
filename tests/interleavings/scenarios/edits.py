"""Edits against concurrent changes."""

from __future__ import annotations

from tests.interleavings.actions import (
    commit_picked,
    edit,
    flush_picked,
    lease_some,
    reap,
    retry,
    send,
)
from tests.interleavings.invariants import require
from tests.interleavings.product import SCHEMA, Change
from tests.interleavings.scenario import End, Scenario
from tests.interleavings.session import flush
from tests.interleavings.world import FUTURE, failed, instance, leased, new, outcome

_LOCK = (
    "perform from gen_durable.gen_durable g where g.id = any (family) order by g.id desc for no key update;\n"
)
_SELECT = "  select g.*, case when g.deleted_at is not null then 'deleted'"
PAUSE_AFTER_THE_LOCK = Change(
    SCHEMA, f"  {_LOCK}{_SELECT}", f"  {_LOCK}  perform gen_durable.pause(1);\n{_SELECT}"
)
_STATE = {"edited": True}


def edit_and_pick() -> Scenario:
    """A step runs with the state before the edit or after it, and no outcome replaces an edit that it has not read."""

    def check(end: End) -> None:
        row, picked = end.after.instances[1], end.sessions["K"].results[0]
        require(row["status"] == "runnable", "an execution lost its lease to an edit")
        # A pick skips a row that the edit has locked.
        has_read = any("edited" in execution.state for execution in picked.executions)
        if end.result("E").refusal is None and not has_read:
            require(row["state"] == _STATE, "an outcome replaced an edit that it had not read")
        require(end.result("E").refusal in (None, "executing"), "refused without a reason")

    return Scenario(
        name="edit × pick and commit(next)",
        setup=[instance(1)],
        sessions={"E": [edit(1)], "K": [lease_some(8), commit_picked("next")]},
        check=check,
    )


def edit_and_commit() -> Scenario:
    """An edit of an execution is refused; after its commit it finds the new step."""

    def check(end: End) -> None:
        row = end.after.instances[1]
        require((row["status"], row["step"]) == ("awaiting_signal", "t"), "the outcome was lost")
        is_edited = end.result("E").refusal is None
        require((row["state"] == _STATE) == is_edited, "the answer is not what happened")
        require(row["awaits"] == ["go"], "the edit changed what it waits for")

    return Scenario(
        name="edit × commit(await)",
        setup=[leased(1, lease_expires_at=FUTURE)],
        sessions={"E": [edit(1)], "F": [flush(outcome(1, "await", awaits=("go",)))]},
        check=check,
    )


def edit_and_edit() -> Scenario:
    """Of two edits that have read the same state, one is refused."""

    def check(end: End) -> None:
        refusals = sorted(str(end.result(name).refusal) for name in ("E", "D"))
        require(refusals == ["None", "moved"], "both edits of one state, or none")

    return Scenario(
        name="edit × edit of the same step_seq",
        setup=[instance(1, "awaiting_signal", awaits=("go",))],
        sessions={"E": [edit(1, expected_seq=0)], "D": [edit(1, expected_seq=0)]},
        check=check,
    )


def edit_and_deliver() -> Scenario:
    """The signal wakes the instance, which runs the edited step."""

    def check(end: End) -> None:
        row = end.after.instances[1]
        require((row["status"], row["step"]) == ("runnable", "u"), "the signal or the edit was lost")
        require(row["state"] == _STATE, "the edit was lost")
        require(row["await_deadline"] is not None, "the deadline was lost")

    return Scenario(
        name="edit(step) × deliver",
        setup=[instance(1, "awaiting_signal", awaits=("go",), await_deadline=FUTURE)],
        sessions={"E": [edit(1, step="u")], "S": [send()]},
        check=check,
    )


def wake_and_deliver() -> Scenario:
    """A woken instance waits for nothing, and keeps a signal that comes."""

    def check(end: End) -> None:
        row = end.after.instances[1]
        require(row["status"] == "runnable", "it still waits")
        require(len(end.after.unread(1)) == 1, "the signal was lost")

    return Scenario(
        name="edit(wake) × deliver",
        setup=[instance(1, "awaiting_signal", awaits=("go",), await_deadline=FUTURE)],
        sessions={"E": [edit(1, wake=True)], "S": [send()]},
        check=check,
    )


def edit_and_end_of_child(*, wake: bool) -> Scenario:
    """An edited parent still waits for its children; a woken one does not."""

    def check(end: End) -> None:
        row = end.after.instances[1]
        require(row["status"] == "runnable", "it waits for children that have ended")
        require(row["state"] == _STATE, "the edit was lost")
        # A parent that its last child has released before the edit is not parked any more.
        joins = row["spawn_round"] == row["step_seq"]
        require(joins or wake, "its next step does not see its children")
        require(row["children_pending"] == 0, "a barrier without a waiting parent")

    return Scenario(
        name=f"edit(parent{', wake' if wake else ''}) × done(child) × done(child)",
        setup=[
            instance(1, "awaiting_children", step_seq=1, spawn_round=1, children_pending=2),
            *(leased(id, parent_id=1, parent_round=1, lease_expires_at=FUTURE) for id in (11, 12)),
        ],
        sessions={
            "E": [edit(1, wake=wake)],
            "F": [flush(outcome(11, "done", parent_id=1))],
            "G": [flush(outcome(12, "done", parent_id=1))],
        },
        check=check,
    )


def edit_and_retry() -> Scenario:
    """A failed instance is edited and retried, in any order."""

    def check(end: End) -> None:
        # A pick skips a row that the edit has locked.
        require(end.after.status(1) in ("done", "runnable"), "it was not retried")

    return Scenario(
        name="edit(failed) × retry, pick and commit(done)",
        setup=[*failed(1)],
        sessions={"E": [edit(1)], "T": [retry(1), lease_some(8), flush_picked("done")]},
        check=check,
    )


def edit_and_reap() -> Scenario:
    """A lost execution is taken back before the edit, or the edit is refused. A reap skips a locked row."""

    def check(end: End) -> None:
        row = end.after.instances[1]
        is_edited = end.result("E").refusal is None
        require((row["state"] == _STATE) == is_edited, "the answer is not what happened")

    return Scenario(
        name="edit × reap",
        setup=[leased(1)],
        sessions={"E": [edit(1)], "R": [reap()]},
        check=check,
    )


def edit_and_spawn() -> Scenario:
    """Children that are scheduled while the edit waits for their parent are not locked after it."""

    def check(end: End) -> None:
        row = end.after.instances[1]
        is_edited = end.result("E").refusal is None
        require((row["state"] == _STATE) == is_edited, "the answer is not what happened")
        require(end.result("E").refusal in (None, "executing", "moved"), "refused without a reason")
        if row["status"] == "runnable":
            require(row["spawn_round"] == row["step_seq"], "its next step does not see its children")

    spawn = outcome(1, "schedule_children", children=(new(),))
    return Scenario(
        name="edit × commit(schedule_children) × pick and commit(child)",
        sample=150,
        setup=[leased(1, lease_expires_at=FUTURE)],
        sessions={
            "E": [edit(1)],
            "F": [flush(spawn)],
            "K": [lease_some(8), flush_picked("done", parent_id=1)],
        },
        check=check,
        pauses=[PAUSE_AFTER_THE_LOCK],
    )


SCENARIOS = [
    edit_and_pick(),
    edit_and_commit(),
    edit_and_edit(),
    edit_and_deliver(),
    wake_and_deliver(),
    edit_and_end_of_child(wake=False),
    edit_and_end_of_child(wake=True),
    edit_and_retry(),
    edit_and_reap(),
    edit_and_spawn(),
]
