"""Poll until instances have ended or a condition holds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar

from .._checks import checked_name
from .._core.change_cursor import ChangeCursor, Condition, EndCursor, wait_cursor
from .._db import changes, machines, snapshots
from .._db.compatibility import known_steps
from .._db.plan import Plan
from .._dictionary import did_you_mean
from .._polling import Pace
from ..definition import StepRef
from ..errors import NoTargetError, UnknownStepError, UsageError
from ..instance import Instance, Status
from ..refs import Target, Until
from .common import definition_of_target, read, resolve

__all__ = ["UNTIL_WORDS", "Poll", "Wait", "checked_until", "current", "open_wait", "unknown_step"]

T_co = TypeVar("T_co", covariant=True)

_STATUSES: Final = tuple(status.value for status in Status)
UNTIL_WORDS: Final = ("finished", "parked", *_STATUSES)
_FORMS: Final = (
    f'one of {", ".join(UNTIL_WORDS)}, a step (Checkout.ship, or ("step", "ship")), or a set of these'
)
# Rows that one query returns.
_PAGE: Final = 250


class Poll(Protocol[T_co]):
    """A condition to poll."""

    def plan(self) -> Plan[tuple[T_co, float | None]]:
        """Poll once. Returns the value, and the seconds until the next poll; `None` ends the polling."""
        ...


def checked_until(until: Until, target: Target) -> Condition:
    """Return the condition of a wait for a target.

    Raises:
        UsageError: it is not a status, a step or `finished` or `parked`.
        UnknownStepError: the machine of the target does not have the step.
    """
    wanted: Collection[object] = until if isinstance(until, AbstractSet) else (until,)
    if not wanted:
        raise UsageError("until is an empty set", f"give {_FORMS}")
    statuses: set[str] = set()
    steps: set[str] = set()
    for one in wanted:
        match one:
            case StepRef():
                steps.update(_step_names(one.name, target), getattr(one, "was", ()))
            case ("step", str(name)):
                steps.update(_step_names(checked_name(name, "the name of a step"), target))
            case "finished" | "parked":
                pass
            case str() if one in _STATUSES:
                statuses.add(one)
            case _:
                hint = did_you_mean(one, UNTIL_WORDS) if isinstance(one, str) else ""
                raise UsageError(f"until is {one!r}{hint}", f"give {_FORMS}")
    return Condition("parked" in wanted, frozenset(statuses), frozenset(steps))


def open_wait(target: Target, condition: Condition) -> Plan[int]:
    """Return the id of the instance of a wait.

    Raises:
        UnknownStepError: workers have registered the machine of the instance, and no version of it has the step.
    """
    id = yield from resolve(target, "wait")
    if condition.steps and definition_of_target(target) is None:
        unknown = yield from unknown_step(id, condition, "until=")
        if unknown is not None:
            raise unknown
    return id


def unknown_step(id: int, condition: Condition, where: str) -> Plan[UnknownStepError | None]:
    """Find a step of a condition that no version of the machine of an instance has. `None` if that is not certain."""
    row = yield from snapshots.get(id)
    if row is None:
        return None
    versions = [each for each in (yield from machines.list_machines()) if each.name == row["fsm"]]
    if not versions or not all(each.steps for each in versions):
        return None
    steps = dict.fromkeys(step for each in versions for step in each.steps)
    # Live workers know former names of steps as well.
    live = yield from known_steps()
    former = {step for (name, _), names in live.items() if name == row["fsm"] for step in names}
    for step in sorted(condition.steps - steps.keys() - former - {row["step"]}):
        return UnknownStepError(row["fsm"], step, tuple(steps), where)
    return None


def _step_names(name: str, target: Target) -> tuple[str, ...]:
    """Return a step name with the former names of the step."""
    definition = definition_of_target(target)
    if definition is None:
        return (name,)
    found = definition.find_step(name)
    if found is None:
        raise UnknownStepError(definition.name, name, tuple(definition.steps), "until=")
    return (found.name, *found.was)


def current(target: Target, id: int) -> Plan[Instance[Any, Any]]:
    """Read an instance after a wait for it has timed out."""
    row = yield from snapshots.get(id)
    if row is None:
        raise NoTargetError(id, "wait")
    return read(row, definition_of_target(target))


class Wait:
    """Polls instances until a condition holds for each, or it has ended. For clients without an event loop."""

    def __init__(self, targets: Sequence[Target], until: Until, timeout: timedelta | None) -> None:
        self._pace = Pace(timeout)
        self._targets = targets
        self._conditions = [checked_until(until, target) for target in targets]
        self._ids: list[int] = []
        # By place in the list of targets.
        self._open: dict[int, EndCursor | ChangeCursor] = {}
        self._found: dict[int, Mapping[str, Any]] = {}

    def plan(self) -> Plan[tuple[list[Instance[Any, Any]], float | None]]:
        """Poll once. Returns the instances, and the seconds until the next poll; `None`: the wait is over.

        Raises:
            NoTargetError: one of the instances does not exist.
        """
        if not self._ids:
            for place, target in enumerate(self._targets):
                self._ids.append((yield from open_wait(target, self._conditions[place])))
                self._open[place] = wait_cursor(self._ids[place], self._conditions[place])
        if self._open:
            yield from self._look()
        if self._open and (pause := self._pace.pause()) is not None:
            return [], pause
        instances: list[Instance[Any, Any]] = []
        for place, (target, id) in enumerate(zip(self._targets, self._ids, strict=True)):
            row = self._found.get(place)
            definition = definition_of_target(target)
            instances.append((yield from current(target, id)) if row is None else read(row, definition))
        return instances, None

    def _look(self) -> Plan[None]:
        is_full = True
        while is_full and self._open:
            open = list(self._open.items())
            news = yield from changes.read([cursor for _, cursor in open], _PAGE)
            is_full = len(news) == _PAGE
            for one in news:
                place, cursor = open[one.place]
                if one.row is None:
                    raise NoTargetError(cursor.id, "wait")
                if cursor.take(one.row, one.executions, most=changes.MOST_EXECUTIONS):
                    self._found[place] = one.row
                    del self._open[place]
