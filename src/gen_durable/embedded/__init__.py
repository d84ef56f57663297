"""An embedded PostgreSQL server for development, tests and small single-host use."""

from __future__ import annotations

import sys

if sys.platform == "win32":
    from .unsupported import EmbeddedPostgres
else:
    from .server import EmbeddedPostgres

__all__ = ["EmbeddedPostgres"]
