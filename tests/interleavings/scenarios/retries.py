"""Manual retries against concurrent changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.interleavings.actions import (
    cancel,
    commit_picked,
    flush_picked,
    join_picked,
    lease_some,
    put,
    reap,
    retry,
    send,
)
from tests.interleavings.invariants import require
from tests.interleavings.product import SCHEMA, Change
from tests.interleavings.scenario import End, Scenario
from tests.interleavings.scenarios.signals import PAUSE_AFTER_REFUSAL
from tests.interleavings.session import Flushed, flush, refusable
from tests.interleavings.world import (
    FUTURE,
    LIVE,
    PAST,
    KeyKind,
    cancelled,
    failed,
    instance,
    leased,
    new,
    outcome,
)

_OF_1: Mapping[str, Any] = {"parent_id": 1, "parent_round": 1}
REJOIN = outcome(1, "rejoin", step_seq=1)
_PAUSE_UNDER_LOCK = Change(
    SCHEMA, "  if retried = '{}' then", "  perform gen_durable.pause(1);\n  if retried = '{}' then"
)


def _live(id: int, status: str = "executing") -> str:
    """A child of 1 that was retried after it had released the barrier."""
    row = (
        instance(id, "runnable", queue="other", **_OF_1)
        if status == "runnable"
        else leased(id, **_OF_1, lease_expires_at=FUTURE)
    )
    return f"{row}; insert into gen_durable.audit_events (instance_id, event) values ({id}, 'retried')"


def retry_and_insert(key: KeyKind) -> Scenario:
    """One of them gets the released key; the other gets an error."""
    value: Any = b"u" if key == "unique" else "u"

    def check(end: End) -> None:
        (answer,) = end.result("I")
        is_retried = end.result("T") is not None
        require(is_retried != answer.is_new, "both have the key, or none")
        require(
            end.after.holders(key, value) == {1 if is_retried else answer.id},
            "two holders, or none",
        )
        require(end.after.status(1) == ("runnable" if is_retried else "failed"), "neither failed nor retried")

    return Scenario(
        name=f"retry × insert(same {key} key)",
        setup=failed(1, **{f"{key}_key": value, f"{key}_scope": LIVE}),
        sessions={"T": [refusable(retry(1))], "I": [put(new(**{f"{key}_key": value}))]},
        check=check,
        pauses=[PAUSE_AFTER_REFUSAL],
    )


def retry_insert_and_done() -> Scenario:
    """A third instance holds the key and is ending."""

    def check(end: End) -> None:
        (answer,) = end.result("I")
        is_retried = end.result("T") is not None
        holders = end.after.holders("unique", b"u")
        require(
            holders == ({1} if is_retried else set()) | ({answer.id} if answer.is_new else set()), "keys lost"
        )
        require(len(holders) <= 1, "two holders of one key")

    return Scenario(
        name="retry × insert(same key) × done(of the holder)",
        setup=[*failed(1, unique_key=b"u", unique_scope=LIVE), leased(2, unique_key=b"u", unique_scope=LIVE)],
        sessions={
            "T": [refusable(retry(1))],
            "I": [put(new(unique_key=b"u"))],
            "F": [flush(outcome(2, "done"))],
        },
        check=check,
    )


def retry_and_retry() -> Scenario:
    def check(end: End) -> None:
        answers = sorted(end.result(name)[0]["is_retried"] for name in "TU")
        require(answers == [False, True], "not retried exactly once")
        require(len(end.after.audit_of(1, "retried")) == 1, "not audited exactly once")

    return Scenario(
        name="retry × retry × pick and commit(done)",
        setup=failed(1),
        sessions={"T": [retry(1)], "U": [retry(1)], "K": [lease_some(8), commit_picked("done")]},
        check=check,
    )


def retry_and_cancel() -> Scenario:
    """A retry clears an earlier cancel; a later cancel ends the instance again."""

    def check(end: End) -> None:
        row = end.after.instances[1]
        (answer,) = end.result("C")
        if end.is_before("T", "C") and not end.result("K").executions:
            require(answer["was"] == "runnable", "a retried instance was taken for ended")
        if answer["was"] == "cancelled":
            require(row["status"] in ("runnable", "executing"), "an old cancel stopped a retried instance")
            require(row["cancel_requested_at"] is None, "an old cancel stopped a retried instance")
        else:
            require(row["cancel_requested_at"] is not None, "the request was lost")
            require(row["status"] in ("cancelled", "executing"), "an acknowledged cancel did not win")

    return Scenario(
        name="retry × cancel × pick",
        setup=cancelled(1),
        sessions={"T": [retry(1)], "C": [cancel(1)], "K": [lease_some(8)]},
        check=check,
        never_wait=frozenset({"K"}),
    )


def cancel_and_retry_of_an_execution() -> Scenario:
    """The outcome of an execution from before the retry is stale."""

    def check(end: End) -> None:
        (retried,) = end.result("T")
        (cancelled,) = end.result("C")
        is_committed = bool(end.result("F").committed())
        require(cancelled["was"] == "executing" or is_committed, "neither was first")
        if retried["is_retried"] and not is_committed:
            require(end.after.instances[1]["step_seq"] == 0, "a transition of a cancelled execution")
            require(end.after.status(1) == "runnable", "retried, and not runnable")

    return Scenario(
        name="force cancel × retry × commit(next)",
        setup=[leased(1)],
        sessions={"C": [cancel(1, force=True)], "T": [retry(1)], "F": [flush(outcome(1, "next"))]},
        check=check,
    )


def retry_child_and_end_of_sibling() -> Scenario:
    """A waiting parent waits for the retried child; a parent that continued does not."""

    def check(end: End) -> None:
        parent = end.after.instances[1]
        picked = end.result("K").executions
        if parent["status"] == "awaiting_children":
            require(parent["children_pending"] == 1, "barrier counts wrong")
            require(not any(execution.id == 1 for execution in picked), "it runs while it waits")
        if end.is_before("T", "F"):
            require(parent["status"] == "awaiting_children", "a retried child is not waited for")

    return Scenario(
        name="retry(child) × done(sibling) × pick",
        setup=[
            instance(1, "awaiting_children", step_seq=1, spawn_round=1, children_pending=1),
            *failed(11, **_OF_1),
            leased(12, **_OF_1),
        ],
        sessions={
            "T": [retry(11)],
            "F": [flush(outcome(12, "done", parent_id=1))],
            "K": [lease_some(8, demand=1)],
        },
        check=check,
        never_wait=frozenset({"K"}),
    )


def retry_two_children() -> Scenario:
    """Two retries of one child, and its sibling's: the barrier counts each child once."""

    def check(end: End) -> None:
        require(end.after.instances[1]["children_pending"] == 3, "barrier counts wrong")

    return Scenario(
        name="retry(child) × retry(same child and its sibling)",
        setup=[
            instance(1, "awaiting_children", step_seq=1, spawn_round=1, children_pending=1),
            *failed(11, **_OF_1),
            *cancelled(12, **_OF_1),
            leased(13, **_OF_1),
        ],
        sessions={"T": [retry(11)], "U": [retry(11, 12)]},
        check=check,
    )


