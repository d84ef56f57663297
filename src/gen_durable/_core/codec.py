"""Encode states, results and payloads as JSON, and decode them.

The text of `encode` can be stored in a jsonb column and decoded to an equal value of the same type. `encode` therefore
refuses values that PostgreSQL rejects (NUL, lone surrogates), that JSON changes silently (NaN), that do not fit the
declared type, and that decode to something else (subclasses, fields that are not written). It encodes once, decodes the
text, compares, and scans for a few byte sequences. The slower checks run only if one of these finds something.

msgspec encodes and decodes. Pydantic models use their own methods, also inside other types.
"""

from __future__ import annotations

import functools
import math
import re
import typing
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, Final, TypeAlias

import msgspec
import msgspec.inspect as shapes

from .._shapes import model_reader, parts
from ..errors import DecodeError, EncodeError, PayloadTooLargeError
from .mappings import unknown_key
from .measure import MAX_GROWTH, excess, outside_strings
from .roundtrip import change, dump_model, inner_place, is_equal

__all__ = [
    "MAX_DEPTH",
    "MAX_DIGITS",
    "ValueName",
    "convert",
    "decode",
    "encode",
    "encode_if_changed",
    "text_of",
]

MAX_DEPTH: Final = 100
# numeric holds more, but then a few bytes of JSON ("1e100000") become a hundred kilobytes.
MAX_DIGITS: Final = 400

_NUL: Final = "it contains a NUL character, which PostgreSQL cannot store; remove it"
_SURROGATE: Final = "it contains a lone surrogate, which is not valid Unicode; remove it"
_NAN: Final = "it contains NaN or infinity, which JSON does not have; use None or a string"
_DEEP: Final = f"it is nested more than {MAX_DEPTH} levels deep; flatten it"
_TOO_DEEP: Final = "it is nested too deeply to be decoded; store a flatter value"
_ENDLESS: Final = "it is nested too deeply or contains itself; store plain values"
_DIGITS: Final = f"it contains a number of more than {MAX_DIGITS} digits; store it as a string"

_ESCAPE: Final = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_AS_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_AS_ZERO: Final = bytes.maketrans(b"123456789", b"000000000")
_TOO_MANY_DIGITS: Final = b"0" * (MAX_DIGITS + 1)
_NOT_EQUAL_BY_TEXT: Final = {shapes.StructType, shapes.DataclassType, shapes.CustomType, shapes.DateTimeType}
# Pydantic writes this for a secret.
_MASK: Final = b"*" * 10
# After these words msgspec quotes the value, which may be private.
_QUOTE: Final = re.compile(r"^(Invalid (?:enum )?value) .*?( - at `[^`]*`(?: in `[^`]*`)?)?$", re.DOTALL)
_PLACE: Final = re.compile(r" - at `[^`]*`(?: in `[^`]*`)?$")
_UNREADABLE: Final = (TypeError, ValueError, AttributeError, OverflowError, RecursionError)


ValueName: TypeAlias = str | tuple[str, str, int]
"""What an error calls a value. The hot path gives the parts of the text: a state is named only in an error."""


def text_of(what: ValueName) -> str:
    """Return what an error calls a value."""
    return what if isinstance(what, str) else f"{what[0]} {what[1]} {what[2]}"


