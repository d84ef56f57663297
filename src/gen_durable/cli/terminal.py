"""Rich output of the command line. Texts are data of users, so none of them is markup."""

from __future__ import annotations

from rich.console import Console
from rich.progress import TextColumn

__all__ = ["open_console", "text_column"]


def open_console(*, stderr: bool = False, width: int | None = None) -> Console:
    """Return a console that prints each text as it is: `[red]` and `:tada:` have no meaning in tables and lines."""
    return Console(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)


def text_column(template: str) -> TextColumn:
    """Return a column of a progress bar that prints its values as they are. `TextColumn` ignores its console."""
    return TextColumn(template, markup=False)
