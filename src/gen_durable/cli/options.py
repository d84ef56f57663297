"""Options that several commands share. Every setting is an option of the same name, so the two cannot drift apart."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable
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


# What may stand behind a queue: its settings but for the first, as one types them.
_KNOBS: Final = tuple(field.name.replace("_", "-") for field in msgspec.structs.fields(Queue)[1:])
_KNOB: Final = re.compile(rf"(?P<rest>.*),(?P<knob>{'|'.join(_KNOBS)})=(?P<number>\d{{1,9}})", re.ASCII)
_MISSPELT: Final = re.compile(r"=\d+,", re.ASCII)
_KNOB_FORM: Final = "".join(f"[,{knob}=N]" for knob in _KNOBS)


def duration(text: str) -> timedelta:
    """`90s`, `1m30s`, `500ms` or `2h`."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def queue(text: str) -> tuple[str, Queue]:
    """`default=10`: a queue, and how many of its steps run at once; more by name: `default=10,prefetch=5`."""
    return _source(
        text, f"NAME=N{_KNOB_FORM} with N of at least 1, for example default=10 or default=10,prefetch=5"
    )


def prefix(text: str) -> tuple[str, Queue]:
    """`billing.` or `media.=20`: a namespace of machines, and how many of their steps run at once."""
    return _source(
        text, f"PREFIX or PREFIX=N{_KNOB_FORM} with N of at least 1, for example billing. or media.=20"
    )


def _source(text: str, form: str) -> tuple[str, Queue]:
    rest, knobs = text, dict[str, int]()
    while found := _KNOB.fullmatch(rest):
        rest, knobs[found["knob"].replace("-", "_")] = found["rest"], int(found["number"])
    name, equals, number = rest.rpartition("=")
    if rest and not equals:
        name, number = rest, str(Queue().concurrency)
    # `mail=4,wieght=2` is no queue of a strange name.
    if not name or not number.isdecimal() or int(number) < 1 or _MISSPELT.search(name):
        raise click.BadParameter(f"{text!r} is not {form}")
    try:
        return name, Queue(concurrency=int(number), **knobs)
    except SettingsError as error:
        raise click.BadParameter(f"{text!r}: {error}") from None


def address(text: str) -> tuple[str, int]:
    """`0.0.0.0:9000`: where to listen."""
    host, colon, port = text.rpartition(":")
    if not host or not colon or not port.isdecimal() or int(port) > 65_535:
        raise click.BadParameter(f"{text!r} is not HOST:PORT, for example 0.0.0.0:9000")
    return host, int(port)


def target(text: str) -> int | str:
    """`42`: an instance by its id; anything but digits is a correlation key."""
    return int(text) if text.isascii() and text.isdecimal() else text


def moment(text: str) -> datetime:
    """`2026-01-31T09:00Z`: a moment in ISO 8601. Without an offset it would be another one on another host."""
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no moment; write for example 2026-01-31T09:00Z") from None
    if read.utcoffset() is None:
        full = read.isoformat(timespec="auto" if read.second or read.microsecond else "minutes")
        raise click.BadParameter(f"{text!r} has no time zone; write {full}Z or {full}+01:00")
    return read


def moment_or_age(text: str) -> datetime | timedelta:
    """A moment, or how long ago it was: `1h`."""
    try:
        return parse_duration(text)
    except ValueError:
        pass
    try:
        return moment(text)
    except click.BadParameter as error:
        raise click.BadParameter(f"{error.message}, or how long ago: 1h") from None


class SettingOption(click.Option):
    """Before its default, its help says what `Settings` says of it: read from there only when somebody asks."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        if record is None:
            return None
        return record[0], " ".join(filter(None, [_meanings().get(self.name or ""), record[1]]))


@cache
def _meanings() -> dict[str, str]:
    """The first sentence about each setting; none where the source is not at hand."""
    try:
        (settings,) = ast.parse(inspect.getsource(Settings)).body
    except OSError:
        return {}
    assert isinstance(settings, ast.ClassDef)  # noqa: S101 - what was asked for
    told = {}
    for field, text in pairwise(settings.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(words))):
                told[name] = re.split(r"(?<=[.])\s", words)[0].replace("`", "")
            case _:
                pass
    return told


# What is told as the default of a setting whose stored default says little.
_TOLD: Final = {
    "heartbeat": "a third of each lease",
    "concurrency": "none",
    "pool_processes": "one for each processor",
}
# How the type of a setting is read from the command line, and what help calls it.
_READERS: Final[dict[type, tuple[Callable[[str], Any], str]]] = {
    timedelta: (duration, "DURATION"),
    int: (int, "N"),
    str: (str, "NAME"),
}

dsn_option = click.option(
    "--dsn",
    metavar="DSN",
    help="Where PostgreSQL is. Default: GEN_DURABLE_DSN, else the embedded server of this directory.",
)


def settings_options(*, only: Iterable[str] | None = None) -> Callable[[Command], Command]:
    """One option for each setting, or for those named, and `--settings` for a file of them."""

    def decorate(command: Command) -> Command:
        for field in reversed(msgspec.structs.fields(Settings)):
            if only is None or field.name in only:
                command = _setting_option(field)(command)
        return click.option(
            "--settings",
            "settings_file",
            type=click.Path(path_type=Path, dir_okay=False),
            help="A TOML file with a table [tool.gen_durable].",
        )(command)

    return decorate


def _setting_option(field: msgspec.structs.FieldInfo) -> Callable[[Command], Command]:
    flag = "--" + field.name.replace("_", "-")
    if choices := [kind for kind in (field.type, *get_args(field.type)) if get_origin(kind) is Literal]:
        choice = click.Choice(get_args(choices[0]))
        told = f"Default: {field.default or 'it stays as it is'}."
        return click.option(flag, field.name, cls=SettingOption, type=choice, help=told)
    if isinstance(field.default, bool):
        flags, told = f"--{field.name}/--no-{field.name}", f"Default: --{field.name}."
        return click.option(flags, field.name, cls=SettingOption, default=None, help=told)
    reader, metavar = _READERS[type(field.default)]
    shown = duration_text(field.default) if reader is duration else field.default
    shown = _TOLD.get(field.name, shown)
    told = "" if shown == "" else f"Default: {shown}."
    return click.option(flag, field.name, cls=SettingOption, type=reader, metavar=metavar, help=told)


def load_settings(file: Path | None, given: dict[str, Any]) -> Settings:
    """The settings of the file, the environment and the options that were given."""
    return Settings.load(file, **{name: value for name, value in given.items() if value is not None})
