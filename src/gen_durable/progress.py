"""`Progress`: how far a step is."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Final

import msgspec

from ._checks import checked_number
from .errors import UsageError

__all__ = ["Progress", "checked_progress"]

_MAX_MESSAGE: Final = 1000


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a step is, as it has reported by `ctx.progress`. `str()` of it is one line: `12 of 20 (60%): page 12`."""

    done: int | float
    total: int | float | None = None
    message: str = ""
    at: datetime | None = None
    """When the worker stored it, at most about a second after the call."""

    @property
    def fraction(self) -> float | None:
        """The part that is done, from 0 to 1; `None` without a total."""
        if self.total is None:
            return None
        return min(self.done / self.total, 1.0) if self.total else 1.0

    def __str__(self) -> str:
        done = _number(self.done)
        if self.total is not None and self.fraction is not None:
            # Rounded down: 100% means that all is done.
            done = f"{done} of {_number(self.total)} ({math.floor(self.fraction * 100)}%)"
        return f"{done}: {self.message}" if self.message else done


def checked_progress(done: object, total: object, message: object) -> Progress:
    """Check the arguments of `ctx.progress`. A long message is shortened, because it may contain data of others."""
    if not isinstance(message, str):
        raise UsageError(f"message of ctx.progress is of type {type(message).__name__}", "give a text")
    if len(message) > _MAX_MESSAGE:
        message = message[: _MAX_MESSAGE - 1] + "…"
    if not message.isprintable():
        # JSON in PostgreSQL holds neither NUL nor lone surrogates.
        message = message.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
    return Progress(
        done=checked_number(done, "done of ctx.progress"),
        total=None if total is None else checked_number(total, "total of ctx.progress"),
        message=message,
    )


def _number(value: float) -> str:
    return f"{value:,.15g}"
