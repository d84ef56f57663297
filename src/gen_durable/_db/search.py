"""Find instances by filters: pages, ids and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache, lru_cache
from string import ascii_lowercase
from typing import Any, Final, Literal, TypeAlias

import msgspec

from .plan import Call, Plan, Row, Rows, Statement, fill, parts, statements

__all__ = [
    "BOUND",
    "Condition",
    "Examined",
    "Filter",
    "Named",
    "Shape",
    "among",
    "conditions",
    "count",
    "count_up_to",
    "examine",
    "first",
    "ids",
    "ids_upwards",
    "matches",
    "names",
    "page",
    "statement",
    "tally",
    "values_of",
]

Read: TypeAlias = Literal["page", "ids", "ids_upwards", "count", "capped", "tally"]

Named: TypeAlias = Literal["queue", "schedule", "worker", "concurrency_limit", "rate_limit"]

_SQL = statements("search.sql")
_PARTS = parts("search.sql")
BOUND: Final = 10_000
"""How many rows one statement checks for conditions that have no index."""
# Names that completion reads.
_MOST_NAMES: Final = 1000
# Above every id, for the first page.
_TOP: Final = 2**63 - 1
# The time that a statement may take between its timestamp and its first new id.
_SLACK: Final = timedelta(hours=1)
# Sources by the most selective field that is given.
_BY_FIELD: Final = {
    "ids": ("by_ids",),
    "keys": (
        "by_correlation_keys",
        "by_former_correlation_keys",
        "by_unique_keys",
        "by_former_unique_keys",
    ),
    "correlation_keys": ("by_correlation_keys", "by_former_correlation_keys"),
    "unique_keys": ("by_unique_keys", "by_former_unique_keys"),
    "parent_ids": ("by_parents",),
    "schedules": ("by_schedules",),
    "compensating": ("by_compensation",),
    "concurrency_keys": ("by_concurrency_keys", "runnable_by_concurrency_keys", "executing"),
}
# Fields of the index of resting rows. Without one of them, a page walks the primary key.
_INDEXED: Final = frozenset({"fsms", "versions", "statuses", "queues", "steps"})
# Conditions on columns of that index, so that they also select groups of its rows.
_OF_GROUPS: Final = frozenset({"if_machine", "if_step", "if_queue", "if_version"})
# Sources that no index has in the order of ids.
_UNORDERED: Final = frozenset(
    {"by_parents", "runnable", "runnable_of_machines", "gated", "runnable_by_concurrency_keys"}
    | {"deleted", "deleted_live", "deleted_parked"}
)
# Runnable rows: there may be millions. The other sources without that order are small.
_BACKLOG: Final = frozenset({"runnable", "runnable_of_machines"})
# Conditions on ids: the rows that a walk reads.
_PLACES: Final = ("on_before", "on_after", "on_inserted_after", "on_inserted_before")
_OF_RESTING: Final = dict.fromkeys(
    ("on_fsms", "on_versions", "on_statuses", "on_queues", "on_steps", "without_deleted", *_OF_GROUPS), ""
)
_OF_RUNNABLE: Final = {
    "on_statuses": "",
    "without_deleted": "without_deleted_live",
    "if_due": "due_runnable",
    "if_later": "later_runnable",
}
# Conditions that some sources replace; "": the source implies them.
_REPLACED: Final[Mapping[str, Mapping[str, str]]] = {
    "runnable": _OF_RUNNABLE,
    "runnable_of_machines": {**_OF_RUNNABLE, "on_fsms": ""},
    "gated": {"on_statuses": ""},
    "by_ids": {"on_ids": ""},
    "by_parents": {"on_parent_ids": ""},
    "by_schedules": {"on_schedules": ""},
    "by_concurrency_keys": {"on_concurrency_keys": ""},
    "runnable_by_concurrency_keys": {"on_concurrency_keys": ""},
    "resting": _OF_RESTING,
    "counted_resting": _OF_RESTING,
}


class Condition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition of one term of a search: a part of search.sql, and its parameters as JSON values."""

    part: str
    values: Mapping[str, Any]
    is_negated: bool = False
    is_indexed: bool = False
    """Whether a source may check it on every row that it reads. Others are checked on at most `BOUND` rows."""

    def __post_init__(self) -> None:
        # A stored one may be of a newer version.
        if not self.part.startswith("if_") or self.part not in _PARTS:
            raise ValueError(f"there is no condition {self.part}")


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which instances; `None`: any. The fields are the parameters of the statements."""

    ids: Sequence[int] | None = None
    fsms: Sequence[str] | None = None
    versions: Sequence[int] | None = None
    steps: Sequence[str] | None = None
    statuses: Sequence[str] | None = None
    queues: Sequence[str] | None = None
    keys: Sequence[str] | None = None
    """Correlation or unique keys."""
    correlation_keys: Sequence[str] | None = None
    unique_keys: Sequence[bytes] | None = None
    concurrency_keys: Sequence[str] | None = None
    parent_ids: Sequence[int] | None = None
    schedules: Sequence[str] | None = None
    inserted_after: datetime | None = None
    inserted_before: datetime | None = None
    compensating: bool = False
    with_deleted: bool = False
    only_deleted: bool = False
    only_gated: bool = False
    conditions: tuple[Condition, ...] = ()
    """Further conditions."""

    @property
    def is_bounded(self) -> bool:
        """Whether it has conditions without an index."""
        return not all(one.is_indexed for one in self.conditions)


class Examined(msgspec.Struct, frozen=True):
    """What one statement found among the newest rows that the indexed conditions select."""

    rows: Sequence[Row]
    next: int | None
    """Where to continue: `before=`, upwards `after=`. `None`: there are no further rows."""
    is_bounded: bool
    """Whether there were more than `BOUND` rows to check."""


class Shape(msgspec.Struct, frozen=True):
    """What the text of a statement depends on."""

    given: tuple[str, ...]
    """The fields of the filter that are set."""
    statuses: frozenset[str] | None = None
    conditions: tuple[tuple[str, bool, bool], ...] = ()
    """Part, is_negated and is_indexed of the conditions."""

    @classmethod
    def of(cls, wanted: Filter) -> Shape:
        """Return the shape of a filter."""
        values = msgspec.structs.asdict(wanted)
        del values["conditions"]
        return cls(
            tuple(name for name, value in values.items() if value is not None and value is not False),
            None if wanted.statuses is None else frozenset(wanted.statuses),
            tuple((one.part, one.is_negated, one.is_indexed) for one in wanted.conditions),
        )


def values_of(wanted: Filter) -> dict[str, Any]:
    """Return the parameters of a filter."""
    values = msgspec.structs.asdict(wanted)
    for number, one in enumerate(values.pop("conditions")):
        values.update({f"{name}_{_letters(number)}": value for name, value in one.values.items()})
    return values


def conditions(shape: Shape) -> str:
    """The conditions of a filter on the alias `g`, without the bounds of ids that `page` adds."""
    bounded = {
        "inserted_after": "and g.inserted_at >= :inserted_after::timestamptz ",
        "inserted_before": "and g.inserted_at < :inserted_before::timestamptz ",
    }
    of_fields = "".join(bounded.get(name) or _part(f"on_{name}") for name in sorted(shape.given))
    return of_fields + "".join(_condition(number, shape) for number in range(len(shape.conditions)))


def matches(wanted: Filter, row: Row) -> bool:
    """Whether a snapshot has what the fields of a filter want, apart from its `conditions`."""
    among = {
        "id": wanted.ids,
        "fsm": wanted.fsms,
        "fsm_version": wanted.versions,
        "step": wanted.steps,
        "status": wanted.statuses,
        "queue": wanted.queues,
        "correlation_key": wanted.correlation_keys,
        "unique_key": wanted.unique_keys,
        "concurrency_key": wanted.concurrency_keys,
        "parent_id": wanted.parent_ids,
        "schedule": wanted.schedules,
    }
    return (
        all(values is None or row[name] in values for name, values in among.items())
        and (
            wanted.keys is None
            or row["correlation_key"] in wanted.keys
            or row["unique_key"] in [key.encode() for key in wanted.keys]
        )
        and (wanted.inserted_after is None or row["inserted_at"] >= wanted.inserted_after)
        and (wanted.inserted_before is None or row["inserted_at"] < wanted.inserted_before)
        and (wanted.with_deleted or row["deleted_at"] is None)
    )


def among(wanted: Filter, ids: Sequence[int]) -> Plan[list[int]]:
    """Return which of these rows match."""
    rows = yield _among(Shape.of(wanted))(**values_of(wanted), among=list(ids))
    return [row["id"] for row in rows]


def page(wanted: Filter, limit: int, before: int | None) -> Plan[Sequence[Row]]:
    """Read the newest instances with an id below `before`. With conditions without an index: in several statements."""
    if wanted.is_bounded:
        return (yield from _examine_all("page", wanted, limit, before))
    call = yield from _call("page", wanted, before=_TOP if before is None else before, limit=limit)
    return (yield call)


def first(
    wanted: Filter, limit: int, before: int | None, read: Literal["page", "ids"] = "page"
) -> Plan[Examined]:
    """Read the same by one statement, which checks conditions without an index on at most `BOUND` rows."""
    if wanted.is_bounded:
        return (yield from examine(read, wanted, limit, before))
    call = yield from _call(read, wanted, before=_TOP if before is None else before, limit=limit)
    rows = yield call
    return Examined(rows, rows[-1]["id"] if len(rows) == limit else None, is_bounded=False)


def ids(wanted: Filter, limit: int, before: int | None) -> Plan[list[int]]:
    """The same, ids only."""
    if wanted.is_bounded:
        rows = yield from _examine_all("ids", wanted, limit, before)
    else:
        rows = yield (yield from _call("ids", wanted, before=_TOP if before is None else before, limit=limit))
    return [row["id"] for row in rows]


def ids_upwards(wanted: Filter, limit: int, after: int, before: int) -> Plan[list[int]]:
    """The ids of the oldest instances above `after` and below `before`, ascending."""
    if wanted.is_bounded:
        rows = yield from _examine_all("ids_upwards", wanted, limit, before, after)
    else:
        rows = yield (yield from _call("ids_upwards", wanted, after=after, before=before, limit=limit))
    return [row["id"] for row in rows]


def count(wanted: Filter) -> Plan[int]:
    """Count instances."""
    if wanted.is_bounded:
        return sum(row["count"] for row in (yield from tally(wanted)))
    rows = yield (yield from _call("count", wanted))
    number: int = rows[0]["count"]
    return number


def count_up_to(wanted: Filter, most: int, checked: int | None = None) -> Plan[tuple[int, bool]]:
    """Count at most `most` instances, by one statement; return whether these are all.

    Conditions without an index are checked on the newest `checked` rows that the others select; default: `BOUND`.
    """
    if wanted.is_bounded:
        found = yield from examine("tally", wanted, BOUND, None, checked=checked)
        number = sum(row["count"] for row in found.rows)
        return min(number, most), number <= most and not found.is_bounded
    (row,) = yield (yield from _call("capped", wanted, limit=most + 1))
    return min(row["count"], most), row["count"] <= most


def tally(wanted: Filter) -> Plan[Sequence[Row]]:
    """Count instances by machine and status."""
    if not wanted.is_bounded:
        return (yield (yield from _call("tally", wanted)))
    counts, before = Counter[tuple[str, str]](), None
    while True:
        found = yield from examine("tally", wanted, BOUND, before)
        counts.update({(row["fsm"], row["status"]): row["count"] for row in found.rows})
        if (before := found.next) is None:
            break
    return [{"fsm": fsm, "status": status, "count": n} for (fsm, status), n in sorted(counts.items())]


def names(kind: Named) -> Plan[list[str]]:
    """Read stored names for completion."""
    return [row["name"] for row in (yield _SQL[f"{kind}_names"](most=_MOST_NAMES))]


def examine(
    read: Read,
    wanted: Filter,
    most: int,
    before: int | None,
    after: int | None = None,
    *,
    checked: int | None = None,
) -> Plan[Examined]:
    """Read at most `most` matching rows among the newest `checked` rows that the indexed conditions select.

    Default: `BOUND` rows.

    Upwards: among the oldest ones above `after`.
    """
    place, checked = _TOP if before is None else before, BOUND if checked is None else checked
    call = yield from _call(
        read, wanted, is_examined=True, before=place, after=after, limit=checked, most=most
    )
    found = yield call
    examined, last = found[0]["examined"], found[0]["last"]
    key = "status" if read == "tally" else "id"
    rows: Rows = [
        {name: value for name, value in row.items() if name not in ("examined", "last")}
        for row in found
        if row[key] is not None
    ]
    place_after = last if examined == checked else None
    if read != "tally" and len(rows) == most:
        place_after = rows[-1]["id"]
    return Examined(rows, place_after, is_bounded=examined == checked)


def _examine_all(
    read: Read, wanted: Filter, limit: int, before: int | None, after: int | None = None
) -> Plan[Rows]:
    rows: list[Row] = []
    while True:
        found = yield from examine(read, wanted, limit - len(rows), before, after)
        rows += found.rows
        if found.next is None or len(rows) == limit:
            return rows
        if read == "ids_upwards":
            after = found.next
        else:
            before = found.next


def _call(read: Read, wanted: Filter, *, is_examined: bool = False, **more: int | None) -> Plan[Call]:
    low, high = 0, _TOP
    if wanted.inserted_after is not None:
        (row,) = yield _SQL["bounds"](moment=wanted.inserted_after, slack=-_SLACK)
        low = row["low"] or low
    if wanted.inserted_before is not None:
        (row,) = yield _SQL["bounds"](moment=wanted.inserted_before, slack=_SLACK)
        high = row["high"] or high
    chosen = _examining(read, Shape.of(wanted)) if is_examined else statement(read, Shape.of(wanted))
    return chosen(**values_of(wanted), **more, low=low, high=high)


# The conditions of a search come in any combination.
@lru_cache(maxsize=1000)
def statement(read: Read, shape: Shape) -> Statement:
    """Compose the statement that reads instances by these fields of a filter and these statuses."""
    text = _found(read, shape)
    return Statement(read, fill(_PARTS["page"], {"ids": text}) if read == "page" else text)


@lru_cache(maxsize=1000)
def _examining(read: Read, shape: Shape) -> Statement:
    checks = "".join(
        _condition(number, shape)
        for number, (_, _, is_indexed) in enumerate(shape.conditions)
        if not is_indexed
    )
    is_upwards = read == "ids_upwards"
    ids = _found(read if is_upwards else "ids", shape)
    candidates = fill(_PARTS["candidates"], {"ids": ids, "last": "max" if is_upwards else "min"})
    text = fill(_PARTS[f"newest_{read}"], {"candidates": candidates, "checks": checks})
    return Statement(f"newest_{read}", text)


@lru_cache(maxsize=1000)
def _among(shape: Shape) -> Statement:
    return Statement("among", fill(_PARTS["among"], {"checks": conditions(shape) + _part(_deleted(shape))}))


def _found(read: Read, shape: Shape) -> str:
    """The text that reads matching rows, without the conditions that have no index."""
    is_page = read in ("page", "ids", "ids_upwards")
    of_fields = [f"on_{name}" for name in shape.given if f"on_{name}" in _PARTS]
    of_fields += ["on_before"] * is_page + ["on_after"] * (read == "ids_upwards")
    of_fields += [name for name in (_deleted(shape),) if name]
    sources = _sources(shape, is_page=is_page)
    groups = "groups_of_machines" if "fsms" in shape.given else "groups"
    filled = {"groups": _PARTS[groups] if "resting" in sources else ""}
    part = "ids" if read == "page" else str(read)
    if is_page and _BACKLOG & set(sources):
        part = "walked"
        filled["groups"] = f"{filled['groups']}," if filled["groups"] else "with"
        filled["direction"] = "" if read == "ids_upwards" else "desc"
        filled["places"] = "".join(_part(name) for name in of_fields if name in _PLACES)
        filled["conditions"] = "".join(_part(name) for name in of_fields if name not in _PLACES) + "".join(
            _condition(number, shape)
            for number, (_, _, is_indexed) in enumerate(shape.conditions)
            if is_indexed
        )
    if read == "tally" and "resting" in sources:
        part = "tally_of_groups"
        filled["resting"] = _source("counted_resting", of_fields, shape, read, is_page=is_page)
        sources.remove("resting")
    # Two keys may select a row twice.
    filled["sources"] = ("\nunion\n" if "by_unique_keys" in sources else "\nunion all\n").join(
        f"({_source(name, of_fields, shape, read, is_page=is_page)})" for name in sources or ["no_rows"]
    )
    return fill(_PARTS[part], filled)


def _deleted(shape: Shape) -> str:
    if "only_deleted" in shape.given:
        return "only_deleted"
    return "" if "with_deleted" in shape.given else "without_deleted"


def _sources(shape: Shape, *, is_page: bool) -> list[str]:
    given, statuses = set(shape.given), shape.statuses
    for field, sources in _BY_FIELD.items():
        if field in given:
            return list(sources)
    if "only_deleted" in given:
        return ["deleted", "deleted_live"]
    is_indexed = _INDEXED & given or _OF_GROUPS & {part for part, _, _ in shape.conditions}
    if not is_indexed and (is_page or {"inserted_after", "inserted_before"} & given):
        return ["by_id"]
    chosen = _runnable(shape) if statuses is None or "runnable" in statuses else []
    if statuses is None or "executing" in statuses:
        chosen.append("executing")
    if statuses is None or not statuses <= {"runnable", "executing"} or not statuses:
        chosen.append("resting")
        if "with_deleted" in given:
            chosen += ["deleted", "deleted_parked"]
    return chosen


def _runnable(shape: Shape) -> list[str]:
    chosen = []
    if "only_gated" not in shape.given:
        chosen.append("runnable_of_machines" if "fsms" in shape.given else "runnable")
    if not {part for part, _, _ in shape.conditions} & {"if_due", "if_later"}:
        chosen.append("gated")
    return chosen


def _source(name: str, of_fields: Iterable[str], shape: Shape, read: Read, *, is_page: bool) -> str:
    """The text of a source with its conditions; of a page: only as many rows as it may contain."""
    is_sorted = name in _UNORDERED
    replaced = {"on_before": "on_before_sorted", "on_after": "on_after_sorted"} if is_sorted else {}
    replaced |= _REPLACED.get(name, {})
    by_keys = "keys" in shape.given
    if "correlation_keys" in name or "unique_keys" in name:
        column = "correlation_keys" if "correlation_keys" in name else "unique_keys"
        replaced["on_keys" if by_keys else f"on_{column}"] = ""
    on_rows = [_part(replaced.get(one, one)) for one in of_fields]
    on_groups = [_PARTS.get(f"group_{one.removeprefix('on_')}", "") for one in of_fields]
    for number, (part, _, is_indexed) in enumerate(shape.conditions):
        if is_indexed and replaced.get(part, part):
            on_rows.append(_condition(number, shape, part=replaced.get(part)))
        if is_indexed and part in _OF_GROUPS:
            on_groups.append(_condition(number, shape, row="groups", step="rest_step"))
    first = "oldest" if read == "ids_upwards" else "newest"
    newest = (f"{first}_sorted" if is_sorted else first) if is_page else "any" if read == "capped" else "all"
    return fill(
        _PARTS[name],
        {
            "conditions": "".join(on_rows),
            "group_conditions": "".join(on_groups),
            "newest": _PARTS[newest],
            "correlation_keys": ":keys::text[]" if by_keys else ":correlation_keys::text[]",
            "unique_keys": _PARTS["keys_as_bytes"] if by_keys else ":unique_keys::bytea[]",
        },
    )


def _part(name: str) -> str:
    """The text of a condition of a field; empty if it has none."""
    return fill(_PARTS.get(name, ""), _PARTS)


def _condition(
    number: int, shape: Shape, *, row: str = "g", step: str = "step", part: str | None = None
) -> str:
    name, is_negated, _ = shape.conditions[number]
    text = fill(_PARTS[part or name], {"n": _letters(number), "row": row, "step": step})
    return f"and ({text}) is not true\n" if is_negated else f"and {text}\n"


@cache
def _letters(number: int) -> str:
    """The end of the names of the parameters of a condition."""
    return ascii_lowercase[number // 26] + ascii_lowercase[number % 26]
