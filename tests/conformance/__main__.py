"""Writes docs/internals/conformance.md."""

from __future__ import annotations

from tests.conformance.table import TABLE, current

TABLE.write_text(current(), encoding="utf-8")
