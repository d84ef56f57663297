"""Exceptions of user code as JSON and as log text. Without local variables: they may be private."""

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


def failure_json(error: BaseException, attempt: int, step: str) -> str:
    """Encode an exception for the columns `error` and `failure`: type, message, traceback, attempt, step."""
    # Without frames of the engine; the innermost of the others.
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
        "step": step,
    }
    return msgspec.json.encode(facts).decode()


def traceback_text(error: BaseException) -> str:
    """Format an exception as Python does, without the engine's frames above the user's code."""
    formatted = traceback.TracebackException.from_exception(error)
    _shorten(formatted)
    return "".join(formatted.format()).rstrip()


def _shorten(formatted: traceback.TracebackException) -> None:
    # Frames of the engine below the user's code stay, and so does the place where the engine raised an error.
    users = (place for place, frame in enumerate(formatted.stack) if not _is_ours(frame.filename))
    last = max(users, default=len(formatted.stack) - 1)
    formatted.stack[:last] = [frame for frame in formatted.stack[:last] if not _is_ours(frame.filename)]
    for inner in (formatted.__cause__, formatted.__context__, *(formatted.exceptions or ())):
        if inner is not None:
            _shorten(inner)


def _is_ours(file: str) -> bool:
    return file.startswith(_OURS)
