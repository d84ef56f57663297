"""What the doctor finds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

__all__ = ["Finding", "Severity"]

Severity: TypeAlias = Literal["problem", "notice"]
"""A problem wants to be mended; a notice is good to know."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not as it should be, and what to do about it."""

    code: str
    """Which check found it: `index.missing`."""
    severity: Severity = "problem"
    what: str
    fix: str
    facts: Mapping[str, Any] = {}

    def __str__(self) -> str:
        return f"{self.severity}: {self.what}\n  {self.fix}"