def retry_parent_and_end_of_child() -> Scenario:
    """A retried parent waits for its running children again, and sees all of them."""

    def check(end: End) -> None:
        status = end.after.status(1)
        require(status in ("runnable", "executing"), "asleep on a satisfied barrier")
        for execution in end.result("K").executions:
            require(
                [child.status for child in execution.children] == ["done", "done"],
                "picked without its children",
            )

    return Scenario(
        name="retry(parent) × done(child) × pick(parent)",
        setup=[
            *cancelled(1, step_seq=1, spawn_round=1),
            leased(11, **_OF_1),
            instance(12, "done", **_OF_1, step_seq=0, finished_at=PAST),
        ],
        sessions={
            "T": [retry(1)],
            "F": [flush(outcome(11, "done", parent_id=1))],
            "K": [lease_some(8)],
        },
        check=check,
    )


def cancel_and_retry_parent_and_end_of_child() -> Scenario:
    """The same with the cancel in between: the child's end sees its parent waiting, cancelled, or waiting again."""

    def check(end: End) -> None:
        require(end.after.status(1) in ("cancelled", "runnable"), "asleep on a satisfied barrier")

    return Scenario(
        name="cancel(parent) × retry(parent) × done(child)",
        setup=[
            instance(1, "awaiting_children", step_seq=1, spawn_round=1, children_pending=1),
            leased(11, **_OF_1),
        ],
        sessions={
            "C": [cancel(1)],
            "T": [retry(1)],
            "F": [flush(outcome(11, "done", parent_id=1))],
        },
        check=check,
    )


