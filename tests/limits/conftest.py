"""A plain connection to the test's database, to look behind the engine's back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest


@pytest.fixture
async def db(direct_dsn: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(direct_dsn)
    yield connection
    await connection.close()
