"""JSON on its way in and out, as text: a number of thirty digits stays what it is."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TypeVar

import click
import msgspec

from .._core.codec import encode
from ..errors import EncodeError
from .failure import Failure

__all__ = ["json_option", "print_json", "print_json_rows", "raw", "read_json", "readable"]

AnyText = TypeVar("AnyText", str, bytes)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for a program to read.")


def read_json(text: str, what: str, limit: int) -> str:
    """What was typed, or (`-`) what comes in by standard input, if it is JSON that can be stored."""
    given = sys.stdin.buffer.read() if text == "-" else text.encode(errors="surrogateescape")
    try:
        return encode(msgspec.Raw(given), Any, what, limit)
    except EncodeError as error:
        raise Failure(f"{what} cannot be used: {error.problem}") from error


def raw(text: str | None) -> msgspec.Raw | None:
    """JSON of the database as a part of more JSON, as it stands."""
    return None if text is None else msgspec.Raw(text.encode())


def readable(text: str) -> str:
    """JSON for people, indented if it is long."""
    short = _formatted(text, 0)
    return short if len(short) <= 100 else _formatted(text, 2)


def print_json(value: object) -> None:
    """One document; indented on a terminal."""
    document = msgspec.json.encode(value)
    click.echo(_formatted(document, 2) if sys.stdout.isatty() else document)


def print_json_rows(values: Iterable[object]) -> None:
    """One array, an element per line."""
    lines = b",\n ".join(msgspec.json.encode(value) for value in values)
    click.echo(b"[" + lines + b"]")


def _formatted(document: AnyText, indent: int) -> AnyText:
    try:
        return msgspec.json.format(document, indent=indent)
    except RecursionError:
        return document  # a producer in SQL has nested it too deeply
