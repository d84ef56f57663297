"""The directory that a server lives in: its data, its sockets, its log and the locks around it."""

from __future__ import annotations

import hashlib
import os
import pwd
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from gen_durable.config import environment_home
from gen_durable.errors import UnreachableError

from . import account as accounts
from .account import Account
from .binaries import find

__all__ = ["PORT", "Home", "settle"]

# It only names the socket file; written out everywhere, so that a PGPORT of the user's has no say.
PORT = 5432
_DEFAULT_PARENT = ".gen_durable"
# Where an account lent by root finds its data when it cannot get to the directory that was asked for.
_SYSTEM = Path("/var/lib/gen_durable")
# The kernel takes 107 bytes on Linux and 103 on macOS.
_MAX_SOCKET_PATH = 100
# Not the TMPDIR of one process: all clients must find the same place.
_SHORT_PARENT = Path("/tmp")  # noqa: S108  made 0700 and its owner checked


@dataclass(frozen=True, slots=True)
class Home:
    """The directory of one server, and the account that its processes run under (None: our own)."""

    path: Path
    account: Account | None
    foreign_link: str | None = None
    """Why the way to the directory is not to be trusted."""

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def log(self) -> Path:
        return self.path / "server.log"

    @property
    def clients_lock(self) -> Path:
        """Shared by every client for as long as it wants the server."""
        return self.path / "clients.lock"

    @property
    def start_lock(self) -> Path:
        """Held by the one client that brings up a keeper."""
        return self.path / "start.lock"

    @property
    def keeper_lock(self) -> Path:
        """Held by the keeper for all its life."""
        return self.path / "keeper.lock"

    @property
    def socket_directory(self) -> Path:
        near = self.path / "run"
        # To drivers a comma separates hosts, whatever quotes are around it.
        if len(os.fsencode(near / self._socket_name)) <= _MAX_SOCKET_PATH and "," not in str(near):
            return near
        return _SHORT_PARENT / f"gen_durable-{_digest(self.path)}"

    @property
    def socket(self) -> Path:
        return self.socket_directory / self._socket_name

    @property
    def _socket_name(self) -> str:
        return f".s.PGSQL.{PORT}"

    @property
    def dsn(self) -> str:
        return (
            f"postgresql://postgres@/postgres?host={quote(str(self.socket_directory), safe='/')}&port={PORT}"
        )

    @property
    def owner(self) -> int:
        """The user id that the server, its data and its sockets have."""
        return os.geteuid() if self.account is None else self.account.uid

    def make(self) -> None:
        """Make the directory and what is missing above it.

        Raises:
            UnreachableError: another account could replace it, or what is in it.
        """
        self._check()
        mode = 0o700 if self.account is None else 0o711
        for each in reversed((self.path, *self.path.parents)):
            if not each.exists():
                _make_directory(each, mode)
        if self.path.parent.name == _DEFAULT_PARENT:
            with suppress(FileExistsError), (self.path.parent / ".gitignore").open("x") as file:
                file.write("*\n")
        # What another process made in the meantime has to be safe, too.
        self._check()

    def _check(self) -> None:
        if problem := self.foreign_link or _danger(self.path):
            raise UnreachableError(
                self.dsn,
                problem,
                "Set GEN_DURABLE_HOME to a directory that only you and root can write, and so all above it, "
                "or set GEN_DURABLE_DSN to a server of your own.",
            )

    def make_socket_directory(self) -> None:
        if not os.path.lexists(self.socket_directory):
            _make_directory(self.socket_directory, 0o700, self.account)

    def has_safe_sockets(self) -> bool:
        """Whether the socket directory exists.

        Raises:
            UnreachableError: it does, and somebody else could have put a server of his own there.
        """
        try:
            status = self.socket_directory.lstat()
        except FileNotFoundError:
            return False
        if stat.S_ISDIR(status.st_mode) and status.st_uid == self.owner and not status.st_mode & 0o077:
            return True
        raise UnreachableError(
            self.dsn,
            f"{self.socket_directory} is not a directory that only uid {self.owner} can enter",
            "Remove it, or set GEN_DURABLE_HOME to another directory.",
        )


def settle(given: Path | None) -> Home:
    """Return where the server lives: as given, else GEN_DURABLE_HOME, else `./.gen_durable/pg<major>`.

    Root's lent account may not get there; then it is a directory of the system, named after that path. So it is if the
    default path of root is below a directory of another account and has no data yet.
    """
    wanted = given or environment_home() or Path(_DEFAULT_PARENT, f"pg{find().major}")
    asked = wanted.expanduser().absolute()
    path = asked.resolve()
    foreign_link = _foreign_link(asked)
    account = accounts.choose(path / "data")
    is_default = given is None and environment_home() is None
    is_dangerous = is_default and bool(foreign_link or _danger(path)) and not (path / "data").exists()
    if account is None or (accounts.can_enter(account, path) and not is_dangerous):
        return Home(path, account, foreign_link)
    path = _SYSTEM / f"{path.name}-{_digest(path)}"
    return Home(path, accounts.choose(path / "data"))


def _danger(home: Path) -> str | None:
    """Say which account could replace the home or something above it; `None` if only we and root can.

    A sticky directory like /tmp is safe for what is in it and belongs to us. Users may share a group with themselves
    only, so its right to write counts for root's homes alone.
    """
    us = os.geteuid()
    for each in (home, *home.parents[:-1]):
        try:
            status = each.lstat()
        except FileNotFoundError:
            continue
        if status.st_uid not in (0, us):
            owner = f"uid {status.st_uid}{_name_of(status.st_uid)}"
            return f"{each} belongs to {owner}, which could replace what is below it"
        by_others = status.st_mode & stat.S_IWOTH
        by_group = status.st_mode & stat.S_IWGRP and us == 0 and status.st_gid != 0
        is_sticky = status.st_mode & stat.S_ISVTX and each != home
        if (by_others or by_group) and not is_sticky:
            return f"{each} can be written by other accounts, which could replace what is below it"
    return None


def _foreign_link(asked: Path) -> str | None:
    """Say which link on the way to the home another account has made: it chose where we write."""
    for each in (asked, *asked.parents):
        with suppress(FileNotFoundError, NotADirectoryError):
            status = each.lstat()
            if stat.S_ISLNK(status.st_mode) and status.st_uid not in (0, os.geteuid()):
                return f"{each} is a link that belongs to uid {status.st_uid}{_name_of(status.st_uid)}"
    return None


def _name_of(uid: int) -> str:
    try:
        return f" ({pwd.getpwuid(uid).pw_name})"
    except KeyError:
        return ""


def _digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:12]


def _make_directory(path: Path, mode: int, owner: Account | None = None) -> None:
    # Moved into place when its mode and owner are right: by them another client, which may look at any moment,
    # decides where the home is and whether the sockets are safe. A umask has no say, and need not be changed.
    fresh = path.with_name(f"{path.name}.{os.getpid()}-{time.monotonic_ns()}")
    fresh.mkdir(0o700)
    fresh.chmod(mode)
    if owner is not None:
        os.chown(fresh, owner.uid, owner.gid)
    try:
        fresh.rename(path)
    except OSError:
        fresh.rmdir()
        if not path.is_dir():
            raise
