"""A database operation as a value: a generator that yields bound statements and receives their rows.

The logic of a verb is written once, as a plan; `runner` drives it over asyncpg or psycopg, blocking or not, on a
connection of ours or of the caller.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple, TypeAlias, TypeVar

__all__ = ["Call", "Plan", "Row", "Rows", "Script", "Statement", "in_schema", "only", "read", "statements"]

T = TypeVar("T")

Row: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Sequence[Row]

_SECTION = re.compile(r"^-- (name|part): (\w+)\n", re.MULTILINE)
_PART = re.compile(r"\{(\w+)\}")
_COMMENT = re.compile(r"--[^\n]*")
_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")
_SCHEMA = re.compile(r"\bgen_durable\.")
# Types that PostgreSQL looks up on the search path; bigint, int, boolean and interval are words of its grammar.
_TYPE = re.compile(r"::(?=(?:text|bytea|jsonb|timestamptz)\b)")
# A call of one of our functions with parameters, and nothing else that is looked up on the search path.
_ARGUMENT = r"\s*(?:\w+ => )?\$\d+(?:::[\w.]+(?:\[\])?)+\s*"
_CALL = re.compile(
    rf"select (?:[\w\s,]+? from )?gen_durable\.\w+\({_ARGUMENT}(?:,{_ARGUMENT})*\)(?: as \w+)?",  # noqa: S608 - a pattern
    re.ASCII,
)


class Statement:
    """One statement of a `.sql` file: its text with `$n`, and the names behind the numbers."""

    __slots__ = ("is_call", "name", "parameters", "text")

    def __init__(self, name: str, source: str) -> None:
        bare = _COMMENT.sub("", source)
        self.name = name
        self.parameters: tuple[str, ...] = tuple(dict.fromkeys(_PARAMETER.findall(bare)))
        numbers = {parameter: f"${place}" for place, parameter in enumerate(self.parameters, 1)}
        text = _TYPE.sub("::pg_catalog.", _PARAMETER.sub(lambda match: numbers[match[1]], bare))
        self.text = "\n".join(line.rstrip() for line in text.splitlines() if line.strip())
        self.is_call = _CALL.fullmatch(" ".join(text.split())) is not None
        """Whether it means the same on every search path."""

    def __call__(self, **values: Any) -> Call:
        """The statement with a value for every parameter."""
        return Call(self, tuple([values[parameter] for parameter in self.parameters]))

    def __repr__(self) -> str:
        return f"<statement {self.name}>"


class Call(NamedTuple):
    """A statement and the values of its parameters, in the order of their numbers."""

    statement: Statement
    values: tuple[Any, ...]


class Script(NamedTuple):
    """Several statements without parameters and without rows: the text of a migration, in its schema already."""

    text: str


Plan: TypeAlias = Generator[Call | Script, Rows, T]
"""Yields calls, receives rows, returns `T`."""


def only(call: Call | Script) -> Plan[Rows]:
    """A plan of one statement."""
    return (yield call)


def statements(file: str) -> Mapping[str, Statement]:
    """The statements of one `.sql` file of this package, by name.

    They are written against the schema `gen_durable` and run in psql as they stand, but for the parameters. What two of
    them share is a part: `-- part: x` names it, `{x}` stands for it.
    """
    sections = _SECTION.split(read(file))[1:]
    bodies = list(zip(sections[::3], sections[1::3], sections[2::3], strict=True))
    parts = {name: _COMMENT.sub("", body) for kind, name, body in bodies if kind == "part"}
    return {
        name: Statement(name, _PART.sub(lambda match: parts[match[1]], _COMMENT.sub("", body)))
        for kind, name, body in bodies
        if kind == "name"
    }


def read(file: str) -> str:
    """The text of a file of this package."""
    return resources.files(__package__).joinpath(file).read_text(encoding="utf-8")


@cache
def in_schema(text: str, schema: str) -> str:
    """The text, with every object taken from `schema` (whose name Settings has checked; it is quoted all the same)."""
    return _SCHEMA.sub(f'"{schema}".', text)
