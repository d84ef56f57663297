"""Undo steps against concurrent cancels, crashes and ends of children."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from gen_durable._core.model import CommitEntry
from gen_durable.outcome import Sql
from tests.interleavings.actions import (
    CRASH_LIMIT,
    cancel,
    delete,
    edit,
    flush_with_effect,
    gate,
    lease_some,
    plain_delete,
    reap,
    retry,
    send,
)
from tests.interleavings.invariants import require
from tests.interleavings.scenario import End, Scenario
from tests.interleavings.session import Work, commit, flush, transaction
from tests.interleavings.world import FUTURE, PAST, TERMINAL, Row, instance, leased, outcome, signal

UNDO = '[["a", "undo_a"], ["b", "undo_b"]]'
_COMPENSATION = '{"end": {"status": "failed", "error": "no", "step": "s", "at": "2026-01-01T00:00:00+00:00"}}'
_PUSHED = '[["s", "undo_s"]]'
_OF_1: Mapping[str, Any] = {"parent_id": 1, "parent_round": 1}
_ON_CANCEL = (
    "insert into gen_durable.machines (fsm, fsm_version, initial_step, queue, on_cancel)"
    """ values ('F', 1, 's', 'default', '{"s": "react"}')"""
)


def flush_alone(entry: CommitEntry) -> Work:
    """Commit an outcome in a transaction of its own, as the engine does with one that redirects its instance."""
    if entry.effect is not None:
        return flush_with_effect(entry)
    return transaction(lambda _: commit([entry]))


def cancel_and_commit(entry: CommitEntry) -> Scenario:
    """The instance runs the undo steps of exactly the transitions that are committed."""

    def check(end: End) -> None:
        row, (answer,) = end.after.instances[1], end.result("C")
        is_committed = any(
            result.redirect is None
            for result in end.result("F").report.results
            if hasattr(result, "redirect") and result.status != "cancelled"
        )
        if entry.kind == "done" and is_committed:
            require(row["status"] == "done" and row["undo_steps"] is None, "done, and yet undone")
            return
        if row["status"] == "executing":
            require(
                row["cancel_requested_at"] is not None and entry.kind == "continue", "the cancel was lost"
            )
            return
        is_stopped = answer["status"] == "compensating"
        _check_begun(end, "failed" if is_stopped else "cancelled")
        pushed = [["s", "undo_s"]] if entry.undo is not None and is_committed else []
        require(row["undo_steps"] == [["a", "undo_a"], ["b", "undo_b"], *pushed], "another list")
        require(row["step"] == ("undo_s" if pushed else "undo_b"), "not the last undo step")
        require(end.after.effects == (is_committed and entry.effect is not None), "effect of the discarded")

    return Scenario(
        name=f"cancel × commit({entry.kind}{', with an effect' * (entry.effect is not None)}), with undo",
        setup=[leased(1, undo_steps=UNDO)],
        sessions={"C": [cancel(1)], "F": [flush_alone(entry)]},
        check=check,
    )


def cancel_and_cancel() -> Scenario:
    """The undo begins once, by the first of two cancels."""

    def check(end: End) -> None:
        _check_begun(end, "cancelled")
        answers = sorted(end.result(name)[0]["status"] for name in "CE")
        require(answers == ["compensating", "runnable"], "two cancels took effect")

    return Scenario(
        name="cancel × cancel, with undo",
        setup=[instance(1, "awaiting_signal", awaits=("go",), undo_steps=UNDO)],
        sessions={"C": [cancel(1)], "E": [cancel(1)]},
        check=check,
    )


def crash_and_commit(kind: Any, *, cancels: bool = False) -> Scenario:
    """The process died too often, or its outcome came late: the undo begins once."""

    def check(end: End) -> None:
        row = end.after.instances[1]
        require(row["status"] not in TERMINAL, "ended without its undo steps")
        if row["compensation"] is not None:
            require(len(end.after.audit_of(1, "compensating")) == 1, "begun twice")
            require(row["step"] == "undo_b", "not the last undo step")
        else:
            require(kind == "next" and not cancels, "not undone")

    sessions = {"R": [reap()], "F": [flush_alone(outcome(1, kind, error="no"))]}
    return Scenario(
        name=f"reap at the cap × commit({kind}){' × cancel' * cancels}, with undo",
        setup=[leased(1, undo_steps=UNDO, crash_count=CRASH_LIMIT - 1)],
        sessions={**sessions, "C": [cancel(1)]} if cancels else sessions,
        check=check,
        never_wait=frozenset({"R"}),
    )


def undone_twice() -> Scenario:
    """The outcome of an undo step is sent twice, and its lease expires: one entry is undone, once."""

    def check(end: End) -> None:
        row = end.after.instances[1]
        undone = row["compensation"].get("undone", [])
        require(undone in ([], ["b"]), "undone twice")
        require(row["step"] == ("undo_a" if undone else "undo_b"), "not the next undo step")
        require(len(row["undo_steps"]) == 2 - len(undone), "another list")

    entry = outcome(1, "done")
    return Scenario(
        name="commit(done) of an undo step × the same commit again × reap",
        setup=[leased(1, step="undo_b", undo_steps=UNDO, compensation=_COMPENSATION)],
        sessions={"F": [flush_alone(entry)], "G": [flush_alone(entry)], "R": [reap()]},
        check=check,
        never_wait=frozenset({"R"}),
    )


def last_undo_and_crash() -> Scenario:
    """The last undo step ends the instance with the postponed end, or runs again."""

    def check(end: End) -> None:
        row = end.after.instances[1]
        if row["status"] == "failed":
            require((row["step"], row["last_error"]) == ("s", "no"), "another end")
            require(row["undo_steps"] is None, "ended with undo steps left")
        else:
            require((row["status"], row["step"]) == ("runnable", "undo_a"), "lost its undo step")

    return Scenario(
        name="commit(done) of the last undo step × reap × cancel",
        setup=[leased(1, step="undo_a", undo_steps='[["a", "undo_a"]]', compensation=_COMPENSATION)],
        sessions={"F": [flush_alone(outcome(1, "done"))], "R": [reap()], "C": [cancel(1)]},
        check=check,
        never_wait=frozenset({"R"}),
    )


def cancel_parent_and_end_of_child() -> Scenario:
    """A parent runs its undo step when its child has ended, and not before."""

    def check(end: End) -> None:
        row = end.after.instances[1]
        if row["status"] == "executing" and row["compensation"] is None:
            # Cancelled after the pick of the joining step: the undo begins when that step ends.
            require(row["cancel_requested_at"] is not None, "its cancel is lost")
            return
        _check_begun(end, "cancelled", statuses=("runnable", "executing"))
        require(row["children_pending"] == 0, "a barrier without a waiting parent")
        if any(one.id == 1 for one in end.result("K").executions):
            require(end.began("A") < end.began("K"), "undone before its child")

    return Scenario(
        name="cancel(parent) × done(child) × pick, with undo",
        setup=[
            instance(1, "awaiting_children", step_seq=1, spawn_round=1, children_pending=1, undo_steps=UNDO),
            leased(11, **_OF_1),
        ],
        sessions={
            "C": [cancel(1)],
            "A": [flush(outcome(11, "done", parent_id=1))],
            "K": [lease_some(8)],
        },
        check=check,
        never_wait=frozenset({"K"}),
    )


def undo_of_child_and_end_of_sibling() -> Scenario:
    """A cancelled child with undo steps is live: its parent waits for it."""

    def check(end: End) -> None:
        require(end.after.status(11) == "runnable", "the child does not run its undo step")
        parent = end.after.instances[1]
        require(
            (parent["status"], parent["children_pending"]) == ("awaiting_children", 1),
            "released before the undo steps of its child",
        )

    return Scenario(
        name="cancel(child with undo) × done(sibling)",
        setup=[
            instance(1, "awaiting_children", step_seq=1, spawn_round=1, children_pending=2),
            instance(11, "awaiting_signal", awaits=("go",), undo_steps=UNDO, **_OF_1),
            leased(12, **_OF_1),
        ],
        sessions={"C": [cancel(11)], "A": [flush(outcome(12, "done", parent_id=1))]},
        check=check,
    )


def cancel_leads_to_on_cancel(kind: Any) -> Scenario:
    """A cancel leads to the on_cancel step of the step that the instance is at."""

    def check(end: End) -> None:
        row, (answer,) = end.after.instances[1], end.result("C")
        if answer["was"] in TERMINAL:
            return
        if answer["was"] == "executing":
            require((row["status"], row["step"]) == ("runnable", "react"), "the cancel was lost")
            require(row["cancel_requested_at"] is None, "cancelled again by its next outcome")
        else:
            require(row["status"] == "cancelled", "step t has no on_cancel")

    return Scenario(
        name=f"cancel × commit({kind}), with on_cancel",
        setup=[_ON_CANCEL, leased(1)],
        sessions={"C": [cancel(1)], "F": [flush_alone(outcome(1, kind))]},
        check=check,
    )


def delete_of_a_cancelled_execution(*, plain: bool) -> Scenario:
    """A deleted instance runs neither on_cancel nor undo steps."""

    def check(end: End) -> None:
        row = end.after.instances[1]
        require(row["deleted_at"] is not None, "the delete is lost")
        require(row["status"] in TERMINAL, "deleted, and goes to another step")

    remove = plain_delete if plain else delete
    return Scenario(
        name=f"cancel × {'plain ' * plain}delete × commit(next), with undo and on_cancel",
        setup=[_ON_CANCEL, leased(1, undo_steps=UNDO, lease_expires_at=FUTURE)],
        sessions={"C": [cancel(1)], "D": [remove(1)], "F": [flush_alone(outcome(1, "next"))]},
        check=check,
    )


def cancel_and_gate(*, waits: bool) -> Scenario:
    """The first row of a key is cancelled: its undo step keeps the place, or the next row gets it."""

    def check(end: End) -> None:
        row = end.after.instances[1]
        require(row["compensation"] is not None, "the undo has not begun")
        require(row["status"] == ("awaiting_children" if waits else "runnable"), "another status")

    parent: dict[str, Any] = {"spawn_round": 0, "step_seq": 1} if waits else {}
    child = instance(11, "awaiting_signal", awaits=("go",), parent_id=1, parent_round=0)
    first = instance(1, undo_steps=UNDO, concurrency_key="k", eligible_at=PAST * 9, **parent)
    return Scenario(
        name=f"gate behind the first × cancel(the first, with undo{' and a live child' * waits})",
        setup=[
            first,
            *([child] if waits else []),
            *(instance(id, concurrency_key="k", eligible_at=PAST) for id in (2, 3)),
        ],
        sessions={"G": [gate("k")], "C": [cancel(1)]},
        check=check,
    )


def retry_and_end_of_child() -> Scenario:
    """A retried parent goes on with its undo after its live child."""

    def check(end: End) -> None:
        row = end.after.instances[1]
        require(row["status"] in ("runnable", "executing"), "it waits for a child that has ended")
        require(row["step"] == "undo_b", "not its undo step")
        require(row["children_pending"] == 0, "a barrier without a waiting parent")
        if any(one.id == 1 for one in end.result("K").executions):
            require(end.began("A") < end.began("K"), "undone before its child")

    ended = {"compensation": _COMPENSATION, "finished_at": PAST, "crash_count": 1}
    return Scenario(
        name="retry(stopped undo of a parent) × done(child) × pick",
        setup=[
            instance(1, "failed", step="undo_b", step_seq=2, spawn_round=1, undo_steps=UNDO, **ended),
            leased(11, lease_expires_at=FUTURE, **_OF_1),
        ],
        sessions={
            "T": [retry(1)],
            "A": [flush(outcome(11, "done", parent_id=1))],
            "K": [lease_some(8)],
        },
        check=check,
    )


def stop_and_deliver() -> Scenario:
    """A Stop consumes the signal that woke its step, and no later one of the same name: that one is for the undo step."""

    def check(end: End) -> None:
        _check_begun(end, "failed")
        unread = [row["id"] for row in end.after.unread(1)]
        require(1 not in unread, "the undo step receives the signal that woke the failed step")
        require(len(unread) == 1, "a signal that the step had not received is gone")
        require([row["id"] for row in end.after.records(1)[-1]["signals"]] == [1], "another record")

    return Scenario(
        name="commit(stop) of a woken step × deliver, with undo",
        setup=[
            leased(1, undo_steps=UNDO, awaits=("go",), has_signals=True, lease_expires_at=FUTURE),
            signal(1, 1, "go"),
        ],
        sessions={
            "F": [flush_alone(outcome(1, "stop", error="no", was_awaiting=True, has_inbox=True))],
            "D": [send()],
        },
        check=check,
    )


def edit_and_end(how: Literal["cancel", "stop"]) -> Scenario:
    """The undo begins with the state of an edit or without it, and at its own step."""

    def check(end: End) -> None:
        row, answer = end.after.instances[1], end.result("E")
        _check_begun(end, "cancelled" if how == "cancel" else "failed")
        require(row["step"] == "undo_b", "not the last undo step")
        refusals = (None, "compensating") if how == "cancel" else ("executing", "compensating")
        require(answer.refusal in refusals, "an edit took the instance out of its undo")

    waiting, running = (
        instance(1, "awaiting_signal", awaits=("go",), undo_steps=UNDO),
        leased(1, undo_steps=UNDO),
    )
    return Scenario(
        name=f"edit(step) × {'cancel' if how == 'cancel' else 'commit(stop)'}, with undo",
        setup=[waiting if how == "cancel" else running],
        sessions={
            "E": [edit(1, step="u")],
            "C": [cancel(1) if how == "cancel" else flush_alone(outcome(1, "stop", error="no"))],
        },
        check=check,
    )


def _check_begun(end: End, status: str, statuses: tuple[str, ...] = ("runnable",)) -> None:
    row: Row = end.after.instances[1]
    require(row["status"] in statuses, "ended without its undo steps")
    require(row["compensation"] is not None, "its end is lost")
    require(row["compensation"]["end"]["status"] == status, "another end")
    require(row["finished_at"] is None and row["cancel_requested_at"] is None, "live, and yet ended")
    require(len(end.after.audit_of(1, "compensating")) == 1, "not begun exactly once")


SCENARIOS = [
    *(
        cancel_and_commit(outcome(1, kind, undo=_PUSHED))
        for kind in ("continue", "next", "schedule_children")
    ),
    cancel_and_commit(outcome(1, "await", awaits=("go",), undo=_PUSHED)),
    *(cancel_and_commit(outcome(1, kind)) for kind in ("retry", "release", "done")),
    cancel_and_commit(outcome(1, "stop", error="no")),
    cancel_and_commit(outcome(1, "next", undo=_PUSHED, effect=Sql("select 1"))),
    cancel_and_cancel(),
    crash_and_commit("stop"),
    crash_and_commit("next"),
    crash_and_commit("stop", cancels=True),
    undone_twice(),
    last_undo_and_crash(),
    cancel_parent_and_end_of_child(),
    undo_of_child_and_end_of_sibling(),
    cancel_leads_to_on_cancel("next"),
    cancel_leads_to_on_cancel("done"),
    delete_of_a_cancelled_execution(plain=False),
    delete_of_a_cancelled_execution(plain=True),
    cancel_and_gate(waits=False),
    cancel_and_gate(waits=True),
    retry_and_end_of_child(),
    stop_and_deliver(),
    edit_and_end("cancel"),
    edit_and_end("stop"),
]
