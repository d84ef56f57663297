"""Pages of batches against other runners, stops, and changes of the same instances."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from gen_durable._db import batches
from gen_durable._db.plan import Plan
from gen_durable._verbs import BatchRun
from gen_durable.batches import Batch
from tests.interleavings.actions import cancel, commit_picked, lease_some
from tests.interleavings.invariants import require
from tests.interleavings.product import SCHEMA, Change
from tests.interleavings.scenario import End, Scenario
from tests.interleavings.session import Work, autocommit
from tests.interleavings.world import FUTURE, PAST, batch, cancelled, instance

_ALL = (1, 2, 3)
_LEASE = timedelta(minutes=1)
# Behind the guard, before anything is changed.
_PAUSE_IN_PAGE = Change(
    SCHEMA, "  if skipped is not null then", "  perform gen_durable.pause(1);\n  if skipped is not null then"
)


def run(calls: int, size: int = 2) -> Work:
    """Run a batch for some calls, with pages of `size` instances."""

    def plan() -> Plan[Batch]:
        runner = BatchRun(1)
        now: Batch | None = None
        for _ in range(calls):
            runner._size = size
            (now, pause), _ = yield from runner.plan()
            if pause is None:
                break
        assert now is not None
        return now

    return autocommit(lambda _: plan())


def page(*ids: int, token: int = 1, pages: int = 0) -> Work:
    """One page of a runner that has read the position before; `None`: refused."""
    at = batches.Position(
        lease_token=token, pages=pages, newest=3, after_id=None, pending=(), levels=(), is_over=False
    )
    return autocommit(
        lambda _: batches.page(1, at, ids, visited=max(ids), is_exhausted=False, alive_for=_LEASE)
    )


def stop() -> Work:
    return autocommit(lambda _: batches.stop(1, "wrong filter", "ben"))


def page_and_takeover() -> Scenario:
    """The lease has expired. One of the runners commits the first page; the other continues or gives up."""

    def check(end: End) -> None:
        first, second = end.result("A"), end.result("B")
        if _is_committed_before(end, "B lease_batch", "A batch_page"):
            require(first is None, "a runner without the lease has changed instances")
        require(first is None or second is not None, "the new runner read nothing")
        (row,) = end.after.batches
        require(row["lease_token"] == 2 or first is not None, "no runner has the lease")
        _check_counts(end, is_over=row["lease_token"] == 2)

    return Scenario(
        name="batch page × takeover after the lease",
        setup=[*_three(), batch(lease_token=1, runner="a", lease_expires_at=PAST)],
        sessions={"A": [page(1, 2)], "B": [run(4)]},
        check=check,
        pauses=[_PAUSE_IN_PAGE],
        sample=60,
    )


def page_and_the_same_page() -> Scenario:
    """A page is sent again after a lost reply: it counts once."""

    def check(end: End) -> None:
        answers = [end.result("A"), end.result("B")]
        require(answers.count(None) == 1, "a page was committed twice, or not at all")
        _check_counts(end, is_over=False)

    return Scenario(
        name="batch page × the same page",
        setup=[*_three(), batch(lease_token=1, runner="a", lease_expires_at=FUTURE)],
        sessions={"A": [page(1, 2)], "B": [page(1, 2)]},
        check=check,
        pauses=[_PAUSE_IN_PAGE],
    )


def page_and_stop() -> Scenario:
    """A stop waits for the page that runs; no page follows it."""

    def check(end: End) -> None:
        (row,) = end.after.batches
        is_changed = end.result("A") is not None
        require(end.result("S") is True, "a stop of a batch that runs was refused")
        require(row["stopped_at"] is not None and row["finished_at"] is not None, "a stopped batch goes on")
        if _is_committed_before(end, "S stop_batch", "A batch_page"):
            require(not is_changed, "a page after the stop")
        (ended,) = (event for event in end.after.audit if event["event"] == "stopped")
        require(ended["data"] == row["outcomes"], "the stop tells of other counts")
        _check_counts(end, is_over=False)

    return Scenario(
        name="batch page × stop",
        setup=[*_three(), batch(lease_token=1, runner="a", lease_expires_at=FUTURE)],
        sessions={"A": [page(1, 2)], "S": [stop()]},
        check=check,
        pauses=[_PAUSE_IN_PAGE],
    )


def run_and_cancel(verb: str) -> Scenario:
    """Another caller cancels an instance: a page skips it while it is locked, and leaves none out."""

    def check(end: End) -> None:
        now: Batch = end.result("B")
        (row,) = end.after.batches
        (answer,) = end.result("C")
        require(now.is_over or row["pending"] == [2], "an instance was left out")
        if verb == "retry":
            require(not now.is_over or now.outcomes == {"retried": 3}, "other counts than changes")
            is_again = answer["was"] == "runnable"
            require(not now.is_over or (end.after.status(2) == "cancelled") == is_again, "a cancel was lost")
            return
        (event,) = end.after.audit_of(2, "cancelled")
        by_batch = "batch" in (event["data"] or ())
        require(by_batch == (event["actor"] == "bob"), "an event of another caller names the batch")
        require(by_batch == (answer["was"] == "cancelled"), "cancelled by both, or by neither")
        _check_counts(end, is_over=now.is_over, others={} if by_batch else {"finished": 1})

    is_cancel = verb == "cancel"
    rows = _three() if is_cancel else [row for id in _ALL for row in cancelled(id)]
    return Scenario(
        name=f"{verb} in a batch × cancel",
        setup=[*rows, batch(verb=verb)],
        sessions={"B": [run(5)], "C": [cancel(2)]},
        check=check,
        never_wait=frozenset({"B"}),
        sample=60,
    )


def run_pick_and_commit() -> Scenario:
    """A worker leases and commits instances that a batch cancels."""

    def check(end: End) -> None:
        now: Batch = end.result("B")
        statuses = [end.after.status(id) for id in _ALL]
        done = statuses.count("done")
        require(set(statuses) <= {"done", "cancelled"} or not now.is_over, "an instance was left out")
        if now.is_over:
            counts = sum(now.outcomes.values())
            # An instance that is done before its page does not match any more.
            require(3 - done <= counts <= 3, "not one count for each instance")
            changed = now.outcomes.get("cancelled", 0) + now.outcomes.get("requested", 0)
            require(changed == statuses.count("cancelled"), "other counts than changes")

    return Scenario(
        name="cancel in a batch × pick and commit",
        setup=[*_three(), batch()],
        sessions={"B": [run(2, size=4)], "K": [lease_some(8), commit_picked("done")]},
        check=check,
        never_wait=frozenset({"B"}),
    )


def _three() -> Sequence[str]:
    return [instance(id) for id in _ALL]


def _is_committed_before(end: End, statement: str, other: str) -> bool:
    """Whether the statement of one session was committed when the other one began."""
    session = statement.partition(" ")[0]
    if statement not in end.trace:
        return False
    committed = end.trace.index(f"{session} COMMIT", end.trace.index(statement))
    return committed < end.trace.index(other)


def _check_counts(end: End, *, is_over: bool, others: dict[str, Any] | None = None) -> None:
    """Each cancelled instance is counted once, by its audit event and by the batch."""
    (row,) = end.after.batches
    by_batch = [
        event["instance_id"]
        for event in end.after.audit
        if event["event"] == "cancelled" and "batch" in (event["data"] or ())
    ]
    require(len(by_batch) == len(set(by_batch)), "an instance was changed twice")
    counts = {"cancelled": len(by_batch)} if by_batch else {}
    expected = {**counts, **(others or {})}
    is_exact = row["outcomes"] == expected or (not is_over and row["outcomes"] == counts)
    require(is_exact, "an instance was counted twice, or not at all")
    if is_over:
        require({end.after.status(id) for id in _ALL} == {"cancelled"}, "an instance was left out")


SCENARIOS = [
    page_and_takeover(),
    page_and_the_same_page(),
    page_and_stop(),
    run_and_cancel("cancel"),
    run_and_cancel("retry"),
    run_pick_and_commit(),
]
