"""docs/get-started/quickstart.md does what it says, with a worker that is really killed."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from click.testing import CliRunner

from gen_durable import Client, Status
from gen_durable.cli.root import root
from tests.docs.pages import ROOT, Page

PAGE = Page(ROOT / "docs" / "get-started" / "quickstart.md")
COMMANDS = [
    line
    for block in PAGE.blocks
    if block.language == "sh"
    for line in block.text.splitlines()
    if line.startswith("gen-durable")
]
TOLD = [line for block in PAGE.blocks if block.language == "text" for line in block.text.splitlines()]


@contextmanager
def process(command: str, directory: Path, dsn: str) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own. What takes three seconds on the page takes one here."""
    arguments = shlex.split(command.removesuffix(" &").replace("3s", "1s"))[1:]
    started = subprocess.Popen(
        [sys.executable, "-m", "gen_durable", *arguments],
        cwd=directory,
        env={**os.environ, "GEN_DURABLE_DSN": dsn, "GEN_DURABLE_POLL_INTERVAL": "100ms"},
        stdout=subprocess.PIPE,
        text=True,
    )
    with started:
        try:
            yield started
        finally:
            started.kill()


def run(command: str, dsn: str) -> None:
    answer = CliRunner().invoke(root, [*shlex.split(command)[1:], "--dsn", dsn])
    assert answer.exit_code == 0, answer.output


def lines(started: subprocess.Popen[str], count: int) -> list[str]:
    assert started.stdout is not None
    return [started.stdout.readline().rstrip("\n") for _ in range(count)]


def test_killed_quickstart_worker_continues(tmp_path: Path, durable_dsn: str) -> None:
    (tmp_path / "trips.py").write_text(PAGE.files()["trips.py"], encoding="utf-8")
    work, insert, wait = COMMANDS
    assert insert == """gen-durable insert Trip '{"city": "Vienna"}'"""
    with Client(durable_dsn) as client:
        with process(work, tmp_path, durable_dsn) as first:
            assert " runs Trip v1 on " in lines(first, 1)[0]
            run(insert, durable_dsn)
            assert lines(first, 2) == TOLD[:2]
            first.send_signal(signal.SIGKILL)
        with process(work, tmp_path, durable_dsn) as second:
            assert lines(second, 2)[1] == TOLD[2]
            run(wait, durable_dsn)
        (trip,) = client.list()
        assert (trip.status, trip.result) == (Status.DONE, "OS 51 and a bed in Vienna")
        assert [each.step for each in client.executions(trip)] == ["book_flight", "book_hotel", "book_hotel"]
