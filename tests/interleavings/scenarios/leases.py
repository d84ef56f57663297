"""One execution against its outcome, a repeated outcome, the reaper, and the next owner."""

from __future__ import annotations

from typing import Any

from gen_durable._core.model import CommitEntry, Committed
from gen_durable._db import commit as commits
from gen_durable._db.lease import mark_started, renew
from gen_durable._db.pick import Picked
from gen_durable._db.plan import Plan, Statement
from gen_durable.outcome import Sql
from tests.interleavings.actions import (
    CRASH_LIMIT,
    commit_picked,
    flush_with_effect,
    lease_some,
    reap,
    reap_execution,
    reap_worker,
)
from tests.interleavings.invariants import require
from tests.interleavings.scenario import End, Scenario
from tests.interleavings.session import (
    RECORDER,
    Flushed,
    Session,
    autocommit,
    commit_plain,
    flush,
    transaction,
)
from tests.interleavings.world import LEASE, TOKEN, instance, leased, machine, outcome

CONTINUE = outcome(1, "continue")
# The lock that a foreign key check takes on the referenced row.
_KEY_SHARE = Statement(
    "key_share", "select from gen_durable.gen_durable where id = :id::bigint for key share"
)


def commit_and_reap(kind: Any, *, crash_count: int = 0) -> Scenario:
    entry = outcome(1, kind, awaits=("go",) if kind == "await" else None)
    reaped_to = "failed" if crash_count + 1 >= CRASH_LIMIT else "runnable"
    statuses = {"continue": "executing", "next": "runnable", "retry": "runnable", "done": "done"}

    def check(end: End) -> None:
        is_committed, is_reaped = bool(end.result("F").committed()), 1 in end.result("R").ids
        # A kept lease can still be reaped until a heartbeat renews it.
        require(
            is_committed != is_reaped or (kind == "continue" and is_committed), "outcome and reaper both won"
        )
        require(end.after.status(1) == (reaped_to if is_reaped else statuses[kind]), "neither's status")

    return Scenario(
        name=f"commit({kind}) × reap" + (" at the cap" if reaped_to == "failed" else ""),
        setup=[leased(1, crash_count=crash_count)],
        sessions={"F": [flush(entry)], "R": [reap()]},
        check=check,
        never_wait=frozenset({"R"}),
    )


def zombie(kind: Any) -> Scenario:
    """Reaped and leased again by a worker of the same name, the first execution comes back with its outcome."""

    def check(end: End) -> None:
        is_committed = bool(end.result("F").committed())
        require(is_committed != (1 in end.result("R").ids), "outcome and reaper both won")

    entry = outcome(1, kind, awaits=("go",) if kind == "await" else None)
    return Scenario(
        name=f"commit({kind}) × reap × pick and commit",
        sample=90,
        setup=[leased(1)],
        sessions={"F": [flush(entry)], "R": [reap()], "K": [lease_some(8), commit_picked("done")]},
        check=check,
        never_wait=frozenset({"R"}),
    )


def move_commit_and_pick(kind: Any) -> Scenario:
    """The step has crashed too often and has an `on_failure`; its last execution may still commit."""

    def check(end: End) -> None:
        is_committed, is_moved = bool(end.result("F").committed()), 1 in end.result("R").moved
        require(is_committed != is_moved, "outcome and reaper both won")
        row = end.after.instances[1]
        require(not is_moved or (row["failure"] or {}).get("type") == "Poison", "its failure is lost")
        require(
            not is_moved or row["crash_count"] == 0, "the next step starts with the crashes of the one before"
        )
        require(not is_moved or row["step"] == "t", "it is not at its on_failure")
        steps = {record["step_seq"]: record["step"] for record in end.after.records(1)}
        require(not is_moved or steps.get(1) == "s", "the record of the crashed execution is lost")

    return Scenario(
        name=f"commit({kind}) × reap to on_failure × pick and commit",
        setup=[machine(on_failure='{"s": "t"}'), leased(1, crash_count=CRASH_LIMIT - 1)],
        sessions={"F": [flush(outcome(1, kind))], "R": [reap()], "K": [lease_some(8), commit_picked("done")]},
        check=check,
        never_wait=frozenset({"R"}),
    )


def dead_worker(kind: Any) -> Scenario:
    """A worker is known to be dead; its last commit may still arrive. Another worker holds a lease."""

    def check(end: End) -> None:
        is_committed, reaped = bool(end.result("F").committed()), end.result("R").ids
        require(
            is_committed != (1 in reaped) or (kind == "continue" and is_committed),
            "outcome and reaper both won",
        )
        require(2 not in reaped, "the lease of a live worker was taken")
        require(end.after.instances[2]["lease_token"] == 9, "the lease of a live worker is gone")

    return Scenario(
        name=f"commit({kind}) × reap of a dead worker × pick and commit",
        setup=[leased(1), leased(2, locked_by="w2", lease_token=9)],
        sessions={
            "F": [flush(outcome(1, kind))],
            "R": [reap_worker()],
            "K": [lease_some(8, worker="w3"), commit_picked("done")],
        },
        check=check,
        never_wait=frozenset({"R"}),
    )


