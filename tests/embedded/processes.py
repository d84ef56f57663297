"""Client processes, and the keeper and server processes of a home."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

import psycopg

from tests.support.forkserver import launch

KEEP = "drop table if exists kept; create table kept as select 42 as answer"


class Process(NamedTuple):
    pid: int
    arguments: str


def listed() -> list[Process]:
    if not Path("/proc/self/cmdline").exists():
        shown = subprocess.run(
            ["ps", "-ww", "-axo", "pid=,args="], capture_output=True, text=True, check=True
        )
        return [
            Process(int(pid), args)
            for pid, _, args in (line.strip().partition(" ") for line in shown.stdout.splitlines())
        ]
    found = []
    # Hundreds of processes, read often: plain strings instead of Path.
    for pid in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb", buffering=0) as file:  # noqa: PTH123
            found.append(Process(int(pid), os.fsdecode(file.read().replace(b"\0", b" "))))
    return found


def keepers(home: Path) -> list[int]:
    return [each.pid for each in listed() if _is_keeper(each, home)]


def postmasters(home: Path) -> list[int]:
    """List the servers of a home. A child that was just forked still has the arguments of its server."""
    found = {each.pid for each in listed() if _is_postmaster(each, home)}
    return [pid for pid in found if _parent(pid) not in found]


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[1])
    except OSError:
        return None


def initdbs(home: Path) -> list[int]:
    return [each.pid for each in listed() if f"/initdb -D {home}/data.new-" in each.arguments]


def is_running(home: Path) -> bool:
    return any(_is_keeper(each, home) or _is_postmaster(each, home) for each in listed())


def _is_keeper(process: Process, home: Path) -> bool:
    return "keeper.py" in process.arguments and f'"{home}"' in process.arguments


def _is_postmaster(process: Process, home: Path) -> bool:
    return f"/postgres -D {home}/data " in process.arguments


def kill(*pids: int, number: signal.Signals = signal.SIGKILL) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def end_everything(home: Path) -> None:
    """End all processes of a home, gracefully first, so that PostgreSQL releases its shared memory."""
    # The keeper first: the next iteration may find a server whose keeper was killed.
    for number in (signal.SIGTERM, signal.SIGKILL):
        kill(*keepers(home), *initdbs(home), number=number)
        if holds_within(10, lambda: not is_running(home)):
            return
        kill(*postmasters(home), number=signal.SIGQUIT)
    assert holds_within(10, lambda: not is_running(home))


def holds_within(seconds: float, predicate: Callable[[], bool]) -> bool:
    give_up = time.monotonic() + seconds
    while not predicate():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.04)
    return True


class Client:
    """A process that uses the server of a home."""

    def __init__(self, home: Path, idle_stop: float, manner: str) -> None:
        reader, output = os.pipe()
        self._child = launch("tests.embedded.client", str(home), str(idle_stop), manner, output=output)
        os.close(output)
        self._lines = os.fdopen(reader, encoding="utf-8")

    @property
    def pid(self) -> int:
        return self._child.pid

    def says(self) -> str:
        """Its next line; the first is its DSN, printed when it is attached. Raises its traceback if it failed."""
        line = self._lines.readline().strip()
        if not line or line.startswith("Traceback"):
            raise AssertionError(self._lines.read())
        return line

    def kill(self) -> None:
        self._child.kill()

    def close(self) -> None:
        self.kill()
        self._lines.close()


Spawn: TypeAlias = Callable[..., Client]


def query(dsn: str, text: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(text.encode())
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None
