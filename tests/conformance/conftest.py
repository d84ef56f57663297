from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.support import Sql


@pytest.fixture
def sql(durable_dsn: str) -> Iterator[Sql]:
    """A look behind the engine's back, into the database of the test."""
    opened = Sql(durable_dsn)
    yield opened
    opened.conn.close()
