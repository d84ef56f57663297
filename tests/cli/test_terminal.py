"""Output on a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gen_durable import Spec
from gen_durable.testing import Harness
from tests.cli.machines import Checkout
from tests.cli.program import exit_code, start

COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


Terminal = Callable[..., tuple[int, str]]


@pytest.fixture
def on_a_terminal(durable_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Run `gen-durable …` on a terminal of 100 columns; return exit code and output."""
    monkeypatch.setenv("GEN_DURABLE_DSN", durable_dsn)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")

    def call(*arguments: str, answer: str = "") -> tuple[int, str]:
        ours, theirs = pty.openpty()
        terminal = Path(os.ttyname(theirs))
        process = start(*arguments, output=theirs, errors=terminal, input=terminal)
        os.write(ours, answer.encode())
        seen, until = b"", time.monotonic() + 30
        while time.monotonic() < until:
            if not select.select([ours], [], [], 0.1)[0]:
                continue
            try:
                seen += os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
        os.close(ours)
        return exit_code(process), seen.decode()

    return call


def test_terminal_table_fits_the_screen(shop: Harness, on_a_terminal: Terminal) -> None:
    shop.insert(Checkout, {}, correlation_key="[red]" + "x" * 200)
    shop.drain()
    code, seen = on_a_terminal("ls")
    assert code == 0
    assert "\x1b[35mawaiting_signal\x1b[0m" in seen
    lines = COLOURS.sub("", seen).splitlines()
    assert lines[0].split()[:5] == ["ID", "MACHINE", "V", "STEP", "STATUS"]
    assert "[red]xxx" in lines[1]
    assert "…" in lines[1]
    assert max(map(len, lines)) <= 100


def test_wait_shows_progress_on_a_terminal(shop: Harness, on_a_terminal: Terminal) -> None:
    shop.insert(Checkout, {})
    shop.drain()
    code, seen = on_a_terminal("wait", "1", "--timeout", "700ms")
    assert code == 3
    plain = COLOURS.sub("", seen)
    assert (
        "Checkout 1 has status awaiting_signal at step 'ship': waiting for signal payment"
        in plain.split("still")[0]
    )
    assert plain.rstrip().endswith(
        "Checkout 1 still has status awaiting_signal at step 'ship': waiting for signal payment"
    )


def test_confirmation_on_a_terminal(shop: Harness, on_a_terminal: Terminal) -> None:
    shop.insert(Checkout, {})
    shop.insert(Checkout, {})
    code, seen = on_a_terminal("cancel", "1", "2", answer="y\n")
    assert code == 0
    assert "Cancel 2 instances (2 Checkout runnable)? [y/N]:" in seen
    assert "1: cancelled" in seen


def test_json_is_indented_on_a_terminal(shop: Harness, on_a_terminal: Terminal) -> None:
    shop.insert(Checkout, {"a": 1})
    code, seen = on_a_terminal("show", "1", "--json")
    assert code == 0
    assert '\r\n  "machine": "Checkout",\r\n' in seen


def test_progress_bar_for_many_instances(shop: Harness, on_a_terminal: Terminal) -> None:
    shop.insert_all([Spec(Checkout, {}) for _ in range(1200)])
    code, seen = on_a_terminal("cancel", "--where", "machine=Checkout", "--yes")
    assert code == 0
    assert "1200/1200" in COLOURS.sub("", seen)
    assert "1200 cancelled" in seen


def test_wait_shows_a_bar_of_the_progress(shop: Harness, sql: Any, on_a_terminal: Terminal) -> None:
    shop.insert(Checkout, {})
    sql.execute(
        """update gen_durable.gen_durable set progress = '{"done": 3, "total": 4, "message": "page 3"}'"""
    )
    code, seen = on_a_terminal("wait", "1", "--progress", "--timeout", "1s")
    assert code == 3
    plain = COLOURS.sub("", seen)
    assert re.search(r"start ━.* 3/4 .*page 3", plain), plain


def test_watch_shows_a_table_of_the_latest_states(shop: Harness, sql: Any, on_a_terminal: Terminal) -> None:
    shop.insert(Checkout, {})
    shop.insert(Checkout, {})
    ending = threading.Timer(2, lambda: (shop.drain(), shop.cancel(1), shop.cancel(2)))
    ending.start()
    code, seen = on_a_terminal("watch", "1", "2")
    ending.join()
    assert code == 0
    plain = COLOURS.sub("", seen)
    assert plain.split()[:6] == ["ID", "MACHINE", "STEP", "STATUS", "ATTEMPT", "NOTE"]
    assert "1  step 'start' execution 1: await" in plain
    assert [line.split()[3] for line in plain.splitlines()[-2:]] == ["cancelled", "cancelled"]