def retry_parent_and_child() -> Scenario:
    """Both are retried at once, while a sibling ends: the barrier opens when both children have ended."""

    def check(end: End) -> None:
        parent = end.after.instances[1]
        require(parent["status"] == "awaiting_children", "a retried child is not waited for")
        require(parent["children_pending"] == 1, "barrier counts wrong")

    return Scenario(
        name="retry(parent) × retry(child) × done(sibling)",
        setup=[
            *cancelled(1, step_seq=1, spawn_round=1),
            *failed(11, **_OF_1),
            leased(12, **_OF_1),
        ],
        sessions={
            "T": [retry(1)],
            "U": [retry(11)],
            "F": [flush(outcome(12, "done", parent_id=1))],
        },
        check=check,
        pauses=[_PAUSE_UNDER_LOCK],
    )


def retry_child_of_released(attempt: int = 0) -> Scenario:
    """The parent is released, and waits for a try of its join: it waits again, or has begun; the next of its key goes on."""

    def check(end: End) -> None:
        parent = end.after.instances[1]
        has_begun = any(execution.id == 1 for execution in end.result("K").executions)
        if not has_begun:
            require(parent["status"] == "awaiting_children", "a retried child is not waited for")
            require(parent["children_pending"] == 1, "barrier counts wrong")

    return Scenario(
        name=f"retry(child of a released parent, try {attempt + 1}) × pick",
        setup=[
            instance(1, step_seq=1, spawn_round=1, concurrency_key="k", attempt=attempt, crash_count=attempt),
            instance(2, concurrency_key="k", gated=True),
            *failed(11, **_OF_1),
        ],
        sessions={"T": [retry(11)], "K": [lease_some(8, demand=1)]},
        check=check,
        never_wait=frozenset({"K"}),
    )


def retry_child_and_join(kind: str) -> Scenario:
    """The child is retried before the pick, between pick and load, or after the load: the join never sees it live."""

    def check(end: End) -> None:
        parent, joined = end.after.instances[1], end.result("K")
        if not isinstance(joined, Flushed):
            return  # the retry was first: nothing was due
        (entry,) = joined.entries
        (execution,) = end.sessions["K"].results[-2].executions
        require(entry.kind == "rejoin" or not execution.live_children, "the join sees a live child")
        if entry.kind == "rejoin":
            require(parent["status"] == "awaiting_children", "a live child is not waited for")
            require(parent["attempt"] == 1, "waiting again cost an attempt")
        else:
            require(bool(joined.committed()), "a join that saw no live child was lost")

    return Scenario(
        name=f"retry(child) × pick and join({kind})",
        setup=[instance(1, step_seq=1, spawn_round=1, attempt=1), *failed(11, queue="other", **_OF_1)],
        sessions={"T": [retry(11)], "K": [lease_some(8), join_picked(kind)]},
        check=check,
    )


def rejoin_and_end_of_child() -> Scenario:
    """The join was loaded with a live child, which ends now: the parent is woken, whichever is first."""

    def check(end: End) -> None:
        require(end.after.status(1) == "runnable", "asleep on a satisfied barrier")
        require(end.after.instances[1]["attempt"] == 2, "waiting again cost an attempt")

    return Scenario(
        name="rejoin(parent) × done(retried child)",
        setup=[leased(1, step_seq=1, spawn_round=1, attempt=2), _live(11)],
        sessions={"P": [flush(REJOIN)], "F": [flush(outcome(11, "done", parent_id=1))]},
        check=check,
    )


def rejoin_with_the_end_of_a_child() -> Scenario:
    """One group commit has the parent's rejoin and the end of a child; another child ends beside it."""
    return Scenario(
        name="rejoin(parent) and done(child) in one commit × done(sibling)",
        setup=[leased(1, step_seq=1, spawn_round=1), _live(11), _live(12)],
        sessions={
            "P": [flush(REJOIN, outcome(11, "done", parent_id=1))],
            "F": [flush(outcome(12, "done", parent_id=1))],
        },
        check=lambda end: require(end.after.status(1) == "runnable", "asleep on a satisfied barrier"),
    )


