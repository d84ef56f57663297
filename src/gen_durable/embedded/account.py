"""Choose the account that the server runs as, and check which files it can reach.

PostgreSQL refuses to run as root. For root, the server runs as another existing account. Files that this account cannot
reach are copied or placed elsewhere; permissions of the user's directories are never changed.
"""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from gen_durable.config import environment_pg_user
from gen_durable.errors import SettingsError, UnreachableError

__all__ = ["Account", "can_enter", "can_run", "choose"]

_EXECUTE = 0o1
_READ_AND_EXECUTE = 0o5


@dataclass(frozen=True, slots=True)
class Account:
    """The account that the server runs as if the client is root."""

    name: str
    uid: int
    gid: int


def choose(data: Path) -> Account | None:
    """Return the account for a server on this data directory; `None`: the account of this process.

    For root that is GEN_DURABLE_PG_USER, else the owner of the data, else `postgres`, else `nobody`.
    """
    wanted = environment_pg_user()
    if os.geteuid() != 0:
        if wanted is not None and _named(wanted).uid != os.geteuid():
            raise SettingsError("GEN_DURABLE_PG_USER", f"can be {wanted!r} for root only; unset it")
        return None
    if wanted is not None:
        account = _named(wanted)
        if account.uid == 0:
            raise SettingsError("GEN_DURABLE_PG_USER", "must not be root: PostgreSQL refuses to run as root")
        return account
    return _owner(data) or _default()


def can_enter(account: Account, directory: Path) -> bool:
    """Whether the account can enter the directory and all above it, as far as they exist."""
    return all(_may(account, each, _EXECUTE) for each in (directory, *directory.parents) if each.exists())


def can_run(account: Account, program: Path) -> bool:
    """Whether the account can reach and run the program."""
    return can_enter(account, program.parent) and _may(account, program, _READ_AND_EXECUTE)


def _may(account: Account, path: Path, wanted: int) -> bool:
    # Like the kernel: only the first class that applies counts. ACLs are ignored; a wrong False costs only a copy.
    status = path.stat()
    if status.st_uid == account.uid:
        granted = status.st_mode >> 6
    elif status.st_gid == account.gid:
        granted = status.st_mode >> 3
    else:
        granted = status.st_mode
    return granted & wanted == wanted


def _named(name: str) -> Account:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise SettingsError("GEN_DURABLE_PG_USER", f"is not an account of this machine: {name!r}") from None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _owner(data: Path) -> Account | None:
    try:
        uid = data.stat().st_uid
        entry = pwd.getpwuid(uid)
    except (FileNotFoundError, KeyError):
        return None
    return Account(entry.pw_name, uid, entry.pw_gid) if uid != 0 else None


def _default() -> Account:
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
    raise UnreachableError(
        "the embedded server",
        "PostgreSQL refuses to run as root, and neither account 'postgres' nor 'nobody' exists",
        "Set GEN_DURABLE_PG_USER to an account of this machine, or GEN_DURABLE_DSN to a server of your own.",
    )
