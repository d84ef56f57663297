"""Inserts with keys, against each other and against ending holders."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from gen_durable._db.insert import InsertResult, insert
from tests.interleavings.actions import put, reap
from tests.interleavings.invariants import require
from tests.interleavings.scenario import End, Scenario
from tests.interleavings.scenarios.signals import PAUSE_AFTER_REFUSAL
from tests.interleavings.session import callers, flush
from tests.interleavings.world import LIVE, KeyKind, leased, new, outcome


def insert_and_done(key: KeyKind) -> Scenario:
    """The holder ends: the insert is new, or a duplicate of that holder."""
    value: Any = b"u" if key == "unique" else "u"

    def check(end: End) -> None:
        _answered_once(key, value, "I")(end)
        require(end.result("I")[0].is_new or not end.is_before("F", "I"), "a free key was refused")

    return Scenario(
        name=f"insert({key}) × done",
        setup=[leased(1, **{f"{key}_key": value, f"{key}_scope": LIVE})],
        sessions={"I": [put(new(**{f"{key}_key": value}))], "F": [flush(outcome(1, "done"))]},
        check=check,
        pauses=[PAUSE_AFTER_REFUSAL],
    )


def insert_insert_and_done() -> Scenario:
    """Two producers wait for a holder to end: one gets the key, the other a duplicate."""
    return Scenario(
        name="insert(unique) × insert(unique) × done",
        setup=[leased(1, unique_key=b"u", unique_scope=LIVE)],
        sessions={
            "A": [put(new(unique_key=b"u"))],
            "B": [put(new(unique_key=b"u"))],
            "F": [flush(outcome(1, "done"))],
        },
        check=_answered_once("unique", b"u", "A", "B"),
        pauses=[PAUSE_AFTER_REFUSAL],
    )


def insert_in_a_transaction_and_done(isolation: str) -> Scenario:
    return Scenario(
        name=f"insert(unique, in a {isolation} transaction of the caller) × done",
        setup=[leased(1, unique_key=b"u", unique_scope=LIVE)],
        sessions={
            "I": [callers(isolation, lambda _: insert([new(unique_key=b"u")], autocommit=False))],
            "F": [flush(outcome(1, "done"))],
        },
        check=_answered_once("unique", b"u", "I"),
        may_meet=frozenset({"40001"}),
    )


def insert_and_reap(scope: Sequence[str] = LIVE) -> Scenario:
    """A key stays taken through a crash."""

    def check(end: End) -> None:
        require(end.after.status(1) == "runnable", "not reaped")
        (answer,) = end.result("I")
        require(answer.id == 1 and not answer.is_new, "two holders of one key")

    return Scenario(
        name="insert(unique) × reap",
        setup=[leased(1, unique_key=b"u", unique_scope=scope)],
        sessions={"I": [put(new(unique_key=b"u"))], "R": [reap()]},
        check=check,
    )


def same_keys_in_opposite_order() -> Scenario:
    """Both batches have to wait for the holder of z in their midst, and do not deadlock over x and y when it ends."""

    def check(end: End) -> None:
        for place, key in enumerate((b"x", b"z", b"y")):
            answers = (end.result("A")[place], end.result("B")[2 - place])
            _check_answers(end, "unique", key, answers)
            require(key == b"z" or any(answer.is_new for answer in answers), "a free key was refused")

    return Scenario(
        name="insert(x, z, y) × insert(y, z, x) × done(z)",
        setup=[leased(1, unique_key=b"z", unique_scope=LIVE)],
        sessions={
            "A": [put(*(new(unique_key=key) for key in (b"x", b"z", b"y")))],
            "B": [put(*(new(unique_key=key) for key in (b"y", b"z", b"x")))],
            "F": [flush(outcome(1, "done"))],
        },
        check=check,
    )


def _answered_once(key: KeyKind, value: Any, *inserters: str) -> Callable[[End], None]:
    return lambda end: _check_answers(end, key, value, [end.result(name)[0] for name in inserters])


def _check_answers(end: End, key: KeyKind, value: Any, answers: Collection[InsertResult]) -> None:
    """Instance 1 has ended: the new insert holds the key, all others are duplicates of either."""
    require(all(answers), "no answer")
    holders = end.after.holders(key, value)
    added = [answer.id for answer in answers if answer.is_new]
    require(len(added) <= 1, "two holders of one key")
    require(holders == set(added), "the new insert does not hold the key")
    for answer in answers:
        require(answer.id in {1, *added}, "an answer with an unknown id")


SCENARIOS = [
    insert_and_done("unique"),
    insert_and_done("correlation"),
    insert_insert_and_done(),
    insert_in_a_transaction_and_done("repeatable read"),
    insert_in_a_transaction_and_done("serializable"),
    insert_and_reap(),
    same_keys_in_opposite_order(),
]