def rejoin_reap_and_end_of_child() -> Scenario:
    """The worker is slow or dead between the load and the rejoin: the next pick loads the children again."""

    def check(end: End) -> None:
        require(end.after.status(1) in ("runnable", "done"), "asleep on a satisfied barrier")

    return Scenario(
        name="rejoin(parent) × reap, pick and join(done) × done(retried child)",
        setup=[leased(1, step_seq=1, spawn_round=1), _live(11)],
        sessions={
            "P": [flush(REJOIN)],
            "K": [reap(), lease_some(8, worker="w2"), join_picked("done")],
            "F": [flush(outcome(11, "done", parent_id=1))],
        },
        check=check,
    )


def rejoin_and_cancel(*, cascade: bool) -> Scenario:
    """The parent is cancelled while its rejoin is on its way, alone or with its child."""
    ids = (1, 11) if cascade else (1,)

    def check(end: End) -> None:
        parent = end.after.instances[1]
        require(parent["status"] == "cancelled", "an acknowledged cancel did not win")
        require(parent["children_pending"] == 0, "barrier counts wrong")
        require(
            end.after.status(11) == ("cancelled" if cascade else "runnable"), "the child is not as it was"
        )

    return Scenario(
        name=f"rejoin(parent) × cancel({'family' if cascade else 'parent'})",
        setup=[leased(1, step_seq=1, spawn_round=1), _live(11, "runnable")],
        sessions={"P": [flush(REJOIN)], "C": [cancel(*ids)]},
        check=check,
    )


def retry_children_between_tries() -> Scenario:
    """One child is retried while the join executes, another when it waits for its next try: both are waited for."""

    def check(end: End) -> None:
        parent = end.after.instances[1]
        if end.is_before("F", "T"):
            require(parent["status"] == "awaiting_children", "a retried child is not waited for")

    return Scenario(
        name="retry(child) × retry(sibling) × commit(retry of the join)",
        setup=[
            leased(1, step_seq=1, spawn_round=1),
            *failed(11, queue="other", **_OF_1),
            *failed(12, queue="other", **_OF_1),
        ],
        sessions={"T": [retry(11)], "U": [retry(12)], "F": [flush(outcome(1, "retry", step_seq=1))]},
        check=check,
    )


def retry_child_and_next_round() -> Scenario:
    """A child runs again when its parent has gone on, and ends beside the next round: that one is waited for alone."""
    # In another queue: the pick is for the child that was retried.
    spawn = outcome(1, "schedule_children", step_seq=1, children=(new(queue="other"),))

    def check(end: End) -> None:
        parent = end.after.instances[1]
        require(parent["status"] == "awaiting_children", "parent not parked")
        require(parent["children_pending"] == 1, "barrier counts wrong")
        require(end.after.status(11) == "done", "a retried child did not run")

    return Scenario(
        name="retry(child), pick and commit(done) × commit(next round of its parent)",
        setup=[leased(1, step_seq=1, spawn_round=1), *failed(11, **_OF_1)],
        sessions={
            "T": [retry(11), lease_some(8), flush_picked("done", parent_id=1)],
            "F": [flush(spawn)],
        },
        check=check,
    )


def retry_parent_in_its_second_round() -> Scenario:
    """A parent that was cancelled on its second barrier waits for that round alone; a child of the first still runs."""

    def check(end: End) -> None:
        require(end.after.status(1) == "runnable", "asleep on a satisfied barrier")

    return Scenario(
        name="retry(parent) × done(child), beside a child of an earlier round",
        setup=[
            *cancelled(1, step_seq=2, spawn_round=2),
            leased(11, **_OF_1),
            leased(12, parent_id=1, parent_round=2),
        ],
        sessions={"T": [retry(1)], "F": [flush(outcome(12, "done", parent_id=1))]},
        check=check,
    )


