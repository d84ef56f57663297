"""The log of a worker that nobody has set up one for: lines on standard error."""

from __future__ import annotations

import logging
from typing import Final

from .. import logs

__all__ = ["set_up_log"]

_FORMAT: Final = "%(asctime)s %(levelname)s %(whose)s%(message)s"


def set_up_log() -> None:
    """Show what is logged from INFO on, unless the application has decided what becomes of it."""
    if logging.getLogger("gen_durable.worker").hasHandlers():
        return
    logs.add_context()
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(_FORMAT))
    handler.addFilter(_add_owner)
    root = logging.getLogger()
    root.addHandler(handler)
    if root.level == logging.WARNING:  # as Python sets it; another one was chosen by the application
        root.setLevel(logging.INFO)
    # The command says on standard output what it serves.
    logging.getLogger("gen_durable.worker.start").setLevel(logging.WARNING)


def _add_owner(record: logging.LogRecord) -> bool:
    """Add whose step has logged it. The engine's own lines tell that in words."""
    owner = getattr(record, "durable", "-")
    is_told = owner == "-" or record.name.partition(".")[0] == "gen_durable"
    record.whose = "" if is_told else f"[{owner}] "
    return True
