"""Limits: keys with two slots, changing limits, and shared buckets."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import msgspec

from gen_durable._core.model import CommitEntry
from gen_durable._db import admission, limits, pick
from gen_durable._db.plan import Plan
from gen_durable.limits import ConcurrencyLimit, RateLimit
from tests.interleavings.actions import admit_some, cancel, flush_picked, gate, put, reap
from tests.interleavings.invariants import require
from tests.interleavings.scenario import End, Scenario
from tests.interleavings.session import Session, Work, autocommit, flush, transaction
from tests.interleavings.world import (
    LEASE,
    MACHINES,
    PAST,
    QUEUE,
    WORKER,
    empty,
    full,
    instance,
    leased,
    new,
    outcome,
    rate,
    slots,
)


def change(name: str, count: int) -> Work:
    return autocommit(lambda _: limits.put(ConcurrencyLimit(name, count)))


def defer_rows(key: str) -> Work:
    throttled = [pick.Throttled(key, QUEUE, 1, 0, "F", "s")]
    return transaction(lambda _: admission.defer_throttled(throttled, MACHINES))


def defer_denied() -> Work:
    """Defer the rows that the previous pick found throttled."""

    def make(session: Session) -> Plan[Any] | None:
        picked: pick.Picked = session.result
        return admission.defer_throttled(picked.throttled, MACHINES) if picked.throttled else None

    return transaction(make)


def set_rate(name: str, allowed: int = 1) -> Work:
    """In a caller's open transaction."""
    return transaction(lambda _: limits.put(RateLimit(name, allowed)))


def lease_from(queue: str, token: int) -> Work:
    return autocommit(
        lambda _: pick.pick_with_admission(
            queue, pick.PickRequest(MACHINES, 10, token, WORKER, pick.Leases(LEASE))
        )
    )


def two_picks() -> Scenario:
    """Two slots, two picks, and a new first row."""

    def check(end: End) -> None:
        picked = [e.id for name in "AB" for e in end.result(name).executions]
        require(len(picked) == 2, "a free slot was left, or one too many was taken")

    return Scenario(
        name="pick × pick × urgent insert, a key of two slots",
        setup=[slots("k", 2), *(instance(id, concurrency_key="k") for id in (1, 2, 3))],
        sessions={
            "A": [admit_some(8, 1)],
            "B": [admit_some(9)],
            "I": [put(new(concurrency_key="k", priority=-1))],
        },
        check=check,
        may_meet=frozenset({"23505"}),
    )


def gate_and_two_releases() -> Scenario:
    return Scenario(
        name="gate × commit(done) × commit(done), a key of two slots",
        setup=_pair(gated=False),
        sessions={"G": [gate("k")], "F": [flush(_done(1))], "H": [flush(_done(2))]},
        check=_nothing_more,
    )


def two_releases() -> Scenario:
    """Two ends see each other's slot as taken: each admits one row, not the same."""
    return Scenario(
        name="commit(done) × commit(done) × pick, a key of two slots",
        setup=_pair(gated=True),
        sessions={"F": [flush(_done(1))], "H": [flush(_done(2))], "K": [admit_some(8)]},
        check=_nothing_more,
        may_meet=frozenset({"23505"}),
    )


def gate_release_and_pick() -> Scenario:
    return Scenario(
        name="gate × commit(done) × pick and commit(done), a key of two slots",
        sample=30,
        setup=_pair(gated=False),
        sessions={
            "G": [gate("k")],
            "F": [flush(_done(2))],
            "K": [admit_some(8, 1), flush_picked("done", held_key="k")],
        },
        check=_nothing_more,
    )


def release_and_cancel_of_the_waiting() -> Scenario:
    """The row that waits for the freed slot is cancelled: the one behind it must be admitted."""
    return Scenario(
        name="commit(done) × cancel(next row of the key, not gated)",
        setup=[
            leased(1, concurrency_key="k", concurrency_slot=0),
            instance(2, concurrency_key="k", eligible_at=PAST),
            *(instance(id, concurrency_key="k", gated=True, eligible_at=PAST) for id in (3, 4)),
        ],
        sessions={"F": [flush(_done(1))], "C": [cancel(2)]},
        check=_nothing_more,
    )


