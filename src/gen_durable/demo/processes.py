"""The worker processes of the demo, started with `gen-durable worker`."""

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

# Short, so that the leases of the killed process expire within seconds.
_TIMINGS: Final = ("--lease=2s", "--heartbeat=500ms", "--reap-interval=1s", "--poll-interval=200ms")
_CONCURRENCY: Final = 12
_STOP_TIMEOUT: Final = 10.0  # seconds


class WorkerProcess:
    """A process that runs `gen-durable worker`."""

    def __init__(self, name: str, schema: str, dsn: str | None) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the process does
        where = () if dsn is None else (f"--dsn={dsn}",)
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "gen_durable", "worker", machines.__name__),
                *(f"--queue={QUEUE}={_CONCURRENCY}", f"--schema={schema}", *_TIMINGS, *where),
                "--executions=all",  # the checks count the records
                "--history=all",  # the dashboard shows the state after each step
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Return whether it is running."""
        return self._process.poll() is None

    @property
    def has_started(self) -> bool:
        """Return whether it has printed its start line."""
        return any(line.startswith("gen-durable ") for line in self._log_text().splitlines())

    def pause(self) -> None:
        """Freeze it (SIGSTOP)."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue it (SIGCONT)."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it (SIGKILL)."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Let it drain (SIGTERM); kill it after a timeout."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()

    def close(self) -> None:
        """Close its log file."""
        self._log.close()

    def log_tail(self) -> str:
        """Return the end of its log."""
        return self._log_text()[-2000:]

    def _log_text(self) -> str:
        # pread keeps the file offset, which this process shares with the writing one.
        file = self._log.fileno()
        return os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace").strip()


class WorkerProcesses:
    """Several processes, stopped at the end of the `with` block."""

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
