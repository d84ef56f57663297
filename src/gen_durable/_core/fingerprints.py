"""Messages of errors without their variable parts, so that the same failure of different instances is one group."""

from __future__ import annotations

import re
from typing import Final

import msgspec

__all__ = ["Fingerprint", "fingerprint", "masked"]

_LONGEST: Final = 200
# In an alternation, the first one wins: quoted text, addresses, UUIDs, words with a digit (numbers, ids, hex).
_ADDRESS: Final = r"""|[^\s'"<>()]+@[^\s'"<>()]+"""
_PATTERN: Final = (
    r"""(?<!\w)(?:'[^'\n]*'|"[^"\n]*"|`[^`\n]*`)(?!\w)"""
    + _ADDRESS
    + r"""|\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"""
    r"""|[A-Za-z]*\d(?:[A-Za-z0-9]|[.,:](?=\d))*"""
)
_VARIABLE: Final = re.compile(_PATTERN)
# For messages without @: the pattern of addresses reads each word from each of its characters.
_NO_ADDRESS: Final = re.compile(_PATTERN.replace(_ADDRESS, ""))
# Shorter pieces say too little about a message.
_SHORTEST_PIECE: Final = 3
_MOST_PIECES: Final = 5
_EDGES: Final = " \t:;,.'\"`()[]{}<>-=#"


class Fingerprint(msgspec.Struct, frozen=True):
    """A message without its variable parts."""

    text: str
    """Quoted values are "…", numbers and ids "#"."""
    pieces: tuple[str, ...]
    """The parts that all messages of the group contain, the longest ones, in their order."""


def fingerprint(message: str | None) -> Fingerprint:
    """Leave out numbers, ids, addresses and quoted values of the first line of a message."""
    short = _first_line(message)
    found = [piece.strip(_EDGES) for piece in _VARIABLE.split(short)]
    found = [piece for piece in found if len(piece) >= _SHORTEST_PIECE]
    longest = sorted(range(len(found)), key=lambda place: -len(found[place]))[:_MOST_PIECES]
    return Fingerprint(masked(message), tuple(found[place] for place in sorted(longest)))


def masked(message: str | None) -> str:
    """Return only the text of the fingerprint, which takes half of the time."""
    short = _first_line(message)
    return (_VARIABLE if "@" in short else _NO_ADDRESS).sub(_placeholder, short)


def _first_line(message: str | None) -> str:
    line = (message or "").strip().partition("\n")[0]
    short = line[:_LONGEST]
    if short != line:
        # The last word may be cut within a number or an id.
        short = short.rpartition(" ")[0] or short
    return short


def _placeholder(found: re.Match[str]) -> str:
    first = found[0][0]
    return f"{first}…{first}" if first in "'\"`" else "…" if "@" in found[0] else "#"
