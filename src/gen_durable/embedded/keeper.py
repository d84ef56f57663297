"""The keeper: a detached process that initializes, runs and monitors one server, and stops it after its last client.

The file `mode` in the home changes that: `kept` (by `gen-durable db start`) keeps the server running without clients,
`stopped` (by `gen-durable db stop`) stops it at once. A file outlives a keeper that is killed, and needs no pid.

It is started by file name in an isolated interpreter, so it imports only the standard library and starts within
milliseconds. The client that starts it takes the keeper lock and passes it on as an open file.
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

__all__ = ["KEPT", "STOPPED", "KeeperConfig", "open_owned", "read_mode"]

# Seconds between two checks for clients; an idle stop is late by at most this.
_CHECK_EVERY_S = 0.25
# Signals and the seconds to wait after each: SIGINT closes sessions and writes a checkpoint, SIGQUIT leaves that to
# recovery.
_STOP_SIGNALS = ((signal.SIGINT, 60.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 10.0))
_UNFINISHED = "data.new-"
KEPT = "kept"
STOPPED = "stopped"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Loaded before any fork.
_LIBC = ctypes.CDLL(None)


# A NamedTuple, because importing dataclasses takes longer than the rest of the start.
class KeeperConfig(NamedTuple):
    """The configuration that the client passes to the keeper, as JSON on the command line."""

    home: str
    clients_lock: str
    programs: str
    socket: str
    idle_stop: float
    """In seconds."""
    settings: dict[str, str]
    account: tuple[int, int] | None
    """User and group id of the server, if not our own."""


class Keeper:
    """One server from its start to its end."""

    def __init__(self, config: KeeperConfig) -> None:
        self._config = config
        self._home = Path(config.home)
        self._data = self._home / "data"
        self._clients = os.open(config.clients_lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        self._stop_requested = False
        self._wakeup, sender = socket.socketpair()
        self._wakeup.setblocking(False)
        sender.setblocking(False)
        # Any signal, SIGCHLD included, ends the wait of the monitor at once.
        signal.set_wakeup_fd(sender.detach(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop_soon)
        # Children of a killed postmaster are reparented to us instead of init, so that we can kill them.
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def run(self) -> int:
        """Run the server until it is idle or stopped; return 0 after a regular end."""
        self._clear_leftovers()
        while True:
            if not (self._data / "PG_VERSION").exists() and not self._make_data():
                return 1
            server = self._launch()
            if self._monitor(server):
                _stop(server)
                return 0
            _end_orphans()
            _log(f"server exited with code {server.returncode}")
            if server.returncode == 0:
                return 0
            if not self._was_ready(server.pid):
                return 1
            # The server was ready before, so it was killed or crashed. Clients find the next one at the same socket.
            _log("restarting the server")

    def _clear_leftovers(self) -> None:
        for leftover in self._home.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def _make_data(self) -> bool:
        # An initdb that outlived its keeper may still write: use a new name.
        fresh = self._home / f"{_UNFINISHED}{os.getpid()}-{time.monotonic_ns()}"
        fresh.mkdir(0o700)
        if self._config.account is not None:
            os.chown(fresh, *self._config.account)
        options = [
            "--username=postgres",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "--no-instructions",
        ]
        if self._config.settings.get("fsync") == "off":
            options.append("--no-sync")
        code = self._spawn(signal.SIGKILL, "initdb", "-D", str(fresh), *options).wait()
        if code != 0:
            _log(f"initdb failed with code {code}")
            shutil.rmtree(fresh, ignore_errors=True)
            return False
        fresh.rename(self._data)
        _sync(self._home)
        return True

    def _launch(self) -> subprocess.Popen[bytes]:
        """Start the server. No other server of this home runs: the client has checked, and we have ended ours."""
        self._remove_sockets()
        self._disown_postmaster_pid()
        settings = [
            word for name, value in self._config.settings.items() for word in ("-c", f"{name}={value}")
        ]
        return self._spawn(signal.SIGINT, "postgres", "-D", str(self._data), *settings)

    def _remove_sockets(self) -> None:
        # The account of the server owns this directory, and may have replaced it.
        directory = os.open(Path(self._config.socket).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            for name in (Path(self._config.socket).name, f"{Path(self._config.socket).name}.lock"):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=directory)
        finally:
            os.close(directory)

    def _disown_postmaster_pid(self) -> None:
        # The recorded pid may belong to another process by now, and PostgreSQL would refuse to start. It treats the pid
        # of its own parent as stale, and still checks whether the shared memory of the former server is in use.
        # Removing the file would skip that check.
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
        return os.geteuid() if self._config.account is None else self._config.account[0]

    def _spawn(self, death_signal: signal.Signals, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        uid, gid = self._config.account or (None, None)
        return subprocess.Popen(
            [Path(self._config.programs, program), *arguments],
            user=uid,
            group=gid,
            extra_groups=None if gid is None else [gid],
            # The server must not see the user's locale, PG* variables or secrets.
            env={"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"},
            preexec_fn=_bound_to_us(death_signal),
        )

    def _monitor(self, server: subprocess.Popen[bytes]) -> bool:
        """Wait until the server should be stopped (True) or has exited (False)."""
        check_every = min(_CHECK_EVERY_S, max(self._config.idle_stop / 4, 0.02))
        idle_since, last_attach = time.monotonic(), -1
        while server.poll() is None:
            if self._stop_requested or self._is_home_gone() or self._are_programs_gone():
                return True
            if read_mode(self._home) == STOPPED:
                return True
            # Read the mode under the lock: a client sets it while it has a lease.
            is_idle = self._lock_out_clients() and read_mode(self._home) != KEPT
            attach = os.fstat(self._clients).st_mtime_ns
            if not is_idle or attach != last_attach:
                idle_since, last_attach = time.monotonic(), attach
            if is_idle and time.monotonic() - idle_since >= self._config.idle_stop:
                # Keep the lock until the end: a new client waits for it, and then starts another server.
                return True
            fcntl.flock(self._clients, fcntl.LOCK_UN)
            self._wait(check_every)
        return False

    def _lock_out_clients(self) -> bool:
        try:
            fcntl.flock(self._clients, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _is_home_gone(self) -> bool:
        """Whether the directory was removed or replaced, so that no client can find this server."""
        try:
            return not os.path.samestat(os.fstat(self._clients), Path(self._config.clients_lock).stat())
        except FileNotFoundError:
            return True

    def _are_programs_gone(self) -> bool:
        """Whether the programs were removed: the server could not load further libraries."""
        return not Path(self._config.programs, "postgres").exists()

    def _wait(self, seconds: float) -> None:
        select.select([self._wakeup], [], [], seconds)
        with suppress(BlockingIOError):
            self._wakeup.recv(4096)

    def _stop_soon(self, *_: object) -> None:
        self._stop_requested = True


def read_mode(home: Path) -> str | None:
    """Return `KEPT`, `STOPPED`, or `None`: the server runs as long as it has clients."""
    try:
        return (home / "mode").read_text(encoding="ascii")
    except FileNotFoundError:
        return None


def open_owned(directory: Path, name: str, flags: int, owner: int) -> int | None:
    """Open a file in a directory of the server's account; return `None` if it does not exist.

    That account can create anything there. Root must not follow a link to another file, nor block on a FIFO. So links
    are not followed, and the file must be a regular one with a single link, owned by that account or by us.

    Raises:
        PermissionError: it is not such a file.
    """
    refused = PermissionError(f"{directory / name} is not a regular file of uid {owner}")
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
    for number, seconds in _STOP_SIGNALS:
        server.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            server.wait(seconds)
            return


def _end_orphans() -> None:
    # Children of a killed postmaster notice that late. Until they exit, their shared memory prevents the start of the
    # next server. Killing them is safe: the next server recovers.
    try:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii")
    except FileNotFoundError:
        return
    for pid in map(int, children.split()):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _bound_to_us(number: signal.Signals) -> Callable[[], None]:
    """Return a preexec function: the kernel sends this signal to the child when the keeper dies."""
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


def _log(text: str) -> None:
    sys.stderr.write(f"keeper: {text}\n")
    sys.stderr.flush()


def main(arguments: list[str]) -> int:
    """Detach, then run the keeper."""
    # The client waits for the parent only, and init reaps us.
    if os.fork() != 0:
        os._exit(0)
    os.umask(0o077)
    return Keeper(KeeperConfig(**json.loads(arguments[0]))).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
