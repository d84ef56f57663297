"""Real processes: clients to be killed, and the keeper and the server of a home."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeAlias

import psycopg

# Prints its DSN once it is attached, then lives until its standard input ends.
CLIENT = """
import sys
from datetime import timedelta
from pathlib import Path
from gen_durable.embedded import EmbeddedPostgres
server = EmbeddedPostgres(Path(sys.argv[1]), idle_stop=timedelta(seconds=float(sys.argv[2])))
print(server.ensure(), flush=True)
"""
STAY = "sys.stdin.read()\n"
KEEP = "drop table if exists kept; create table kept as select 42 as answer"
Spawn: TypeAlias = Callable[..., subprocess.Popen[str]]


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
    for directory in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (directory / "cmdline").read_bytes().split(b"\0")
            found.append(Process(int(directory.name), os.fsdecode(b" ".join(words))))
    return found


def keepers(home: Path) -> list[int]:
    return [each.pid for each in listed() if "keeper.py" in each.arguments and f'"{home}"' in each.arguments]


def postmasters(home: Path) -> list[int]:
    return [each.pid for each in listed() if f"/postgres -D {home}/data " in each.arguments]


def initdbs(home: Path) -> list[int]:
    return [each.pid for each in listed() if f"/initdb -D {home}/data.new-" in each.arguments]


def is_running(home: Path) -> bool:
    return bool(keepers(home) or postmasters(home))


def kill(*pids: int, number: signal.Signals = signal.SIGKILL) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def end_everything(home: Path) -> None:
    """End whatever a test left running, politely first so that PostgreSQL gives back its shared memory."""
    # Those of the former keeper first: the next loop may meet a server whose keeper was killed.
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
        time.sleep(0.02)
    return True


def client(home: Path, *, idle_stop: float = 0.2, code: str = CLIENT + STAY) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(home), str(idle_stop)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def first_line(process: subprocess.Popen[str]) -> str:
    """What it prints first: a client is attached then. An early end of it is shown with its reason."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        _, errors = process.communicate(timeout=10)
        raise AssertionError(errors)
    return line


def query(dsn: str, text: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(text.encode())
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None
