"""Named SQL statements of the test kit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources

from .._db.plan import Statement

__all__ = ["statements"]

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


def statements(file: str) -> Mapping[str, Statement]:
    """Return the statements of one `.sql` file of this package by name."""
    text = resources.files("gen_durable.testing").joinpath(file).read_text(encoding="utf-8")
    parts = _NAME.split(text)[1:]
    return {name: Statement(name, body) for name, body in zip(parts[::2], parts[1::2], strict=True)}
