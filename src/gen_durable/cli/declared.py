"""Names of signals and streams that a machine does not declare."""

from __future__ import annotations

from typing import Literal

from .._db import snapshots
from .._db.machines import registered
from .._db.plan import Plan
from .._dictionary import did_you_mean
from .rows import clean

__all__ = ["undeclared"]


def undeclared(to: int | str, kind: Literal["signal", "stream"], name: str) -> Plan[str | None]:
    """Say that the machine of an instance declares other names only: this one may be misspelled."""
    row = yield from snapshots.get(to)
    if row is None:
        return None
    machine = yield from registered(row["fsm"], row["fsm_version"])
    known = tuple(machine.signals if kind == "signal" else machine.streams)
    if not known or name in known:
        return None
    hint = did_you_mean(name, known)
    names = "" if hint else f"; it declares {clean(', '.join(known))}"
    return f"machine {clean(machine.name)} declares no {kind} '{clean(name)}'{hint}{names}"
