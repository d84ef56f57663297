"""Which instances: the search and the options of `ls`, and `--where` of commands that change many."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import click
import msgspec

from .._checks import checked_id, checked_int, checked_key, checked_name
from .._core.query import Query
from .._core.query_terms import STATUS_VALUES, parse
from .._db import snapshots
from .._db.plan import Plan
from .._db.search import Filter
from .._dictionary import did_you_mean
from .._verbs.where import narrowed
from ..instance import STATUS_WORDS, Status, statuses_of
from .failure import Failure
from .options import moment_or_age

__all__ = ["FILTERS", "Selection", "filter_options", "read_options", "read_where", "where_option"]


class _Field(msgspec.Struct, frozen=True):
    """One filter: its option, its field in `Filter`, and the reader of its value."""

    name: str
    field: str
    read: Callable[[str], Any]
    metavar: str
    help: str
    is_repeatable: bool = False
    """An instance matches if it has one of the values."""
    is_list: bool = True
    """Whether the field takes several values."""


def _statuses(text: str) -> tuple[Status, ...]:
    statuses = statuses_of(text)
    if statuses is None:
        hint = did_you_mean(text, STATUS_WORDS, "status")
        if text in STATUS_VALUES:
            hint = f"; search for it: status:{text}"
        raise click.BadParameter(
            f"{text!r} is not a status; the statuses are {', '.join(STATUS_WORDS)}{hint}"
        )
    return statuses


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise click.BadParameter(f"{text!r} is not a number ({what})")
    return int(text)


_FIELDS: Final = (
    _Field(
        "machine", "fsms", lambda text: checked_name(text, "machine"), "NAME", "Machine", is_repeatable=True
    ),
    _Field(
        "step", "steps", lambda text: checked_name(text, "step"), "NAME", "Current step", is_repeatable=True
    ),
    _Field(
        "status",
        "statuses",
        _statuses,
        "STATUS",
        "Status. pending, leased and succeeded are the states of jobs",
        is_repeatable=True,
    ),
    _Field(
        "version",
        "versions",
        lambda text: checked_int(_number(text, "version"), "version", 1, 2**31 - 1),
        "N",
        "Version of the machine.",
    ),
    _Field("queue", "queues", lambda text: checked_name(text, "queue"), "NAME", "Queue."),
    _Field(
        "correlation-key",
        "correlation_keys",
        lambda text: checked_key(text, "correlation-key"),
        "KEY",
        "Correlation key, current or former.",
    ),
    _Field(
        "unique-key",
        "unique_keys",
        lambda text: checked_key(text, "unique-key").encode(),
        "KEY",
        "Unique key or idempotency key.",
    ),
    _Field(
        "concurrency-key",
        "concurrency_keys",
        lambda text: checked_key(text, "concurrency-key"),
        "KEY",
        "Concurrency key.",
    ),
    _Field(
        "parent",
        "parent_ids",
        lambda text: checked_id(_number(text, "id")),
        "ID",
        "Id of the parent.",
    ),
    _Field(
        "schedule",
        "schedules",
        lambda text: checked_name(text, "schedule"),
        "NAME",
        "Schedule that inserted it.",
    ),
    _Field(
        "since",
        "inserted_after",
        moment_or_age,
        "TIME",
        "Inserted after this time: an age (1h), or ISO 8601 (2026-01-31T09:00Z).",
        is_list=False,
    ),
    _Field(
        "until",
        "inserted_before",
        moment_or_age,
        "TIME",
        "Inserted before this time: an age (1h), or ISO 8601 (2026-01-31T09:00Z).",
        is_list=False,
    ),
)
# An option of `ls` as FILTER=VALUE. The name of a term of a search ends with a colon.
_PAIR: Final = re.compile(r"\s*[A-Za-z_-]+\s*=")
_BY_NAME: Final = {field.name: field for field in _FIELDS}
FILTERS: Final = tuple(_BY_NAME)


class Selection(msgspec.Struct, frozen=True):
    """The given filters and search. An age becomes a time by the clock of the database."""

    values: Mapping[str, Any]
    query: Query = Query()

    def filter(self, *, statuses: Sequence[str] | None = None, **more: Any) -> Plan[Filter]:
        """Return the filter. `more` are defaults of the command, and `statuses` apply if the user names none."""
        values = {**more, **self.values}
        if any(isinstance(value, timedelta) for value in values.values()):
            now = yield from snapshots.now()
            values = {name: _moment(value, now) for name, value in values.items()}
        wanted, _ = yield from narrowed(Filter(**values), self.query, statuses)
        return wanted

    def __bool__(self) -> bool:
        return bool(self.values or self.query.terms)


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the search, `--where` and an option for each filter. The command gets their texts."""
    for field in reversed(_FIELDS):
        command = click.option(
            f"--{field.name}",
            metavar=field.metavar,
            multiple=True,
            help=f"{field.help} (repeatable)." if field.is_repeatable else field.help,
        )(command)
    command = click.option(
        "--where",
        metavar="QUERY",
        multiple=True,
        help="A search, like QUERY; also one that begins with a dash: --where=-status:done (repeatable).",
    )(command)
    return click.argument("query", metavar="[QUERY]...", nargs=-1)(command)


where_option = click.option(
    "--where",
    metavar="QUERY",
    multiple=True,
    help="Select all instances that match a search instead of naming them, as in `ls`: 'status:failed age:>1h' "
    "(repeatable, combined with AND). FILTER=VALUE stands for an option of `ls`: "
    + ", ".join(_BY_NAME)
    + ".",
)


def read_options(query: Sequence[str], where: Sequence[str], **options: Iterable[str]) -> Selection:
    """Read the search and the filters of `ls`."""
    selected = read_where((*query, *where))
    values = _values({name.replace("_", "-"): list(texts) for name, texts in options.items()}, "--{}")
    twice = [
        name for name, field in _BY_NAME.items() if field.field in values and field.field in selected.values
    ]
    if twice:
        raise Failure(f"{twice[0]} is given as --{twice[0]} and in the search. Give it once.")
    return Selection({**selected.values, **values}, selected.query)


def read_where(texts: Sequence[str]) -> Selection:
    """Read `--where 'status:failed age:>1h'`, and the form `--where status=failed`."""
    given: dict[str, list[str]] = {}
    searches = []
    for text in texts:
        if not _PAIR.match(text):
            searches.append(text)
            continue
        name, _, value = text.partition("=")
        name = name.strip().replace("_", "-")
        if name not in _BY_NAME:
            problem = f"unknown filter{did_you_mean(name, FILTERS)}"
            raise Failure(f"--where {text}: {problem}. Filters: {', '.join(FILTERS)}".replace("?.", "?"))
        given.setdefault(name, []).append(value)
    return Selection(_values(given, "--where {}"), parse(" ".join(searches)))


def _values(given: Mapping[str, list[str]], form: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, texts in given.items():
        field, option = _BY_NAME[name], form.format(name)
        if len(texts) > 1 and not field.is_repeatable:
            raise Failure(f"{option} is given {len(texts)} times. Give it once.")
        try:
            read = [field.read(text) for text in texts]
        except click.BadParameter as error:
            raise Failure(f"{option}: {error.message}") from error
        if read:
            values[field.field] = _flat(read) if field.is_list else read[0]
    return values


def _flat(values: Iterable[Any]) -> list[Any]:
    """Flatten: a state of jobs means several statuses."""
    return [one for value in values for one in (value if isinstance(value, tuple) else [value])]


def _moment(value: Any, now: datetime) -> Any:
    return now - value if isinstance(value, timedelta) else value