def retry_failed_join_and_retry_child() -> Scenario:
    """The step that joined has failed, and so has a child: whichever is retried first, the parent sees its round."""

    def check(end: End) -> None:
        parent, child = end.after.instances[1], end.after.instances[11]
        require(parent["spawn_round"] == parent["step_seq"] == child["parent_round"], "the round was lost")
        if end.is_before("U", "T"):
            require(parent["status"] == "awaiting_children", "a retried child is not waited for")
        for execution in end.result("K").executions:
            if execution.id == 1:
                require(len(execution.children) == 2, "picked without its children")

    return Scenario(
        name="retry(parent whose join failed) × retry(child) × pick",
        setup=[
            *failed(1, step_seq=2, spawn_round=1, execution=0),
            "delete from gen_durable.executions",
            *failed(11, **_OF_1),
            instance(12, "done", **_OF_1, step_seq=0, finished_at=PAST),
        ],
        sessions={"T": [retry(1)], "U": [retry(11)], "K": [lease_some(8)]},
        check=check,
    )


def retry_failed_join_and_end_of_child() -> Scenario:
    """A child runs again already: the parent that is retried waits for its end, and sees its whole round."""

    def check(end: End) -> None:
        parent = end.after.instances[1]
        require(parent["status"] == "runnable", "asleep on a satisfied barrier")
        require(parent["spawn_round"] == parent["step_seq"] == 2, "the round was lost")
        rounds = {end.after.instances[id]["parent_round"] for id in (11, 12)}
        require(rounds == {2}, "the round was lost")

    return Scenario(
        name="retry(parent whose join failed) × done(retried child)",
        setup=[
            *failed(1, step_seq=2, spawn_round=1, execution=0),
            "delete from gen_durable.executions",
            leased(11, **_OF_1),
            "insert into gen_durable.audit_events (instance_id, event) values (11, 'retried')",
            instance(12, "done", **_OF_1, step_seq=0, finished_at=PAST),
        ],
        sessions={"T": [retry(1)], "F": [flush(outcome(11, "done", parent_id=1))]},
        check=check,
        pauses=[_PAUSE_UNDER_LOCK],
    )


def retry_parked_and_deliver() -> Scenario:
    """What waited for a signal waits for it again: it never runs without one."""

    def check(end: End) -> None:
        arrival = end.result("D")
        status = end.after.status(1)
        if arrival is None:
            require(status == "awaiting_signal", "it runs without its signal")
        else:
            require(status in ("runnable", "executing"), "lost wake-up")
        for execution in end.result("K").executions:
            require(len(execution.awaited) == 1, "it runs without its signal")

    return Scenario(
        name="retry(parked) × deliver × pick",
        setup=cancelled(1, awaits=("go",), has_signals=True),
        sessions={"T": [retry(1)], "D": [send()], "K": [lease_some(8)]},
        check=check,
    )


def retry_in_line() -> Scenario:
    """A retried row joins the line of its key, while the key is freed."""
    return Scenario(
        name="retry(keyed) × commit(done, of the holder) × pick",
        setup=[
            *failed(1, concurrency_key="k"),
            leased(2, concurrency_key="k", concurrency_slot=0),
            instance(3, concurrency_key="k", gated=True),
        ],
        sessions={
            "T": [retry(1)],
            "F": [flush(outcome(2, "done", held_key="k"))],
            "K": [lease_some(8)],
        },
        check=lambda end: require(end.result("T")[0]["is_retried"], "not retried"),
        may_meet=frozenset({"23505"}),
    )


SCENARIOS = [
    retry_and_insert("unique"),
    retry_and_insert("correlation"),
    retry_insert_and_done(),
    retry_and_retry(),
    retry_and_cancel(),
    cancel_and_retry_of_an_execution(),
    retry_child_and_end_of_sibling(),
    retry_two_children(),
    retry_parent_and_end_of_child(),
    cancel_and_retry_parent_and_end_of_child(),
    retry_parent_and_child(),
    retry_child_of_released(),
    retry_child_of_released(attempt=1),
    retry_child_and_join("done"),
    retry_child_and_join("retry"),
    rejoin_and_end_of_child(),
    rejoin_with_the_end_of_a_child(),
    rejoin_reap_and_end_of_child(),
    rejoin_and_cancel(cascade=False),
    rejoin_and_cancel(cascade=True),
    retry_children_between_tries(),
    retry_child_and_next_round(),
    retry_parent_in_its_second_round(),
    retry_failed_join_and_retry_child(),
    retry_failed_join_and_end_of_child(),
    retry_parked_and_deliver(),
    retry_in_line(),
]
