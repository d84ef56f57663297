from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest


@pytest.fixture
def conn(durable_dsn: str) -> Iterator[psycopg.Connection]:
    """A connection of the test's own, to look behind the curtain."""
    with psycopg.connect(durable_dsn, autocommit=True) as conn:
        yield conn
