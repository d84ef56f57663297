"""The term under a cursor, and which suggestions fit it. Also for text that is not a valid search yet."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from ..search import Completion, Suggestion
from .query import MAX_LENGTH, quoted
from .query_terms import STATUS_VALUES, TERMS

__all__ = ["Place", "completion", "place_at"]

_TOKEN: Final = re.compile(r'(?:"(?:\\.|[^"\\])*"?|[^\s"])+')
_PIECE: Final = re.compile(r'(?:"(?:\\.|[^"\\])*"?|[^",])*')
_NAME: Final = re.compile(r'-?([^\s":]*):')
_OPERATOR: Final = re.compile(r"~|>=|<=|>|<")
_PLAIN: Final = re.compile(r'[^\s",~<>*][^\s",*]*')
_MOST: Final = 20


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What is typed at a cursor."""

    name: str | None
    """The term whose value is typed; `None`: a name, or a value without a name."""
    typed: str
    start: int
    end: int
    machines: tuple[str, ...] = ()
    """The machines that the text names; a prefix ends with `*`."""

    def is_of(self, machine: str) -> bool:
        """Whether a machine is one of those that the text names, or it names none."""
        return not self.machines or any(
            machine.startswith(name[:-1]) if name.endswith("*") else machine == name for name in self.machines
        )


def place_at(text: str, cursor: int) -> Place:
    """Return what is typed at a cursor."""
    text = text[:MAX_LENGTH]
    cursor = max(0, min(cursor, len(text)))
    tokens = list(_TOKEN.finditer(text))
    machines = tuple(value for token in tokens for value in _machines(token[0]))
    for token in tokens:
        if token.start() <= cursor <= token.end():
            return _in_token(token[0], token.start(), cursor, machines)
    return Place(name=None, typed="", start=cursor, end=cursor, machines=machines)


def _in_token(token: str, start: int, cursor: int, machines: tuple[str, ...]) -> Place:
    named = _NAME.match(token)
    if named is None or cursor < start + named.end():
        begin = min(start + token.startswith("-"), cursor)
        end = start + (len(token) if named is None else named.end())
        return Place(
            name=None, typed=token[begin - start : cursor - start], start=begin, end=end, machines=machines
        )
    place = named.end()
    while True:
        piece = _PIECE.match(token, place)
        assert piece is not None  # noqa: S101 - the pattern matches the empty text
        if start + piece.end() >= cursor or piece.end() == len(token):
            break
        place = piece.end() + 1
    operator = _OPERATOR.match(token, place)
    begin = operator.end() if operator and start + operator.end() <= cursor else place
    typed = token[begin : cursor - start].removeprefix('"')
    return Place(
        name=named[1].lower(), typed=typed, start=start + begin, end=start + piece.end(), machines=machines
    )


def _machines(token: str) -> list[str]:
    name, _, values = token.partition(":")
    return [value.strip('"') for value in values.split(",") if value] if name.lower() == "machine" else []


def completion(place: Place, values: Iterable[str]) -> Completion:
    """Return the suggestions for a place. `values`: those of its term; of a name, the machines."""
    if place.name is None:
        found = [
            *(Suggestion(f"{name}:", info.help) for name, info in TERMS.items() if _fits(name, place.typed)),
            *(
                Suggestion(f"machine:{_written(name)}", "Machine")
                for name in _ranked(values, place.typed)
                if place.typed
            ),
        ]
        found.sort(key=lambda one: not one.text.lower().startswith(place.typed.lower()))
    else:
        info = TERMS.get(place.name.partition(".")[0])
        known = _ranked(STATUS_VALUES if place.name == "status" else values, place.typed)
        found = [Suggestion(_written(value)) for value in known]
        if info is not None and not found and not place.typed:
            found = [Suggestion(info.example.partition(":")[2], info.help)]
    return Completion(start=place.start, end=place.end, suggestions=tuple(found[:_MOST]))


def _fits(name: str, typed: str) -> bool:
    return typed.lower() in name


def _ranked(values: Iterable[str], typed: str) -> list[str]:
    """Return the values that contain what is typed; first those that begin with it."""
    sought = typed.lower()
    found = sorted(value for value in set(values) if sought in value.lower())
    return sorted(found, key=lambda value: not value.lower().startswith(sought))[:_MOST]


def _written(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else quoted(value)
