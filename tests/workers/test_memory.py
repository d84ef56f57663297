"""The memory of a worker's process does not grow with what it has freed."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from gen_durable import Worker
from gen_durable.config import malloc_is_tuned
from tests.control.support import Plain

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="there is no mallinfo2 in this C library"
)


def heap(mode: str, **environment: str) -> int:
    """MB of heap that a process keeps after it has freed 75 MB of large buffers."""
    command = [sys.executable, "-m", "tests.workers.memory_probe", mode]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, check=True)
    return int(done.stdout)


def test_freed_large_buffers_go_back_to_the_system() -> None:
    assert heap("fixed") < 20 < 40 < heap("default")


def test_settings_of_the_user_win() -> None:
    assert heap("fixed", MALLOC_MMAP_THRESHOLD_="33554432") > 40


@pytest.mark.parametrize(
    ("variable", "value", "is_tuned"),
    [
        ("MALLOC_MMAP_THRESHOLD_", "65536", True),
        ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=65536", True),
        ("GLIBC_TUNABLES", "glibc.pthread.rseq=0", False),
        ("MALLOC_ARENA_MAX", "2", False),
    ],
)
def test_which_settings_count(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, *, is_tuned: bool
) -> None:
    assert not malloc_is_tuned()
    monkeypatch.setenv(variable, value)
    assert malloc_is_tuned() is is_tuned


def test_run_sets_it_and_a_block_in_an_application_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr("gen_durable.worker.return_large_buffers", lambda: called.append("run"))
    monkeypatch.setattr("gen_durable.worker._run", lambda work: work.close())
    worker = Worker([Plain], dsn="postgresql://nowhere/none")
    assert called == []
    worker.run()
    assert called == ["run"]
