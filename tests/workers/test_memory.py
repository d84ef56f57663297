"""The memory of a worker process does not grow with freed buffers or failed steps."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import subprocess
import sys
import weakref

import pytest

from gen_durable import Context, Machine, Outcome, Stop, Worker, step
from gen_durable.config import malloc_is_tuned
from tests.support.machines import Plain
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="there is no mallinfo2 in this C library"
)


def heap(mode: str, **environment: str) -> int:
    """Return the MB of heap that a process keeps after it has freed 75 MB of large buffers."""
    command = [sys.executable, "-m", "tests.workers.heap_probe", mode]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, check=True)
    return int(done.stdout)


def test_freed_large_buffers_return_to_the_system() -> None:
    assert heap("fixed") < 20 < 40 < heap("default")


def test_malloc_settings_of_the_user_win() -> None:
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
def test_malloc_variables_that_count(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, *, is_tuned: bool
) -> None:
    assert not malloc_is_tuned()
    monkeypatch.setenv(variable, value)
    assert malloc_is_tuned() is is_tuned


def test_run_sets_the_malloc_threshold_async_with_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr("gen_durable.worker.return_large_buffers", lambda: called.append("run"))
    monkeypatch.setattr("gen_durable.worker._run", lambda work: work.close())
    worker = Worker([Plain], dsn="postgresql://nowhere/none")
    assert called == []
    worker.run()
    assert called == ["run"]


class Witness:
    """An object in a frame of a step that raises."""


@pytest.mark.parametrize("where", ["run", "block"])
@pytest.mark.parametrize("handler", ["stops", "raises"])
async def test_failed_step_leaves_no_reference_cycle(durable_dsn: str, where: str, handler: str) -> None:
    """A cycle would keep the state of a failed step until a full garbage collection, which is rare."""
    held: list[weakref.ref[Witness]] = []

    class Failing(Machine[None, None]):
        @step(initial=True)
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            local = Witness()
            held.append(weakref.ref(local))
            raise ValueError(str(local))

        @step
        def block(self, ctx: Context[None]) -> Outcome[None]:
            local = Witness()
            held.append(weakref.ref(local))
            raise ValueError(str(local))

        def handle(self, error: Exception, ctx: Context[None]) -> Outcome[None]:
            if handler == "raises":
                raise KeyError("handle") from error
            return Stop(error)

    async with Worker([Failing], dsn=durable_dsn, settings=CALM) as worker:
        gc.disable()
        try:
            await worker.wait_all(
                [await worker.insert(Failing, step=where) for _ in range(3)], timeout=PATIENCE
            )
            async with asyncio.timeout(PATIENCE.total_seconds()):
                while any(each() is not None for each in held):
                    await asyncio.sleep(0.05)
        finally:
            gc.enable()
    assert len(held) == 3
