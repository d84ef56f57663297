"""Find the running server of a home, or start a keeper with a new one."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from gen_durable.errors import UnreachableError

from . import binaries, leases, locks
from .home import PORT, Home
from .keeper import KeeperConfig, open_owned
from .postmaster import end_orphan
from .probe import is_answering
from .waiting import TIMEOUT_S, failure, has_keeper, pauses, wait_for_lock

__all__ = ["Launch", "major_of", "reach"]

_log = logging.getLogger("gen_durable.embedded")
# A second try repairs what a kill during the start left behind; a third would fail like the second.
_TRIES = 2
_MAX_LOG_BYTES = 8 * 2**20
_KEEPER = Path(__file__).with_name("keeper.py")
_VERSION = re.compile(r"\d+(\.\d+)?", re.ASCII)


class Launch(NamedTuple):
    """What the client that starts the server chooses."""

    idle_stop: float
    """In seconds."""
    options: Mapping[str, str]


def reach(home: Home, launch: Launch, *, restarts_stopped: bool) -> str:
    """Wait until the server answers, and return its DSN; start it if necessary. The caller holds a lease.

    Args:
        home: the home of the server.
        launch: how to start it.
        restarts_stopped: whether to start it after `gen-durable db stop`.
    """
    tries, log_start = 0, _size(home.log)
    for _ in pauses():
        if home.is_stopped and not restarts_stopped:
            raise UnreachableError(
                home.dsn, "it was stopped with `gen-durable db stop`", "Start it again: gen-durable db start"
            )
        if has_keeper(home):
            # A keeper that has to stop its server may not have noticed yet: wait until it has exited.
            if not home.is_stopped and home.has_safe_sockets() and is_answering(home.socket):
                return home.dsn
            continue
        if tries == _TRIES:
            raise failure(home, "it did not start", log_start)
        start_lock = locks.attempt(home.start_lock)
        if start_lock is None:
            continue
        try:
            if not has_keeper(home):
                tries += 1
                _start(home, launch)
        finally:
            start_lock.release()
    raise failure(home, f"it did not answer within {TIMEOUT_S:.0f} s", log_start)


def major_of(home: Home) -> str | None:
    """Return the major version of PostgreSQL that created the data; `None`: there is no data.

    Raises:
        UnreachableError: the file with the version is damaged.
    """
    opened = open_owned(home.data, "PG_VERSION", os.O_RDONLY, home.owner)
    if opened is None:
        return None
    with os.fdopen(opened, "rb") as file:
        made_by = file.readline().strip().decode("ascii", errors="replace")
    if not _VERSION.fullmatch(made_by):
        raise UnreachableError(
            home.dsn,
            f"{home.data / 'PG_VERSION'} does not contain a PostgreSQL version",
            "Restore it from a backup, or set GEN_DURABLE_HOME to a new directory.",
        )
    return made_by


def _start(home: Home, launch: Launch) -> None:
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
    leases.holders(home)  # removes the files of killed processes
    if home.is_stopped:
        home.set_mode(None)
    config = KeeperConfig(
        home=str(home.path),
        clients_lock=str(home.clients_lock),
        programs=str(binaries.stage(found, home.path, home.account)),
        socket=str(home.socket),
        idle_stop=launch.idle_stop,
        settings={**_settings(home), **launch.options},
        account=(home.account.uid, home.account.gid) if home.account else None,
    )
    _start_keeper(home, config)


def _start_keeper(home: Home, config: KeeperConfig) -> None:
    # Locked here and passed on as an open file, so that the lock is held even if this process dies.
    keeper_lock = wait_for_lock(home, home.keeper_lock)
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
                timeout=TIMEOUT_S,
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


def _check_major(home: Home, found: binaries.Binaries) -> None:
    made_by = major_of(home)
    if made_by not in (None, str(found.major)):
        raise UnreachableError(
            home.dsn,
            f"{home.data} was created by PostgreSQL {made_by}, but {found.directory} is PostgreSQL {found.major}",
            f"Set GEN_DURABLE_PG_BIN to the programs of PostgreSQL {made_by}, "
            "or GEN_DURABLE_HOME to a new directory.",
        )


def _open_log(log: Path) -> BinaryIO:
    if _size(log) > _MAX_LOG_BYTES:
        log.replace(log.with_suffix(".log.old"))
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    return os.fdopen(os.open(log, flags, 0o600), "ab", buffering=0)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
