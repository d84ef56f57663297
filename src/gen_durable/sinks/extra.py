"""Imports of optional libraries."""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import UsageError

__all__ = ["needs"]


def needs(module: str, extra: str) -> Any:
    """Import a library; raise `UsageError` with the name of the extra if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UsageError(
            f"this sink needs the library {module}", f"install it: pip install 'gen_durable[{extra}]'"
        ) from None
