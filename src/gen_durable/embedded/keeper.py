"""The keeper: a detached process that makes, runs and watches one server, and stops it after its last client.

It is started by file name in an isolated interpreter, so it imports nothing but the standard library and is up
within milliseconds. The lock that says "there is a keeper" was taken by the client that started it, and came
along as an open file.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

__all__ = ["Orders", "open_owned"]

# How often it looks for clients when nothing happens; a stop is late by at most this.
_LOOK_EVERY_S = 0.25
# How long each signal gets: SIGINT closes sessions and writes a checkpoint, SIGQUIT leaves that to recovery.
_STOP_SIGNALS = ((signal.SIGINT, 60.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0))
_UNFINISHED = "data.new-"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Loaded here, before any fork.
_LIBC = ctypes.CDLL(None)


# A tuple because importing dataclasses takes longer than all the rest of the start.
class Orders(NamedTuple):
    """What the client tells the keeper, as JSON on the command line."""

    home: str
    clients_lock: str
    programs: str
    socket: str
    idle_stop: float
    """In seconds."""
    settings: dict[str, str]
    account: tuple[int, int] | None
    """User and group id to run under, when that is not our own."""


class Keeper:
    """One server from its start to its end."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._home = Path(orders.home)
        self._data = self._home / "data"
        self._clients = os.open(orders.clients_lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        self._is_told_to_stop = False
        self._bell, ring = socket.socketpair()
        self._bell.setblocking(False)
        ring.setblocking(False)
        # Any signal, the end of a child among them, wakes the watch at once.
        signal.set_wakeup_fd(ring.detach(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop_soon)
        # A killed postmaster leaves its children to us instead of to init, so that we can end them.
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def run(self) -> int:
        """Serve until nobody needs the server; return 0 if it ended on purpose."""
        self._clear_leftovers()
        while True:
            if not (self._data / "PG_VERSION").exists() and not self._make_data():
                return 1
            server = self._launch()
            if self._watch(server):
                _stop(server)
                return 0
            _end_orphans()
            _say(f"the server ended by itself with code {server.returncode}")
            if server.returncode == 0:
                return 0
            if not self._was_ready(server.pid):
                return 1
            # It had served, so it was killed; clients that live on find the next one at the same place.
            _say("starting it again")

    def _clear_leftovers(self) -> None:
        for leftover in self._home.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def _make_data(self) -> bool:
        # An initdb that outlived its keeper may still write, hence a name that was never used before.
        fresh = self._home / f"{_UNFINISHED}{os.getpid()}-{time.monotonic_ns()}"
        fresh.mkdir(0o700)
        if self._orders.account is not None:
            os.chown(fresh, *self._orders.account)
        options = [
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-instructions",
        ]
        if self._orders.settings.get("fsync") == "off":
            options.append("--no-sync")
        code = self._spawn(signal.SIGKILL, "initdb", "-D", str(fresh), *options).wait()
        if code != 0:
            _say(f"initdb failed with code {code}")
            shutil.rmtree(fresh, ignore_errors=True)
            return False
        fresh.rename(self._data)
        _sync(self._home)
        return True

    def _launch(self) -> subprocess.Popen[bytes]:
        """Start the server. No other one of this home runs: the starter has looked, and we ended our own."""
        self._remove_sockets()
        self._disown_postmaster_pid()
        settings = [
            word for name, value in self._orders.settings.items() for word in ("-c", f"{name}={value}")
        ]
        return self._spawn(signal.SIGINT, "postgres", "-D", str(self._data), *settings)

    def _remove_sockets(self) -> None:
        # The account of the server owns this directory, and may have put another one in its place.
        directory = os.open(Path(self._orders.socket).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            for name in (Path(self._orders.socket).name, f"{Path(self._orders.socket).name}.lock"):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=directory)
        finally:
            os.close(directory)

    def _disown_postmaster_pid(self) -> None:
        # A pid left behind may belong to a stranger by now, and PostgreSQL would refuse to start. The pid of its
        # own parent it knows to be stale, and goes on to its second check: whether the shared memory of that
        # former server is still in use. Removing the file would take that check away.
        opened = open_owned(self._data, "postmaster.pid", os.O_RDWR, self._owner)
        if opened is None:
            return
        with os.fdopen(opened, "r+b", buffering=0) as file:
            former, _, rest = file.read().partition(b"\n")
            file.seek(0)
            file.write(str(os.getpid()).encode().ljust(len(former)) + b"\n" + rest)

    def _was_ready(self, pid: int) -> bool:
        opened = open_owned(self._data, "postmaster.pid", os.O_RDONLY, self._owner)
        if opened is None:
            return False
        with os.fdopen(opened, encoding="utf-8", errors="replace") as file:
            lines = file.read().split("\n")
        return lines[0].strip() == str(pid) and "ready" in (line.strip() for line in lines)

    @property
    def _owner(self) -> int:
        return os.geteuid() if self._orders.account is None else self._orders.account[0]

    def _spawn(self, when_we_die: signal.Signals, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        uid, gid = self._orders.account or (None, None)
        return subprocess.Popen(
            [Path(self._orders.programs, program), *arguments],
            user=uid,
            group=gid,
            extra_groups=None if gid is None else [gid],
            # Nothing of the user's locale, of the PG* variables or of secrets reaches the server.
            env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            preexec_fn=_bound_to_us(when_we_die),
        )

    def _watch(self, server: subprocess.Popen[bytes]) -> bool:
        """Wait until the server should be stopped (True) or has ended by itself (False)."""
        look_every = min(_LOOK_EVERY_S, max(self._orders.idle_stop / 4, 0.02))
        idle_since, last_attach = time.monotonic(), -1
        while server.poll() is None:
            if self._is_told_to_stop or self._is_home_gone() or self._are_programs_gone():
                return True
            is_idle = self._lock_out_clients()
            attach = os.fstat(self._clients).st_mtime_ns
            if not is_idle or attach != last_attach:
                idle_since, last_attach = time.monotonic(), attach
            if is_idle and time.monotonic() - idle_since >= self._orders.idle_stop:
                # The lock stays ours to the end: who comes now waits for it, and then starts a server anew.
                return True
            fcntl.flock(self._clients, fcntl.LOCK_UN)
            self._wait(look_every)
        return False

    def _lock_out_clients(self) -> bool:
        try:
            fcntl.flock(self._clients, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _is_home_gone(self) -> bool:
        """Whether somebody removed or replaced the directory: no client can find this server any more."""
        try:
            return not os.path.samestat(os.fstat(self._clients), Path(self._orders.clients_lock).stat())
        except FileNotFoundError:
            return True

    def _are_programs_gone(self) -> bool:
        """Whether they were removed: what the server has not loaded yet it never will. The next client has its own."""
        return not Path(self._orders.programs, "postgres").exists()

    def _wait(self, seconds: float) -> None:
        select.select([self._bell], [], [], seconds)
        with suppress(BlockingIOError):
            self._bell.recv(4096)

    def _stop_soon(self, *_: object) -> None:
        self._is_told_to_stop = True


def open_owned(directory: Path, name: str, flags: int, owner: int) -> int | None:
    """Open a file below a directory of the server's account, or return None if there is none.

    That account may put anything there. Root must not follow it to a file of its own, nor wait for a FIFO: so both are
    opened without following links, and the file must be a plain one, of that account or of ours, with a single name.

    Raises:
        PermissionError: it is something else.
    """
    refused = PermissionError(f"{directory / name} is not a plain file of uid {owner}")
    try:
        above = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        opened = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=above)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR):
            raise
        raise refused from error
    finally:
        os.close(above)
    status = os.fstat(opened)
    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and status.st_uid in (owner, os.geteuid()):
        return opened
    os.close(opened)
    raise refused


def _stop(server: subprocess.Popen[bytes]) -> None:
    for number, patience in _STOP_SIGNALS:
        server.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            server.wait(patience)
            return


def _end_orphans() -> None:
    # The children of a killed postmaster notice its end only between two pieces of work; until then their shared
    # memory keeps the next server from starting. Its recovery copes with whatever they were doing.
    try:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    except FileNotFoundError:
        return
    for pid in map(int, children.split()):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _bound_to_us(number: signal.Signals) -> Callable[[], None]:
    """Return what a child does before its program starts: ask for this signal at the end of its parent."""
    keeper = os.getpid()

    def bind() -> None:
        _prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != keeper:
            os._exit(1)

    return bind


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        _LIBC.prctl(option, value, 0, 0, 0)


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _say(text: str) -> None:
    sys.stderr.write(f"keeper: {text}\n")
    sys.stderr.flush()


def main(arguments: list[str]) -> int:
    """Detach, then keep."""
    # The client waits for the parent and is rid of a child; init waits for us.
    if os.fork() != 0:
        os._exit(0)
    os.umask(0o077)
    return Keeper(Orders(**json.loads(arguments[0]))).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
