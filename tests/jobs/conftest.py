"""A blocking connection of the test's own, to look behind the engine's back."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.rows import DictRow, dict_row


@pytest.fixture
def conn(durable_dsn: str) -> Iterator[psycopg.Connection[DictRow]]:
    """The same for tests that do not await."""
    with psycopg.connect(durable_dsn, autocommit=True, row_factory=dict_row) as conn:
        yield conn
