"""`Finding`: a result of `doctor` and `check`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

__all__ = ["Finding", "Severity"]

Severity: TypeAlias = Literal["problem", "notice"]
"""A problem needs a fix; a notice is information."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One result of a check: what is wrong, and how to fix it."""

    code: str
    """The check that found it, for example `index.missing`."""
    severity: Severity = "problem"
    what: str
    """What is wrong."""
    fix: str
    """What to do about it."""
    facts: Mapping[str, Any] = {}
    """The values of `what`, for programs."""

    def __str__(self) -> str:
        return f"{self.severity}: {self.what}\n  {self.fix}"
