"""The committed transitions of an instance, with states where its machine keeps them."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from .._checks import checked_int
from .._core.codec import decode
from .._core.differences import differences
from .._db import history as records
from .._db import snapshots
from .._db.plan import Plan, Row
from ..errors import NoTargetError
from ..instance import StateChange, Transition
from ..refs import Target, target_value
from .common import MAX_PAGE

__all__ = ["history_of"]


def history_of(target: Target, after: int | None, limit: int) -> Plan[Sequence[Transition]]:
    """Return the transitions of an instance after a number, oldest first; the first one is the insert, number 0."""
    checked_int(limit, "the limit of transitions", 1, MAX_PAGE)
    first = -1 if after is None else checked_int(after, "after", 0, 2**63 - 1)
    row = yield from snapshots.get(target_value(target))
    if row is None:
        raise NoTargetError(target_value(target), "show the history")
    # From one earlier on, for the difference between states and the time of waiting; to one later, for its step.
    rows = yield from records.transitions(row["id"], first, limit + 2)
    initial = None
    if first <= 0:
        initial = yield from records.initial_state(row["id"])
    rounds = yield from records.children(row["id"])
    made = _transitions(row, initial, rows, rounds)
    return [one for one in made if one.step_seq > first][:limit]


def _transitions(
    row: Row, initial: str | None, rows: Sequence[Row], rounds: Sequence[Row]
) -> list[Transition]:
    children = _children(rows, rounds)
    made: list[Transition] = []
    if not rows or rows[0]["step_seq"] <= 1:
        first_step = rows[0]["step"] if rows else row["step"] if not row["step_seq"] else None
        state = initial if initial is not None or row["step_seq"] else row["state"]
        made.append(
            Transition(
                step_seq=0,
                step=None,
                to=first_step,
                outcome="insert",
                state=_decoded(state),
                has_state=state is not None,
                finished_at=row["inserted_at"],
            )
        )
    known: tuple[int, str | None, datetime] = (0, initial, row["inserted_at"])
    for index, record in enumerate(rows):
        seq = record["step_seq"]
        follower = rows[index + 1] if index + 1 < len(rows) else None
        before, since = (known[1], known[2]) if known[0] == seq - 1 else (None, None)
        if record["state_before"] is not None and seq > 1:
            before = record["state_before"]
        made.append(
            Transition(
                step_seq=seq,
                step=record["step"],
                to=_next_step(row, seq, follower),
                outcome=record["outcome"],
                state=_decoded(record["state"]),
                has_state=record["state"] is not None,
                changes=_changes(before, record["state"]),
                signals=tuple(record["signals"] or ()),
                children=tuple(children.get(seq, ())),
                started_at=record["started_at"] or record["leased_at"],
                finished_at=record["finished_at"],
                waited=_elapsed(since, record["first_leased_at"] or record["leased_at"]),
                executions=record["executions"],
                worker=record["lease_owner"],
                error=record["error"],
            )
        )
        known = (seq, record["state"], record["finished_at"])
    return made


def _children(rows: Sequence[Row], rounds: Sequence[Row]) -> Mapping[int, list[int]]:
    """Assign children to the transitions that scheduled them. Retries and edits move a round to a later number."""
    spawns = [record["step_seq"] for record in rows if record["outcome"] == "schedule_children"]
    found: defaultdict[int, list[int]] = defaultdict(list)
    for child in rounds:
        place = bisect_right(spawns, child["parent_round"])
        if place:
            found[spawns[place - 1]].append(child["id"])
    return found


def _next_step(row: Row, seq: int, follower: Row | None) -> str | None:
    """The step that a transition led to; `None` if its follower was not recorded, or the instance has ended."""
    if follower is not None and follower["step_seq"] == seq + 1:
        step: str = follower["step"]
        return step
    if seq == row["step_seq"] and row["status"] not in ("done", "failed"):
        current: str = row["step"]
        return current
    return None


def _changes(before: str | None, after: str | None) -> tuple[StateChange, ...] | None:
    if before is None or after is None:
        return None
    return tuple(differences(_decoded(before), _decoded(after)))


def _decoded(text: str | None) -> Any:
    """Plain JSON: the state of an early transition may not fit the present type."""
    return None if text is None else decode(text, Any, "a state of the history")


def _elapsed(since: datetime | None, until: datetime | None) -> timedelta | None:
    return None if since is None or until is None else max(until, since) - since
