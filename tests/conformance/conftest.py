from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.support import Sql


@pytest.fixture
def sql(direct_dsn: str) -> Iterator[Sql]:
    """A look behind the engine's back, into the database of the test."""
    opened = Sql(direct_dsn)
    yield opened
    opened.conn.close()


@pytest.fixture
def async_sql(db: Any) -> Any:
    """The same for those who await."""
    return db
