"""The two worker processes of the demo: the same command that a user would type."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from . import machines
from .machines import QUEUE

__all__ = ["WorkerProcess", "WorkerProcesses"]

# Short, so that the work of a dead process is taken up while somebody is watching.
_TIMINGS: Final = ("--lease=2s", "--heartbeat=500ms", "--reap-interval=1s", "--poll-interval=200ms")
_CONCURRENCY: Final = 12
_STOP_TIMEOUT: Final = 10.0  # seconds


class WorkerProcess:
    """`gen-durable worker`, in a process of its own."""

    def __init__(self, name: str, schema: str, dsn: str | None) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the process does
        where = () if dsn is None else (f"--dsn={dsn}",)
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gen_durable", "worker", machines.__name__),
                *(f"--queue={QUEUE}={_CONCURRENCY}", f"--schema={schema}", *_TIMINGS, *where),
                "--executions=all",  # the proof counts them
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    @property
    def has_started(self) -> bool:
        """Whether it has said that it works."""
        return any(line.startswith("gen-durable ") for line in self._said().splitlines())

    def pause(self) -> None:
        """Stop it where it is, for a look at what it is doing."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it without a word of warning: SIGKILL."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Ask it to drain and end, as a supervisor would: SIGTERM, and SIGKILL for one that does not listen."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()

    def close(self) -> None:
        """Give its log file back; it has ended."""
        self._log.close()

    def last_words(self) -> str:
        """The end of what it wrote."""
        return self._said()[-2000:]

    def _said(self) -> str:
        # Without moving in the file: its place there is the process's too, which goes on writing.
        file = self._log.fileno()
        return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace").strip()


class WorkerProcesses:
    """Some of them; none outlives the `with` block."""

    def __init__(self, names: Sequence[str], schema: str, dsn: str | None) -> None:
        self._names = names
        self._schema = schema
        self._dsn = dsn
        self.all: list[WorkerProcess] = []

    def __enter__(self) -> Self:
        for name in self._names:
            self.all.append(WorkerProcess(name, self._schema, self._dsn))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self.all:
            if process.is_alive:
                process.stop()
            process.close()
