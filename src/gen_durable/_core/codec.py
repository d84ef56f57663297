"""States, results and payloads as JSON text, and back.

What `encode` returns can be stored in a jsonb column and decoded as the same type. So it refuses what
PostgreSQL would (NUL, half of a surrogate pair), what JSON would silently change (NaN), what does not fit the
declared type, and what comes back as something else (a subclass, a field that is not written). For that it
encodes once, reads the text back, compares, and scans for a few byte sequences; only where one is found, or both
are not equal, it looks closer.

msgspec does the work. A pydantic model brings its own way to and from JSON, at the top or inside other types.
"""

from __future__ import annotations

import functools
import math
import re
import typing
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, Final

import msgspec
import msgspec.inspect as shapes

from gen_durable._shapes import model_reader, parts
from gen_durable.errors import DecodeError, EncodeError, PayloadTooLargeError

from .mappings import unknown_key
from .measure import excess, outside_strings
from .roundtrip import change, dump_model, inner_place, is_equal

__all__ = ["MAX_DEPTH", "MAX_DIGITS", "convert", "decode", "encode"]

MAX_DEPTH: Final = 100
# numeric holds more, but then a few bytes of JSON ("1e100000") become a hundred kilobytes.
MAX_DIGITS: Final = 400

_NUL: Final = "it holds a NUL character, which PostgreSQL cannot store; take it out"
_SURROGATE: Final = "it holds half of a surrogate pair, which is no Unicode text; take it out"
_NAN: Final = "it holds NaN or an infinite number, which JSON does not have; use None, or a text"
_DEEP: Final = f"it is nested deeper than {MAX_DEPTH} levels; make it flatter"
_TOO_DEEP: Final = "it is nested too deeply to be read; whoever stored it should make it flatter"
_ENDLESS: Final = "it is nested without end, or contains itself; store plain values"
_DIGITS: Final = f"it holds a number of more than {MAX_DIGITS} digits; store it as a text"

_ESCAPE: Final = re.compile(rb"\\(?:u([0-9a-fA-F]{4})|.)")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_AS_SQUARE: Final = bytes.maketrans(b"{}", b"[]")
_AS_ZERO: Final = bytes.maketrans(b"123456789", b"000000000")
_TOO_MANY_DIGITS: Final = b"0" * (MAX_DIGITS + 1)
_NOT_TOLD: Final = {shapes.StructType, shapes.DataclassType, shapes.CustomType, shapes.DateTimeType}
# What pydantic writes for a secret.
_MASK: Final = b"*" * 10
# After these words msgspec quotes what it met, and that may be private.
_QUOTE: Final = re.compile(r"^(Invalid (?:enum )?value) .*?( - at `[^`]*`(?: in `[^`]*`)?)?$", re.DOTALL)
_PLACE: Final = re.compile(r" - at `[^`]*`(?: in `[^`]*`)?$")
_UNREADABLE: Final = (TypeError, ValueError, AttributeError, OverflowError, RecursionError)


def encode(value: Any, type_: Any, what: str, limit: int) -> str:
    """Write a value of the declared type as JSON text of at most `limit` bytes in the database."""
    shape = _shape(type_, what, EncodeError)
    if shape.cls is not None and not isinstance(value, shape.cls):
        raise EncodeError(what, shape.name, f"it is of type {type(value).__name__}")
    try:
        raw = _ENCODER.encode(value)
    except _UNREADABLE as error:
        raise EncodeError(what, shape.name, _unwritable(value, error)) from error
    if size := excess(raw, limit):
        raise PayloadTooLargeError(what, shape.name, size, limit)
    if problem := _unstorable(value, raw, shape):
        raise EncodeError(what, shape.name, problem)
    try:
        found = shape.decode(raw)
    except (ValueError, TypeError, RecursionError) as error:
        place = _place(value, _is_not_finite) if b"null" in raw else ""
        raise EncodeError(what, shape.name, _NAN + place if place else _misfit(error)) from error
    if not is_equal(found, value) and (problem := _change(value, found, raw, shape)):
        raise EncodeError(what, shape.name, problem)
    return raw.decode()


