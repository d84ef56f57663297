"""Concurrency keys: one execution per key, and gated rows never get stuck."""

from __future__ import annotations

from typing import Any

from tests.interleavings.actions import admit_some, cancel, flush_picked, gate, lease_some, put, reap, send
from tests.interleavings.invariants import require
from tests.interleavings.scenario import End, Scenario
from tests.interleavings.session import flush
from tests.interleavings.world import FIRST_NEW_ID, FUTURE, PAST, instance, leased, new, outcome, unserved


def pick_pick_and_urgent_insert() -> Scenario:
    """A more urgent row arrives between the two picks' looks at the line."""

    def check(end: End) -> None:
        picked = [e.id for name in "AB" for e in end.result(name).executions]
        require(len(picked) == 1, "a free key was left, or taken twice")
        require(picked[0] in (1, FIRST_NEW_ID), "not the first row of its key")
        if end.is_before("I", "A") and end.is_before("I", "B"):
            require(picked == [FIRST_NEW_ID], "not the first row of its key")

    return Scenario(
        name="pick × pick × urgent insert, one key",
        sample=60,
        setup=[instance(id, concurrency_key="k") for id in (1, 2, 3)],
        sessions={
            "A": [admit_some(8)],
            "B": [admit_some(9)],
            "I": [put(new(concurrency_key="k", priority=-1))],
        },
        check=check,
        may_meet=frozenset({"23505"}),
    )


def plain_picks() -> Scenario:
    """Two workers that do not know yet that the queue has keys."""

    def check(end: End) -> None:
        picked = [e.id for name in "AB" for e in end.result(name).executions]
        require(picked == [1], "a free key was left, or taken twice")

    return Scenario(
        name="plain pick × plain pick, one key",
        setup=[instance(id, concurrency_key="k") for id in (1, 2)],
        sessions={"A": [lease_some(8)], "B": [lease_some(9)]},
        check=check,
        may_meet=frozenset({"23505"}),
    )


def gate_and_release(kind: Any) -> Scenario:
    return Scenario(
        name=f"gate × commit({kind})",
        setup=_line(gated=False),
        sessions={"G": [gate("k")], "F": [flush(_outcome(kind))]},
        check=_nothing_more,
    )


def gate_gate_and_release() -> Scenario:
    return Scenario(
        name="gate × gate × commit(next)",
        setup=_line(gated=False),
        sessions={"G": [gate("k")], "H": [gate("k")], "F": [flush(_outcome("next"))]},
        check=_nothing_more,
    )


def gate_reap_and_pick() -> Scenario:
    return Scenario(
        name="gate × reap × pick",
        setup=_line(gated=False),
        sessions={"G": [gate("k")], "R": [reap()], "K": [admit_some(8)]},
        check=_nothing_more,
    )


def gate_release_and_pick() -> Scenario:
    return Scenario(
        name="gate × commit(done) × pick",
        setup=_line(gated=False),
        sessions={"G": [gate("k")], "F": [flush(_outcome("done"))], "K": [admit_some(8)]},
        check=_nothing_more,
    )


def release_and_deliver_to_the_next() -> Scenario:
    """A sender has locked the next row: the session that frees the key waits for it."""
    return Scenario(
        name="commit(done) × deliver(to the next row of the key)",
        setup=[
            leased(1, concurrency_key="k", concurrency_slot=0),
            instance(2, concurrency_key="k", gated=True),
        ],
        sessions={"F": [flush(_outcome("done"))], "D": [send(2)]},
        check=_nothing_more,
    )


def gate_release_and_switch() -> Scenario:
    """An instance without a key joins the line of k while k is gated and freed."""
    switch = outcome(4, "next", switches_key=True, concurrency_key="k")
    return Scenario(
        name="gate × commit(done) × commit(next, with this key)",
        setup=[*_line(gated=False), leased(4, priority=-1)],
        sessions={"G": [gate("k")], "F": [flush(_outcome("done"))], "S": [flush(switch)]},
        check=_nothing_more,
    )


def gate_and_switch_away() -> Scenario:
    """The holder continues under another key, which frees the old one."""
    switch = outcome(1, "next", switches_key=True, concurrency_key="other", held_key="k")
    return Scenario(
        name="gate × commit(next, with another key)",
        setup=_line(gated=False),
        sessions={"G": [gate("k")], "S": [flush(switch)]},
        check=_nothing_more,
    )


def release_and_urgent_insert() -> Scenario:
    """Rows are gated; a more urgent row arrives while the key is freed and a pick runs."""
    return Scenario(
        name="commit(done) × urgent insert × pick",
        setup=_line(gated=True),
        sessions={
            "F": [flush(_outcome("done"))],
            "I": [put(new(concurrency_key="k", priority=-1))],
            "K": [admit_some(8)],
        },
        check=_nothing_more,
        may_meet=frozenset({"23505"}),
    )