def encode(value: Any, type_: Any, what: ValueName, limit: int) -> str:
    """Write a value of the declared type as JSON text of at most `limit` bytes in the database."""
    shape = _shape(type_, what, EncodeError)
    if value is None and shape.null_is_none:
        return "null"
    if shape.cls is not None and not isinstance(value, shape.cls):
        raise EncodeError(text_of(what), shape.name, f"it is of type {type(value).__name__}")
    try:
        raw = _ENCODER.encode(value)
    except _UNREADABLE as error:
        raise EncodeError(text_of(what), shape.name, _unwritable(value, error)) from error
    if (
        len(raw) > min(shape.small, limit // MAX_GROWTH)
        or b"\\u" in raw
        or (shape.has_null and b"null" in raw)
    ):
        if size := excess(raw, limit):
            raise PayloadTooLargeError(text_of(what), shape.name, size, limit)
        if problem := _unstorable(value, raw, shape):
            raise EncodeError(text_of(what), shape.name, problem)
    try:
        found = shape.decode(raw)
    except (ValueError, TypeError, RecursionError) as error:
        place = _place(value, _is_not_finite) if b"null" in raw else ""
        raise EncodeError(text_of(what), shape.name, _NAN + place if place else _misfit(error)) from error
    if not is_equal(found, value) and (problem := _change(value, found, raw, shape)):
        raise EncodeError(text_of(what), shape.name, problem)
    return raw.decode()


def encode_if_changed(value: Any, type_: Any, stored: str, what: ValueName, limit: int) -> str | None:
    """Write a value as `encode` does; `None` if it is the value of the stored text.

    jsonb orders keys and rewrites numbers, so the stored text is decoded and encoded again for the comparison. Texts
    are compared, not values: `==` of a user's class may ignore fields.
    """
    try:
        raw = _ENCODER.encode(value)
        # A number or a text without escapes is stored as it is written here.
        if raw == stored.encode() or raw == _ENCODER.encode(_shape(type_, what, EncodeError).decode(stored)):
            return None
    except _UNREADABLE:
        pass  # `encode` says what is wrong with the value; if only the stored text is unreadable, the value replaces it
    return encode(value, type_, what, limit)


def convert(value: Any, type_: Any, what: str) -> Any:
    """Convert a mapping to the declared type; return any other value unchanged.

    Strict: values keep their types (`"42"` is not an int), and keys that the type does not have are refused.
    """
    if not isinstance(value, Mapping):
        return value
    shape = _shape(type_, what, EncodeError)
    if not shape.has_objects:
        return value
    try:
        if model_reader(type_) is not None:
            found = _convert_foreign(type_, value)
        else:
            found = msgspec.convert(dict(value), type_, str_keys=True, dec_hook=_convert_foreign)
        problem = unknown_key(value, found)
    except _UNREADABLE as error:
        raise EncodeError(text_of(what), shape.name, _misfit(error)) from error
    if problem:
        raise EncodeError(text_of(what), shape.name, problem)
    return found


def decode(text: str | bytes, type_: Any, what: ValueName) -> Any:
    """Read JSON text as a value of the declared type."""
    shape = _shape(type_, what, DecodeError)
    try:
        return shape.decode(text)
    except RecursionError as error:
        raise DecodeError(text_of(what), shape.name, _TOO_DEEP) from error
    except (ValueError, TypeError) as error:
        raise DecodeError(text_of(what), shape.name, _misfit(error)) from error


class _Shape(msgspec.Struct, frozen=True):
    """Facts about a declared type, cached."""

    name: str
    cls: Any
    """The class for `isinstance`; `None` if there is none."""
    decode: Callable[[str | bytes], Any]
    has_null: bool
    """Whether null is allowed somewhere. msgspec writes NaN as null, which the decoder would accept there."""
    has_foreign: bool
    """Whether parts of the text are not written by msgspec, so that they may be invalid JSON."""
    has_objects: bool
    """Whether classes are declared in it, to which a mapping can be converted."""
    null_is_none: bool
    """Whether null is decoded to None, so that None needs no further checks."""
    is_equal_by_text: bool
    """Whether values with equal texts are equal. Not for objects, nor for datetimes with different time zones."""
    small: int
    """Up to this number of bytes, a text without Unicode escapes and nulls needs no further checks: it has neither deep
    nesting nor a long number."""


def _shape(type_: Any, what: ValueName, error: type[EncodeError] | type[DecodeError]) -> _Shape:
    try:
        return _cached_shape(type_)
    except (TypeError, NameError):
        pass
    # Annotated[…] with a list in it is not hashable, so it cannot be cached.
    try:
        return _make_shape(type_)
    except (TypeError, NameError) as problem:
        raise error(
            text_of(what), _name(type_), f"that type cannot be used with JSON ({problem})"
        ) from problem


def _make_shape(type_: Any) -> _Shape:
    kinds = {type(part) for part in parts(type_)}
    foreign = {shapes.CustomType, shapes.RawType}
    has_foreign = not kinds.isdisjoint(foreign)
    read = model_reader(type_) or msgspec.json.Decoder(type_, dec_hook=_read_foreign).decode
    return _Shape(
        name=_name(type_),
        cls=_instance_class(type_),
        decode=read,
        has_null=not kinds.isdisjoint({shapes.AnyType, shapes.NoneType, *foreign}),
        has_foreign=has_foreign,
        has_objects=not kinds.isdisjoint({shapes.StructType, shapes.DataclassType, shapes.CustomType}),
        null_is_none=not has_foreign and _reads_null_as_none(read),
        is_equal_by_text=kinds.isdisjoint(_NOT_EQUAL_BY_TEXT),
        small=0 if has_foreign else min(2 * MAX_DEPTH, MAX_DIGITS),
    )


def _reads_null_as_none(read: Callable[[str | bytes], Any]) -> bool:
    try:
        return read(b"null") is None
    except (TypeError, ValueError):
        return False


_cached_shape = functools.lru_cache(maxsize=1024)(_make_shape)


def _instance_class(type_: Any) -> Any:
    while typing.get_origin(type_) is typing.Annotated:
        type_ = type_.__origin__
    cls = typing.get_origin(type_) or type_
    if cls is None:
        return type(None)
    if cls is float:
        return int | float  # as type checkers do
    if not isinstance(cls, type) or cls in (Any, UnionType):
        return None
    return None if typing.is_typeddict(cls) or getattr(cls, "_is_protocol", False) else cls


def _name(type_: Any) -> str:
    return type_.__name__ if isinstance(type_, type) and not typing.get_args(type_) else str(type_)


def _read_foreign(type_: Any, value: Any) -> Any:
    if type_ is object:
        return value  # like Any
    read = model_reader(type_)
    if read is None:
        raise TypeError(f"a value of type {_name(type_)} cannot be decoded from JSON")
    return read(msgspec.json.encode(value))


def _convert_foreign(type_: Any, value: Any) -> Any:
    if type_ is object or isinstance(value, type_):
        return value
    if model_reader(type_) is None:
        raise TypeError(f"a value of type {_name(type_)} cannot be decoded from JSON")
    # As JSON: strict pydantic accepts dates as strings only there.
    text = _ENCODER.encode(dict(value) if isinstance(value, Mapping) else value)
    return type_.model_validate_json(text, strict=True)


def _write_foreign(value: Any) -> msgspec.Raw:
    if not hasattr(value, "model_dump_json"):
        # msgspec calls the hook for these types only if they are keys.
        role = "key" if value is None or isinstance(value, tuple | frozenset | bool) else "value"
        raise TypeError(f"a {role} of type {type(value).__name__} has no form in JSON")
    try:
        # By alias and without computed fields: the form that the model itself accepts. No warnings about wrong types,
        # because they quote values; decoding the text finds wrong types.
        return msgspec.Raw(value.model_dump_json(by_alias=True, round_trip=True, warnings=False).encode())
    except (ValueError, TypeError) as error:
        raise TypeError(
            f"{type(value).__name__} raised {type(error).__name__} while it was encoded"
        ) from error


def _dump_foreign(value: Any) -> Any:
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else dump_model(value)


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_write_foreign)


