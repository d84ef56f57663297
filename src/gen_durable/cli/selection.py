"""Filters of instances: the options of `ls`, and `--where` of commands that change many."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import click
import msgspec

from .._checks import checked_id, checked_int, checked_key, checked_name
from .._db import snapshots
from .._db.plan import Plan
from .._db.search import Filter
from .._dictionary import did_you_mean
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
    is_list: bool = False
    """Whether it may be repeated. An instance matches if it has one of the values."""


def _statuses(text: str) -> tuple[Status, ...]:
    statuses = statuses_of(text)
    if statuses is None:
        hint = did_you_mean(text, STATUS_WORDS, "status")
        raise click.BadParameter(
            f"{text!r} is not a status; the statuses are {', '.join(STATUS_WORDS)}{hint}"
        )
    return statuses


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise click.BadParameter(f"{text!r} is not a number ({what})")
    return int(text)


_FIELDS: Final = (
    _Field("machine", "fsms", lambda text: checked_name(text, "machine"), "NAME", "Machine", is_list=True),
    _Field("step", "steps", lambda text: checked_name(text, "step"), "NAME", "Current step", is_list=True),
    _Field(
        "status",
        "statuses",
        _statuses,
        "STATUS",
        "Status. pending, leased and succeeded are the states of jobs",
        is_list=True,
    ),
    _Field(
        "version",
        "version",
        lambda text: checked_int(_number(text, "version"), "version", 1, 2**31 - 1),
        "N",
        "Version of the machine.",
    ),
    _Field("queue", "queue", lambda text: checked_name(text, "queue"), "NAME", "Queue."),
    _Field(
        "correlation-key",
        "correlation_key",
        lambda text: checked_key(text, "correlation-key"),
        "KEY",
        "Correlation key, current or former.",
    ),
    _Field(
        "unique-key",
        "unique_key",
        lambda text: checked_key(text, "unique-key").encode(),
        "KEY",
        "Unique key or idempotency key.",
    ),
    _Field(
        "concurrency-key",
        "concurrency_key",
        lambda text: checked_key(text, "concurrency-key"),
        "KEY",
        "Concurrency key.",
    ),
    _Field(
        "parent",
        "parent_id",
        lambda text: checked_id(_number(text, "id")),
        "ID",
        "Id of the parent.",
    ),
    _Field(
        "schedule",
        "schedule",
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
    ),
    _Field(
        "until",
        "inserted_before",
        moment_or_age,
        "TIME",
        "Inserted before this time: an age (1h), or ISO 8601 (2026-01-31T09:00Z).",
    ),
)
_BY_NAME: Final = {field.name: field for field in _FIELDS}
FILTERS: Final = tuple(_BY_NAME)


class Selection(msgspec.Struct, frozen=True):
    """The given filters. An age becomes a time by the clock of the database."""

    values: Mapping[str, Any]

    def filter(self, **more: Any) -> Plan[Filter]:
        """Return the filter. `more` are defaults of the command; the filters of the user win."""
        values = {**more, **self.values}
        if any(isinstance(value, timedelta) for value in values.values()):
            now = yield from snapshots.now()
            values = {name: _moment(value, now) for name, value in values.items()}
        return Filter(**values)

    def __bool__(self) -> bool:
        return bool(self.values)


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each filter. The command gets their texts."""
    for field in reversed(_FIELDS):
        command = click.option(
            f"--{field.name}",
            metavar=field.metavar,
            multiple=True,
            help=f"{field.help} (repeatable)." if field.is_list else field.help,
        )(command)
    return command


where_option = click.option(
    "--where",
    metavar="FILTER=VALUE",
    multiple=True,
    help="Select all matching instances instead of naming them (repeatable, combined with AND). Filters, as in `ls`: "
    + ", ".join(_BY_NAME)
    + ".",
)


def read_options(given: Mapping[str, Iterable[str]]) -> Selection:
    """Read the filters of `ls`."""
    return _selection({name.replace("_", "-"): list(texts) for name, texts in given.items()}, "--{}")


def read_where(pairs: Sequence[str]) -> Selection:
    """Read the filters of `--where machine=Checkout --where status=failed`."""
    given: dict[str, list[str]] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip().replace("_", "-")
        if not equals or name not in _BY_NAME:
            problem = f"unknown filter{did_you_mean(name, FILTERS)}" if equals else "write FILTER=VALUE"
            raise Failure(f"--where {pair}: {problem}. Filters: {', '.join(FILTERS)}".replace("?.", "?"))
        given.setdefault(name, []).append(text)
    return _selection(given, "--where {}")


def _selection(given: Mapping[str, list[str]], form: str) -> Selection:
    values: dict[str, Any] = {}
    for name, texts in given.items():
        field, option = _BY_NAME[name], form.format(name)
        if len(texts) > 1 and not field.is_list:
            raise Failure(f"{option} is given {len(texts)} times. Give it once.")
        try:
            read = [field.read(text) for text in texts]
        except click.BadParameter as error:
            raise Failure(f"{option}: {error.message}") from error
        if read:
            values[field.field] = _flat(read) if field.is_list else read[0]
    return Selection(values)


def _flat(values: Iterable[Any]) -> list[Any]:
    """Flatten: a state of jobs means several statuses."""
    return [one for value in values for one in (value if isinstance(value, tuple) else [value])]


def _moment(value: Any, now: datetime) -> Any:
    return now - value if isinstance(value, timedelta) else value
