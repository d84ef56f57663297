"""How the command line says no: a few lines on stderr, exit code 2, no traceback."""

from __future__ import annotations

from typing import IO, Any, Final

import click

__all__ = ["TIMED_OUT", "Failure", "no_instance"]

TIMED_OUT: Final = 3
"""The exit code of a command that waits, when its --timeout is over."""


class Failure(click.ClickException):
    """Something for the person at the terminal to mend."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"gen-durable: {self.format_message()}", file=file, err=file is None)


def no_instance(target: int | str, by_key: str = "gen-durable ls --correlation-key {}") -> Failure:
    """There is no such instance. Digits are an id; `by_key` is how one says that they are a key."""
    if isinstance(target, int):
        return Failure(
            f"there is no instance {target}; if that is a correlation key: {by_key.format(target)}"
        )
    return Failure(f"there is no instance with correlation key {target!r}")
