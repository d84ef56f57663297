"""Logging of a worker to standard error, if the application has not configured logging."""

from __future__ import annotations

import logging
from typing import Final

from .. import logs
from .rows import clean

__all__ = ["RecordFormatter", "set_up_log"]

_FORMAT: Final = "%(asctime)s %(levelname)s %(whose)s%(message)s"


def set_up_log() -> None:
    """Log to standard error from INFO on, unless the application has configured logging."""
    if logging.getLogger("gen_durable.worker").hasHandlers():
        return
    logs.add_context()
    handler = logging.StreamHandler()
    handler.setFormatter(RecordFormatter(_FORMAT))
    handler.addFilter(_add_owner)
    root = logging.getLogger()
    root.addHandler(handler)
    if root.level == logging.WARNING:  # the default of Python; any other level is a choice of the application
        root.setLevel(logging.INFO)
    # The command prints its own start line on standard output.
    logging.getLogger("gen_durable.worker.start").setLevel(logging.WARNING)


class RecordFormatter(logging.Formatter):
    """Escape control characters and indent all lines of a record but the first.

    Names, keys and errors come from rows, so producers choose them. They must not forge a log record or control the
    terminal.
    """

    def format(self, record: logging.LogRecord) -> str:
        return "\n  ".join(map(clean, super().format(record).split("\n")))


def _add_owner(record: logging.LogRecord) -> bool:
    """Prefix records of user code with their instance and step. Records of the engine name them in the message."""
    owner = getattr(record, "durable", "-")
    is_named = owner == "-" or record.name.partition(".")[0] == "gen_durable"
    record.whose = "" if is_named else f"[{owner}] "
    return True
