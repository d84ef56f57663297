"""What a step raised, as JSON to keep: its type, its message, where it happened. No locals: they may be private."""

from __future__ import annotations

import os
import traceback
from collections import deque
from pathlib import Path
from typing import Final

import msgspec

from ..outcome import message_text, reason_text

__all__ = ["failure_json"]

_FRAMES: Final = 20
_OURS: Final = f"{Path(__file__).parents[1]}{os.sep}"


def failure_json(error: BaseException, attempt: int) -> str:
    """An exception as the JSON text of the column `error`."""
    # The engine's own frames tell a user nothing. The innermost of the others tell most.
    places = (
        f"{frame.f_code.co_filename}:{line} in {frame.f_code.co_name}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if not frame.f_code.co_filename.startswith(_OURS)
    )
    facts = {
        "type": type(error).__name__,
        "message": message_text(error),
        "traceback": [reason_text(place) for place in deque(places, _FRAMES)],
        "attempt": attempt,
    }
    return msgspec.json.encode(facts).decode()
