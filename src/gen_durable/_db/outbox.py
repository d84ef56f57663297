"""The outbox: write events, lease them, and mark them as published, failed or dead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Literal, TypeAlias

import msgspec

from .._core.model import CommitEntry, EventRow
from .chunking import chunks
from .plan import Plan, Row, Statement, fill, parts, statements

__all__ = [
    "Leased",
    "Mark",
    "are_earlier_complete",
    "dead_letters",
    "dead_upwards",
    "emit",
    "lease",
    "list_events",
    "list_statement",
    "mark",
    "newest",
    "replay",
    "tail",
    "tail_statement",
]

_SQL = statements("outbox.sql")
_PARTS = parts("outbox.sql")

_FILTERS = ("instance_id", "sink", "type", "since", "before")

Verdict: TypeAlias = Literal["published", "dead", "again", "released"]


class Leased(msgspec.Struct, frozen=True, gc=False):
    """An event leased by this dispatcher."""

    id: int
    instance_id: int
    step_seq: int
    n: int
    type: str
    subject: str
    data: str
    created_at: datetime
    attempts: int

    @property
    def event_id(self) -> str:
        """The id for receivers: the same on every delivery."""
        return f"{self.instance_id}:{self.step_seq}:{self.n}"


class Mark(msgspec.Struct, frozen=True, gc=False):
    """The result for one leased event."""

    event: Leased
    verdict: Verdict
    error: str | None = None
    delay: timedelta | None = None


def emit(emitting: Sequence[tuple[CommitEntry, Sequence[EventRow]]]) -> Plan[None]:
    """Write the events of these outcomes, in the transaction of the outcomes."""
    every = [(entry, n, event) for entry, events in emitting for n, event in enumerate(events, 1)]
    for part in chunks(event.size for _, _, event in every):
        rows = every[part]
        yield _SQL["emit"](
            ids=[entry.id for entry, _, _ in rows],
            step_seqs=[entry.execution.step_seq + 1 for entry, _, _ in rows],
            ns=[n for _, n, _ in rows],
            sinks=[event.sink for _, _, event in rows],
            types=[event.type for _, _, event in rows],
            subjects=[event.subject for _, _, event in rows],
            datas=[event.data for _, _, event in rows],
        )


def lease(sink: str, demand: int, lease_token: int, length: timedelta) -> Plan[list[Leased]]:
    """Lease up to `demand` due events of a sink; return them in the order of publishing."""
    found = yield _SQL["lease_events"](sink=sink, demand=demand, lease_token=lease_token, lease=length)
    return sorted((_leased(row) for row in found), key=lambda event: event.id)


def mark(sink: str, marks: Sequence[Mark], lease_token: int) -> Plan[int]:
    """Mark leased events; return how many still had our lease. Needs a transaction."""
    rows = yield _SQL["mark_events"](
        ids=[one.event.id for one in marks],
        verdicts=[one.verdict for one in marks],
        errors=[one.error for one in marks],
        delays=[one.delay for one in marks],
        lease_token=lease_token,
    )
    ours = {row["id"] for row in rows}
    over = [one for one in marks if one.verdict in ("published", "dead") and one.event.id in ours]
    if over:
        yield _SQL["release_successors"](instance_ids=[one.event.instance_id for one in over], sink=sink)
        executions = {
            "instance_ids": [one.event.instance_id for one in over],
            "step_seqs": [one.event.step_seq for one in over],
        }
        yield _SQL["lock_executions"](**executions)
        yield _SQL["finish_executions"](**executions)
    return len(ours)


def list_events(wanted: Mapping[str, object], demand: int) -> Plan[Sequence[Row]]:
    """Read events, newest first.

    `wanted` has `instance_id`, `sink`, `type`, `state`, `since` and `before`; `None`: any.
    """
    given = frozenset(name for name, value in wanted.items() if value is not None)
    return (yield list_statement(given, str(wanted["state"] or "any_state"))(**wanted, demand=demand))


@cache
def list_statement(given: frozenset[str], state: str) -> Statement:
    """Compose the statement that lists events by these filters and this state."""
    # Two indexes have the events of an instance: of unpublished and of published ones.
    states = (
        ("unpublished", "published") if (state, given >= {"instance_id"}) == ("any_state", True) else (state,)
    )
    fields = "".join(_PARTS[f"on_{name}"] for name in _FILTERS if name in given)
    unordered = {"pending", "unpublished"} | ({"dead"} if "instance_id" in given else set())
    if "since" in given:  # a range of numbers is not too long to be walked
        unordered = set()
    sources = [
        fill(
            _PARTS["events_sorted" if one in unordered else "events"],
            {"conditions": _PARTS[f"on_{one}"] + fields},
        )
        for one in states
    ]
    return Statement("list_events", fill(_PARTS["list_events"], {"sources": "union all\n".join(sources)}))


def newest(after: int) -> Plan[tuple[int, int] | None]:
    """The number of the newest event after another one, and an xid; `None` if there is none.

    Once transactions with smaller xids have ended, no event up to that number can appear any more.
    """
    for row in (yield _SQL["newest_event"](after=after)):
        return row["id"], row["xid"]
    return None


def are_earlier_complete(xid: int) -> Plan[bool]:
    """Whether all transactions with smaller xids have ended."""
    (row,) = yield _SQL["are_earlier_complete"](xid=xid)
    return bool(row["are_complete"])


def tail(wanted: Mapping[str, object], after: int, until: int, demand: int) -> Plan[Sequence[Row]]:
    """Read events between two numbers, oldest first. `wanted` has `instance_id`, `sink` and `state`; `None`: any."""
    given = frozenset(name for name, value in wanted.items() if value is not None)
    statement = tail_statement(given, str(wanted["state"] or "any_state"))
    return (yield statement(**wanted, after=after, until=until, demand=demand))


@cache
def tail_statement(given: frozenset[str], state: str) -> Statement:
    """Compose the statement that reads events in order, by these filters and this state."""
    names = [f"on_{name}" for name in ("instance_id", "sink") if name in given]
    conditions = "".join(_PARTS[name] for name in [f"on_{state}", *names])
    return Statement("tail_events", fill(_PARTS["tail_events"], {"conditions": conditions}))


def dead_letters(sink: str | None) -> Plan[tuple[int, int]]:
    """Return how many dead letters there are, and the number of the newest one; 0 if there is none."""
    (row,) = yield _SQL["count_dead"](sink=sink)
    return row["count"], row["newest"]


def dead_upwards(sink: str | None, demand: int, after: int, newest: int) -> Plan[list[int]]:
    """The numbers of the next dead letters above `after`, ascending."""
    rows = yield _SQL["dead_upwards"](sink=sink, demand=demand, after=after, newest=newest)
    return [row["id"] for row in rows]


def replay(ids: Sequence[int], reason: str | None = None, actor: str | None = None) -> Plan[int]:
    """Make published or dead events pending again; return how many."""
    return len((yield _SQL["replay_events"](ids=sorted(ids), reason=reason, actor=actor)))


def _leased(row: Row) -> Leased:
    return Leased(
        row["id"],
        row["instance_id"],
        row["step_seq"],
        row["n"],
        row["type"],
        row["subject"],
        row["data"],
        row["created_at"],
        row["attempts"],
    )
