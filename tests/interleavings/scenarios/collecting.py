"""The collector against concurrent changes: it removes only unneeded rows, and waits for no lock."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from gen_durable._db import collect
from tests.interleavings.actions import fork, lease_some, put, restore, retry, send
from tests.interleavings.invariants import BrokenError, require
from tests.interleavings.product import SCHEMA, Change
from tests.interleavings.scenario import End, Scenario
from tests.interleavings.scenarios.limits import lease_from
from tests.interleavings.scenarios.signals import PARK, PAUSE_AFTER_REFUSAL
from tests.interleavings.session import Work, autocommit, flush
from tests.interleavings.world import (
    LIVE,
    PAST,
    TERMINAL,
    cancelled,
    done,
    failed,
    full,
    instance,
    leased,
    new,
    outcome,
    rate,
    signal,
)

_EVER: Final[Mapping[str, Any]] = {"unique_key": b"u", "unique_scope": (*LIVE, *TERMINAL)}
_CHILD: Final[Mapping[str, Any]] = {"parent_id": 1, "parent_round": 1}
_G: Final = frozenset({"G"})
_AFTER_PAGE: Final = "from page join gen_durable.gen_durable g on g.id = page.id"
_STOPPED: Final = (
    "from (select page.id, gen_durable.pause(1) from page offset 0) page"
    " join gen_durable.gen_durable g on g.id = page.id"
)
# The collector has chosen its page and has not locked it yet.
PAUSE_AFTER_PAGE: Final = Change("sweep_ended", _AFTER_PAGE, _STOPPED)
PAUSE_AFTER_EXPIRED: Final = Change("sweep_expired", _AFTER_PAGE, _STOPPED)
PAUSE_AFTER_DELETED: Final = Change("sweep_deleted", _AFTER_PAGE, _STOPPED)


def swept(ended: collect.Ended) -> Work:
    return autocommit(lambda _: collect.sweep(ended, timedelta(0), collect.START))


def gc_and_join() -> Scenario:
    """A child that ended long ago stays until its parent has seen it."""

    def check(end: End) -> None:
        (execution,) = end.result("F").executions
        seen = [child.id for child in execution.children]
        require(seen == [11, 12], "a parent does not see all of its children")

    parent = instance(1, "awaiting_children", step_seq=1, spawn_round=1, children_pending=1)
    return Scenario(
        name="gc × join and pick",
        setup=[parent, *done(11, **_CHILD), leased(12, **_CHILD)],
        sessions={
            "G": [swept("done")],
            "F": [flush(outcome(12, "done", parent_id=1)), lease_some(8)],
        },
        check=check,
        pauses=[PAUSE_AFTER_PAGE],
        never_wait=_G,
    )


def gc_and_retry_of_the_parent() -> Scenario:
    """A parent that failed may be retried, and then it looks at its children once more."""

    def check(end: End) -> None:
        require(11 in end.after.instances, "collected before its parent has seen it")
        (execution,) = end.result("R").executions
        require([child.id for child in execution.children] == [11], "a retried parent lost a child")

    setup = [*failed(1, step_seq=2, spawn_round=1), *done(11, **_CHILD)]
    return Scenario(
        name="gc × retry(parent) and pick",
        setup=[*setup, _RECORD_OF_SPAWN],
        sessions={"G": [swept("done")], "R": [retry(1), lease_some(8)]},
        check=check,
        pauses=[PAUSE_AFTER_PAGE],
        never_wait=_G,
    )


def gc_and_insert() -> Scenario:
    """A key that stays taken after the end is not freed by the collector."""

    def check(end: End) -> None:
        (answer,) = end.result("I")
        require(not answer.is_new and answer.id == 1, "a key that was given for good was given again")
        row = end.after.instances.get(1)
        if row is None:
            raise BrokenError("a key that is occupied went with its row")
        require(row["collected_at"] is not None and row["result"] is None, "it keeps what it carried")

    return Scenario(
        name="gc × insert(same key)",
        setup=done(1, result="42", **_EVER),
        sessions={"G": [swept("done")], "I": [put(new(**_new(_EVER)))]},
        check=check,
        pauses=[PAUSE_AFTER_PAGE, PAUSE_AFTER_REFUSAL],
        never_wait=_G,
    )


def gc_and_retry(ended: collect.Ended = "failed") -> Scenario:
    """The instance is collected or retried, completely."""

    def check(end: End) -> None:
        rows = end.result("R")
        if 1 in end.after.instances:
            require([row["is_retried"] for row in rows] == [True], "reported as gone, but it is there")
            require(end.after.status(1) == "runnable", "retried, and does not go on")
        else:
            require(not rows, "reported as retried, but it is gone")
            require(not end.after.executions and not end.after.audit, "something of it is left")

    return Scenario(
        name="gc × retry" + " of a row that expires" * (ended == "expired"),
        setup=failed(1, expires_at=PAST if ended == "expired" else None),
        sessions={"G": [swept(ended)], "R": [retry(1)]},
        check=check,
        pauses=[PAUSE_AFTER_EXPIRED if ended == "expired" else PAUSE_AFTER_PAGE],
        never_wait=_G,
    )


def gc_and_fork(*, has_key: bool) -> Scenario:
    """A fork has the state of its transition, or nothing is inserted."""

    def check(end: End) -> None:
        answer = end.result("F")
        new_rows = [row for row in end.after.instances.values() if row["forked_from"] == 1]
        is_forked = answer is not None and answer["problem"] is None
        require(len(new_rows) == is_forked, "the answer is not what happened")
        for row in new_rows:
            require((row["state"], row["step"]) == ({"n": 1}, "s"), "a fork without the state of its origin")

    keys = _EVER if has_key else {}
    return Scenario(
        name=f"gc × fork{' of a holder of a key' if has_key else ' at an earlier transition'}",
        setup=[
            *failed(1, state='{"n": 2}' if not has_key else '{"n": 1}', **keys),
            "update gen_durable.executions set state_before = '{\"n\": 1}'",
        ],
        sessions={"G": [swept("failed")], "F": [fork(1, None if has_key else 0)]},
        check=check,
        pauses=[PAUSE_AFTER_PAGE],
        never_wait=_G,
    )


def gc_and_retry_of_a_holder() -> Scenario:
    """A retry of an instance with a key gets all of it, or an error."""

    def check(end: End) -> None:
        (answer,) = end.result("R")
        row = end.after.instances[1]
        if answer["is_retried"]:
            require(row["state"] == {"n": 1}, "it continues without its state")
        else:
            require(row["collected_at"] is not None, "refused a retry without a reason")

    return Scenario(
        name="gc × retry(holder of a key)",
        setup=failed(1, state='{"n": 1}', **_EVER),
        sessions={"G": [swept("failed")], "R": [retry(1)]},
        check=check,
        pauses=[PAUSE_AFTER_PAGE],
        never_wait=_G,
    )


def gc_and_restore() -> Scenario:
    """A restored instance exists."""

    def check(end: End) -> None:
        rows = end.result("R")
        require(bool(rows) == (1 in end.after.instances), "reported as restored, but it is gone")

    return Scenario(
        name="gc × restore",
        setup=cancelled(1, deleted_at=PAST),
        sessions={"G": [swept("deleted")], "R": [restore(1)]},
        check=check,
        pauses=[PAUSE_AFTER_DELETED],
        never_wait=_G,
    )


def gc_of_letters() -> Scenario:
    """Signals to ended instances are collected, those to live instances stay."""

    def check(end: End) -> None:
        require(not [s for s in end.after.signals if s["target_id"] == 2], "a letter to the ended is left")

    return Scenario(
        name="gc(letters) × deliver × park",
        setup=[leased(1), *done(2), signal(5, 2, "go")],
        sessions={"G": [autocommit(lambda _: collect.walk_signals(0))], "D": [send()], "P": [flush(PARK)]},
        check=check,
        never_wait=_G,
    )


def gc_of_buckets() -> Scenario:
    """A full bucket has one token, with or without its row: exactly one start gets it."""

    def check(end: End) -> None:
        started = [name for name in "AB" if end.result(name).executions]
        require(bool(started), "a full bucket gave nothing")
        require(len(started) == 1, "a token was spent twice")

    return Scenario(
        name="gc(buckets) × pick × pick",
        sample=80,
        setup=[rate("r"), full("r"), instance(1, rate_limit="r"), instance(2, rate_limit="r", queue="other")],
        sessions={
            "G": [autocommit(lambda _: collect.walk_buckets(0))],
            "A": [lease_some(8)],
            "B": [lease_from("other", 9)],
        },
        check=check,
        pauses=[
            Change(
                SCHEMA,
                "  moment := clock_timestamp();",
                "  perform gen_durable.pause(1);\n  moment := clock_timestamp();",
            )
        ],
        never_wait=_G,
    )


def _new(key: Mapping[str, Any]) -> dict[str, Any]:
    return {**key, "unique_scope": "{" + ",".join(key["unique_scope"]) + "}"}


_RECORD_OF_SPAWN: Final = (
    "update gen_durable.executions set step_seq = 2, execution = 1 where instance_id = 1"
)

SCENARIOS = [
    gc_and_join(),
    gc_and_retry_of_the_parent(),
    gc_and_insert(),
    gc_and_retry(),
    gc_and_retry("expired"),
    gc_and_retry_of_a_holder(),
    gc_and_fork(has_key=True),
    gc_and_fork(has_key=False),
    gc_and_restore(),
    gc_of_letters(),
    gc_of_buckets(),
]
