"""Settings for workers under test."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import msgspec

from gen_durable import Settings

# Leases expire within a second, and polls are frequent.
FAST: Final = Settings.load(
    lease=timedelta(seconds=1),
    heartbeat=timedelta(milliseconds=300),
    reap_interval=timedelta(milliseconds=100),
    poll_interval=timedelta(milliseconds=100),
    min_poll_interval=timedelta(milliseconds=100),
    drain_timeout=timedelta(seconds=5),
)
# Leases last a minute, so a worker loses one only if the test takes it away. A chain ends only where the test ends it.
CALM: Final = Settings.load(
    chain_time=timedelta(minutes=1),
    poll_interval=timedelta(milliseconds=100),
    min_poll_interval=timedelta(milliseconds=100),
    drain_timeout=timedelta(seconds=1),
)
# Leases expire even sooner than with FAST, and the reaper looks 20 times per second.
BRISK: Final = msgspec.structs.replace(
    CALM,
    lease=timedelta(milliseconds=300),
    heartbeat=timedelta(milliseconds=100),
    reap_interval=timedelta(milliseconds=50),
)
AN_HOUR: Final = timedelta(hours=1)
