from __future__ import annotations

from datetime import timedelta

import pytest

from gen_durable import Settings


@pytest.fixture
def durable_settings() -> Settings:
    """`durable_dsn` goes through PgBouncer with this fixture."""
    return Settings(
        pooler="transaction",
        poll_interval=timedelta(milliseconds=100),
        min_poll_interval=timedelta(milliseconds=100),
        lease=timedelta(seconds=1),
        heartbeat=timedelta(milliseconds=300),
        reap_interval=timedelta(milliseconds=100),
        drain_timeout=timedelta(seconds=5),
    )
