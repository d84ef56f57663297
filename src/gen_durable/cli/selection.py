"""Which instances: the options of `ls`, and `--where` of the commands that change many. Both know the same filters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

import click
import msgspec

from .._checks import checked_id, checked_int, checked_key, checked_name
from .._db import snapshots
from .._db.plan import Plan
from .._db.snapshots import Filter
from .._dictionary import did_you_mean
from ..instance import STATUS_WORDS, Status, statuses_of
from .failure import Failure
from .options import moment_or_age

__all__ = ["FILTERS", "Selection", "filter_options", "read_options", "read_where", "where_option"]


class _Field(msgspec.Struct, frozen=True):
    """One filter: its name for people, the field of `Filter` behind it, and how its value is read."""

    name: str
    field: str
    read: Callable[[str], Any]
    metavar: str
    help: str
    is_list: bool = False
    """Whether it may be given more than once: then any of the values will do."""


def _statuses(text: str) -> tuple[Status, ...]:
    statuses = statuses_of(text)
    if statuses is None:
        hint = did_you_mean(text, STATUS_WORDS, "status")
        raise click.BadParameter(f"{text!r} is not a status{hint}; there are {', '.join(STATUS_WORDS)}")
    return statuses


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise click.BadParameter(f"{text!r} is no {what}")
    return int(text)


_FIELDS: Final = (
    _Field(
        "machine", "fsms", lambda text: checked_name(text, "machine"), "NAME", "Of this machine", is_list=True
    ),
    _Field("step", "steps", lambda text: checked_name(text, "step"), "NAME", "At this step", is_list=True),
    _Field(
        "status",
        "statuses",
        _statuses,
        "STATUS",
        "In this status; pending, leased and succeeded stand for those of jobs",
        is_list=True,
    ),
    _Field(
        "version",
        "version",
        lambda text: checked_int(_number(text, "version"), "version", 1, 2**31 - 1),
        "N",
        "Of this version of the machine.",
    ),
    _Field("queue", "queue", lambda text: checked_name(text, "queue"), "NAME", "In this queue."),
    _Field(
        "correlation-key",
        "correlation_key",
        lambda text: checked_key(text, "correlation-key"),
        "KEY",
        "With this correlation key, now or once.",
    ),
    _Field(
        "unique-key",
        "unique_key",
        lambda text: checked_key(text, "unique-key").encode(),
        "KEY",
        "With this unique or idempotency key.",
    ),
    _Field(
        "concurrency-key",
        "concurrency_key",
        lambda text: checked_key(text, "concurrency-key"),
        "KEY",
        "With this concurrency key.",
    ),
    _Field(
        "parent",
        "parent_id",
        lambda text: checked_id(_number(text, "id")),
        "ID",
        "The children of this instance.",
    ),
    _Field(
        "schedule",
        "schedule",
        lambda text: checked_name(text, "schedule"),
        "NAME",
        "Inserted by this schedule.",
    ),
    _Field(
        "since",
        "inserted_after",
        moment_or_age,
        "AGE",
        "Inserted since then: 1h (ago), or a moment in ISO 8601.",
    ),
    _Field(
        "until",
        "inserted_before",
        moment_or_age,
        "AGE",
        "Inserted before: 1h (ago), or a moment in ISO 8601.",
    ),
)
_BY_NAME: Final = {field.name: field for field in _FIELDS}
FILTERS: Final = tuple(_BY_NAME)


class Selection(msgspec.Struct, frozen=True):
    """Filters as they were given; an age becomes a moment when the clock of the database is known."""

    values: Mapping[str, Any]

    def filter(self, **more: Any) -> Plan[Filter]:
        """The filter, with fields of the command's own; those that the user gave win."""
        values = {**more, **self.values}
        if any(isinstance(value, timedelta) for value in values.values()):
            now = yield from snapshots.now()
            values = {name: _moment(value, now) for name, value in values.items()}
        return Filter(**values)

    def __bool__(self) -> bool:
        return bool(self.values)


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """An option for each filter; the command gets them as texts, under the names of the filters."""
    for field in reversed(_FIELDS):
        command = click.option(
            f"--{field.name}",
            metavar=field.metavar,
            multiple=True,
            help=f"{field.help}; may be repeated." if field.is_list else field.help,
        )(command)
    return command


where_option = click.option(
    "--where",
    metavar="FILTER=VALUE",
    multiple=True,
    help="Instead of instances one by one, all that match; may be repeated. The filters are the options of `ls`: "
    + ", ".join(_BY_NAME)
    + ".",
)


def read_options(given: Mapping[str, Iterable[str]]) -> Selection:
    """What the options of `ls` select."""
    return _selection({name.replace("_", "-"): list(texts) for name, texts in given.items()}, "--{}")


def read_where(pairs: Sequence[str]) -> Selection:
    """What `--where machine=Checkout --where status=failed` selects."""
    given: dict[str, list[str]] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = name.strip().replace("_", "-")
        if not equals or name not in _BY_NAME:
            hint = did_you_mean(name, tuple(_BY_NAME))
            raise Failure(f"--where {pair}: write FILTER=VALUE{hint}; the filters are {', '.join(_BY_NAME)}")
        given.setdefault(name, []).append(text)
    return _selection(given, "--where {}")


def _selection(given: Mapping[str, list[str]], form: str) -> Selection:
    values: dict[str, Any] = {}
    for name, texts in given.items():
        field, option = _BY_NAME[name], form.format(name)
        if len(texts) > 1 and not field.is_list:
            raise Failure(f"{option} is given {len(texts)} times; it can have one value only")
        try:
            read = [field.read(text) for text in texts]
        except click.BadParameter as error:
            raise Failure(f"{option}: {error.message}") from error
        if read:
            values[field.field] = _flat(read) if field.is_list else read[0]
    return Selection(values)


def _flat(values: Iterable[Any]) -> list[Any]:
    """A status may stand for several."""
    return [one for value in values for one in (value if isinstance(value, tuple) else [value])]


def _moment(value: Any, now: datetime) -> Any:
    return now - value if isinstance(value, timedelta) else value
