"""Soft delete and restore: deleted rows are not leased or signalled, and a key has one live instance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.interleavings.actions import (
    commit_picked,
    delete,
    end_deleted,
    lease_some,
    plain_delete,
    put,
    reap,
    restore,
    retry,
    send,
)
from tests.interleavings.invariants import require
from tests.interleavings.scenario import End, Scenario
from tests.interleavings.scenarios.signals import PAUSE_AFTER_REFUSAL, PAUSE_BETWEEN_LOOKS
from tests.interleavings.session import flush, refusable
from tests.interleavings.world import LIVE, TERMINAL, Row, instance, leased, new, outcome

_UNIQUE: Mapping[str, Any] = {"unique_key": b"u", "unique_scope": LIVE}
_EVER: Mapping[str, Any] = {"unique_key": b"u", "unique_scope": (*LIVE, *TERMINAL)}
_CORRELATED: Mapping[str, Any] = {"correlation_key": "c", "correlation_scope": LIVE}


def delete_pick_and_commit(kind: Any) -> Scenario:
    """A deleted row is not leased; a leased and deleted row commits nothing."""

    def check(end: End) -> None:
        row = _check_deleted(end)
        picked = end.sessions["K"].results[0].executions
        if end.is_before("X", "K"):
            require(not picked, "leased after it was deleted")
        require(row["status"] in TERMINAL, "deleted, but it continues")

    return Scenario(
        name=f"delete × pick and commit({kind})",
        setup=[instance(1)],
        sessions={"X": [delete(1)], "K": [lease_some(8), commit_picked(kind)]},
        check=check,
    )


def delete_and_insert() -> Scenario:
    """A delete frees the key at once if the row does not execute."""

    def check(end: End) -> None:
        _check_deleted(end)
        (answer,) = end.result("I")
        require(answer.is_new or answer.id == 1, "refused without a holder")
        if end.is_before("X", "I"):
            require(answer.is_new, "a key of the deleted is still taken")
        require(end.after.holders("unique", b"u") == ({answer.id} if answer.is_new else set()), _KEYS)

    return Scenario(
        name="delete(parked) × insert(same key)",
        setup=[instance(1, "awaiting_signal", awaits=("go",), **_EVER)],
        sessions={"X": [delete(1)], "I": [put(new(**_new(_EVER)))]},
        check=check,
        pauses=[PAUSE_AFTER_REFUSAL],
    )


def delete_executing_insert_and_commit(kind: Any) -> Scenario:
    """A deleted row keeps its key while it executes."""

    def check(end: End) -> None:
        row = _check_deleted(end)
        (answer,) = end.result("I")
        if answer.is_new:
            require(row["status"] in TERMINAL, "two live runs of one key")
        if end.is_before("X", "I") and end.is_before("I", "F") and kind != "done":
            require(not answer.is_new, "two live runs of one key")
        if end.is_before("X", "I") and end.is_before("F", "I"):
            require(answer.is_new, "a key of the deleted is still taken")

    return Scenario(
        name=f"delete(executing) × insert(same key) × commit({kind})",
        setup=[leased(1, **_EVER)],
        sessions={
            "X": [delete(1)],
            "I": [put(new(**_new(_EVER)))],
            "F": [flush(outcome(1, kind))],
        },
        check=check,
        pauses=[PAUSE_AFTER_REFUSAL],
    )


def delete_executing_and_reap() -> Scenario:
    """Its process died: the reaper ends it as cancelled, and its key is free."""

    def check(end: End) -> None:
        row = _check_deleted(end)
        if end.is_before("X", "R"):
            require(row["status"] == "cancelled", "brought back by the reaper")
        require(not end.result("K").executions or end.is_before("R", "X"), "leased after it was deleted")

    return Scenario(
        name="delete(executing) × reap × pick",
        setup=[leased(1, **_UNIQUE)],
        sessions={"X": [delete(1)], "R": [reap()], "K": [lease_some(8)]},
        check=check,
        never_wait=frozenset({"R", "K"}),
    )


def delete_and_deliver(target: int | str) -> Scenario:
    """A signal is accepted only before the delete."""

    def check(end: End) -> None:
        _check_deleted(end)
        if end.is_before("X", "D"):
            require(end.result("D") is None, "a signal to the deleted was accepted")
        require(
            not end.after.signals or end.after.status(1) == "executing", "the inbox of the deleted is left"
        )

    by = "id" if isinstance(target, int) else "key"
    return Scenario(
        name=f"delete(executing) × deliver(by {by}) × commit(done)",
        sample=100,
        setup=[leased(1, **_CORRELATED)],
        sessions={"X": [delete(1)], "D": [send(target)], "F": [flush(outcome(1, "done"))]},
        check=check,
        pauses=[PAUSE_BETWEEN_LOOKS] if by == "key" else [],
    )


def delete_child_and_end_of_sibling() -> Scenario:
    """A deleted child counts as ended."""

    def check(end: End) -> None:
        _check_deleted(end, 11)
        require(end.after.status(1) == "runnable", "parent not released")

    family = {"parent_id": 1, "parent_round": 1}
    return Scenario(
        name="delete(child) × done(sibling)",
        setup=[
            instance(1, "awaiting_children", step_seq=1, spawn_round=1, children_pending=2),
            instance(11, "awaiting_signal", awaits=("go",), **family),
            leased(12, **family),
        ],
        sessions={"X": [delete(11)], "F": [flush(outcome(12, "done", parent_id=1))]},
        check=check,
    )


def delete_and_delete() -> Scenario:
    def check(end: End) -> None:
        first, second = (end.result(name)[0]["deleted_at"] for name in "XY")
        require(first == second, "deleted twice")
        require(len(end.after.audit_of(1, "deleted")) == 1, "not audited exactly once")

    return Scenario(
        name="delete × delete",
        setup=[instance(1)],
        sessions={"X": [delete(1)], "Y": [delete(1)]},
        check=check,
    )


def restore_and_insert() -> Scenario:
    """One of them gets the key; the other gets an error."""

    def check(end: End) -> None:
        (answer,) = end.result("I")
        is_restored = end.result("U") is not None
        require(is_restored != answer.is_new, "both have the key, or none")
        require(end.after.holders("unique", b"u") == {1 if is_restored else answer.id}, _KEYS)
        require((end.after.instances[1]["deleted_at"] is None) == is_restored, "neither deleted nor restored")

    return Scenario(
        name="restore × insert(same key)",
        setup=[_deleted(**_EVER)],
        sessions={"U": [refusable(restore(1))], "I": [put(new(**_new(_EVER)))]},
        check=check,
        pauses=[PAUSE_AFTER_REFUSAL],
    )


def restore_and_delete() -> Scenario:
    """Delete and restore each apply to the current row."""

    def check(end: End) -> None:
        row = end.after.instances[1]
        is_last = end.is_before("U", "X")
        if is_last or end.is_before("X", "U"):
            require((row["deleted_at"] is not None) == is_last, "the last word did not count")
        require(row["status"] == "cancelled", "brought back to life")

    return Scenario(
        name="restore × delete × pick",
        setup=[_deleted(**_UNIQUE)],
        sessions={"U": [restore(1)], "X": [delete(1)], "K": [lease_some(8)]},
        check=check,
    )


def restore_and_retry() -> Scenario:
    """A retry finds it restored, or leaves it alone."""

    def check(end: End) -> None:
        row = end.after.instances[1]
        is_retried = end.result("T")[0]["is_retried"]
        require(
            row["status"] == ("runnable" if is_retried else "cancelled"), "status differs from the answer"
        )
        require(row["deleted_at"] is None, "not restored")

    return Scenario(
        name="restore × retry",
        setup=[_deleted(**_UNIQUE)],
        sessions={"U": [restore(1)], "T": [retry(1)]},
        check=check,
    )


def plain_delete_pick_and_commit(kind: Any) -> Scenario:
    """After a plain update: an unleased row is never leased, a leased one does not continue."""

    def check(end: End) -> None:
        row = end.after.instances[1]
        picked = end.sessions["K"].results[0].executions
        if end.is_before("X", "K"):
            require(not picked, "leased after it was deleted")
        require(row["deleted_at"] is not None, "not deleted")
        if row["status"] not in TERMINAL:
            # The update was between the pick and the commit of a chained step.
            require(row["status"] == "executing", "deleted, and waits for work")
            require(row["cancel_requested_at"] is not None, "deleted, but it continues")

    return Scenario(
        name=f"plain delete × pick and commit({kind})",
        setup=[instance(1)],
        sessions={"X": [plain_delete(1)], "K": [lease_some(8), commit_picked(kind)]},
        check=check,
    )


def plain_delete_and_chained_commits() -> Scenario:
    """Two steps on one lease: the update before the second commit ends the instance there."""

    def check(end: End) -> None:
        row = end.after.instances[1]
        second = end.result("F")
        if end.is_before("X", "F"):
            require(not second.committed() and row["status"] == "cancelled", "deleted, but it continues")
        require(row["status"] in ("cancelled", "executing"), "deleted, and waits for work")
        require(
            row["status"] != "executing" or row["cancel_requested_at"] is not None,
            "deleted, but it continues",
        )

    return Scenario(
        name="plain delete × commit(continue) twice",
        setup=[leased(1)],
        sessions={
            "X": [plain_delete(1)],
            "F": [flush(outcome(1, "continue")), flush(outcome(1, "continue", step_seq=1))],
        },
        check=check,
    )


def plain_delete_and_deliver(target: int | str) -> Scenario:
    """A signal is accepted only before the update."""

    def check(end: End) -> None:
        if end.is_before("X", "D"):
            require(end.result("D") is None, "a signal to the deleted was accepted")
        require(end.after.status(1) == "cancelled", "deleted, and waits for work")
        require(not end.after.signals, "the inbox of the deleted is left")
        if end.is_before("X", "K"):
            require(not end.result("K").executions, "leased after it was deleted")

    by = "id" if isinstance(target, int) else "key"
    return Scenario(
        name=f"plain delete(parked) × deliver(by {by}) × pick",
        sample=60,
        setup=[instance(1, "awaiting_signal", awaits=("go",), **_CORRELATED)],
        sessions={"X": [plain_delete(1)], "D": [send(target)], "K": [lease_some(8, demand=0)]},
        check=check,
        pauses=[PAUSE_BETWEEN_LOOKS] if by == "key" else [],
    )


def plain_delete_child_and_end_of_sibling() -> Scenario:
    """A barrier does not wait for a child that a plain update has deleted."""

    def check(end: End) -> None:
        require(end.after.status(11) == "cancelled", "deleted, and waits for work")
        require(end.after.status(1) == "runnable", "parent not released")

    family = {"parent_id": 1, "parent_round": 1}
    return Scenario(
        name="plain delete(child) × done(sibling)",
        setup=[
            instance(1, "awaiting_children", step_seq=1, spawn_round=1, children_pending=2),
            instance(11, "awaiting_signal", awaits=("go",), **family),
            leased(12, **family),
        ],
        sessions={"X": [plain_delete(11)], "F": [flush(outcome(12, "done", parent_id=1))]},
        check=check,
    )


def plain_delete_first_in_line() -> Scenario:
    """The next row of the key is admitted."""

    def check(end: End) -> None:
        require(end.after.status(1) in ("cancelled", "executing"), "deleted, and waits for work")

    return Scenario(
        name="plain delete(first row of a key) × deliver(to the next) × pick",
        sample=40,
        setup=[
            instance(1, concurrency_key="k"),
            *(instance(id, concurrency_key="k", gated=True) for id in (2, 3)),
        ],
        sessions={"X": [plain_delete(1)], "D": [send(2)], "K": [lease_some(8)]},
        check=check,
        never_wait=frozenset({"K"}),
    )


def pick_and_end_of_what_no_trigger_saw() -> Scenario:
    """A row that was inserted with a deleted_at: no pick takes it, and one of two reapers ends it."""

    def check(end: End) -> None:
        require(not end.result("K").executions, "leased though it was deleted")
        require(end.after.status(1) == "cancelled", "deleted, and waits for work")
        require(len(end.after.audit_of(1, "deleted")) == 1, "not audited exactly once")

    return Scenario(
        name="end_deleted × end_deleted × pick",
        setup=[instance(1, deleted_at="2026-01-01")],
        sessions={"X": [end_deleted()], "Y": [end_deleted()], "K": [lease_some(8)]},
        check=check,
        never_wait=frozenset({"X", "Y", "K"}),
    )


_KEYS = "the key is not with the instance that the answer named"


def _deleted(**columns: Any) -> str:
    return instance(
        1,
        "cancelled",
        **columns,
        deleted_at="2026-01-01",
        finished_at="2026-01-01",
        cancel_requested_at="2026-01-01",
    )


def _new(key: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: "{" + ",".join(value) + "}" if isinstance(value, tuple) else value
        for name, value in key.items()
    }


def _check_deleted(end: End, id: int = 1) -> Row:
    row = end.after.instances[id]
    require(row["deleted_at"] is not None and row["delete_reason"] == "obsolete", "not deleted")
    require(len(end.after.audit_of(id, "deleted")) == 1, "not audited exactly once")
    require(row["status"] in (*TERMINAL, "executing"), "deleted, and waits for work")
    require(
        row["status"] != "executing" or row["cancel_requested_at"] is not None, "deleted, but it continues"
    )
    return row


SCENARIOS = [
    delete_pick_and_commit("done"),
    delete_pick_and_commit("next"),
    delete_and_insert(),
    delete_executing_insert_and_commit("next"),
    delete_executing_insert_and_commit("done"),
    delete_executing_and_reap(),
    delete_and_deliver(1),
    delete_and_deliver("c"),
    delete_child_and_end_of_sibling(),
    delete_and_delete(),
    restore_and_insert(),
    restore_and_delete(),
    restore_and_retry(),
    plain_delete_pick_and_commit("done"),
    plain_delete_pick_and_commit("next"),
    plain_delete_pick_and_commit("continue"),
    plain_delete_and_chained_commits(),
    plain_delete_and_deliver(1),
    plain_delete_and_deliver("c"),
    plain_delete_child_and_end_of_sibling(),
    plain_delete_first_in_line(),
    pick_and_end_of_what_no_trigger_saw(),
]
