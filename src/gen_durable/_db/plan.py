"""Plans: database operations as generators that yield bound statements and receive their rows.

A verb is written once, as a plan. `runner` runs it on asyncpg or psycopg, blocking or not, on a connection of ours or
of the caller.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple, TypeAlias, TypeVar

__all__ = [
    "Call",
    "Plan",
    "Row",
    "Rows",
    "Script",
    "Statement",
    "fill",
    "in_schema",
    "only",
    "parts",
    "read",
    "statements",
]

T = TypeVar("T")

Row: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Sequence[Row]

_SECTION = re.compile(r"^-- (name|part): (\w+)\n", re.MULTILINE)
_PART = re.compile(r"\{(?:(\w+)\.)?(\w+)\}")
_COMMENT = re.compile(r"--[^\n]*")
_PARAMETER = re.compile(r"(?<!:):([a-z_]+)")
_SCHEMA = re.compile(r"\bgen_durable\.")
# Types that PostgreSQL resolves on the search_path. bigint, int, boolean and interval are keywords of its grammar.
_TYPE = re.compile(r"::(?=(?:text|bytea|jsonb|timestamptz)\b)")
# A call of one of our functions with parameters, and nothing else that is resolved on the search_path.
_ARGUMENT = r"\s*(?:\w+ => )?\$\d+(?:::[\w.]+(?:\[\])?)+\s*"
_CALL = re.compile(
    rf"select (?:[\w\s,]+? from )?gen_durable\.\w+\({_ARGUMENT}(?:,{_ARGUMENT})*\)(?: as \w+)?",  # noqa: S608 - a pattern
    re.ASCII,
)


class Statement:
    """One statement of a `.sql` file: its text with `$n`, and the names of its parameters in that order."""

    __slots__ = ("is_call", "name", "parameters", "text")

    def __init__(self, name: str, source: str) -> None:
        bare = _COMMENT.sub("", source)
        self.name = name
        self.parameters: tuple[str, ...] = tuple(dict.fromkeys(_PARAMETER.findall(bare)))
        numbers = {parameter: f"${place}" for place, parameter in enumerate(self.parameters, 1)}
        text = _TYPE.sub("::pg_catalog.", _PARAMETER.sub(lambda match: numbers[match[1]], bare))
        self.text = "\n".join(line.rstrip() for line in text.splitlines() if line.strip())
        self.is_call = _CALL.fullmatch(" ".join(text.split())) is not None
        """Whether it means the same on every search_path."""

    def __call__(self, **values: Any) -> Call:
        """Bind a value to every parameter."""
        return Call(self, tuple([values[parameter] for parameter in self.parameters]))

    def __repr__(self) -> str:
        return f"<statement {self.name}>"


class Call(NamedTuple):
    """A statement and the values of its parameters, in order."""

    statement: Statement
    values: tuple[Any, ...]


class Script(NamedTuple):
    """Several statements without parameters and rows, such as a migration. Not rewritten to a schema."""

    text: str


Plan: TypeAlias = Generator[Call | Script, Rows, T]
"""Yields calls, receives rows, returns `T`."""


def only(call: Call | Script) -> Plan[Rows]:
    """A plan of one statement."""
    return (yield call)


def statements(file: str) -> Mapping[str, Statement]:
    """Read the statements of one `.sql` file of this package, by name.

    `-- name: x` begins a statement. `-- part: x` begins text that several statements share: whole CTEs, or a whole
    query. `{x}` in a statement is replaced by it, `{search.x}` by a part of search.sql. Statements name the schema
    `gen_durable`. One without parts also runs in psql, with a semicolon: a parameter `:ids` is the psql variable `ids`.
    """
    shared = parts(file)
    return {name: Statement(name, fill(text, shared)) for name, text in _sections(file, "name").items()}


def parts(file: str) -> Mapping[str, str]:
    """Read the parts of one `.sql` file of this package, by name: for statements that a module composes."""
    return _sections(file, "part")


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replace each `{x}` by its value, and each `{file.x}` by a part of that file."""
    return _PART.sub(lambda match: (parts(f"{match[1]}.sql") if match[1] else values)[match[2]], text)


def _sections(file: str, wanted: str) -> dict[str, str]:
    sections = _SECTION.split(read(file))[1:]
    found = zip(sections[::3], sections[1::3], sections[2::3], strict=True)
    return {name: _COMMENT.sub("", body) for kind, name, body in found if kind == wanted}


def read(file: str) -> str:
    """Read a file of this package."""
    return resources.files(__package__).joinpath(file).read_text(encoding="utf-8")


@cache
def in_schema(text: str, schema: str) -> str:
    """Replace the schema `gen_durable` by `schema`. Settings has checked the name; it is quoted as well."""
    return _SCHEMA.sub(f'"{schema}".', text)
