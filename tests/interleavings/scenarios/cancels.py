"""Cancel against concurrent changes of its target: an acknowledged cancel wins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gen_durable._core.model import CommitEntry, EventRow
from gen_durable.outcome import Sql
from tests.interleavings.actions import (
    CRASH_LIMIT,
    cancel,
    commit_picked,
    flush_picked,
    flush_with_effect,
    lease_some,
    reap,
    send,
)
from tests.interleavings.invariants import require
from tests.interleavings.product import SCHEMA, Change
from tests.interleavings.scenario import End, Scenario
from tests.interleavings.session import Work, flush
from tests.interleavings.world import TERMINAL, Row, instance, leased, machine, new, outcome, signal

_PAUSE_BEFORE_THE_NEXT = Change(
    SCHEMA, "  woken := array(", "  perform gen_durable.pause(1);\n  woken := array("
)
SPAWN = outcome(1, "schedule_children", children=(new(), new()))
EVENT = EventRow("default", "shipped", "x", "null")
_PARK = outcome(1, "await", awaits=("go",))
_STOP = outcome(1, "stop", error="no")


def cancel_and_commit(entry: CommitEntry, *, force: bool = False) -> Scenario:
    """The first commit wins; a later cancel stops an instance that continues."""
    has_effect = entry.effect is not None

    def check(end: End) -> None:
        is_first = _check_cancel(end, 1)
        is_committed = bool(end.result("F").committed())
        require(not (is_first and is_committed), "an outcome won over an acknowledged cancel")
        require(end.after.effects == (is_committed and has_effect), "the effect of a cancelled execution")
        children = sum(row["parent_id"] == 1 for row in end.after.instances.values())
        require(children == (len(entry.children) if is_committed else 0), "spawned by a cancelled execution")
        require(
            len(end.after.outbox) == (len(entry.events) if is_committed else 0), "emitted by the cancelled"
        )
        if not is_committed:
            _check_undone(end.after.instances[1])

    more = ", with an effect" * has_effect + ", with an event" * bool(entry.events)
    return Scenario(
        name=f"{'force ' * force}cancel × commit({entry.kind}{more})",
        setup=[leased(1, has_signals=True), signal(1, 1, "old")],
        sessions={
            "C": [cancel(1, force=force)],
            "F": [flush_with_effect(entry) if has_effect else flush(entry)],
        },
        check=check,
    )


def cancel_pick_and_commit(kind: Any, *, force: bool = False) -> Scenario:
    """A cancelled row is not leased; a row leased first commits nothing."""

    def check(end: End) -> None:
        _check_cancel(end, 1)
        picked = end.sessions["K"].results[0].executions
        if end.is_before("C", "K"):
            require(not picked, "leased after its cancel was acknowledged")
        if _answer(end, 1)["was"] == "runnable" and kind != "next":
            require(not picked, "cancelled while runnable, and leased")

    def work() -> list[Work]:
        if kind in ("await", "schedule_children"):
            fields: Mapping[str, Any] = {"awaits": ("go",)} if kind == "await" else {"children": (new(),)}
            return [lease_some(8), flush_picked(kind, **fields)]
        return [lease_some(8), commit_picked(kind)]

    return Scenario(
        name=f"{'force ' * force}cancel × pick and commit({kind})",
        setup=[instance(1)],
        sessions={"C": [cancel(1, force=force)], "K": work()},
        check=check,
    )


def cancel_commit_and_resend(kind: Any) -> Scenario:
    """An outcome is sent again after a lost reply: it does not override a cancel in between."""

    def check(end: End) -> None:
        _check_cancel(end, 1)
        committed = len(end.result("F").committed()) + len(end.result("G").committed())
        require(committed <= 1, "applied twice")

    entry = outcome(1, kind)
    return Scenario(
        name=f"cancel × commit({kind}) × the same commit again",
        setup=[leased(1)],
        sessions={"C": [cancel(1)], "F": [flush(entry)], "G": [flush(entry)]},
        check=check,
    )


def cancel_first_in_line() -> Scenario:
    """The first row of a free key is cancelled: the next row is admitted."""
    return Scenario(
        name="cancel(first row of a key) × deliver(to the next) × pick",
        sample=40,
        setup=[
            instance(1, concurrency_key="k"),
            *(instance(id, concurrency_key="k", gated=True) for id in (2, 3)),
        ],
        sessions={"C": [cancel(1)], "D": [send(2)], "K": [lease_some(8)]},
        check=_is_cancelled(1),
        never_wait=frozenset({"K"}),
    )


def cancel_next_in_line() -> Scenario:
    """The holder ends and admits the next row, which is being cancelled."""
    return Scenario(
        name="cancel(next row of a key) × commit(done) × pick",
        setup=_line(),
        sessions={"C": [cancel(2)], "F": [flush(outcome(1, "done", held_key="k"))], "K": [lease_some(8)]},
        check=_is_cancelled(2),
        never_wait=frozenset({"K"}),
    )


def cancel_holder() -> Scenario:
    """A force cancel of the holder frees its key."""
    return Scenario(
        name="force cancel(holder) × commit(next) × deliver(to the next row)",
        setup=_line(),
        sessions={
            "C": [cancel(1, force=True)],
            "F": [flush(outcome(1, "next", held_key="k"))],
            "D": [send(2)],
        },
        check=_is_cancelled(1),
    )


def cancel_in_one_line() -> Scenario:
    """Two cancels on one key: each looks for the next row, and may find the row that the other has locked."""

    def check(end: End) -> None:
        _check_cancel(end, 1)
        _check_cancel(end, 2)
        _check_cancel(end, 3, by="E")

    return Scenario(
        name="cancel(first and second row of a key) × cancel(third)",
        setup=[
            instance(1, concurrency_key="k"),
            *(instance(id, concurrency_key="k", gated=True) for id in (2, 3, 4)),
        ],
        sessions={"C": [cancel(1, 2)], "E": [cancel(3)]},
        check=check,
        pauses=[_PAUSE_BEFORE_THE_NEXT],
        may_meet=frozenset({"40P01"}),
    )


def cancel_park_and_deliver() -> Scenario:
    def check(end: End) -> None:
        is_first = _check_cancel(end, 1)
        require(end.after.status(1) == "cancelled", "neither parked nor executing, and not cancelled")
        if is_first:
            require(not end.result("P").committed(), "an outcome won over an acknowledged cancel")
        if end.is_before("P", "C") and end.is_before("C", "D"):
            require(end.result("D") is None, "accepted after the end")

    return Scenario(
        name="cancel × park × deliver",
        setup=[leased(1)],
        sessions={"C": [cancel(1)], "P": [flush(_PARK)], "D": [send()]},
        check=check,
    )


def cancel_and_deliver() -> Scenario:
    """A signal does not wake a cancelled instance."""

    def check(end: End) -> None:
        _check_cancel(end, 1)
        require(end.after.status(1) == "cancelled", "woken after its end")
        if end.is_before("C", "D"):
            require(end.result("D") is None, "accepted after the end")

    return Scenario(
        name="cancel × deliver × pick",
        setup=[instance(1, "awaiting_signal", awaits=("go",), step_seq=0)],
        sessions={"C": [cancel(1)], "D": [send()], "K": [lease_some(8, demand=0)]},
        check=check,
    )


def cancel_and_reap(*, crash_count: int = 0, force: bool = False, on_failure: str | None = None) -> Scenario:
    """The process died: its instance ends as cancelled, at once or by the reaper, not as failed."""

    def check(end: End) -> None:
        answer = _answer(end, 1)
        is_poison = end.after.status(1) == "failed"
        require(is_poison == (answer["was"] == "failed"), "failed after its cancel was acknowledged")
        if not is_poison:
            _check_cancel(end, 1)
        if end.is_before("C", "R"):
            require(end.after.status(1) == "cancelled", "the reaper did not end what was to be cancelled")

    at_the_cap = crash_count + 1 >= CRASH_LIMIT
    return Scenario(
        name=f"{'force ' * force}cancel × reap{' at the cap' * at_the_cap}{' to on_failure' * bool(on_failure)} × pick",
        setup=[
            leased(1, crash_count=crash_count) if crash_count else leased(1),
            *([machine(on_failure=f'{{"s": "{on_failure}"}}')] if on_failure else []),
        ],
        sessions={"C": [cancel(1, force=force)], "R": [reap()], "K": [lease_some(8)]},
        check=check,
        never_wait=frozenset({"R", "K"}),
    )


def force_commit_and_reap(kind: Any) -> Scenario:
    """After a force cancel the outcome is stale, and the reaper has nothing to reap."""

    def check(end: End) -> None:
        is_first = _check_cancel(end, 1)
        is_committed = bool(end.result("F").committed())
        if is_first:
            require(not (is_committed or 1 in end.result("R").ids), "the zombie or the reaper had its way")
        require(end.after.status(1) in TERMINAL, "forced, and yet alive")

    return Scenario(
        name=f"force cancel × commit({kind}) × reap",
        setup=[leased(1)],
        sessions={"C": [cancel(1, force=True)], "F": [flush(outcome(1, kind))], "R": [reap()]},
        check=check,
        never_wait=frozenset({"R"}),
    )


def cancel_child_and_end_of_sibling() -> Scenario:
    """A parent does not wait for a cancelled child."""

    def check(end: End) -> None:
        _check_cancel(end, 11)
        require(end.after.status(1) in ("runnable", "executing"), "parent not released")
        for execution in end.result("K").executions:
            statuses = sorted(child.status for child in execution.children)
            require(statuses == ["cancelled", "done"], "picked without its children")

    return Scenario(
        name="cancel(child) × done(sibling) × pick(parent)",
        setup=_family(instance(11, "awaiting_signal", awaits=("go",), **_OF_1), leased(12, **_OF_1)),
        sessions={"C": [cancel(11)], "F": [_end(12)], "K": [lease_some(8)]},
        check=check,
        never_wait=frozenset({"K"}),
    )


def cancel_executing_child_and_end_of_both() -> Scenario:
    """A child is cancelled while it and its sibling end: each counts once."""

    def check(end: End) -> None:
        _check_cancel(end, 11)
        require(end.after.status(1) == "runnable", "parent not released")

    return Scenario(
        name="cancel(executing child) × done(it) × done(sibling)",
        setup=_family(leased(11, **_OF_1), leased(12, **_OF_1)),
        sessions={"C": [cancel(11)], "A": [_end(11)], "B": [_end(12)]},
        check=check,
    )


def force_cancel_child_and_end_of_both() -> Scenario:
    def check(end: End) -> None:
        _check_cancel(end, 11)
        require(end.after.status(1) == "runnable", "parent not released")

    return Scenario(
        name="force cancel(executing child) × done(it) × done(sibling)",
        setup=_family(leased(11, **_OF_1), leased(12, **_OF_1)),
        sessions={"C": [cancel(11, force=True)], "A": [_end(11)], "B": [_end(12)]},
        check=check,
    )


def cancel_parent_and_end_of_children() -> Scenario:
    """The last child ends while its parent is cancelled: the parent stays cancelled."""

    def check(end: End) -> None:
        _check_cancel(end, 1)
        require(end.after.status(1) == "cancelled", "released after its end")

    return Scenario(
        name="cancel(parent) × done(child) × done(child)",
        setup=_family(leased(11, **_OF_1), leased(12, **_OF_1)),
        sessions={"C": [cancel(1)], "A": [_end(11)], "B": [_end(12)]},
        check=check,
    )


def cancel_family_and_end_of_child() -> Scenario:
    """Cancel a parent and its children while some end: locks are taken children first."""

    def check(end: End) -> None:
        for id in (1, 11, 12):
            _check_cancel(end, id)
        require(end.after.status(1) == "cancelled", "released after its end")

    return Scenario(
        name="cancel(parent and children) × done(child) × cancel(sibling)",
        sample=30,
        setup=_family(leased(11, **_OF_1), instance(12, "awaiting_signal", awaits=("go",), **_OF_1)),
        sessions={"C": [cancel(1, 11, 12)], "A": [_end(11)], "E": [cancel(12)]},
        check=check,
    )


def cancel_and_cancel() -> Scenario:
    """Two cancels: one takes effect, both are answered."""

    def check(end: End) -> None:
        statuses = sorted(str(end.result(name)[0]["was"]) for name in "CE")
        require(statuses == ["awaiting_signal", "cancelled"], "cancelled twice")
        require(len(end.after.audit_of(1, "cancelled")) == 1, "not audited exactly once")

    return Scenario(
        name="cancel × cancel",
        setup=[instance(1, "awaiting_signal", awaits=("go",))],
        sessions={"C": [cancel(1)], "E": [cancel(1)]},
        check=check,
    )


_OF_1: Mapping[str, Any] = {"parent_id": 1, "parent_round": 1}


def _family(*children: str) -> list[str]:
    """A parent on the barrier of its first transition, and its children."""
    parent = instance(1, "awaiting_children", step_seq=1, spawn_round=1, children_pending=len(children))
    return [parent, *children]


def _line() -> list[str]:
    """An execution that holds k, and two gated rows behind it."""
    return [
        leased(1, concurrency_key="k", concurrency_slot=0),
        *(instance(id, concurrency_key="k", gated=True) for id in (2, 3)),
    ]


def _end(id: int) -> Work:
    return flush(outcome(id, "done", parent_id=1))


def _answer(end: End, id: int, by: str = "C") -> Row:
    (row,) = [row for row in end.result(by) if row["id"] == id]
    return dict(row)


def _is_cancelled(id: int) -> Callable[[End], None]:
    def check(end: End) -> None:
        _check_cancel(end, id)

    return check


def _check_cancel(end: End, id: int, by: str = "C") -> bool:
    """Check the cancel and its answer against the row; return whether a live instance acknowledged it."""
    answer, row = _answer(end, id, by), end.after.instances[id]
    if answer["was"] in TERMINAL:
        require(row["status"] == answer["was"], "a terminal row changed")
        return False
    require(
        (row["cancel_reason"], row["cancelled_by"]) == ("no longer wanted", "ann"), "reason or actor lost"
    )
    require(row["cancel_requested_at"] is not None, "the request was lost")
    event = "cancelled" if answer["status"] == "cancelled" else "cancel_requested"
    require(len(end.after.audit_of(id, event)) >= 1, "not audited")
    if answer["status"] == "cancelled":
        require(row["status"] == "cancelled", "an acknowledged cancel did not win")
    else:
        # Cancel requested: it ended as cancelled, or its execution still runs.
        require(row["status"] in ("cancelled", "executing"), "an acknowledged cancel did not win")
    if row["status"] == "cancelled":
        last = end.after.records(id)[-1]
        require((last["status"], last["outcome"]) == ("ABORTED", "cancelled"), "no record of the end")
        require(row["finished_at"] is not None, "cancelled, but not finished")
        require(not row["gated"] and row["concurrency_slot"] is None, "it still stands in its line")
    return bool(answer["was"] == "executing" and row["status"] == "cancelled")


def _check_undone(row: Row) -> None:
    """A cancelled execution leaves only its record."""
    require(row["step_seq"] == 0, "a transition of a cancelled execution")
    require((row["step"], row["result"], row["spawn_round"]) == ("s", None, None), "it changed its instance")


SCENARIOS = [
    *(
        cancel_and_commit(outcome(1, kind))
        for kind in ("continue", "next", "retry", "done", "release", "cancel")
    ),
    cancel_and_commit(_STOP),
    cancel_and_commit(_PARK),
    cancel_and_commit(SPAWN),
    cancel_and_commit(outcome(1, "next", effect=Sql("select 1"))),
    cancel_and_commit(outcome(1, "done", effect=Sql("select 1"))),
    cancel_and_commit(outcome(1, "continue", events=(EVENT,))),
    cancel_and_commit(outcome(1, "done", events=(EVENT, EVENT), effect=Sql("select 1"))),
    cancel_and_commit(outcome(1, "next"), force=True),
    cancel_and_commit(SPAWN, force=True),
    cancel_and_commit(outcome(1, "next", effect=Sql("select 1")), force=True),
    *(cancel_pick_and_commit(kind) for kind in ("done", "next", "await", "schedule_children")),
    cancel_pick_and_commit("done", force=True),
    cancel_commit_and_resend("continue"),
    cancel_first_in_line(),
    cancel_next_in_line(),
    cancel_holder(),
    cancel_in_one_line(),
    cancel_park_and_deliver(),
    cancel_and_deliver(),
    cancel_and_reap(),
    cancel_and_reap(crash_count=CRASH_LIMIT - 1),
    cancel_and_reap(crash_count=CRASH_LIMIT - 1, on_failure="t"),
    cancel_and_reap(force=True),
    force_commit_and_reap("done"),
    force_commit_and_reap("retry"),
    cancel_child_and_end_of_sibling(),
    cancel_executing_child_and_end_of_both(),
    force_cancel_child_and_end_of_both(),
    cancel_parent_and_end_of_children(),
    cancel_family_and_end_of_child(),
    cancel_and_cancel(),
]