def _unwritable(value: Any, error: Exception) -> str:
    """Say why a value could not be encoded."""
    if isinstance(error, RecursionError):
        return _ENDLESS
    if place := _place(value, _has_surrogate):
        return _SURROGATE + place
    # Python refuses to convert integers of thousands of digits to text.
    return _DIGITS if "digits" in str(error) else str(error)


def _unstorable(value: Any, raw: bytes, shape: _Shape) -> str | None:
    """Say what jsonb would refuse or change in this text. Cheap if there is nothing."""
    if b"\\u" in raw and (problem := _bad_escape(raw)):
        return problem + _place(value, _has_nul if problem is _NUL else _has_surrogate)
    if shape.has_foreign and (problem := _foreign_problem(raw)):
        return problem
    if shape.has_null and b"null" in raw and (place := _place_of_nan(value, raw)):
        return _NAN + place
    if len(raw) > 2 * MAX_DEPTH and raw.count(b"[") + raw.count(b"{") > MAX_DEPTH and _is_deep(raw):
        return _DEEP
    if len(raw) > MAX_DIGITS and _has_long_number(raw):
        return _DIGITS
    return None


def _change(value: Any, found: Any, raw: bytes, shape: _Shape) -> str | None:
    """Say which part decodes to a different value. Plain JSON takes no Python loop."""
    if shape.is_equal_by_text and _MASK not in raw and _ENCODER.encode(found) == raw:
        return None
    return change(value, found)


