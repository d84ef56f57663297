"""Upgrade a stored state from the version that it was written with to the version of a machine."""

from __future__ import annotations

from typing import Any

import msgspec

from ..definition import MachineDef
from ..errors import UpgradeError
from ..outcome import reason_text
from .codec import decode

__all__ = ["upgraded"]


def upgraded(text: str, version: int, machine: MachineDef, what: str) -> str:
    """Return the stored state `text` of an older version as JSON text of the machine's version.

    Raises:
        DecodeError: the text is nested too deeply to be read.
        UpgradeError: an upgrade raised, or returned a value that is not JSON data.
    """
    state = decode(text, Any, what)
    for current in range(version, machine.version):
        try:
            state = machine.upgrades[current](state)
        except Exception as error:
            raise UpgradeError(what, current, f"the upgrade raised {reason_text(error)}") from error
    try:
        return msgspec.json.encode(state).decode()
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        problem = f"the upgrade returned a {type(state).__name__} that cannot be written as JSON"
        raise UpgradeError(what, machine.version - 1, problem) from error