def reap_and_release() -> Scenario:
    return Scenario(
        name="reap × commit(done) × pick, a key of two slots",
        setup=_pair(gated=True),
        sessions={"R": [reap()], "F": [flush(_done(1))], "K": [admit_some(8)]},
        check=_nothing_more,
        may_meet=frozenset({"23505"}),
    )


def gate_and_raise(*, is_new: bool) -> Scenario:
    """The limit is raised while rows of the key are being gated."""
    return Scenario(
        name=f"gate × a limit is {'set' if is_new else 'raised'}",
        setup=[
            *([] if is_new else [slots("k", 1)]),
            leased(1, concurrency_key="k", concurrency_slot=0),
            *(instance(id, concurrency_key="k", eligible_at=PAST) for id in (2, 3)),
        ],
        sessions={"G": [gate("k")], "L": [change("k", 2)]},
        check=_nothing_more,
    )


def raise_and_release() -> Scenario:
    return Scenario(
        name="a limit is raised × commit(done) × pick",
        setup=[
            slots("k", 1),
            leased(1, concurrency_key="k", concurrency_slot=0),
            *(instance(id, concurrency_key="k", gated=True, eligible_at=PAST) for id in (2, 3, 4)),
        ],
        sessions={"L": [change("k", 2)], "F": [flush(_done(1))], "K": [admit_some(8)]},
        check=_nothing_more,
        may_meet=frozenset({"23505"}),
    )


def lower_and_pick() -> Scenario:
    """Executions admitted before a lowered limit continue; no others are admitted."""

    def check(end: End) -> None:
        if end.is_before("L", "K"):
            require(not end.result("K").executions, "more executions than a limit that was lowered allows")

    return Scenario(
        name="a limit is lowered × pick × gate",
        setup=[
            slots("k", 2),
            leased(1, concurrency_key="k", concurrency_slot=1),
            *(instance(id, concurrency_key="k", eligible_at=PAST) for id in (2, 3)),
        ],
        sessions={"L": [change("k", 1)], "K": [admit_some(8)], "G": [gate("k")]},
        check=check,
    )


def two_buckets() -> Scenario:
    """Two queues take tokens of two buckets in opposite order."""

    def check(end: End) -> None:
        started = [e.rate_limit for name in "AB" for e in end.result(name).executions]
        require(len(started) == len(set(started)), "a token was spent twice")
        require(len(started) == 2, "a token was left")

    return Scenario(
        name="pick × pick, two buckets",
        setup=[
            rate("r"),
            full("r:a"),
            full("r:b"),
            *(instance(id, rate_limit=f"r:{part}") for id, part in ((1, "a"), (2, "b"))),
            *(instance(id, rate_limit=f"r:{part}", queue="other") for id, part in ((3, "b"), (4, "a"))),
        ],
        sessions={"A": [lease_from(QUEUE, 8)], "B": [lease_from("other", 9)]},
        check=check,
    )


def defer_and_release() -> Scenario:
    """The next in line of a key is put off by its bucket while the key is freed: the one behind it is next."""
    return Scenario(
        name="put off × commit(done) × pick",
        sample=40,
        setup=[
            rate("r"),
            empty("r"),
            leased(1, concurrency_key="k", concurrency_slot=0),
            instance(2, concurrency_key="k", rate_limit="r", eligible_at=PAST),
            instance(3, concurrency_key="k", gated=True, eligible_at=PAST),
        ],
        sessions={"P": [defer_rows("r")], "F": [flush(_done(1))], "K": [admit_some(8)]},
        check=_nothing_more,
    )


def defer_twice() -> Scenario:
    """Two picks defer rows of one bucket: each row gets its own start time."""

    def check(end: End) -> None:
        places = [row["rate_turn_at"] for row in end.after.instances.values()]
        require(None not in places and len(set(places)) == 3, "two rows in one place of the plan")

    return Scenario(
        name="put off × put off",
        setup=[rate("r"), empty("r"), *(instance(id, rate_limit="r", eligible_at=PAST) for id in (1, 2, 3))],
        sessions={"P": [defer_rows("r")], "Q": [defer_rows("r")]},
        check=check,
    )