def _bad_escape(raw: bytes) -> str | None:
    r"""Say what is wrong with a \uXXXX of this text. Matching escape by escape skips `\\u0000`."""
    half_ends_at = -1
    for escape in _ESCAPE.finditer(raw):
        code = int(escape[1], 16) if escape[1] else -1
        if code == 0:
            return _NUL
        is_second_half = 0xDC00 <= code <= 0xDFFF
        if is_second_half != (half_ends_at == escape.start()):
            return _SURROGATE
        if half_ends_at >= 0 and not is_second_half:
            return _SURROGATE
        half_ends_at = escape.end() if 0xD800 <= code <= 0xDBFF else -1
    return _SURROGATE if half_ends_at >= 0 else None


def _place_of_nan(value: Any, raw: bytes) -> str:
    # If every null of the text is a None of the value, both are equal. The comparison takes no Python loop.
    try:
        if _plain(value) == msgspec.json.decode(raw):
            return ""
    except _UNREADABLE:
        return ""  # another problem, which decoding the text finds
    return _place(value, _is_not_finite)


def _is_deep(raw: bytes) -> bool:
    """Whether brackets are nested too deeply. Each round removes the innermost pairs."""
    brackets = outside_strings(raw).translate(_AS_SQUARE, _NOT_BRACKETS)
    for _ in range(MAX_DEPTH):
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return False
    return True


def _has_long_number(raw: bytes) -> bool:
    if _TOO_MANY_DIGITS not in raw.translate(_AS_ZERO):
        return False
    return _TOO_MANY_DIGITS in outside_strings(raw).translate(_AS_ZERO)


def _foreign_problem(raw: bytes) -> str | None:
    try:
        msgspec.json.decode(raw)
    except ValueError as error:
        return f"a part of it is not valid JSON ({error})"
    except RecursionError:
        return _DEEP
    return None


def _place(value: Any, is_bad: Callable[[Any], bool]) -> str:
    try:
        return _find(_plain(value), is_bad)
    except _UNREADABLE:
        return ""  # it has another problem, too


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=_dump_foreign, str_keys=True)


def _find(plain: Any, is_bad: Callable[[Any], bool]) -> str:
    """Name the place of the first bad part, for the end of a message; empty if there is none."""
    waiting = [("$", plain)]
    while waiting:
        place, part = waiting.pop()
        if is_bad(part):
            return f" - at `{place}`"
        inner: list[tuple[str, Any]] = []
        if isinstance(part, dict):
            if any(map(is_bad, part)):
                return f" - at a key of `{place}`"
            inner = [(inner_place(place, key), value) for key, value in part.items()]
        elif isinstance(part, list | tuple):
            inner = [(f"{place}[{index}]", item) for index, item in enumerate(part)]
        waiting.extend(reversed(inner))
    return ""


def _has_nul(part: Any) -> bool:
    return isinstance(part, str) and "\0" in part


def _has_surrogate(part: Any) -> bool:
    return isinstance(part, str) and any("\ud800" <= character <= "\udfff" for character in part)


def _is_not_finite(part: Any) -> bool:
    return isinstance(part, float) and not math.isfinite(part)


def _misfit(error: Exception) -> str:
    """Say why a value does not fit its type, without quoting the value."""
    if isinstance(error, RecursionError):
        return _ENDLESS
    if error.__cause__ is None and isinstance(error, msgspec.MsgspecError):
        return _QUOTE.sub(r"\1\2", str(error))
    # A validator of the user: its message may quote the value.
    source = error.__cause__ or error
    place = _PLACE.search(str(error)) if error.__cause__ else None
    return f"{type(source).__name__} while it was decoded{place[0] if place else ''}{_model_problems(source)}"


def _model_problems(error: Any) -> str:
    """List the fields that a pydantic model refused."""
    if not hasattr(error, "errors"):
        return ""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return "".join(f", {one['type']} at `{'.'.join(('$', *map(str, one['loc'])))}`" for one in found[:5])
