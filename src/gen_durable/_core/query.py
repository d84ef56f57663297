r"""The search syntax: text → terms. The command line, the clients and tools share it; docs/reference/search.md has it.

query    = term*                           all terms must match
term     = ["-"] name ":" value ("," value)*     "-": must not match; ",": alternatives
         | value                           without a name: see `Term.name`
name     = "status", …, or "state" ("." key)*
value    = ["~" | ">" | ">=" | "<" | "<="] (word | quoted)
quoted   = '"' characters '"'              with \" and \\ inside
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from ..errors import SearchError

__all__ = ["MAX_LENGTH", "MAX_TERMS", "Query", "Term", "Value", "cut", "quoted", "scan", "shown"]

MAX_LENGTH: Final = 10_000
MAX_TERMS: Final = 50
_MAX_VALUES: Final = 500
_OPERATOR: Final = re.compile(r"~|>=|<=|>|<")
_WORD: Final = re.compile(r'[^\s",]+')
_HEAD: Final = re.compile(r'[^\s":,~<>]*')
_KEY: Final = re.compile(r'[^\s":,.]+')
_REST: Final = re.compile(r"\S*")
_SPACE: Final = re.compile(r"\s+")
_SHOWN: Final = 60


class Value(msgspec.Struct, frozen=True):
    """One alternative of a term."""

    text: str
    operator: str = ""
    """`~`, `>`, `>=`, `<` or `<=`; empty: equals."""
    is_quoted: bool = False

    def __str__(self) -> str:
        return self.operator + (quoted(self.text) if self.is_quoted else self.text)


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """One term, and where it is in the text."""

    name: str
    """Empty for a value without a name, such as `42` or `checkout`."""
    values: tuple[Value, ...]
    path: tuple[str, ...] = ()
    """The keys of `state.a.b`."""
    is_negated: bool = False
    start: int
    end: int

    def __str__(self) -> str:
        path = "".join(f".{key if _KEY.fullmatch(key) else quoted(key)}" for key in self.path)
        name = f"{self.name}{path}:" if self.name else ""
        return f"{'-' if self.is_negated else ''}{name}{','.join(map(str, self.values))}"


class Query(msgspec.Struct, frozen=True):
    """A search: its terms, in the order of the text."""

    terms: tuple[Term, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, self.terms))


def quoted(text: str) -> str:
    """Return a text in quotes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def scan(text: str) -> Query:
    """Split a text into terms. It checks the form only, not names and values.

    Raises:
        SearchError: it is not a query.
    """
    if len(text) > MAX_LENGTH:
        raise SearchError(
            f"the search has {len(text)} characters", f"use at most {MAX_LENGTH}", MAX_LENGTH, len(text)
        )
    _check_characters(text)
    return Query(tuple(_Scanner(text).terms()))


def _check_characters(text: str) -> None:
    for place, character in enumerate(text):
        if character == "\0" or "\ud800" <= character <= "\udfff":
            what = "a NUL character" if character == "\0" else "a lone surrogate"
            raise SearchError(f"the search contains {what}", "remove it", place, place + 1)


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0

    def terms(self) -> Iterator[Term]:
        count = 0
        while self._skip_space():
            count += 1
            if count > MAX_TERMS:
                raise self._error(
                    self._place, f"the search has more than {MAX_TERMS} terms", "write alternatives as a,b,c"
                )
            yield self._term()

    def _term(self) -> Term:
        start = self._place
        is_negated = self._take("-")
        head = self._match(_HEAD)
        path: tuple[str, ...] = ()
        name = ""
        if head[: len("state.")].lower() == "state.":
            self._place = start + is_negated + len("state")
            name, path = "state", self._path(start)
        elif self._take(":"):
            name = head.lower()
            if not name:
                raise self._error(start, "the name of the term is missing", "write for example status:failed")
        else:
            self._place = start + is_negated
        values = self._values(start, is_named=bool(name))
        return Term(name=name, values=values, path=path, is_negated=is_negated, start=start, end=self._place)

    def _path(self, start: int) -> tuple[str, ...]:
        keys = []
        while self._take("."):
            key = self._quoted(start) if self._next == '"' else self._match(_KEY)
            if not key:
                raise self._error(start, "a key of the state is missing", "write for example state.order:42")
            keys.append(key)
        if not self._take(":"):
            raise self._error(
                start,
                "a path in the state has no value",
                "write for example state.order.id:42; quote keys with other characters",
            )
        return tuple(keys)

    def _values(self, start: int, *, is_named: bool) -> tuple[Value, ...]:
        values = [self._value(start)]
        while self._take(","):
            values.append(self._value(start))
            if len(values) > _MAX_VALUES:
                raise self._error(start, f"the term has more than {_MAX_VALUES} values", "use fewer")
        if self._next and not self._next.isspace():
            raise self._error(
                start, "a quote is inside a value", r"quote the whole value; write \" for a quote inside"
            )
        if not is_named and len(values) > 1:
            raise self._error(
                start, "values without a name cannot have alternatives", "name the term: id:1,2"
            )
        return tuple(values)

    def _value(self, start: int) -> Value:
        operator = self._match(_OPERATOR)
        if self._next == '"':
            return Value(self._quoted(start), operator, is_quoted=True)
        word = self._match(_WORD)
        if not word:
            raise self._error(
                start, "a value is missing", 'write for example status:failed; "" is empty text'
            )
        return Value(word, operator)

    def _quoted(self, start: int) -> str:
        self._place += 1
        found: list[str] = []
        while self._next:
            if self._take('"'):
                return "".join(found)
            if self._take("\\") and self._next not in ("\\", '"'):
                raise self._error(
                    start,
                    r"a backslash in quotes is not followed by \ or a quote",
                    r"write \\ for a backslash",
                )
            found.append(self._next)
            self._place += 1
        raise self._error(start, "a quote is not closed", 'add the closing "')

    @property
    def _next(self) -> str:
        return self._text[self._place : self._place + 1]

    def _take(self, character: str) -> bool:
        is_there = self._next == character
        self._place += is_there
        return is_there

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._place)
        if found is None:
            return ""
        self._place = found.end()
        return found[0]

    def _skip_space(self) -> bool:
        """Whether anything follows."""
        self._match(_SPACE)
        return self._place < len(self._text)

    def _error(self, start: int, problem: str, advice: str) -> SearchError:
        self._match(_REST)
        end = max(self._place, start + 1)
        return SearchError(f"{shown(self._text[start:end], start)}: {problem}", advice, start, end)


def cut(text: str) -> str:
    """Return a text of the user for a message: not long, without control characters."""
    short = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in short)


def shown(text: str, start: int) -> str:
    """Return a term and its place, for a message."""
    return f"{cut(text)} (position {start + 1})"