def dead_execution() -> Scenario:
    """The process of one step has died; the reaper and the next owner may already have the row."""

    def check(end: End) -> None:
        by_reaper, by_worker = 1 in end.result("R").ids, 1 in end.result("C").ids
        require(by_reaper or by_worker, "the crash was not counted")
        require(not (by_reaper and by_worker), "one crash was counted twice")

    return Scenario(
        name="reap × reap of one execution × pick",
        setup=[leased(1)],
        sessions={"R": [reap()], "C": [reap_execution(1, TOKEN)], "K": [lease_some(8)]},
        check=check,
        never_wait=frozenset({"R"}),
    )


def same_keep_twice() -> Scenario:
    """A chained outcome whose COMMIT went unanswered is sent again on the lease that it kept."""

    def check(end: End) -> None:
        require(end.after.instances[1]["step_seq"] == 1, "applied twice")

    return Scenario(
        name="continue × same continue again",
        setup=[leased(1)],
        sessions={"A": [flush(CONTINUE)], "B": [flush(CONTINUE)]},
        check=check,
    )


def resolve_while_unanswered(kind: Any) -> Scenario:
    """The connection broke at a COMMIT that may yet happen: the rows are asked, and what is not there is sent again.

    If that comes back as stale, the rows are asked once more: the first COMMIT may have happened in between.
    """
    entry = outcome(1, kind)

    def again(session: Session) -> Plan[Any] | None:
        (status,) = session.result
        return commit_plain([entry]) if status is None else None

    def look_again(session: Session) -> Plan[Any] | None:
        last = session.result
        return (
            commits.commit_status([entry], RECORDER)
            if isinstance(last, Flushed) and not last.committed()
            else None
        )

    def check(end: End) -> None:
        last = end.result("B")
        (result,) = last.report.results if isinstance(last, Flushed) else last
        require(end.after.instances[1]["step_seq"] == (0 if kind == "retry" else 1), "applied twice")
        require(end.after.instances[1]["attempt"] == (1 if kind == "retry" else 0), "applied twice")
        require(isinstance(result, Committed), "durable, but taken for lost")

    return Scenario(
        name=f"{kind} without an answer × resolve and commit again",
        setup=[leased(1)],
        sessions={
            "A": [flush(entry)],
            "B": [
                autocommit(lambda _: commits.commit_status([entry], RECORDER)),
                autocommit(again),
                autocommit(look_again),
            ],
        },
        check=check,
    )


def reap_reap_and_pick() -> Scenario:
    """Two reapers."""

    def check(end: End) -> None:
        require(len(end.result("R").ids) + len(end.result("S").ids) == 1, "not reaped exactly once")
        require(end.after.instances[1]["attempt"] == 1, "one crash, counted twice")

    return Scenario(
        name="reap × reap × pick",
        setup=[leased(1)],
        sessions={"R": [reap()], "S": [reap()], "K": [lease_some(8)]},
        check=check,
        never_wait=frozenset({"R", "S", "K"}),
    )


def release_reap_and_commit() -> Scenario:
    def check(end: End) -> None:
        winners = [bool(end.result(name).committed()) for name in "LF"] + [1 in end.result("R").ids]
        require(sum(winners) == 1, "not exactly one won")

    return Scenario(
        name="release × reap × commit",
        setup=[leased(1)],
        sessions={"L": [flush(outcome(1, "release"))], "R": [reap()], "F": [flush(outcome(1, "done"))]},
        check=check,
        never_wait=frozenset({"R"}),
    )


def effect_reap_and_pick() -> Scenario:
    """An effect happens in the transaction of its outcome, and only if that execution still has its lease."""
    # The kind of effect does not matter to the commit.
    entry = outcome(1, "next", effect=Sql("select 1"))

    def check(end: End) -> None:
        require(end.after.effects == len(end.result("F").committed()), "not one effect for its transition")

    return Scenario(
        name="commit with effect × reap × pick and commit",
        setup=[leased(1)],
        sessions={
            "F": [flush_with_effect(entry)],
            "R": [reap()],
            "K": [lease_some(8), commit_picked("done")],
        },
        check=check,
        never_wait=frozenset({"R"}),
    )


def finish_and_finish_abandoned() -> Scenario:
    """A worker marks its committed execution as done while a reaper does the same."""

    def check(end: End) -> None:
        require([record["status"] for record in end.after.executions] == ["DONE"], "not done")

    return Scenario(
        name="finish × finish abandoned",
        setup=[
            instance(1, step_seq=1, execution=1),
            """insert into gen_durable.executions
                      (instance_id, step_seq, execution, attempt, status, outcome, step, finished_at)
               values (1, 1, 1, 0, 'COMMITTED', 'next', 's', statement_timestamp() - interval '1 hour')""",
        ],
        sessions={
            "F": [autocommit(lambda _: commits.finish([outcome(1, "next")]))],
            "R": [autocommit(lambda _: commits.finish_abandoned(LEASE))],
        },
        check=check,
        never_wait=frozenset({"R"}),
    )


