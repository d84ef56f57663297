"""Options that several commands share, and readers of their values. Every setting is an option of the same name."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

import click
import msgspec

from .._checks import duration_text
from ..config import Queue, Settings, parse_duration
from ..errors import SettingsError

__all__ = [
    "address",
    "dsn_option",
    "duration",
    "load_settings",
    "moment",
    "moment_or_age",
    "prefix",
    "queue",
    "settings_options",
    "target",
]

Command = TypeVar("Command", bound=Callable[..., Any])


# The fields of Queue that may follow NAME=N, as options spell them.
_FIELDS: Final = tuple(field.name.replace("_", "-") for field in msgspec.structs.fields(Queue)[1:])
_FIELD: Final = re.compile(rf"(?P<rest>.*),(?P<field>{'|'.join(_FIELDS)})=(?P<number>\d{{1,9}})", re.ASCII)
_MISSPELT: Final = re.compile(r"=\d+,", re.ASCII)
_FIELD_FORM: Final = "".join(f"[,{field}=N]" for field in _FIELDS)


def duration(text: str) -> timedelta:
    """Read a duration: `90s`, `1m30s`, `500ms`, `2h`."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def queue(text: str) -> tuple[str, Queue]:
    """Read a queue and its concurrency: `default=10`, `default=10,prefetch=5`."""
    return _source(
        text, f"NAME=N{_FIELD_FORM} with N at least 1, for example default=10 or default=10,prefetch=5"
    )


def prefix(text: str) -> tuple[str, Queue]:
    """Read a prefix of machine names and its concurrency: `billing.`, `media.=20`."""
    return _source(
        text, f"PREFIX or PREFIX=N{_FIELD_FORM} with N at least 1, for example billing. or media.=20"
    )


def _source(text: str, form: str) -> tuple[str, Queue]:
    rest, fields = text, dict[str, int]()
    while found := _FIELD.fullmatch(rest):
        rest, fields[found["field"].replace("-", "_")] = found["rest"], int(found["number"])
    name, equals, number = rest.rpartition("=")
    if rest and not equals:
        name, number = rest, str(Queue().concurrency)
    # Reject `mail=4,wieght=2` instead of serving a queue of that name.
    if not name or not number.isdecimal() or int(number) < 1 or _MISSPELT.search(name):
        raise click.BadParameter(f"{text!r} is not {form}")
    try:
        return name, Queue(concurrency=int(number), **fields)
    except SettingsError as error:
        raise click.BadParameter(f"{text!r}: {error}") from None


def address(text: str) -> tuple[str, int]:
    """Read an address to listen on: `0.0.0.0:9000`."""
    host, colon, port = text.rpartition(":")
    if not host or not colon or not port.isdecimal() or int(port) > 65_535:
        raise click.BadParameter(f"{text!r} is not HOST:PORT, for example 0.0.0.0:9000")
    return host, int(port)


def target(text: str) -> int | str:
    """Read an instance: digits are an id, everything else is a correlation key."""
    return int(text) if text.isascii() and text.isdecimal() else text


def moment(text: str) -> datetime:
    """Read a time in ISO 8601 with an offset: `2026-01-31T09:00Z`."""
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a time; write for example 2026-01-31T09:00Z") from None
    if read.utcoffset() is None:
        full = read.isoformat(timespec="auto" if read.second or read.microsecond else "minutes")
        raise click.BadParameter(f"{text!r} has no time zone; write {full}Z or {full}+01:00")
    return read


def moment_or_age(text: str) -> datetime | timedelta:
    """Read a time, or an age: `1h`."""
    try:
        return parse_duration(text)
    except ValueError:
        pass
    try:
        return moment(text)
    except click.BadParameter as error:
        raise click.BadParameter(f"{error.message}, or an age: 1h") from None


class SettingOption(click.Option):
    """An option whose help is the docstring of the setting. It is read from the source only when help is shown."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        if record is None:
            return None
        return record[0], " ".join(filter(None, [_setting_docs().get(self.name or ""), record[1]]))


@cache
def _setting_docs() -> dict[str, str]:
    """Return the first sentence of the docstring of each setting; empty if the source is not available."""
    try:
        (settings,) = ast.parse(inspect.getsource(Settings)).body
    except OSError:
        return {}
    assert isinstance(settings, ast.ClassDef)  # noqa: S101 - the source of a class
    docs = {}
    for field, text in pairwise(settings.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                docs[name] = re.split(r"(?<=[.])\s", words)[0].replace("`", "")
            case _:
                pass
    return docs


# Defaults that help describes in words.
_SHOWN_DEFAULTS: Final = {
    "heartbeat": "a third of each lease",
    "concurrency": "none",
    "pool_processes": "one per processor",
}
# Type of a setting: the reader of its option, and the metavar in help.
_READERS: Final[dict[type, tuple[Callable[[str], Any], str]]] = {
    timedelta: (duration, "DURATION"),
    int: (int, "N"),
    str: (str, "NAME"),
}

dsn_option = click.option(
    "--dsn",
    metavar="DSN",
    help="PostgreSQL server. Default: GEN_DURABLE_DSN, else the embedded server of the current directory.",
)


def settings_options(
    *, only: Iterable[str] | None = None, defaults: Mapping[str, Any] | None = None
) -> Callable[[Command], Command]:
    """Add `--settings FILE` and an option for each setting, or for those in `only`.

    `defaults`: those that `load_settings` of the command gets.
    """

    def decorate(command: Command) -> Command:
        for field in reversed(msgspec.structs.fields(Settings)):
            if only is None or field.name in only:
                command = _setting_option(field, (defaults or {}).get(field.name, field.default))(command)
        return click.option(
            "--settings",
            "settings_file",
            type=click.Path(path_type=Path, dir_okay=False),
            help="TOML file with a table [tool.gen_durable].",
        )(command)

    return decorate


def _setting_option(field: msgspec.structs.FieldInfo, default: Any) -> Callable[[Command], Command]:
    flag = "--" + field.name.replace("_", "-")
    if choices := [kind for kind in (field.type, *get_args(field.type)) if get_origin(kind) is Literal]:
        choice = click.Choice(get_args(choices[0]))
        shown = default or "keep the current one"
        return click.option(flag, field.name, cls=SettingOption, type=choice, help=f"Default: {shown}.")
    if isinstance(field.default, bool):
        flags, text = f"--{field.name}/--no-{field.name}", f"Default: --{field.name}."
        return click.option(flags, field.name, cls=SettingOption, default=None, help=text)
    reader, metavar = _READERS[type(field.default)]
    shown = duration_text(default) if reader is duration else default
    shown = _SHOWN_DEFAULTS.get(field.name, shown)
    text = "" if shown == "" else f"Default: {shown}."
    return click.option(flag, field.name, cls=SettingOption, type=reader, metavar=metavar, help=text)


def load_settings(
    file: Path | None, given: dict[str, Any], defaults: Mapping[str, Any] | None = None
) -> Settings:
    """Load the settings of the file, the environment and the given options."""
    chosen = {name: value for name, value in given.items() if value is not None}
    return Settings.load_over(defaults or {}, file, **chosen)
