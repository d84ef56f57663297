"""Invariants of every scenario, in every order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from tests.interleavings.session import Session, signals_gained, transitions
from tests.interleavings.world import TERMINAL, Row, World

_ENDS = frozenset(
    {"succeeded", "retried", "failed", "crashed", "released", "cancelled", "edited"}
    | {"compensating", "redirected"}
)


class BrokenError(Exception):
    """An order violated an invariant."""


def require(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise BrokenError(otherwise)


def check_always(world: World) -> None:
    """Invariants of every committed state."""
    for row in world.instances.values():
        require((row["status"] == "executing") == (row["lease_token"] is not None), "lease without execution")
        _check_awake(row, world)
        _check_barrier(row, world)
        require(
            world.states[row["id"]] == _job_state(row, world),
            "the state of a job is not that of its instance",
        )
    _check_keys(world)


def check_answers(before: World, after: World, sessions: Collection[Session]) -> None:
    """Invariants of the end: the database matches the answers that the engine and senders got."""
    made, gained = transitions(sessions), signals_gained(sessions)
    for id, row in after.instances.items():
        had = before.instances.get(id)
        seq = (had["step_seq"] if had else 0) + made[id]
        require(row["step_seq"] == seq, "step_seq differs from the acknowledged commits")
        if row["status"] not in TERMINAL:
            unread = len(before.unread(id)) + gained[id]
            require(len(after.unread(id)) == unread, "signals lost or doubled")


def check_traces(before: World, after: World) -> None:
    """Invariants of the end: ended instances leave exactly their execution records."""
    for id, row in after.instances.items():
        is_live = row["status"] in ("runnable", "executing")
        require(is_live or row["rest_step"] == row["step"], "a search by step does not find a resting row")
        if row["status"] in TERMINAL:
            require(not [s for s in after.signals if s["target_id"] == id], "the inbox of the ended is left")
        had = before.instances.get(id)
        seq = had["step_seq"] if had else 0
        made, had_made = _transitions(after, id), _transitions(before, id)
        new = made[len(had_made) :]
        require(new == list(range(seq + 1, row["step_seq"] + 1)), "not one record for each transition")
        # All leased executions, including the live one.
        numbers = [record["execution"] for record in after.records(id)]
        numbers += [row["execution"]] * (row["status"] == "executing")
        require(numbers == list(range(1, row["execution"] + 1)), "executions are not numbered in order")


def check_audit(before: World, after: World) -> None:
    """Invariants of the end: one audit event per ended execution, and none without a transition."""
    for id, row in after.instances.items():
        had = before.instances.get(id)
        events = [event for event in after.audit if event["instance_id"] == id]
        # Audit events of control verbs name no execution; only a cancel ends one.
        ends = [event for event in events if event["event"] in _ENDS and "execution" in (event["data"] or ())]
        ends += [event for event in events if event["event"] == "cancelled" and event["data"] is None]
        made = len(after.records(id)) - len(before.records(id))
        require(len(ends) == made, "not one audit event for each execution that has ended")
        seqs = [
            event["data"]["step_seq"]
            for event in events
            if event["event"] in ("succeeded", "edited", "compensating", "redirected")
            or (event["event"] == "crashed" and "to" in event["data"])
            or (event["event"] == "failed" and "poison" not in event["data"].values())
        ]
        new = list(range((had["step_seq"] if had else 0) + 1, row["step_seq"] + 1))
        require(seqs == new, "the audit tells of a transition that was not made")
        require((had is None) == any(event["event"] == "created" for event in events), "created, or not")


def _transitions(world: World, id: int) -> list[int]:
    return [record["step_seq"] for record in world.records(id) if record["status"] != "ABORTED"]


def _job_state(row: Row, world: World) -> str:
    match row["status"]:
        case "done":
            is_open = any(
                r["status"] == "COMMITTED" and r["outcome"] == "done" for r in world.records(row["id"])
            )
            return "RUNNING" if is_open else "SUCCEEDED"
        case "failed" | "cancelled":
            return str(row["status"]).upper()
        case status:
            return "RUNNING" if status == "executing" or row["step_seq"] else "PENDING"


def _check_awake(row: Row, world: World) -> None:
    if row["status"] == "awaiting_signal":
        require(bool(row["awaits"]), "asleep, and nothing can wake it")
        seen = row["presented"] or ()
        missed = [s for s in world.unread(row["id"]) if s["name"] in row["awaits"] and s["id"] not in seen]
        require(not missed, "lost wake-up")


def _check_barrier(row: Row, world: World) -> None:
    if row["spawn_round"] is None or row["spawn_round"] != row["step_seq"]:
        return
    live = [
        child["id"]
        for child in world.instances.values()
        if child["parent_id"] == row["id"]
        and child["parent_round"] == row["spawn_round"]
        and child["status"] not in TERMINAL
    ]
    if row["status"] == "awaiting_children":
        require(row["children_pending"] == len(live), "barrier counts wrong")
        require(len(live) > 0, "asleep on a satisfied barrier")
    elif row["status"] not in TERMINAL:
        # A child that was retried after its parent continued does not count.
        require(all(world.audit_of(id, "retried") for id in live), "barrier released early")
    require(
        row["status"] == "awaiting_children" or not row["children_pending"],
        "a barrier without a waiting parent",
    )


def _check_keys(world: World) -> None:
    lines: defaultdict[str, list[Row]] = defaultdict(list)
    for row in world.instances.values():
        if row["concurrency_key"] is not None:
            lines[row["concurrency_key"]].append(row)
    for key, line in lines.items():
        taken = [row["concurrency_slot"] for row in line if row["status"] == "executing"]
        limit = world.slots.get(key.partition(":")[0])
        slots, holders = limit or 1, len(taken)
        require(None not in taken, "leased without a slot")
        require(len(set(taken)) == holders, "two executions in one slot")
        # Executions above a lowered limit may finish; scenarios lower limits from two.
        require(holders <= (1 if limit is None else max(limit, 2)), "two executions of one key")
        due = sorted(
            (
                row
                for row in line
                if row["status"] == "runnable" and row["is_due"] and not row["is_passed_over"]
            ),
            key=lambda row: (row["priority"], row["eligible_at"], row["id"]),
        )
        # A pick takes the first row of a key or none, so a gated first row would block the others.
        for row in due[: max(slots - holders, 0)]:
            require(not row["gated"], "the key is free, but its rows are gated")
