"""Errors of the command line: a short message on stderr and exit code 2, without a traceback."""

from __future__ import annotations

from typing import IO, Any, Final

import click

__all__ = ["TIMED_OUT", "Failure", "no_instance"]

TIMED_OUT: Final = 3
"""Exit code of a command that waits, when its --timeout is over."""


class Failure(click.ClickException):
    """An error that the user can fix."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"gen-durable: {self.format_message()}", file=file, err=file is None)


def no_instance(target: int | str, by_key: str = "gen-durable ls --correlation-key {}") -> Failure:
    """Return the error for an instance that does not exist.

    Digits are an id. `by_key` is the command that finds an instance whose correlation key consists of digits.
    """
    if isinstance(target, int):
        return Failure(f"no instance has id {target}. If it is a correlation key: {by_key.format(target)}")
    return Failure(f"no instance has correlation key {target!r}")
