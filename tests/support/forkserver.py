"""Start test programs as forks of one process that has already imported the engine.

Importing the engine takes 250 ms of processor time, and tests start hundreds of processes. The
fork server is `python -m tests.support.forkserver FD`: it receives programs over that socket, and answers with pids.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from gen_durable.embedded.keeper import _bound_to_us

__all__ = ["Child", "launch"]

_ROOT: Final = Path(__file__).parents[2]
_LONGEST: Final = 2**17


class Program(msgspec.Struct, frozen=True):
    """The arguments of `python -m`."""

    module: str
    arguments: Sequence[str]
    environment: dict[str, str]


class Child:
    """A process started by the fork server, which waits for it."""

    def __init__(self, pid: int, end: int) -> None:
        self.pid = pid
        self._end = end
        self._exit_code: int | None = None

    @property
    def exit_code(self) -> int | None:
        """`None` while it runs; negative: the signal that killed it."""
        if self._exit_code is None:
            try:
                text = os.read(self._end, 16)
            except BlockingIOError:
                return None
            os.close(self._end)
            self._exit_code = (
                int(text) if text else -signal.SIGKILL
            )  # the fork server is gone, and its children with it
        return self._exit_code

    def send(self, number: signal.Signals) -> None:
        if self.exit_code is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, and wait until it has ended."""
        self.send(signal.SIGKILL)
        while self.exit_code is None:
            time.sleep(0.001)

    async def ends(self) -> int:
        """Wait for its end, and return its exit code."""
        while (code := self.exit_code) is None:
            await asyncio.sleep(0.005)
        return code


def launch(module: str, *arguments: str, output: int) -> Child:
    """Start `python -m MODULE ARGUMENTS…`, with stdout and stderr in this file."""
    server = _fork_server()
    end, exit_pipe = os.pipe()
    os.set_blocking(end, False)
    program = Program(module, arguments, dict(os.environ))
    socket.send_fds(server, [msgspec.json.encode(program)], [output, exit_pipe])
    os.close(exit_pipe)
    return Child(int(server.recv(16)), end)


@cache
def _fork_server() -> socket.socket:
    """The fork server of this process, started on first use."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.forkserver", str(its.fileno())],
        cwd=_ROOT,
        stdin=subprocess.DEVNULL,
        pass_fds=[its.fileno()],
        preexec_fn=_bound_to_us(signal.SIGKILL),
    )
    its.close()

    def close() -> None:
        ours.close()
        process.wait()

    atexit.register(close)
    return ours


class ForkServer:
    """The process that forks."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        # pid → file to write the exit code to
        self._living: dict[int, int] = {}
        self._wake, self._waker = os.pipe()
        os.set_blocking(self._wake, False)
        os.set_blocking(self._waker, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._waker)
        self._bind = _bound_to_us(signal.SIGKILL)

    def run(self) -> Program | None:
        """Fork until the socket is closed. In a child, return its program."""
        selector = selectors.DefaultSelector()
        selector.register(self._orders, selectors.EVENT_READ)
        selector.register(self._wake, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd == self._wake:
                    os.read(self._wake, 512)
                    self._reap()
                    continue
                text, files, *_ = socket.recv_fds(self._orders, _LONGEST, 2)
                if not text:
                    return None
                output, exit_pipe = files
                if (pid := os.fork()) == 0:
                    selector.close()
                    self._become(output, exit_pipe)
                    return msgspec.json.decode(text, type=Program)
                os.close(output)
                self._living[pid] = exit_pipe
                self._orders.send(str(pid).encode())

    def _reap(self) -> None:
        while self._living:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            exit_pipe = self._living.pop(pid)
            os.write(exit_pipe, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(exit_pipe)

    def _become(self, output: int, exit_pipe: int) -> None:
        """Close all files of the fork server in a child."""
        self._bind()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(output, 1)
        os.dup2(output, 2)
        for file in (output, exit_pipe, self._wake, self._waker, *self._living.values()):
            os.close(file)
        self._orders.close()


def main(file: str) -> None:
    import asyncpg  # noqa: F401
    import psycopg  # noqa: F401

    import gen_durable.worker  # noqa: F401

    gc.freeze()  # pages stay shared with children as long as the collector does not write to them
    program = ForkServer(socket.socket(fileno=int(file))).run()
    if program is None:
        return
    os.environ.clear()
    os.environ.update(program.environment)
    sys.argv = [program.module, *program.arguments]
    sys.orig_argv = [sys.executable, "-m", *sys.argv]
    runpy.run_module(program.module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1])
