"""Firing schedules, against other workers and against changes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from gen_durable._db import schedules
from gen_durable._db.plan import Plan
from gen_durable._db.schedules import Definition, Fired
from tests.interleavings.invariants import require
from tests.interleavings.scenario import End, Scenario
from tests.interleavings.session import Work, autocommit
from tests.interleavings.world import PAST, Row, schedule

HALF_HOURLY = Definition(
    name="hourly",
    cron=None,
    every=timedelta(minutes=30),
    tz="UTC",
    missed="once",
    overlap="allow",
    spec='{"fsm": "F", "step": "s", "state": "new"}',
)


def fire() -> Work:
    """What a worker does in one round."""

    def plan() -> Plan[list[Fired]]:
        fired: list[Fired | None] = []
        for due in (yield from schedules.due(10)):
            fired.append((yield from schedules.fire(due, due.firing())))  # noqa: PERF401 - a plan cannot be a comprehension
        return [one for one in fired if one is not None]

    return autocommit(lambda _: plan())


def pause() -> Work:
    return autocommit(lambda _: schedules.pause("hourly", None, None))


def resume() -> Work:
    return autocommit(lambda _: schedules.resume("hourly"))


def update() -> Work:
    return autocommit(lambda _: schedules.put(HALF_HOURLY))


def trigger() -> Work:
    return autocommit(lambda _: schedules.trigger("hourly"))


def delete() -> Work:
    return autocommit(lambda _: schedules.delete("hourly"))


def cron_and_cron() -> Scenario:
    names = ("A", "B")

    def check(end: End) -> None:
        require(len(end.after.instances) == 1, "a fire time did not fire exactly once")
        require(sum(len(end.result(name)) for name in names) == 1, "not one of them says that it has fired")
        require(_stored(end)["fired_count"] == 1, "fired is not counted")

    return Scenario(
        name="cron × cron",
        setup=[schedule()],
        sessions={name: [fire()] for name in names},
        check=_with(check),
        never_wait=frozenset(names),
    )


def cron_and_pause() -> Scenario:
    def check(end: End) -> None:
        stored = _stored(end)
        require(stored["paused_at"] is not None, "the pause is lost")
        require(len(end.after.instances) == stored["fired_count"] <= 1, "fired is not counted")
        if _is_committed_before(end, "P", "A fire_schedule"):
            require(not end.after.instances, "fired after it was paused")

    return Scenario(
        name="cron × pause",
        setup=[schedule()],
        sessions={"A": [fire()], "P": [pause()]},
        check=_with(check),
        never_wait=frozenset("A"),
    )


def cron_pause_and_resume() -> Scenario:
    """What is seen before a pause is not fired after it."""

    def check(end: End) -> None:
        stored = _stored(end)
        require(stored["paused_at"] is None, "still paused")
        if _is_committed_before(end, "P", "A fire_schedule"):
            require(not end.after.instances, "fired after it was paused")

    return Scenario(
        name="cron × (pause, resume)",
        setup=[schedule()],
        sessions={"A": [fire()], "P": [pause(), resume()]},
        check=_with(check),
        never_wait=frozenset("A"),
    )


def cron_and_update() -> Scenario:
    def check(end: End) -> None:
        require(_stored(end)["spec"]["state"] == "new", "the update is lost")
        if _is_committed_before(end, "U", "A fire_schedule"):
            require(not end.after.instances, "fired a time that was no longer due")

    return Scenario(
        name="cron × update",
        setup=[schedule()],
        sessions={"A": [fire()], "U": [update()]},
        check=_with(check),
        never_wait=frozenset("A"),
    )


def update_and_resume() -> Scenario:
    """The next fire time is that of the stored definition."""

    def check(end: End) -> None:
        stored = _stored(end)
        require(stored["spec"]["state"] == "new" and stored["paused_at"] is None, "an update is lost")

    return Scenario(
        name="update × resume",
        setup=[schedule(paused_at=PAST)],
        sessions={"U": [update()], "R": [resume()]},
        check=_with(check),
    )


def cron_and_trigger() -> Scenario:
    def check(end: End) -> None:
        fired = len(end.result("A"))
        require(len(end.after.instances) == 1 + fired == _stored(end)["fired_count"], "fired is not counted")
        require(
            fired == 1 or "T trigger_schedule" in end.trace[: end.trace.index("A fire_schedule")], "not fired"
        )

    return Scenario(
        name="cron × trigger",
        setup=[schedule()],
        sessions={"A": [fire()], "T": [trigger()]},
        check=_with(check),
        never_wait=frozenset("A"),
    )


def cron_and_delete() -> Scenario:
    def check(end: End) -> None:
        require(not end.after.schedules, "it is still there")
        require(
            len(end.after.instances) == len(end.result("A")) <= 1,
            "instances differ from the acknowledged firings",
        )
        if _is_committed_before(end, "D", "A fire_schedule"):
            require(not end.after.instances, "fired what was removed")

    return Scenario(
        name="cron × delete",
        setup=[schedule()],
        sessions={"A": [fire()], "D": [delete()]},
        check=check,
        never_wait=frozenset("A"),
    )


def _with(check: Callable[[End], None]) -> Callable[[End], None]:
    """In every order: the next fire time belongs to the stored schedule, and each fire time has at most one instance."""

    def checked(end: End) -> None:
        check(end)
        stored = _stored(end)
        every = timedelta(minutes=30) if stored["every"] == "00:30:00" else timedelta(hours=1)
        distance = _moment(stored["next_at"]) - _moment(stored["anchor_at"])
        require(distance % every == timedelta(0), "the next fire time is not of this definition")
        fire_times = [row["fire_time"] for row in end.after.instances.values()]
        require(len(set(fire_times)) == len(fire_times), "two instances of one fire time")

    return checked


def _stored(end: End) -> Row:
    (row,) = end.after.schedules
    return row


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _is_committed_before(end: End, name: str, step: str) -> bool:
    """Whether the first commit of a session was before that step of another."""
    commit = f"{name} COMMIT"
    return step in end.trace and commit in end.trace[: end.trace.index(step)]


SCENARIOS = [
    cron_and_cron(),
    cron_and_pause(),
    cron_pause_and_resume(),
    cron_and_update(),
    update_and_resume(),
    cron_and_trigger(),
    cron_and_delete(),
]
