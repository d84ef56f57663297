from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest


@pytest.fixture
def conn(durable_dsn: str) -> Iterator[psycopg.Connection]:
    """A connection to the test's database."""
    with psycopg.connect(durable_dsn, autocommit=True) as conn:
        yield conn
