"""Under which account the server runs, and what that account can reach.

PostgreSQL refuses to run as root. Root lends it an account that exists already, and looks whether that account
gets to the files; where it does not, files are copied or live elsewhere. No directory of the user's is opened up.
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
    """An account that root runs the server under."""

    name: str
    uid: int
    gid: int


def choose(data: Path) -> Account | None:
    """Return the account for a server on this data directory; None is the account of this process.

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
    return _owner(data) or _borrowed()


def can_enter(account: Account, directory: Path) -> bool:
    """Whether the account may pass through every directory on the way; those yet to be made do not count."""
    return all(_may(account, each, _EXECUTE) for each in (directory, *directory.parents) if each.exists())


def can_run(account: Account, program: Path) -> bool:
    """Whether the account gets to the program and may run it."""
    return can_enter(account, program.parent) and _may(account, program, _READ_AND_EXECUTE)


def _may(account: Account, path: Path, wanted: int) -> bool:
    # As the kernel does it: only the first class that fits counts. Access lists are not looked at; where they
    # matter, the answer may be a needless no, which costs a copy.
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
        raise SettingsError("GEN_DURABLE_PG_USER", f"is no account of this machine: {name!r}") from None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def _owner(data: Path) -> Account | None:
    try:
        uid = data.stat().st_uid
        entry = pwd.getpwuid(uid)
    except (FileNotFoundError, KeyError):
        return None
    return Account(entry.pw_name, uid, entry.pw_gid) if uid != 0 else None


def _borrowed() -> Account:
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
    raise UnreachableError(
        "the embedded server",
        "PostgreSQL refuses to run as root, and there is neither an account 'postgres' nor 'nobody'",
        "Set GEN_DURABLE_PG_USER to an account of this machine, or GEN_DURABLE_DSN to a server of your own.",
    )
