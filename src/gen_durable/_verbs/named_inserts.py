"""Insert instances of machines that are known by name only: for the command line."""

from __future__ import annotations

import msgspec

from .._db import audit, insert_by_name, machines, snapshots
from .._db.insert_by_name import NamedInsert
from .._db.plan import Plan
from .._dictionary import did_you_mean
from ..errors import UsageError
from .common import checked_actor, checked_reason
from .edits import check_by_name

__all__ = ["NamedResult", "check_registered", "insert_named"]


class NamedResult(msgspec.Struct, frozen=True):
    """The result of an insert."""

    id: int
    inserted: bool
    status: str
    """Status of the new instance, or of the one that has the key."""


def insert_named(
    new: NamedInsert, reason: str | None, actor: str | None, *, validate: bool = True
) -> Plan[NamedResult]:
    """Insert one instance. Raises UsageError if no worker has registered its machine or version.

    With `validate`, state and step are checked against what a worker has registered.
    """
    version = yield from check_registered(new)
    if validate:
        yield from check_by_name(new.fsm, version, new.state, new.step, what="the state")
    id, is_new = yield from insert_by_name.insert(new)
    if is_new:
        yield from audit.give_reason(
            id, "created", checked_reason(reason), checked_actor(actor), {"machine": new.fsm}
        )
    row = yield from snapshots.get(id)
    # The instance that has the key may have been removed since.
    return NamedResult(id, is_new, "gone" if row is None else row["status"])


def check_registered(new: NamedInsert) -> Plan[int]:
    """Reject a machine or version that no worker has registered: no worker would run it. Returns the version.

    Also rejects an insert without a key that its machine computes from the state.
    """
    known = yield from insert_by_name.known_versions()
    versions = known.get(new.fsm)
    if versions is None:
        hint = did_you_mean(new.fsm, tuple(known))
        registered = f"registered: {', '.join(known)}" if known else "none is registered"
        raise UsageError(
            f"no worker has registered machine '{new.fsm}'{hint} ({registered})", "start its worker once"
        )
    if new.version is not None and new.version not in versions:
        raise UsageError(
            f"no worker has registered version {new.version} of {new.fsm} "
            f"(registered: {', '.join(map(str, versions))})",
            "start its worker once",
        )
    version = max(versions) if new.version is None else new.version
    machine = yield from machines.registered(new.fsm, version)
    for name in machine.computed:
        if getattr(new, name) is None:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"machine '{new.fsm}' computes {name} from the state, which needs its code",
                f'give {option} KEY, or {option} "" for none',
            )
    return version
