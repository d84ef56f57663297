"""Messages of errors without their variable parts, so that the same failure of different instances is one group."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["masked"]

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


def masked(message: str | None) -> str:
    """Replace quoted values of the first line by "…", addresses by …, and numbers and ids by #."""
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
