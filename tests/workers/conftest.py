"""A plain connection to the test's database, to look behind the engine's back."""

from __future__ import annotations

from tests.scenarios.conftest import db

__all__ = ["db"]
