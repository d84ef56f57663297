from __future__ import annotations

from typing import Any

import pytest

from tests.support.ledger import LEDGER


@pytest.fixture
async def db(db: Any) -> Any:
    """A connection to a database that has a ledger."""
    await db.execute(LEDGER)
    return db
