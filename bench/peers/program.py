"""A running adapter, seen from the driver."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any, Self

from .processor_time import process_seconds
from .systems import ROOT

__all__ = ["AdapterError", "Program"]


class AdapterError(Exception):
    """The adapter reported an error, ended, or did not reply in time."""


class Program:
    """A process that runs an adapter. It is killed at the end: nothing has to be kept."""

    def __init__(self, command: list[str], dsn: str, log: Path, timeout: float) -> None:
        with log.open("ab") as errors:
            self._log_start = errors.tell()
            self._process = subprocess.Popen(
                [*command, "--dsn", dsn],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._log = log
        self._timer = threading.Timer(timeout, self._process.kill)
        self._timer.daemon = True
        self._timer.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._process.kill()
        self._process.communicate()

    def pause(self) -> None:
        """Stop the process until `resume`."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    @property
    def seconds(self) -> float:
        """Processor time so far."""
        return process_seconds(self._process.pid)

    def send(self, op: str, **request: Any) -> None:
        """Send a request without waiting for its reply."""
        assert self._process.stdin is not None  # noqa: S101
        try:
            self._process.stdin.write(json.dumps({"op": op, **request}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # receive() reports the end

    def receive(self) -> dict[str, Any]:
        """Return the reply to the oldest request that has none."""
        assert self._process.stdout is not None  # noqa: S101
        line = self._process.stdout.readline()
        if not line:
            raise AdapterError(f"the program ended or did not reply in time: {self._last_error()}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise AdapterError(reply["error"].strip())
        return reply

    def _last_error(self) -> str:
        lines = self._log.read_bytes()[self._log_start :].decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it wrote no error"

    def ask(self, op: str, **request: Any) -> dict[str, Any]:
        """Send a request and return its reply."""
        self.send(op, **request)
        return self.receive()