def gate_behind_and_cancel() -> Scenario:
    """The key is free: the rows behind the first are gated, and the first is cancelled."""
    return Scenario(
        name="gate behind the first × cancel(the first)",
        setup=_free_line(),
        sessions={"G": [gate("k")], "C": [cancel(1)]},
        check=_nothing_more,
    )


def gate_behind_and_pick() -> Scenario:
    """The first is leased and ends, while the rows behind it are gated."""
    return Scenario(
        name="gate behind the first × pick and commit(done)",
        setup=_free_line(),
        sessions={"G": [gate("k")], "K": [admit_some(8, 1), flush_picked("done", held_key="k")]},
        check=_nothing_more,
    )


def gate_behind_and_urgent_insert() -> Scenario:
    """A new row sorts before the first, which is cancelled."""
    return Scenario(
        name="gate behind the first × urgent insert × cancel(the first)",
        setup=_free_line(),
        sessions={"G": [gate("k")], "I": [put(new(concurrency_key="k", priority=-1))], "C": [cancel(1)]},
        check=_nothing_more,
    )


def gate_behind_and_deliver() -> Scenario:
    """A sender has locked the first row, so the pick takes another."""
    return Scenario(
        name="gate behind the first × deliver(to the first) × pick",
        setup=_free_line(),
        sessions={"G": [gate("k")], "D": [send(1)], "K": [admit_some(8)]},
        check=_nothing_more,
        never_wait=frozenset({"K"}),
    )


def release_behind_an_unserved_row(*, gated: bool) -> Scenario:
    """The next row of the key is of a machine that no worker runs, gated or not: the row behind it is next."""

    def check(end: End) -> None:
        picked = [e.id for e in end.result("K").executions]
        require(
            picked == ([3] if end.is_before("F", "K") else []), "not the next row that a worker can start"
        )

    return Scenario(
        name=f"commit(done) × pick, behind {'a gated' if gated else 'an'} unserved row",
        setup=[
            unserved("X"),
            leased(1, concurrency_key="k", concurrency_slot=0),
            instance(2, fsm="X", concurrency_key="k", gated=gated, eligible_at=PAST),
            instance(3, concurrency_key="k", gated=True, eligible_at=PAST),
        ],
        sessions={"F": [flush(_outcome("done"))], "K": [admit_some(8)]},
        check=check,
    )


def gate_and_pick_behind_an_unserved_row() -> Scenario:
    """The first row of a free key is of a machine that no worker runs."""

    def check(end: End) -> None:
        picked = [e.id for e in end.result("K").executions]
        one_after_the_other = end.is_before("G", "K") or end.is_before("K", "G")
        # Otherwise the gate may have locked the row.
        require(picked == [2] or not one_after_the_other, "not the next row that a worker can start")

    return Scenario(
        name="gate × pick, behind an unserved row",
        setup=[
            unserved("X"),
            instance(1, fsm="X", concurrency_key="k", eligible_at=PAST),
            *(instance(id, concurrency_key="k", eligible_at=PAST) for id in (2, 3)),
        ],
        sessions={"G": [gate("k")], "K": [admit_some(8)]},
        check=check,
    )


def _free_line() -> list[str]:
    """Three due rows of a free key."""
    return [instance(id, concurrency_key="k", eligible_at=PAST) for id in (1, 2, 3)]


def _line(*, gated: bool) -> list[str]:
    """An execution that holds k, two due rows behind it, and an urgent row that is not due."""
    return [
        leased(1, concurrency_key="k", concurrency_slot=0),
        *(instance(id, concurrency_key="k", gated=gated, eligible_at=PAST) for id in (2, 3)),
        instance(9, concurrency_key="k", priority=-9, eligible_at=FUTURE),
    ]


def _outcome(kind: Any) -> Any:
    return outcome(1, kind, held_key="k")


def _nothing_more(end: End) -> None:
    """The rows of each key are checked after every order."""


SCENARIOS = [
    plain_picks(),
    pick_pick_and_urgent_insert(),
    gate_and_release("done"),
    gate_and_release("retry"),
    gate_gate_and_release(),
    gate_reap_and_pick(),
    gate_release_and_pick(),
    release_and_deliver_to_the_next(),
    gate_release_and_switch(),
    gate_and_switch_away(),
    release_and_urgent_insert(),
    gate_behind_and_cancel(),
    gate_behind_and_pick(),
    gate_behind_and_urgent_insert(),
    gate_behind_and_deliver(),
    release_behind_an_unserved_row(gated=True),
    release_behind_an_unserved_row(gated=False),
    gate_and_pick_behind_an_unserved_row(),
]
