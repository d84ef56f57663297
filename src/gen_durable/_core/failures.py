"""What a step raised, as JSON to keep: its type, its message, where it happened. No locals: they may be private."""

from __future__ import annotations

import os
import traceback
from collections import deque
from pathlib import Path
from typing import Final

import msgspec

from ..outcome import message_text, reason_text

__all__ = ["failure_json", "traceback_text"]

_FRAMES: Final = 20
_OURS: Final = f"{Path(__file__).parents[1]}{os.sep}"


def failure_json(error: BaseException, attempt: int) -> str:
    """An exception as the JSON text of the column `error`."""
    # The engine's own frames tell a user nothing. The innermost of the others tell most.
    places = (
        f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not _is_ours(frame.f_code.co_filename)
    )
    facts = {
        "type": type(error).__name__,
        "message": message_text(error),
        "traceback": [reason_text(place) for place in deque(places, _FRAMES)],
        "attempt": attempt,
    }
    return msgspec.json.encode(facts).decode()


def traceback_text(error: BaseException) -> str:
    """An exception as Python tells it, without the engine's way to the user's code: that is the same for all."""
    told = traceback.TracebackException.from_exception(error)
    _shorten(told)
    return "".join(told.format()).rstrip()


def _shorten(told: traceback.TracebackException) -> None:
    # What of ours the user's code has called stays, and the place where an error of ours was raised.
    users = (place for place, frame in enumerate(told.stack) if not _is_ours(frame.filename))
    last = max(users, default=len(told.stack) - 1)
    told.stack[:last] = [frame for frame in told.stack[:last] if not _is_ours(frame.filename)]
    for inner in (told.__cause__, told.__context__, *(told.exceptions or ())):
        if inner is not None:
            _shorten(inner)


def _is_ours(file: str) -> bool:
    return file.startswith(_OURS)
