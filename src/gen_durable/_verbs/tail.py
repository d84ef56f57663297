"""Follow the changes of all instances: by indexes, so it may miss some; see `Tail`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, TypeAlias

from .._core.change_cursor import ChangeCursor
from .._db import changes, search
from .._db.plan import Plan
from .._db.search import Filter, matches

__all__ = ["Tail"]

_Row: TypeAlias = Mapping[str, Any]

# Instances that it remembers: whose every change it finds.
_REMEMBERED: Final = 10_000
# Instances that it remembers from the start on, the newest ones.
_FIRST: Final = 1000
# Rows that one statement reads, of each source.
_PAGE: Final = 500
# Ids and ends become visible in another order than their own: how far each read begins before the last one.
_LATE_IDS: Final = 100
_LATE_ENDS: Final = timedelta(seconds=2)


class Tail:
    """Finds changes of the instances that match a filter.

    It finds every change of the instances that it remembers: the newest ones when it starts, and those that it has
    found since, at most 10,000. It finds others when they are inserted, while they execute, and when they end. So it
    misses a short execution of an instance that it does not remember; also its end, if the machine declares its
    retention.
    """

    def __init__(self, wanted: Filter) -> None:
        self._wanted = wanted
        self._remembered = OrderedDict[int, ChangeCursor]()
        self._places: dict[str, Any] = {}

    def start(self) -> Plan[None]:
        """Begin after all changes until now."""
        nothing = Filter(fsms=[])
        (top,) = (row for row in (yield from changes.discover(nothing, _PLACES, 1)) if row["source"] == "top")
        since = dict.fromkeys((f"{status}_since" for status in changes.ENDS), top["at"])
        self._places = {"after": top["id"] or 0, "executing_after": 0, **since}
        # The filter of a moment: an instance may match it later.
        for id in reversed((yield from search.ids(Filter(fsms=self._wanted.fsms), _FIRST, None))):
            self._remembered[id] = ChangeCursor(id)
        yield from self._read()

    def next(self) -> Plan[list[tuple[_Row, Sequence[_Row]]]]:
        """Return rows that have changed, with the executions that have ended since their last change."""
        for id in (yield from self._discover()):
            self._remembered.setdefault(id, ChangeCursor(id))
        found = yield from self._read()
        while len(self._remembered) > _REMEMBERED:
            self._remembered.popitem(last=False)
        found = [(row, executions) for row, executions in found if matches(self._wanted, row)]
        if found and self._wanted.conditions:
            ids = frozenset((yield from search.among(self._wanted, [row["id"] for row, _ in found])))
            found = [(row, executions) for row, executions in found if row["id"] in ids]
        return found

    def _discover(self) -> Plan[list[int]]:
        found: dict[str, list[_Row]] = {}
        for row in (yield from changes.discover(self._wanted, self._places, _PAGE)):
            found.setdefault(row["source"], []).append(row)
        inserted, executing = found.get("inserted", []), found.get("executing", [])
        top = inserted[-1]["id"] if len(inserted) == _PAGE else found["top"][0]["id"] or 0
        self._places["after"] = max(self._places["after"], top - _LATE_IDS)
        self._places["executing_after"] = executing[-1]["id"] if len(executing) == _PAGE else 0
        for status in changes.ENDS:
            ended = found.get(status, [])
            until = ended[-1]["at"] if len(ended) == _PAGE else found["top"][0]["at"] - _LATE_ENDS
            self._places[f"{status}_since"] = max(self._places[f"{status}_since"], until)
        return [row["id"] for source, rows in found.items() if source != "top" for row in rows]

    def _read(self) -> Plan[list[tuple[_Row, Sequence[_Row]]]]:
        found: list[tuple[_Row, Sequence[_Row]]] = []
        is_full = True
        while is_full:
            cursors = [cursor for cursor in self._remembered.values() if not cursor.is_over]
            news = yield from changes.read(cursors, _PAGE)
            is_full = len(news) == _PAGE
            for one in news:
                cursor = cursors[one.place]
                if one.row is None:
                    del self._remembered[cursor.id]
                elif cursor.take(one.row, one.executions, most=changes.MOST_EXECUTIONS):
                    self._remembered.move_to_end(cursor.id)
                    found.append((one.row, one.executions))
        return found


_PLACES: Final[Mapping[str, Any]] = {
    "after": 2**63 - 1,
    "executing_after": 2**63 - 1,
    **dict.fromkeys(f"{status}_since" for status in changes.ENDS),
}
