from __future__ import annotations

import io

import pytest
from rich.console import Console

from gen_durable.demo.checks import Check
from gen_durable.demo.screen import Counts, PlainScreen, TerminalScreen

COUNTS = Counts(checkouts=300, parcels=900, paid=120, shipped=88, done=21, executing=12)
SUMMARY = [Check("nothing lost", ()), Check("nothing twice", ("checkout 7 [twice]",))]


def test_without_a_terminal_lines_are_plain(capsys: pytest.CaptureFixture[str]) -> None:
    with PlainScreen() as screen:
        screen.say("worker 1 got a SIGKILL")
        screen.show(COUNTS)
        screen.show(COUNTS)
        screen.sum_up(SUMMARY)
    assert capsys.readouterr().out.splitlines() == [
        "worker 1 got a SIGKILL",
        "  paid 120/300, shipped 88/900, done 21/300, executing 12",
        "ok    nothing lost",
        "FAIL  nothing twice",
        "      checkout 7 [twice]",
    ]


def test_terminal_screen_shows_bars() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None)
    with TerminalScreen(console) as screen:
        screen.say("worker 1 got a SIGKILL [pid 7]")
        screen.show(COUNTS)
        screen.sum_up(SUMMARY)
    shown = console.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO
    assert "worker 1 got a SIGKILL [pid 7]" in shown
    assert "88/900" in shown
    assert "✓ nothing lost" in shown
    assert "✗ nothing twice" in shown
    assert "checkout 7 [twice]" in shown
