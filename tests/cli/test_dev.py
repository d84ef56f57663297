"""`gen-durable dev` with real processes: a worker that reloads, and the dashboard."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from gen_durable import Client, Context, Machine, Outcome, Status, step
from gen_durable.cli import dev
from gen_durable.cli.options import load_settings
from gen_durable.cli.reloading import BROKEN
from gen_durable.config import SUPERVISED
from gen_durable.dashboard import serve
from tests.cli.conftest import Gd, output, refused
from tests.support.waiting import PATIENCE

APP = """
import asyncio, os
from gen_durable import Context, Done, Machine, Outcome, Worker, step

class Answer(Machine[int, list]):
    @step
    async def run(self, ctx: Context[int]) -> Outcome[list]:
        print("state", ctx.state, flush=True)
        if ctx.state < 0:
            await asyncio.sleep({seconds})
        return Done(["{word}", os.getpid()])
"""


class Answer(Machine[int, list[Any]]):
    """What clients know of the machine."""

    @step
    async def run(self, ctx: Context[int]) -> Outcome[list[Any]]:
        raise AssertionError


class Dev:
    """A process, and the lines that it and its worker print."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []

    def until(self, pattern: str) -> str:
        """Read up to a line that contains this, and return that line."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if re.search(pattern, line):
                return line
        raise AssertionError(f"{pattern} was not printed: {''.join(self.lines)}")


@contextmanager
def developing(directory: Path, *arguments: str) -> Iterator[Dev]:
    """`gen-durable dev app.py` in a process group of its own, as in a terminal."""
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "gen_durable",
            "dev",
            "app.py",
            "--port=0",
            "--drain-timeout=200ms",
            *arguments,
        ],
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield Dev(process)
        finally:
            process.kill()


def write(directory: Path, word: str = "one", seconds: int = 3600) -> None:
    (directory / "app.py").write_text(APP.format(word=word, seconds=seconds))


def has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def ask(client: Client, state: int) -> tuple[str, int]:
    word, pid = client.wait(client.insert(Answer, state), timeout=PATIENCE).result
    return word, pid


def crash_count(client: Client, target: Any) -> int:
    found = client.get(target)
    assert found is not None
    return found.crash_count


def test_worker_follows_the_files_and_ctrl_c_ends_all_processes(durable_dsn: str, tmp_path: Path) -> None:
    write(tmp_path)
    with Client(durable_dsn) as client, developing(tmp_path, f"--dsn={durable_dsn}") as running:
        assert "schema gen_durable" in running.until("^gen-durable .* dev on ")
        url = running.until("^Open: ").removeprefix("Open: ").strip()
        assert "runs Answer v1, queues default=10" in running.until("^worker ")
        site = "http://" + urlsplit(url).netloc
        with httpx.Client(base_url=site, follow_redirects=True) as http:
            assert http.get(url).status_code == 200
            assert http.get("/api/session").json()["role"] == "admin"
            assert httpx.get(f"{site}/api/session").status_code == 401
            word, first = ask(client, 1)
            assert word == "one"

            # A running step is released when the code changes, and runs again with the new one.
            waiting = client.insert(Answer, -1)
            running.until("^state -1")
            write(tmp_path, "two", 0)
            running.until("^app.py changed: restarting the worker")
            running.until("^worker runs ")
            word, second = client.wait(waiting, timeout=PATIENCE).result
            assert word == "two"
            assert has_ended(first)
            assert crash_count(client, waiting) == 0
            assert http.get("/api/workers").status_code == 200, "the dashboard goes on"

            (tmp_path / "app.py").write_text("x = (\n")
            running.until("^gen-durable: app.py cannot be imported:")
            running.until("^SyntaxError: ")
            running.until("^the worker starts again when a file is saved")
            assert has_ended(second)
            write(tmp_path, "six", 3600)
            running.until("^app.py changed: starting the worker")
            running.until("^worker runs ")

            waiting = client.insert(Answer, -2)
            running.until("^state -2")
            word, third = ask(client, 1)
            assert word == "six"
            os.kill(third, signal.SIGKILL)
            running.until(rf"^the worker \(pid {third}\) was killed by SIGKILL: restarting in ")
            running.until("^worker runs ")
            running.until("^state -2")
            assert crash_count(client, waiting) == 1
            _, fourth = ask(client, 1)

        os.killpg(running.process.pid, signal.SIGINT)
        assert running.process.stdout is not None
        rest = running.process.stdout.read()
        assert running.process.wait() == 0
        assert has_ended(fourth)
        assert "Traceback" not in "".join(running.lines) + rest
        with pytest.raises(httpx.ConnectError):
            httpx.get(url)
        assert client.count(status=Status.EXECUTING) == 0
        assert client.workers() == []


def test_worker_ends_with_a_killed_dev(durable_dsn: str, tmp_path: Path) -> None:
    write(tmp_path)
    with Client(durable_dsn) as client, developing(tmp_path, f"--dsn={durable_dsn}") as running:
        running.until("^worker runs ")
        ask(client, 1)
        running.process.kill()
        assert running.process.stdout is not None
        running.process.stdout.read()  # to its end, so the worker has closed it as well


def in_worker(gd: Gd, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> str:
    """Call the command as in the worker process; returns why the machines cannot be loaded."""
    monkeypatch.setenv(SUPERVISED, "0 w-1")
    code, out, err = output(gd("dev", *arguments))
    assert (code, out) == (BROKEN, "")
    assert err.startswith("gen-durable: ")
    return err


def test_worker_object_has_to_use_the_same_database(
    gd: Gd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "app.py"
    file.write_text(
        APP.format(word="", seconds=0)
        + "from gen_durable import Settings\n"
        + "other = Worker([Answer], settings=Settings(schema='other'))\nsame = Worker([Answer])\n"
    )
    assert "another database or schema" in in_worker(gd, monkeypatch, f"{file}:other")
    assert "Remove --queue, --lease" in in_worker(
        gd, monkeypatch, f"{file}:same", "--queue", "mail=1", "--lease", "1m"
    )
    assert "has no 'none'" in in_worker(gd, monkeypatch, f"{file}:none")


def test_missing_file_and_missing_extra_are_named(
    gd: Gd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "does not exist" in refused(gd("dev", tmp_path / "nothing.py"))
    monkeypatch.delitem(sys.modules, "gen_durable.dashboard.serve", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "gen_durable[dash]" in refused(gd("dev", tmp_path / "app.py"))


def test_other_port_is_used_unless_one_is_given(
    gd: Gd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port}" in refused(gd("dev", tmp_path / "app.py", "--port", port))
        monkeypatch.setattr(serve, "DASHBOARD_PORT", port)
        with dev._listen(None) as opened:
            assert opened.getsockname()[1] != port


def test_target_elsewhere_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for package in (here / "shop", there / "shop"):
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
    monkeypatch.chdir(here)
    for target, expected in {
        "shop/app.py:machines": [here],
        "shop.app": [here],
        f"{there}/shop/app.py": [here, there],
    }.items():
        assert list(dev._directories(target)) == expected


def test_history_is_kept_unless_a_setting_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    def history(**given: Any) -> str:
        return load_settings(None, given, dev._DEFAULTS).history

    monkeypatch.delenv("GEN_DURABLE_HISTORY", raising=False)
    assert (history(), history(history="off")) == ("all", "off")
    monkeypatch.setenv("GEN_DURABLE_HISTORY", "off")
    assert history() == "off"
