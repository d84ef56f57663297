"""The home directory of a server: data, sockets, log and lock files."""

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

from gen_durable._db.dsn import DsnError, fields_of
from gen_durable.config import environment_home
from gen_durable.errors import UnreachableError

from . import account as accounts
from .account import Account
from .binaries import find
from .keeper import KEPT, STOPPED, open_owned, read_mode

__all__ = ["PORT", "Home", "home_of", "locate"]

# Only part of the socket's file name. Always passed explicitly, so that PGPORT is ignored.
PORT = 5432
_DEFAULT_PARENT = ".gen_durable"
_SOCKETS = "run"
# For the account of the server if the client is root and that account cannot reach the wanted directory.
_SYSTEM = Path("/var/lib/gen_durable")
# The limit is 107 bytes on Linux and 103 on macOS.
_MAX_SOCKET_PATH = 100
# Not TMPDIR, which may differ between processes: all clients must find the same directory.
_SHORT_PARENT = Path("/tmp")  # noqa: S108  made 0700 and its owner checked


@dataclass(frozen=True, slots=True)
class Home:
    """The home directory of one server, and the account that it runs as (`None`: that of this process)."""

    path: Path
    account: Account | None
    foreign_link: str | None = None
    """Why the path is not trusted: a symbolic link of another account."""

    @property
    def data(self) -> Path:
        return self.path / "data"

    @property
    def log(self) -> Path:
        return self.path / "server.log"

    @property
    def clients_lock(self) -> Path:
        """Held (shared) by every client that uses the server."""
        return self.path / "clients.lock"

    @property
    def start_lock(self) -> Path:
        """Held by the client that starts a keeper."""
        return self.path / "start.lock"

    @property
    def keeper_lock(self) -> Path:
        """Held by the keeper while it runs."""
        return self.path / "keeper.lock"

    @property
    def leases(self) -> Path:
        """The directory with one file for each lease of a client."""
        return self.path / "leases"

    @property
    def is_kept(self) -> bool:
        """Whether the server runs until `gen-durable db stop`, also without clients."""
        return read_mode(self.path) == KEPT

    @property
    def is_stopped(self) -> bool:
        """Whether `gen-durable db stop` was called after the last start."""
        return read_mode(self.path) == STOPPED

    def set_mode(self, mode: str | None) -> None:
        """Set `KEPT` or `STOPPED`; `None`: as long as it has clients. The caller holds the start lock."""
        file = self.path / "mode"
        if mode is None:
            file.unlink(missing_ok=True)
            return
        fresh = file.with_suffix(".new")
        fresh.write_text(mode, encoding="ascii")
        fresh.replace(file)

    @property
    def socket_directory(self) -> Path:
        near = self.path / _SOCKETS
        # Drivers split hosts at a comma, even in quotes.
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
        """The user id of the server process, its data and its sockets."""
        return os.geteuid() if self.account is None else self.account.uid

    def make(self) -> None:
        """Create the directory and its missing parents.

        Raises:
            UnreachableError: another account could replace the directory or its content.
        """
        self._check()
        mode = 0o700 if self.account is None else 0o711
        for each in reversed((self.path, *self.path.parents)):
            if not each.exists():
                _make_directory(each, mode)
        if self.path.parent.name == _DEFAULT_PARENT:
            with suppress(FileExistsError), (self.path.parent / ".gitignore").open("x") as file:
                file.write("*\n")
        self.leases.mkdir(0o700, exist_ok=True)
        # Another process may have created directories in the meantime: check again.
        self._check()

    def _check(self) -> None:
        if problem := self.foreign_link or _danger(self.path):
            raise UnreachableError(
                self.dsn,
                problem,
                "Set GEN_DURABLE_HOME to a directory that only you and root can write (all its parents too), "
                "or set GEN_DURABLE_DSN to a server of your own.",
            )

    def make_socket_directory(self) -> None:
        if not os.path.lexists(self.socket_directory):
            _make_directory(self.socket_directory, 0o700, self.account)

    def has_safe_sockets(self) -> bool:
        """Whether the socket directory exists.

        Raises:
            UnreachableError: it exists, and another account could have created it or can write to it.
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


def locate(given: Path | None) -> Home:
    """Return the home: as given, else GEN_DURABLE_HOME, else `./.gen_durable/pg<major>`.

    For root it is a directory below /var/lib/gen_durable, named after that path, if the account of the server cannot
    reach the path, or if the default path is below a directory of another account and has no data yet.
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


def home_of(dsn: str) -> Home | None:
    """Return the home of the embedded server that a DSN names, if its data exists and this process may use the home.

    The lock file of its clients distinguishes it from a server of the user with similar directories, which must not be
    touched.
    """
    try:
        fields = fields_of(dsn)
    except DsnError:
        return None  # the connect reports it
    host = fields.get("host", "")
    if not host.startswith("/") or fields.get("port", str(PORT)) != str(PORT):
        return None
    sockets = Path(host)
    path = sockets.parent if sockets.name == _SOCKETS else _home_of_short(sockets)
    try:
        if path is None or not (path / "data").is_dir() or _danger(path):
            return None
        home = locate(path)
        is_usable = os.access(home.clients_lock, os.R_OK | os.W_OK, effective_ids=True)
    except PermissionError:
        return None
    return home if is_usable and home.socket_directory == sockets else None


def _home_of_short(sockets: Path) -> Path | None:
    """The home of a server with a short socket directory, which names it only while the server runs."""
    # PostgreSQL writes its data directory into the second line of the lock file.
    with suppress(OSError, UnicodeDecodeError):
        opened = open_owned(sockets, f".s.PGSQL.{PORT}.lock", os.O_RDONLY, sockets.lstat().st_uid)
        if opened is not None:
            with os.fdopen(opened, encoding="utf-8") as file:
                return Path(file.read().split("\n")[1]).parent
    return None


def _danger(home: Path) -> str | None:
    """Describe the account that could replace the home or a parent of it; `None` if only we and root can.

    In a sticky directory like /tmp, our own entries are safe. Group write permission counts for root only, because the
    group of other users is often their own.
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
    """Describe a symbolic link on the path that belongs to another account, which can redirect where we write."""
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
    # Renamed into place after mode and owner are set: another client may check them at any moment. Independent of the
    # umask.
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
