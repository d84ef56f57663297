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
from .._db.plan import Plan, Row
from ..errors import DecodeError
from ..instance import StateChange, Transition
from ..refs import Target
from .common import MAX_PAGE, found

__all__ = ["history_of"]


def history_of(
    target: Target, after: int | None, limit: int, *, most_bytes: int | None = None
) -> Plan[Sequence[Transition]]:
    """Return the transitions of an instance after a number, oldest first; the first one is the insert, number 0.

    `most_bytes`: leave out children, and the states of early transitions if all states occupy more.
    """
    checked_int(limit, "the limit of transitions", 1, MAX_PAGE)
    first = -1 if after is None else checked_int(after, "after", 0, 2**63 - 1)
    row = yield from found(target, "show the history")
    # From one earlier on, for the difference between states and the time of waiting.
    states_from = 0
    if most_bytes is not None:
        states_from = yield from records.states_within(row["id"], first, limit + 1, most_bytes)
    rows = yield from records.transitions(row["id"], first, limit + 1, states_from)
    initial = None
    if first <= 0 and not states_from:
        initial = yield from records.initial_state(row["id"])
    rounds = () if most_bytes is not None else (yield from records.children(row["id"]))
    made = _transitions(row, initial, rows, rounds)
    return [one for one in made if one.step_seq > first][:limit]


def _transitions(
    row: Row, initial: Row | None, rows: Sequence[Row], rounds: Sequence[Row]
) -> list[Transition]:
    children = _children(rows, rounds)
    made: list[Transition] = []
    if not rows or rows[0]["step_seq"] <= 1:
        first_step = rows[0]["step"] if rows else row["step"] if not row["step_seq"] else None
        first = initial
        if initial is None and not row["step_seq"]:
            first = {"state": row["state"], "state_version": row["fsm_version"]}
        made.append(
            Transition(
                step_seq=0,
                step=None,
                to=first_step,
                outcome="insert",
                **_kept(first),
                finished_at=row["inserted_at"],
            )
        )
    begun = None if initial is None else initial["state"]
    known: tuple[int, str | None, datetime | None] = (0, begun, row["inserted_at"])
    for record in rows:
        seq = record["step_seq"]
        before, since = (known[1], known[2]) if known[0] == seq - 1 else (None, None)
        if record["state_before"] is not None and seq > 1:
            before = record["state_before"]
        made.append(
            Transition(
                step_seq=seq,
                step=record["step"],
                to=record["to_step"],
                outcome=record["outcome"],
                **_kept(record),
                changes=_changes(before, record["state"]),
                signals=tuple(record["signals"] or ()),
                children=tuple(children.get(seq, ())),
                started_at=record["started_at"] or record["leased_at"],
                finished_at=record["finished_at"],
                waited=_elapsed(since, record["first_leased_at"] or record["leased_at"]),
                executions=record["executions"],
                worker=record["lease_owner"],
                error=record["error"],
                cause=record["cause"],
            )
        )
        # After an end the instance did not wait for a worker, until it was retried.
        known = (seq, record["state"], None if record["to_step"] is None else record["finished_at"])
    return made


def _kept(record: Row | None) -> dict[str, Any]:
    """The fields of a transition for the state that its record keeps."""
    if record is None or record["state"] is None:
        return {}
    return {"state": _decoded(record["state"]), "version": record["state_version"], "has_state": True}


def _children(rows: Sequence[Row], rounds: Sequence[Row]) -> Mapping[int, list[int]]:
    """Assign children to the transitions that scheduled them. Retries and edits move a round to a later number."""
    spawns = [record["step_seq"] for record in rows if record["outcome"] == "schedule_children"]
    made: defaultdict[int, list[int]] = defaultdict(list)
    for child in rounds:
        place = bisect_right(spawns, child["parent_round"])
        if place:
            made[spawns[place - 1]].append(child["id"])
    return made


def _changes(before: str | None, after: str | None) -> tuple[StateChange, ...] | None:
    if before is None or after is None:
        return None
    return tuple(differences(_decoded(before), _decoded(after)))


def _decoded(text: str | None) -> Any:
    """Plain JSON: the state of an early transition may not fit the present type."""
    try:
        return None if text is None else decode(text, Any, "a state of the history")
    except DecodeError:
        # An SQL producer may have nested it too deeply.
        return text


def _elapsed(since: datetime | None, until: datetime | None) -> timedelta | None:
    return None if since is None or until is None else max(until, since) - since