def convert(value: Any, type_: Any, what: str) -> Any:
    """Turn a mapping into a value of the declared type; any other value is returned as it is.

    Strict: values keep their types (`"42"` is not an int), and a key that the type does not have is refused.
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
        raise EncodeError(what, shape.name, _misfit(error)) from error
    if problem:
        raise EncodeError(what, shape.name, problem)
    return found


def decode(text: str | bytes, type_: Any, what: str) -> Any:
    """Read JSON text as a value of the declared type."""
    shape = _shape(type_, what, DecodeError)
    try:
        return shape.decode(text)
    except RecursionError as error:
        raise DecodeError(what, shape.name, _TOO_DEEP) from error
    except (ValueError, TypeError) as error:
        raise DecodeError(what, shape.name, _misfit(error)) from error


class _Shape(msgspec.Struct, frozen=True):
    """What is known about a declared type."""

    name: str
    cls: Any
    """What `isinstance` can ask for; `None` if there is no such class."""
    decode: Callable[[str | bytes], Any]
    has_null: bool
    """Whether null is allowed somewhere. msgspec writes NaN as null, so there it would pass unnoticed."""
    has_foreign: bool
    """Whether parts of the text are not written by msgspec, so that nothing is known about them."""
    has_objects: bool
    """Whether a mapping can become an object: classes are declared in it."""
    is_told_by_text: bool
    """Whether values of which the texts are equal are the same: not so for objects, and for the offset of a zone."""


def _shape(type_: Any, what: str, error: type[EncodeError] | type[DecodeError]) -> _Shape:
    try:
        return _cached_shape(type_)
    except (TypeError, NameError):
        pass
    # It may only be that Annotated[…] with a list in it is no key for a cache.
    try:
        return _make_shape(type_)
    except (TypeError, NameError) as problem:
        raise error(what, _name(type_), f"that type cannot be used with JSON ({problem})") from problem


def _make_shape(type_: Any) -> _Shape:
    kinds = {type(part) for part in parts(type_)}
    foreign = {shapes.CustomType, shapes.RawType}
    return _Shape(
        name=_name(type_),
        cls=_instance_class(type_),
        decode=model_reader(type_) or msgspec.json.Decoder(type_, dec_hook=_read_foreign).decode,
        has_null=not kinds.isdisjoint({shapes.AnyType, shapes.NoneType, *foreign}),
        has_foreign=not kinds.isdisjoint(foreign),
        has_objects=not kinds.isdisjoint({shapes.StructType, shapes.DataclassType, shapes.CustomType}),
        is_told_by_text=kinds.isdisjoint(_NOT_TOLD),
    )


_cached_shape = functools.lru_cache(maxsize=1024)(_make_shape)


def _instance_class(type_: Any) -> Any:
    while typing.get_origin(type_) is typing.Annotated:
        type_ = type_.__origin__
    cls = typing.get_origin(type_) or type_
    if cls is None:
        return type(None)
    if cls is float:
        return int | float  # as everywhere in Python's typing
    if not isinstance(cls, type) or cls in (Any, UnionType):
        return None
    return None if typing.is_typeddict(cls) or getattr(cls, "_is_protocol", False) else cls


def _name(type_: Any) -> str:
    return type_.__name__ if isinstance(type_, type) and not typing.get_args(type_) else str(type_)


def _read_foreign(type_: Any, value: Any) -> Any:
    if type_ is object:
        return value  # as Any: whatever JSON has
    read = model_reader(type_)
    if read is None:
        raise TypeError(f"a value of type {_name(type_)} cannot be read from JSON")
    return read(msgspec.json.encode(value))


def _convert_foreign(type_: Any, value: Any) -> Any:
    if type_ is object or isinstance(value, type_):
        return value
    if model_reader(type_) is None:
        raise TypeError(f"a value of type {_name(type_)} cannot be read from JSON")
    # As JSON, in which strict pydantic takes the text of a date for a date.
    text = _ENCODER.encode(dict(value) if isinstance(value, Mapping) else value)
    return type_.model_validate_json(text, strict=True)


def _write_foreign(value: Any) -> msgspec.Raw:
    if not hasattr(value, "model_dump_json"):
        # msgspec asks about these only where they are keys.
        role = "key" if value is None or isinstance(value, tuple | frozenset | bool) else "value"
        raise TypeError(f"a {role} of type {type(value).__name__} has no form in JSON")
    try:
        # By alias and without computed fields: the form that the model itself accepts. It need not warn of wrong
        # types, quoting the values: they are found when the text is read back.
        return msgspec.Raw(value.model_dump_json(by_alias=True, round_trip=True, warnings=False).encode())
    except (ValueError, TypeError) as error:
        raise TypeError(f"{type(value).__name__} met {type(error).__name__} when it was written") from error


def _dump_foreign(value: Any) -> Any:
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else dump_model(value)


_ENCODER: Final = msgspec.json.Encoder(enc_hook=_write_foreign)


def _unwritable(value: Any, error: Exception) -> str:
    """Say why a value could not be written at all."""
    if isinstance(error, RecursionError):
        return _ENDLESS
    if place := _place(value, _has_surrogate):
        return _SURROGATE + place
    # Python refuses to write out integers of thousands of digits, and says so in its own words.
    return _DIGITS if "digits" in str(error) else str(error)


def _unstorable(value: Any, raw: bytes, shape: _Shape) -> str | None:
    """Say what jsonb would refuse or change in this text. Cheap if there is nothing of the kind."""
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
    """Say what would come back as something else, where both are not equal. Plain JSON takes no Python loop."""
    if shape.is_told_by_text and _MASK not in raw and _ENCODER.encode(found) == raw:
        return None
    return change(value, found)


def _bad_escape(raw: bytes) -> str | None:
    r"""Say what is wrong with a \uXXXX of this text. Going from escape to escape passes by `\\u0000`."""
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
    # Where every null of the text is a None of the value, both are equal; comparing them takes no Python loop.
    try:
        if _plain(value) == msgspec.json.decode(raw):
            return ""
    except _UNREADABLE:
        return ""  # something else is wrong with it, which is found when the text is read back
    return _place(value, _is_not_finite)


def _is_deep(raw: bytes) -> bool:
    """Tell whether brackets are nested too deeply: each round takes the innermost pairs away."""
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
        return f"a part of it is not JSON that can be stored ({error})"
    except RecursionError:
        return _DEEP
    return None


def _place(value: Any, is_bad: Callable[[Any], bool]) -> str:
    try:
        return _find(_plain(value), is_bad)
    except _UNREADABLE:
        return ""  # more than one thing is wrong with it


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=_dump_foreign, str_keys=True)


def _find(plain: Any, is_bad: Callable[[Any], bool]) -> str:
    """Say where the first bad part is, for the end of a message; nothing if there is none."""
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
    """Say why something does not fit, without saying what it is."""
    if isinstance(error, RecursionError):
        return _ENDLESS
    if error.__cause__ is None and isinstance(error, msgspec.MsgspecError):
        return _QUOTE.sub(r"\1\2", str(error))
    # A validator of the user's own: its words may quote the value.
    source = error.__cause__ or error
    place = _PLACE.search(str(error)) if error.__cause__ else None
    return f"{type(source).__name__} while it was read{place[0] if place else ''}{_model_problems(source)}"


def _model_problems(error: Any) -> str:
    """List the fields that a pydantic model did not accept."""
    if not hasattr(error, "errors"):
        return ""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return "".join(f", {one['type']} at `{'.'.join(('$', *map(str, one['loc'])))}`" for one in found[:5])
