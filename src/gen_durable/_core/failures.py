"""What a step raised, as JSON to keep: its type, its message, where it happened. No locals: they may be private."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Final

import msgspec

from ..outcome import reason_text

__all__ = ["failure_json"]

_FRAMES: Final = 20
_OURS: Final = str(Path(__file__).parents[1])


def failure_json(error: BaseException, attempt: int) -> str:
    """An exception as the JSON text of the column `error`."""
    # The engine's own frames tell a user nothing.
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(_OURS)
    ]
    frames = frames[-_FRAMES:]
    lines = [f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
    facts = {
        "type": type(error).__name__,
        "message": reason_text(error),
        "traceback": [line.replace("\0", "").encode(errors="backslashreplace").decode() for line in lines],
        "attempt": attempt,
    }
    return msgspec.json.encode(facts).decode()
