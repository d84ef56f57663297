"""How large JSON is in the database: the bytes of `state::text`, by which clients and SQL functions count alike.

PostgreSQL writes jsonb in its own way: a space after each comma and colon, numbers without an exponent, characters
instead of their escapes. So the text that is sent to it has another length.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

__all__ = ["excess", "outside_strings", "stored_size"]

# The most that a number with an exponent becomes: `5e-324` is written with 326 bytes.
_LONGEST: Final = 330
# ... and the most that each byte of it does: `1e308,` becomes 311 bytes.
_GROWTH: Final = 64
# The most that a text loses: `\u0041` is written as one letter.
_SHRINKAGE: Final = 6
_EXPONENT: Final = b"0e"
_AS_EXPONENT: Final = bytes.maketrans(b"123456789E", b"000000000e")
# The lookbehind and the possessive quantifier let each number be read once.
_NUMBER_WITH_EXPONENT: Final = re.compile(rb"(?<![-0-9.])[-0-9.]++[eE][-+0-9]+")
_NEGATIVE_ZERO: Final = re.compile(rb"(?<![0-9.])-0(?:\.0+)?(?![0-9.])")
_ESCAPE: Final = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|(.))")
_WHITESPACE: Final = b" \t\r\n"
# What PostgreSQL escapes with two bytes.
_SHORT_ESCAPES: Final = frozenset(b'\b\f\n\r\t"\\')


def excess(raw: bytes, limit: int) -> int | None:
    """The size of this JSON in the database, if that is more than `limit` bytes. Cheap where it is far from that."""
    if len(raw) * _GROWTH <= limit:
        return None
    if len(raw) > _SHRINKAGE * limit:
        return len(raw)
    # Beside what exponents add, only spaces are added: at most one to two bytes.
    exponents = raw.translate(_AS_EXPONENT).count(_EXPONENT)
    if len(raw) * 3 // 2 + exponents * _LONGEST <= limit:
        return None
    size = stored_size(raw)
    return size if size > limit else None


def stored_size(raw: bytes) -> int:
    """How many bytes `octet_length(raw::jsonb::text)` counts."""
    plain = outside_strings(raw)
    size = len(raw) - sum(map(plain.count, _WHITESPACE)) + plain.count(b",") + plain.count(b":")
    if _EXPONENT in plain.translate(_AS_EXPONENT):
        for number in _NUMBER_WITH_EXPONENT.findall(plain):
            size += len(_written_out(Decimal(number.decode()))) - len(number)
        plain = _NUMBER_WITH_EXPONENT.sub(b"1", plain)
    if b"-0" in plain:
        size -= len(_NEGATIVE_ZERO.findall(plain))
    if b"\\u" in raw or b"\\/" in raw:
        size -= sum(map(_saved, _ESCAPE.finditer(raw)))
    return size


def outside_strings(raw: bytes) -> bytes:
    """What is left of JSON without its strings."""
    # Without escaped backslashes and quotes, every quote that is left begins or ends a string.
    return b"".join(raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])


def _written_out(number: Decimal) -> str:
    """A number as PostgreSQL writes it: without an exponent, and a zero without its sign."""
    return format(number or abs(number), "f")


def _saved(escape: re.Match[bytes]) -> int:
    """How many bytes shorter PostgreSQL writes what is escaped here."""
    if escape[1] is None:
        return int(escape[2] == b"/")
    code = int(escape[1], 16)
    if code in _SHORT_ESCAPES:
        return 4
    if code < 0x20:
        return 0
    # Half of a surrogate pair: both together are four bytes.
    return 6 - (2 if 0xD800 <= code <= 0xDFFF else len(chr(code).encode()))
