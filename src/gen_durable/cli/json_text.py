"""JSON input and output. Values stay text, so that numbers of any length are kept as they are."""

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

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def read_json(text: str, what: str, limit: int) -> str:
    """Return the JSON text of an argument, or of standard input for `-`.

    Raises:
        Failure: It is not JSON, or the database cannot store it.
    """
    given = sys.stdin.buffer.read() if text == "-" else text.encode(errors="surrogateescape")
    try:
        return encode(msgspec.Raw(given), Any, what, limit)
    except EncodeError as error:
        raise Failure(f"{what} is invalid: {error.problem}") from error


def raw(text: str | None) -> msgspec.Raw | None:
    """Embed JSON text of the database in a larger JSON document."""
    return None if text is None else msgspec.Raw(text.encode())


def readable(text: str) -> str:
    """Format JSON for people; indent it if it is long."""
    short = _formatted(text, 0)
    return short if len(short) <= 100 else _formatted(text, 2)


def print_json(value: object) -> None:
    """Print one document; indented on a terminal."""
    document = msgspec.json.encode(value)
    click.echo(_formatted(document, 2) if sys.stdout.isatty() else document)


def print_json_rows(values: Iterable[object]) -> None:
    """Print an array, one element per line."""
    lines = b",\n ".join(msgspec.json.encode(value) for value in values)
    click.echo(b"[" + lines + b"]")


def _formatted(document: AnyText, indent: int) -> AnyText:
    try:
        return msgspec.json.format(document, indent=indent)
    except RecursionError:
        return document  # nested too deeply, inserted with SQL
