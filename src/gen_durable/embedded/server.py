"""The client side of the embedded server: hold a lease, find or start the server, return its DSN."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO, Self

from gen_durable.errors import UnreachableError, UsageError

from . import binaries, locks
from .home import PORT, Home, locate
from .keeper import KeeperConfig, open_owned
from .locks import Lock
from .postmaster import end_orphan
from .probe import is_answering

__all__ = ["EmbeddedPostgres"]

_log = logging.getLogger("gen_durable.embedded")
_START_TIMEOUT_S = 60.0
# A second try repairs what a kill during the start left behind; a third would fail like the second.
_TRIES = 2
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.02
_MAX_LOG_BYTES = 8 * 2**20
_KEEPER = Path(__file__).with_name("keeper.py")
_OWN_SERVER = "or set GEN_DURABLE_DSN to a server of your own."
_VERSION = re.compile(r"\d+(\.\d+)?", re.ASCII)
_REASON = re.compile(r"(?:FATAL|PANIC|error|\w*Error): .*")


class EmbeddedPostgres:
    """A durable PostgreSQL server, shared by all processes that use the same home.

    The first client starts it. It stops automatically some time after the last client has closed or died. It listens
    on a private socket only. It is meant for development, tests and small single-host use.

    Args:
        home: its directory; by default GEN_DURABLE_HOME, else `./.gen_durable/pg<major>`.
        idle_stop: how long it runs after its last client, so that the next one need not start it.
        options: server settings by name. `options` and `idle_stop` of the client that starts the server apply.
    """

    def __init__(
        self,
        home: Path | None = None,
        *,
        idle_stop: timedelta = timedelta(seconds=10),
        options: Mapping[str, str] | None = None,
    ) -> None:
        if idle_stop < timedelta(0):
            raise UsageError(f"idle_stop is negative: {idle_stop}", "pass timedelta(0) to stop at once")
        self._given_home = home
        self._idle_stop = idle_stop
        self._options = dict(options or {})
        self._located_home: Home | None = None
        # More than one only if threads made their first calls concurrently; close() releases all.
        self._leases: list[Lock] = []

    def ensure(self) -> str:
        """Start the server if necessary, and return its DSN. Cheap enough to call before every connect.

        The server runs until `close` or the end of this process; dropping this object does not stop it. A forked
        child has to call `ensure` itself.

        Raises:
            UnreachableError: PostgreSQL is not installed, or the server does not start.
        """
        had_lease = bool(self._leases)
        try:
            home = self._home
            home.make()
            self._lease(home)
            return self._reach(home)
        except BaseException as error:
            if not had_lease:
                self.close()
            if isinstance(error, OSError) and not isinstance(error, UnreachableError):
                raise self._unusable(error) from error
            raise

    def close(self) -> None:
        """Release the lease. The server stops `idle_stop` after the last lease."""
        while self._leases:
            self._leases.pop().release()

    def __enter__(self) -> Self:
        self.ensure()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def exists(self) -> bool:
        """Whether its data exists. The server may be stopped."""
        return self._home.data.is_dir()

    @property
    def home(self) -> Path:
        """Its directory. For root this may differ from the requested one."""
        return self._home.path

    @property
    def _home(self) -> Home:
        if self._located_home is None:
            self._located_home = locate(self._given_home)
        return self._located_home

    def _lease(self, home: Home) -> None:
        if not any(lease.is_held_on(home.clients_lock) for lease in self._leases):
            self._leases.append(_lock(home, home.clients_lock, shared=True))
        # A short lease may fall between two checks of the keeper; it sees the time of this.
        os.utime(home.clients_lock)

    def _reach(self, home: Home) -> str:
        tries, log_start = 0, _size(home.log)
        for _ in _pauses():
            if _has_keeper(home):
                if home.has_safe_sockets() and is_answering(home.socket):
                    return home.dsn
                continue
            if tries == _TRIES:
                raise _failure(home, "it did not start", log_start)
            start_lock = locks.attempt(home.start_lock)
            if start_lock is None:
                continue
            try:
                if not _has_keeper(home):
                    tries += 1
                    self._start(home)
            finally:
                start_lock.release()
        raise _failure(home, f"it did not answer within {_START_TIMEOUT_S:.0f} s", log_start)

    def _start(self, home: Home) -> None:
        """Start a keeper. We hold the start lock, and no keeper runs."""
        if home.account is not None and home.account.name == "nobody":
            _log.warning(
                "the embedded server runs as 'nobody', an account that other services may use: they can read and "
                "change its data. Create an account for it, and set GEN_DURABLE_PG_USER to its name"
            )
        found = binaries.find()
        _check_major(home, found)
        end_orphan(home.data, home.owner)
        home.make_socket_directory()
        home.has_safe_sockets()
        config = KeeperConfig(
            home=str(home.path),
            clients_lock=str(home.clients_lock),
            programs=str(binaries.stage(found, home.path, home.account)),
            socket=str(home.socket),
            idle_stop=self._idle_stop.total_seconds(),
            settings=_settings(home) | self._options,
            account=(home.account.uid, home.account.gid) if home.account else None,
        )
        _start_keeper(home, config)

    def _unusable(self, error: OSError) -> UnreachableError:
        where = self._located_home.dsn if self._located_home else "the embedded server"
        return UnreachableError(
            where, str(error), f"Set GEN_DURABLE_HOME to a directory that you can write, {_OWN_SERVER}"
        )


def _start_keeper(home: Home, config: KeeperConfig) -> None:
    # Locked here and passed on as an open file, so that the lock is held even if this process dies.
    keeper_lock = _lock(home, home.keeper_lock)
    try:
        # If the keeper fails, the lock is free again, and the caller tries once more.
        with _open_log(home.log) as log, suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [sys.executable, "-I", "-S", _KEEPER, json.dumps(config._asdict())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # It must not keep the working directory in use, nor get signals of the terminal.
                cwd="/",
                start_new_session=True,
                pass_fds=[keeper_lock.fileno()],
                timeout=_START_TIMEOUT_S,
                check=False,
            )
    finally:
        keeper_lock.release()


def _settings(home: Home) -> dict[str, str]:
    return {
        "listen_addresses": "",
        "port": str(PORT),
        "unix_socket_directories": str(home.socket_directory),
        "unix_socket_permissions": "0700",
        "max_connections": "200",
        "timezone": "UTC",
        "log_timezone": "UTC",
        # The log is for errors; it is not rotated while the server runs.
        "log_checkpoints": "off",
    }


def _has_keeper(home: Home) -> bool:
    # Shared, so that clients that check at the same time do not see each other as the keeper.
    free = locks.attempt(home.keeper_lock, shared=True)
    if free is None:
        return True
    free.release()
    return False


def _check_major(home: Home, found: binaries.Binaries) -> None:
    opened = open_owned(home.data, "PG_VERSION", os.O_RDONLY, home.owner)
    if opened is None:
        return
    with os.fdopen(opened, "rb") as file:
        made_by = file.readline().strip().decode("ascii", errors="replace")
    if not _VERSION.fullmatch(made_by):
        raise UnreachableError(
            home.dsn,
            f"{home.data / 'PG_VERSION'} does not contain a PostgreSQL version",
            "Restore it from a backup, or set GEN_DURABLE_HOME to a new directory.",
        )
    if made_by != str(found.major):
        raise UnreachableError(
            home.dsn,
            f"{home.data} was created by PostgreSQL {made_by}, but {found.directory} is PostgreSQL {found.major}",
            f"Set GEN_DURABLE_PG_BIN to the programs of PostgreSQL {made_by}, "
            "or GEN_DURABLE_HOME to a new directory.",
        )


def _lock(home: Home, path: Path, *, shared: bool = False) -> Lock:
    """Lock the file; wait for other holders, which keep it briefly or while they stop a server."""
    for _ in _pauses():
        lock = locks.attempt(path, shared=shared)
        if lock is not None:
            return lock
    raise _failure(home, f"{path} was still locked after {_START_TIMEOUT_S:.0f} s")


def _pauses() -> Iterator[None]:
    """Yield at once, and then after growing pauses, until the timeout."""
    give_up = time.monotonic() + _START_TIMEOUT_S
    pause = _FIRST_PAUSE_S
    yield
    while time.monotonic() < give_up:
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE_S)
        yield


def _failure(home: Home, problem: str, log_start: int | None = None) -> UnreachableError:
    reason = "" if log_start is None else _reason(home.log, log_start)
    cause = f"{problem}: {reason}" if reason else problem
    return UnreachableError(home.dsn, cause, f"See {home.log}, {_OWN_SERVER}")


def _reason(log: Path, start: int) -> str:
    """The line of the log, from offset `start`, that most likely names the cause."""
    try:
        text = log.read_bytes()[start:].decode(errors="replace")
    except FileNotFoundError:
        return ""
    lines = _REASON.findall(text) or text.split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _open_log(log: Path) -> BinaryIO:
    if _size(log) > _MAX_LOG_BYTES:
        log.replace(log.with_suffix(".log.old"))
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    return os.fdopen(os.open(log, flags, 0o600), "ab", buffering=0)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
