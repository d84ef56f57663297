"""The size of JSON in the database: the bytes of `state::text`, as the SQL functions count them.

PostgreSQL formats jsonb differently from msgspec: a space after each comma and colon, numbers without exponents,
characters instead of escapes. So the text that is sent has a different length.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

__all__ = ["MAX_GROWTH", "excess", "outside_strings", "stored_size"]

# The longest form of a number with an exponent: `5e-324` becomes 326 bytes.
_LONGEST: Final = 330
# The largest growth per byte: `1e308,` becomes 311 bytes.
MAX_GROWTH: Final = 64
# The largest shrinkage: `\u0041` becomes one byte.
_SHRINKAGE: Final = 6
_EXPONENT: Final = b"0e"
_AS_EXPONENT: Final = bytes.maketrans(b"123456789E", b"000000000e")
# The lookbehind and the possessive quantifier make the match linear.
_NUMBER_WITH_EXPONENT: Final = re.compile(rb"(?<![-0-9.])[-0-9.]++[eE][-+0-9]+")
_NEGATIVE_ZERO: Final = re.compile(rb"(?<![0-9.])-0(?:\.0+)?(?![0-9.])")
_ESCAPE: Final = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|(.))")
_WHITESPACE: Final = b" \t\r\n"
# Characters that PostgreSQL escapes with two bytes.
_SHORT_ESCAPES: Final = frozenset(b'\b\f\n\r\t"\\')


def excess(raw: bytes, limit: int) -> int | None:
    """Return the stored size if it exceeds `limit` bytes, else `None`. Cheap if it is far from the limit."""
    if len(raw) * MAX_GROWTH <= limit:
        return None
    if len(raw) > _SHRINKAGE * limit:
        return len(raw)
    # Apart from exponents only spaces are added: at most one per two bytes.
    exponents = raw.translate(_AS_EXPONENT).count(_EXPONENT)
    if len(raw) * 3 // 2 + exponents * _LONGEST <= limit:
        return None
    size = stored_size(raw)
    return size if size > limit else None


def stored_size(raw: bytes) -> int:
    """Compute `octet_length(raw::jsonb::text)`."""
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
    """Return JSON without its strings."""
    # Without escaped backslashes and quotes, every remaining quote begins or ends a string.
    return b"".join(raw.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])


def _written_out(number: Decimal) -> str:
    """Format a number as PostgreSQL does: without an exponent, and zero without a sign."""
    return format(number or abs(number), "f")


def _saved(escape: re.Match[bytes]) -> int:
    """How many bytes PostgreSQL saves on this escape."""
    if escape[1] is None:
        return int(escape[2] == b"/")
    code = int(escape[1], 16)
    if code in _SHORT_ESCAPES:
        return 4
    if code < 0x20:
        return 0
    # One surrogate of a pair: the pair takes four bytes.
    return 6 - (2 if 0xD800 <= code <= 0xDFFF else len(chr(code).encode()))
