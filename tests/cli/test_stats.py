"""`gen-durable stats`, `top` and `machines`."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from gen_durable._db.failures import StatementError
from gen_durable.cli import stats
from gen_durable.cli.stats import _shared
from gen_durable.testing import Harness
from tests.cli.conftest import Gd, output, parsed, refused
from tests.cli.machines import Checkout, Parcel
from tests.cli.program import exit_code, start

COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def busy(shop: Harness) -> Harness:
    shop.insert(Checkout, {})
    shop.insert(Parcel, -1)
    shop.drain()
    return shop


@pytest.mark.usefixtures("busy")
def test_stats(gd: Gd) -> None:
    lines = gd("stats").stdout.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["MACHINE", "V", "SIGNAL", "FAILED"],
        ["Checkout", "1", "1", "-"],
        ["Parcel", "2", "-", "1"],
    ]
    assert "ended in the last 5 minutes: 0.0 done, 0.2 failed, 0.0 cancelled per minute" in lines
    assert any(line.startswith("SLOWEST STEPS (last 2 executions)") for line in lines)
    assert {line.split()[0] for line in lines if ".start" in line or ".pack" in line} == {
        "Checkout.start",
        "Parcel.pack",
    }
    assert lines[-1].split()[:3] == ["Parcel.pack", "1", "-"]
    assert lines[-1].endswith("ValueError: lost\\nin the post")


@pytest.mark.usefixtures("busy")
def test_stats_name_the_last_instance_that_failed(gd: Gd) -> None:
    head, line = gd("stats").stdout.splitlines()[-2:]
    assert head.split() == ["FAILURES", "FAILED", "CONTINUED", "LAST", "INSTANCE", "ERROR"]
    assert line.split()[4:6] == ["ago", "2"]


@pytest.mark.usefixtures("busy")
def test_top_retries_while_the_database_is_unreachable(gd: Gd, monkeypatch: pytest.MonkeyPatch) -> None:
    read = stats._with_queues
    answers = iter([None, StatementError("", "[Errno 2] No such file or directory"), None])

    def fragile() -> Any:
        match next(answers, "end"):
            case "end":
                raise KeyboardInterrupt
            case StatementError() as error:
                raise error
            case _:
                return (yield from read())

    monkeypatch.setattr(stats, "_with_queues", fragile)
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: True)
    for name, value in {"TERM": "xterm", "COLUMNS": "100", "LINES": "60"}.items():
        monkeypatch.setenv(name, value)
    code, shown, _ = output(gd("top", "--interval", "10ms"))
    first, outage, again = COLOURS.sub("", shown).split("Ctrl-C ends")[:3]
    assert code == 0
    assert "database unreachable; retrying: [Errno 2] No such file or directory" in outage
    assert "unreachable" not in first
    assert "MACHINE" in outage
    assert "MACHINE" in again


@pytest.mark.usefixtures("busy")
def test_stats_as_json(gd: Gd) -> None:
    found = parsed(gd("stats", "--json"))
    assert [each["counts"] for each in found["machines"]] == [{"awaiting_signal": 1}, {"failed": 1}]
    assert [each["error"] for each in found["failures"]] == ["ValueError"]
    assert all(isinstance(each["p95"], float) for each in found["steps"])
    assert found["sampled"] == 2


def test_stats_of_an_empty_database(gd: Gd, shop: Harness) -> None:
    code, shown, errors = output(gd("stats"))
    assert (code, errors) == (0, "")
    assert "no failures in the sample" in shown
    assert shown.startswith("no instances\n")


def test_machines(gd: Gd, shop: Harness) -> None:
    head, *lines = gd("machines").stdout.splitlines()
    assert head.split() == ["MACHINE", "V", "QUEUE", "STEPS", "SIGNALS", "STREAMS", "WORKERS"]
    assert lines[0].split() == ["Checkout", "1", "checkout", "start,", "ship", "payment", "-", "none"]
    assert {each["name"] for each in parsed(gd("machines", "--json"))} >= {"Checkout", "Parcel", "Shipment"}


def test_machines_of_an_empty_database(gd: Gd, durable: Harness) -> None:
    assert output(gd("machines")) == (0, "", "no machines: no worker has registered one\n")


def test_top_needs_a_terminal(gd: Gd, shop: Harness) -> None:
    assert "top needs a terminal" in refused(gd("top"))


def _top(durable_dsn: str, monkeypatch: pytest.MonkeyPatch, lines: int) -> str:
    """Run `top` until it has been updated twice; return what it has printed."""
    monkeypatch.setenv("GEN_DURABLE_DSN", durable_dsn)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", str(lines))
    ours, theirs = pty.openpty()
    terminal = Path(os.ttyname(theirs))
    process = start("top", "--interval", "100ms", output=theirs, errors=terminal, input=terminal)
    seen, until = b"", time.monotonic() + 30
    while time.monotonic() < until and seen.count(b"Ctrl-C ends") < 3:
        if select.select([ours], [], [], 0.1)[0]:
            seen += os.read(ours, 4096)
    os.kill(process.pid, signal.SIGINT)
    assert exit_code(process) == 0
    os.close(ours)
    return seen.decode()


@pytest.mark.usefixtures("busy")
def test_top_runs_until_it_is_interrupted(durable_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _top(durable_dsn, monkeypatch, 40)
    shown = COLOURS.sub("", seen)
    for heading in ("QUEUE", "MACHINE", "SLOWEST STEPS", "FAILURES", "Ctrl-C ends"):
        assert heading in shown
    assert max(len(part) for part in re.split(rf"{COLOURS.pattern}|\r?\n", seen)) <= 80


def test_top_uses_the_height_and_counts_the_rest(
    durable_dsn: str, shop: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        shop.insert(Checkout, {}, queue=f"queue-{number:02}")
    high = COLOURS.sub("", _top(durable_dsn, monkeypatch, 60))
    assert "queue-19" in high
    assert " more" not in high
    low = COLOURS.sub("", _top(durable_dsn, monkeypatch, 24))
    assert "queue-07" in low
    assert "queue-19" not in low
    assert re.search(r"… 1[0-9] more", low)


def test_lines_are_shared_among_tables() -> None:
    assert _shared(20, [1, 2, 3, 4]) == [1, 2, 3, 4]
    assert _shared(20, [30, 2, 3, 30]) == [7, 2, 3, 8]
    assert _shared(20, [0, 0, 0, 30]) == [0, 0, 0, 20]
    assert _shared(1, [5, 5, 1, 0]) == [2, 2, 1, 0]
