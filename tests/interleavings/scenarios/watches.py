"""Reads of changes against the commits that they read."""

from __future__ import annotations

from typing import Any, NamedTuple

from gen_durable._core.change_cursor import ChangeCursor
from gen_durable._db import changes
from gen_durable._db.plan import Plan
from tests.interleavings.invariants import require
from tests.interleavings.scenario import End, Scenario
from tests.interleavings.session import Session, Work, autocommit, flush
from tests.interleavings.world import leased, outcome


class Look(NamedTuple):
    """What a watch has seen after one read."""

    version: str = ""
    position: tuple[int, int] = (0, 0)
    executions: tuple[int, ...] = ()
    has_ended: bool = False


def look() -> Work:
    """Read the changes of instance 1 since the last read of this session."""

    def make(session: Session) -> Plan[Look]:
        return _read(session.results[-1] if session.results else Look())

    return autocommit(make)


def _read(last: Look) -> Plan[Look]:
    cursor = ChangeCursor(1, last.position)
    cursor.row_version = last.version
    for one in (yield from changes.read([cursor], 10)):
        if one.row is not None:
            cursor.take(one.row, one.executions, most=changes.MOST_EXECUTIONS)
            attempts = tuple(each["attempt"] for each in one.executions)
            position = cursor.position or (0, 0)
            return Look(cursor.row_version, position, last.executions + attempts, cursor.is_over)
    return last


def watch_two_commits() -> Scenario:
    """A change has exactly the executions that its row counts, whatever commits between the two statements."""

    def check(end: End) -> None:
        for seen in end.sessions["W"].results:
            count = seen.position[1]
            require(seen.executions == tuple(range(1, count + 1)), "executions that the row does not count")
            require(seen.has_ended == (count == 2), "the end without its execution")

    sessions: dict[str, Any] = {
        "F": [flush(outcome(1, "continue")), flush(outcome(1, "done", step_seq=1))],
        "W": [look(), look(), look()],
    }
    return Scenario(
        name="commit(continue) and commit(done) × watch, three times",
        setup=[leased(1)],
        sessions=sessions,
        check=check,
        never_wait=frozenset({"W"}),
    )


SCENARIOS = [watch_two_commits()]