def mark_started_and_commit() -> Scenario:
    """A worker records the start of a step while that step ends and the next one continues on the lease."""
    begun = {((1, TOKEN), 0): None}

    def check(end: End) -> None:
        require(end.after.instances[1]["started_at"] is None, "recorded for a step that has not begun")

    return Scenario(
        name="mark started × commit(continue)",
        setup=[leased(1)],
        sessions={
            "M": [autocommit(lambda _: mark_started(begun))],
            "F": [flush(CONTINUE)],
        },
        check=check,
        never_wait=frozenset({"M"}),
    )


def renew_and_commit() -> Scenario:
    """A worker's heartbeat meets its own flush: it neither waits nor takes a live lease for lost."""
    leases = {(id, TOKEN): LEASE for id in (1, 2, 3)}

    def check(end: End) -> None:
        lost, held = end.result("H")
        require(lost <= {(1, TOKEN)}, "a live lease was taken for lost")
        require(held <= {(1, TOKEN), (3, TOKEN)}, "an unlocked row was skipped")

    return Scenario(
        name="renew × commit",
        setup=[leased(id) for id in (1, 2, 3)],
        sessions={
            "H": [autocommit(lambda _: renew(leases))],
            "F": [flush(outcome(1, "done"), outcome(3, "continue"))],
        },
        check=check,
        never_wait=frozenset({"H"}),
    )


def renew_reap_and_pick() -> Scenario:
    """A heartbeat renews only its own lease."""

    def check(end: End) -> None:
        if end.is_before("R", "H"):
            require(end.result("H") == ({(1, TOKEN)}, set()), "renewed a lease that was another's")
        if end.is_before("H", "R"):
            require(not end.result("R").ids, "reaped a lease that was renewed")

    return Scenario(
        name="renew × reap × pick",
        setup=[leased(1)],
        sessions={
            "H": [autocommit(lambda _: renew({(1, TOKEN): LEASE}))],
            "R": [reap()],
            "K": [lease_some(8)],
        },
        check=check,
        never_wait=frozenset({"H", "R", "K"}),
    )


def pick_and_pick() -> Scenario:
    def check(end: End) -> None:
        first, second = _ids(end.result("A")), _ids(end.result("B"))
        require(not first & second, "leased twice")
        require(first | second == {1, 2, 3}, "a due row was left")

    return Scenario(
        name="pick × pick",
        setup=[instance(id) for id in (1, 2, 3)],
        sessions={"A": [lease_some(8, demand=2)], "B": [lease_some(9, demand=2)]},
        check=check,
        never_wait=frozenset({"A", "B"}),
    )


def pick_and_foreign_key() -> Scenario:
    """A foreign key check in an open transaction does not keep the row from being picked."""

    def share() -> Plan[None]:
        yield _KEY_SHARE(id=1)

    def check(end: End) -> None:
        require(_ids(end.result("K")) == {1}, "a due row was left")

    return Scenario(
        name="pick × foreign key",
        setup=[instance(1)],
        sessions={"U": [transaction(lambda _: share())], "K": [lease_some(8)]},
        check=check,
        never_wait=frozenset({"K"}),
    )


def commit_and_commit_of_two_owners() -> Scenario:
    """One batch has a stale outcome and the valid one of the same instance."""
    old, live = outcome(1, "done"), outcome(1, "next", lease_token=8)

    def check(end: End) -> None:
        require(end.after.status(1) in ("runnable", "failed"), "the lost execution won")
        committed: list[CommitEntry] = end.result("F").committed()
        stopped: list[CommitEntry] = end.result("G").committed()
        require([*committed, *stopped] in ([live], [_STOP]), "not exactly one won")

    return Scenario(
        name="commit(lost and live owner) × commit(live owner)",
        setup=[leased(1, lease_token=8)],
        sessions={"F": [flush(old, live)], "G": [flush(_STOP)]},
        check=check,
    )


_STOP = outcome(1, "stop", lease_token=8, error="no")


def _ids(picked: Picked) -> set[int]:
    return {execution.id for execution in picked.executions}


SCENARIOS = [
    commit_and_reap("continue"),
    commit_and_reap("next"),
    commit_and_reap("retry"),
    commit_and_reap("done"),
    commit_and_reap("done", crash_count=CRASH_LIMIT - 1),
    zombie("next"),
    zombie("await"),
    move_commit_and_pick("next"),
    move_commit_and_pick("retry"),
    dead_worker("continue"),
    dead_worker("next"),
    dead_worker("done"),
    dead_execution(),
    same_keep_twice(),
    resolve_while_unanswered("continue"),
    resolve_while_unanswered("done"),
    resolve_while_unanswered("retry"),
    reap_reap_and_pick(),
    release_reap_and_commit(),
    effect_reap_and_pick(),
    finish_and_finish_abandoned(),
    mark_started_and_commit(),
    renew_and_commit(),
    renew_reap_and_pick(),
    pick_and_pick(),
    pick_and_foreign_key(),
    commit_and_commit_of_two_owners(),
]
