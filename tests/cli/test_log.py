"""Lines of the worker's log: one record cannot look like several, and none controls the terminal."""

from __future__ import annotations

import logging
import sys

from gen_durable.cli.log import RecordFormatter


def formatted(message: str, *arguments: object, error: bool = False) -> str:
    record = logging.LogRecord(
        "x", logging.INFO, __file__, 1, message, arguments, sys.exc_info() if error else None
    )
    return RecordFormatter("%(levelname)s %(message)s").format(record)


def test_stored_text_cannot_forge_log_records() -> None:
    assert formatted("step '%s' fails", "a\nINFO all is well\r\x1b[2J") == (
        "INFO step 'a\n  INFO all is well\\r\\x1b[2J' fails"
    )
    text = ""
    try:
        int("bad\nINFO all is well\x1b[2J")
    except ValueError as error:
        error.add_note("noted\nINFO all is well\x1b[2J")
        text = formatted("it fails", error=True)
    assert "all is well" in text
    assert "\x1b" not in text
    assert [line for line in text.split("\n")[1:] if not line.startswith("  ")] == []
