"""Output of the demo: progress bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Protocol, Self

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from .checks import Check

__all__ = ["Counts", "PlainScreen", "Screen", "TerminalScreen", "open_screen"]

_PLAIN_EVERY: Final = 1.0  # seconds between two lines of progress


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of the demo."""

    checkouts: int
    parcels: int
    paid: int = 0
    shipped: int = 0
    done: int = 0
    executing: int = 0


class Screen(Protocol):
    """Output of the demo."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...
    def say(self, line: str, style: str = "") -> None:
        """Print a line, on a terminal in this style."""

    def show(self, counts: Counts) -> None:
        """Show the progress."""

    def sum_up(self, checks: Sequence[Check]) -> None:
        """Print the summary."""


class PlainScreen:
    """Plain lines; progress at most once per second."""

    def __init__(self) -> None:
        self._shown_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, line: str, style: str = "") -> None:
        print(line, flush=True)

    def show(self, counts: Counts) -> None:
        now = time.monotonic()
        if now - self._shown_at >= _PLAIN_EVERY or counts.done == counts.checkouts:
            self._shown_at = now
            self.say(
                f"  paid {counts.paid}/{counts.checkouts}, shipped {counts.shipped}/{counts.parcels}, "
                f"done {counts.done}/{counts.checkouts}, executing {counts.executing}"
            )

    def sum_up(self, checks: Sequence[Check]) -> None:
        for check in checks:
            self.say(f"{'ok  ' if check.holds else 'FAIL'}  {check.claim}")
            for fault in check.faults:
                self.say(f"      {fault}")


class TerminalScreen:
    """Three progress bars below the printed lines."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description:>8}", markup=False),
            BarColumn(bar_width=46),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", style="dim", markup=False),
            console=console,
        )
        self._paid = self._bars.add_task("paid", total=None, note="")
        self._shipped = self._bars.add_task("shipped", total=None, note="")
        self._done = self._bars.add_task("done", total=None, note="")
        self._live = Live(Group(Text(), self._bars), console=console, refresh_per_second=15)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, line: str, style: str = "") -> None:
        self._console.print(Text(line, style), soft_wrap=True)  # terminals find a URL within one line

    def show(self, counts: Counts) -> None:
        note = f"{counts.executing} executing" if counts.executing else ""
        self._bars.update(self._paid, total=counts.checkouts, completed=counts.paid)
        self._bars.update(self._shipped, total=counts.parcels, completed=counts.shipped, note=note)
        self._bars.update(self._done, total=counts.checkouts, completed=counts.done)

    def sum_up(self, checks: Sequence[Check]) -> None:
        self._live.stop()
        self._console.print()
        for check in checks:
            mark = (" ✓ ", "bold green") if check.holds else (" ✗ ", "bold red")
            self._console.print(Text.assemble(mark, check.claim))
            for fault in check.faults:
                self._console.print(Text(f"   {fault}", "red"))


def open_screen() -> Screen:
    """Return the screen for the current output."""
    console = Console(markup=False, emoji=False, highlight=False)
    return TerminalScreen(console) if console.is_terminal and sys.stdout.isatty() else PlainScreen()
