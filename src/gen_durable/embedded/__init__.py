"""PostgreSQL without installing it: a server of our own for development, tests and small single-host use."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from .unsupported import EmbeddedPostgres
else:
    from .server import EmbeddedPostgres

__all__ = ["EmbeddedPostgres"]
