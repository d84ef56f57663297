"""Checkpoints and progress of an execution against its outcome, the reaper, and the next owner."""

from __future__ import annotations

from typing import Any

from gen_durable._core.model import Execution
from gen_durable._db import step_data
from gen_durable._db.pick import Picked
from gen_durable._db.plan import Plan
from gen_durable.progress import Progress
from tests.interleavings.actions import lease_some, reap
from tests.interleavings.invariants import require
from tests.interleavings.scenario import End, Scenario
from tests.interleavings.session import Session, Work, autocommit, flush
from tests.interleavings.world import leased, outcome

_ENTRY = outcome(1, "continue")
_OLD, _NEW = '"old"', '"new"'
_PROGRESS = Progress(done=1)


def _store(execution: Execution, value: str) -> Work:
    return autocommit(lambda _: step_data.checkpoint(execution, value))


def _store_picked(session: Session) -> Plan[Any] | None:
    """Store a checkpoint of the row that this session has picked."""
    picked: Picked = session.result
    return step_data.checkpoint(picked.executions[0], _NEW) if picked.executions else None


def zombie_checkpoint() -> Scenario:
    """Reaped and leased again by a worker of the same name, the first execution comes back with a checkpoint."""

    def check(end: End) -> None:
        row, is_stored = end.after.instances[1], end.result("Z")
        picked: Picked = end.sessions["K"].results[0]
        found = picked.executions[0].checkpoint if picked.executions else None
        if picked.executions:
            require(end.result("K") is True, "the owner of the lease could not store its checkpoint")
            require(row["checkpoint"] == "new", "a lost execution has overwritten a checkpoint")
        else:
            require(row["checkpoint"] == ("old" if is_stored else None), "another checkpoint than stored")
        if found is not None:
            require(is_stored, "the next attempt has a checkpoint that was refused")
        if is_stored and picked.executions:
            require(found == _OLD, "the next attempt does not have the stored checkpoint")

    return Scenario(
        name="checkpoint × reap × pick and checkpoint",
        sample=90,
        setup=[leased(1)],
        sessions={
            "Z": [_store(_ENTRY.execution, _OLD)],
            "R": [reap()],
            "K": [lease_some(8), autocommit(_store_picked)],
        },
        check=check,
        never_wait=frozenset({"R"}),
    )


def checkpoint_and_commit(kind: Any) -> Scenario:
    """A checkpoint, sent by a task or thread that the step has left behind, meets the outcome of the step."""
    entry = outcome(1, kind)

    def check(end: End) -> None:
        is_stored, row = end.result("Z"), end.after.instances[1]
        require(len(end.result("F").committed()) == 1, "the outcome is lost")
        expected = "old" if is_stored and kind in ("retry", "stop") else None
        require(row["checkpoint"] == expected, "the next step has a checkpoint of another")
        require(not end.is_before("F", "Z") or not is_stored, "stored after the outcome")

    return Scenario(
        name=f"checkpoint × commit({kind})",
        setup=[leased(1)],
        sessions={"Z": [_store(entry.execution, _OLD)], "F": [flush(entry)]},
        check=check,
        never_wait=frozenset({"Z"}),
    )


def progress_and_commit(kind: Any) -> Scenario:
    entry = outcome(1, kind)

    def check(end: End) -> None:
        stored, row = end.result("P"), end.after.instances[1]
        require(len(end.result("F").committed()) == 1, "the outcome is lost")
        is_kept = bool(stored) and kind in ("retry", "stop")
        require((row["progress"] is not None) == is_kept, "the next step has the progress of another")

    return Scenario(
        name=f"progress × commit({kind})",
        setup=[leased(1)],
        sessions={
            "P": [autocommit(lambda _: step_data.progress([step_data.Report(entry.execution, _PROGRESS)]))],
            "F": [flush(entry)],
        },
        check=check,
        never_wait=frozenset({"P"}),
    )


def progress_reap_and_pick() -> Scenario:
    """The report of a lost execution does not reach the next attempt."""

    def check(end: End) -> None:
        stored, reaped = end.result("P"), 1 in end.result("R").ids
        row = end.after.instances[1]
        require((row["progress"] is not None) == bool(stored), "the report of a lost execution is stored")
        require(not (reaped and end.is_before("R", "P")) or not stored, "stored after the lease was lost")

    return Scenario(
        name="progress × reap × pick",
        sample=90,
        setup=[leased(1)],
        sessions={
            "P": [autocommit(lambda _: step_data.progress([step_data.Report(_ENTRY.execution, _PROGRESS)]))],
            "R": [reap()],
            "K": [lease_some(8)],
        },
        check=check,
        never_wait=frozenset({"P", "R"}),
    )


SCENARIOS = [
    zombie_checkpoint(),
    checkpoint_and_commit("continue"),
    checkpoint_and_commit("next"),
    checkpoint_and_commit("retry"),
    checkpoint_and_commit("stop"),
    checkpoint_and_commit("done"),
    progress_and_commit("continue"),
    progress_and_commit("retry"),
    progress_and_commit("done"),
    progress_reap_and_pick(),
]
