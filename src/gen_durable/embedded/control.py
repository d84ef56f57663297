"""What an operator does with a server: keep it running, stop it, and ask for its status."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gen_durable._db import sessions
from gen_durable._db.connector import connect
from gen_durable._db.failures import StatementError
from gen_durable._db.runner import run_asyncpg
from gen_durable._db.sessions import SessionCount

from . import locks
from .home import Home
from .keeper import KEPT, STOPPED
from .leases import holders
from .locks import Lock
from .postmaster import end_orphan
from .probe import is_answering
from .processes import shown_command
from .start import major_of
from .waiting import failure, has_keeper, pauses, wait_for_lock

__all__ = ["Client", "Status", "Stopped", "keep", "status", "stop"]

# The keeper gives the server 60 s for a checkpoint, and then ends it within 20 s.
_STOP_TIMEOUT_S = 90.0


class Client(NamedTuple):
    """A process that keeps the server running."""

    pid: int
    command: str


class Status(NamedTuple):
    """What is known about a server."""

    home: Path
    dsn: str
    log: Path
    is_running: bool
    is_kept: bool
    """Whether it runs until it is stopped, also without clients."""
    major: str | None
    """The version of PostgreSQL that created the data; `None`: there is no data."""
    size: int
    """Of the data, in bytes."""
    clients: Sequence[Client]
    sessions: Sequence[SessionCount]
    """Connections by application, those of the clients included."""


class Stopped(NamedTuple):
    """The result of a stop."""

    has_stopped: bool
    """False: it has clients, and was not stopped."""
    was_running: bool
    clients: Sequence[Client]
    """Those that were connected."""
    sessions: Sequence[SessionCount]


def keep(home: Home) -> None:
    """Keep the running server until it is stopped. The caller holds a lease."""
    # Not during a stop, which would continue: the lock waits for its end.
    start_lock = wait_for_lock(home, home.start_lock)
    try:
        home.set_mode(KEPT)
    finally:
        start_lock.release()


def stop(home: Home, *, force: bool) -> Stopped:
    """Stop the server, if it has neither leases nor sessions or if `force`."""
    if not home.path.is_dir():
        return Stopped(True, False, (), ())
    home.make()
    # No server starts meanwhile, and no other command sets the mode.
    start_lock = wait_for_lock(home, home.start_lock)
    lockout = None
    try:
        was_running = has_keeper(home)
        if not force:
            # New clients wait until the lock is released, so none connects to a server that stops.
            lockout = _lock_out_clients(home)
        clients = _clients(home)
        connected = _sessions(home)
        if not force and (clients or connected):
            return Stopped(False, was_running, clients, connected)
        home.set_mode(STOPPED)
        for _ in pauses(_STOP_TIMEOUT_S):
            if not has_keeper(home):
                break
        else:
            raise failure(home, f"it did not stop within {_STOP_TIMEOUT_S:.0f} s")
        end_orphan(home.data, home.owner)
        return Stopped(True, was_running, clients, connected)
    finally:
        if lockout is not None:
            lockout.release()
        start_lock.release()


def status(home: Home) -> Status:
    """Return what is known about a server. Starts nothing, and holds no lease."""
    is_made = home.path.is_dir()
    is_running = is_made and has_keeper(home) and home.has_safe_sockets() and is_answering(home.socket)
    return Status(
        home=home.path,
        dsn=home.dsn,
        log=home.log,
        is_running=is_running,
        is_kept=home.is_kept,
        major=major_of(home),
        size=_size(home.data),
        clients=_clients(home) if is_made else (),
        sessions=_sessions(home) if is_running else (),
    )


def _lock_out_clients(home: Home) -> Lock | None:
    """Lock the file of the leases; `None`: there are leases."""
    for _ in pauses():
        lockout = locks.attempt(home.clients_lock)
        if lockout is not None or holders(home):
            return lockout
        # The keeper looks for clients just now, or a client has not written its entry yet.
    raise failure(home, f"{home.clients_lock} is locked, but not by a client")


def _clients(home: Home) -> Sequence[Client]:
    return [Client(pid, shown_command(pid)) for pid in holders(home)]


def _sessions(home: Home) -> Sequence[SessionCount]:
    if not has_keeper(home) or not home.has_safe_sockets():
        return ()
    # On a thread, because this one may run an event loop.
    with (
        suppress(StatementError, OSError),  # it starts, stops or recovers
        ThreadPoolExecutor(1, thread_name_prefix="gen_durable sessions") as thread,
    ):
        return thread.submit(asyncio.run, _read_sessions(home.dsn)).result()
    return ()


async def _read_sessions(dsn: str) -> Sequence[SessionCount]:
    connection = await connect(dsn)
    try:
        return await run_asyncpg(connection, sessions.by_application(), "gen_durable")
    finally:
        await connection.close()


def _size(directory: Path) -> int:
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):  # a running server removes files
                total += Path(parent, name).lstat().st_size
    return total