def stall_and_set() -> Scenario:
    """A row stalls because its rate limit does not exist, while a transaction sets that limit."""
    return Scenario(
        name="put off × a rate limit is set",
        setup=[instance(1, rate_limit="r", eligible_at=PAST)],
        sessions={"P": [defer_rows("r")], "L": [set_rate("r")]},
        check=_starts_soon,
    )


def commit_stall_and_set() -> Scenario:
    """The same from the commit that names the limit on; the picker stalls what it found throttled."""
    return Scenario(
        name="commit(next, rate limit) × pick, put off × a rate limit is set",
        sample=60,
        setup=[leased(1)],
        sessions={
            "F": [flush(outcome(1, "next", rate_limit="r"))],
            "K": [lease_from(QUEUE, 8), defer_denied()],
            "L": [set_rate("r")],
        },
        check=_starts_soon,
    )


def defer_and_raise() -> Scenario:
    """Two rows get start times at one per day while a transaction raises the rate to 1000/s."""
    return Scenario(
        name="put off × a rate limit is raised",
        setup=[
            rate("r"),
            empty("r"),
            instance(1, rate_limit="r", eligible_at=PAST),
            instance(2, rate_limit="r", eligible_at=PAST, priority=-1),
        ],
        sessions={"P": [defer_rows("r")], "L": [set_rate("r", 1000)]},
        check=_starts_soon,
    )


def deferred_and_reap() -> Scenario:
    """An execution whose step is unknown gives back its token once, and not the token of a later execution.

    The bucket has two tokens; this execution has taken one.
    """

    def check(end: End) -> None:
        started = len(end.result("K").executions)
        taken = round(end.after.buckets["r"], 3)
        require(taken >= started, "a token was given back twice")
        is_deferred = any(end.result(name).committed() for name in "FG")
        require(taken == started or not is_deferred, "a token was not given back")

    return Scenario(
        name="commit(defer) × commit(defer) again × reap and pick, a rate limit",
        setup=[
            rate("r", burst=2),
            empty("r"),
            leased(1, rate_limit="r", leased_at=timedelta(0)),
        ],
        sessions={
            "F": [flush(_deferred(1))],
            "G": [flush(_deferred(1))],
            "K": [reap(), admit_some(8)],
        },
        check=check,
    )


def _starts_soon(end: End) -> None:
    """The limit is set: the row runs, or is due now or in a second."""
    row = end.after.instances[1]
    is_soon = row["eligible_at"] <= time.time() + 2
    require(row["status"] == "executing" or is_soon, "a row stalls although its limit is set")


def _pair(*, gated: bool) -> list[str]:
    """Two executions that hold k, and three due rows behind them."""
    return [
        slots("k", 2),
        leased(1, concurrency_key="k", concurrency_slot=0),
        leased(2, concurrency_key="k", concurrency_slot=1),
        *(instance(id, concurrency_key="k", gated=gated, eligible_at=PAST) for id in (3, 4, 5)),
    ]


def _deferred(id: int) -> CommitEntry:
    entry = outcome(id, "defer", delay=timedelta(0))
    entry.execution = msgspec.structs.replace(entry.execution, rate_limit="r")
    return entry


def _done(id: int) -> CommitEntry:
    return outcome(id, "done", held_key="k")


def _nothing_more(end: End) -> None:
    """The rows of each key are checked after every order."""


SCENARIOS = [
    two_picks(),
    gate_and_two_releases(),
    two_releases(),
    gate_release_and_pick(),
    release_and_cancel_of_the_waiting(),
    reap_and_release(),
    gate_and_raise(is_new=False),
    gate_and_raise(is_new=True),
    raise_and_release(),
    lower_and_pick(),
    two_buckets(),
    defer_and_release(),
    defer_twice(),
    stall_and_set(),
    commit_stall_and_set(),
    defer_and_raise(),
    deferred_and_reap(),
]
