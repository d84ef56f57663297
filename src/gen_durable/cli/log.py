"""The log of a worker that nobody has set up one for: lines on standard error."""

from __future__ import annotations

import logging
from typing import Final

from .. import logs
from .rows import clean

__all__ = ["RecordFormatter", "set_up_log"]

_FORMAT: Final = "%(asctime)s %(levelname)s %(whose)s%(message)s"


def set_up_log() -> None:
    """Show what is logged from INFO on, unless the application has decided what becomes of it."""
    if logging.getLogger("gen_durable.worker").hasHandlers():
        return
    logs.add_context()
    handler = logging.StreamHandler()
    handler.setFormatter(RecordFormatter(_FORMAT))
    handler.addFilter(_add_owner)
    root = logging.getLogger()
    root.addHandler(handler)
    if root.level == logging.WARNING:  # as Python sets it; another one was chosen by the application
        root.setLevel(logging.INFO)
    # The command says on standard output what it serves.
    logging.getLogger("gen_durable.worker.start").setLevel(logging.WARNING)


class RecordFormatter(logging.Formatter):
    """Escapes control characters and indents all lines of a record but the first.

    Names, keys and errors come from rows, so producers choose them: they must not look like a record of their own, nor
    control the terminal.
    """

    def format(self, record: logging.LogRecord) -> str:
        return "\n  ".join(map(clean, super().format(record).split("\n")))


def _add_owner(record: logging.LogRecord) -> bool:
    """Add whose step has logged it. The engine's own lines tell that in words."""
    owner = getattr(record, "durable", "-")
    is_told = owner == "-" or record.name.partition(".")[0] == "gen_durable"
    record.whose = "" if is_told else f"[{owner}] "
    return True
