"""What campaigns of random faults have in common: their seed and length, their settings, and producers that insert work."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final

import msgspec
import pytest

from tests.chaos.arena import AWAY, Arena
from tests.chaos.worker_processes import CHAOS

__all__ = ["FAULTS", "SECONDS", "SEED", "SETTINGS", "WORKERS", "Campaign", "say"]

SEED: Final = int(os.environ.get("GEN_DURABLE_TEST_CHAOS_SEED") or random.randrange(2**31))
SECONDS: Final = float(os.environ.get("GEN_DURABLE_TEST_CHAOS_SECONDS") or 30)
SETTINGS: Final = msgspec.structs.replace(
    CHAOS, lease=timedelta(seconds=2), heartbeat=timedelta(milliseconds=600)
)
WORKERS: Final = 3
FAULTS: Final = ("kills", "stops", "backends terminated", "server crashes", "reaped", "duplicate step runs")
"""Counters that are zero only if the faults had no effect."""
# Enough to keep all workers busy, few enough to finish soon after the faults.
_BACKLOG: Final = 40
_LIVE: Final = "select count(*) from gen_durable.gen_durable where status in ('runnable', 'executing')"


class Campaign:
    """Producers that insert as long as the workers keep up, and a watch over the instances that have ended."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._backlog = 0
        self.is_over = False

    async def produce(self, rng: random.Random, place: Callable[[], Awaitable[None]]) -> None:
        """Call `place`, which inserts an instance, until the campaign is over."""
        while not self.is_over:
            if self._backlog > _BACKLOG:
                await asyncio.sleep(0.05)
            else:
                await place()
                await asyncio.sleep(rng.uniform(0, 0.6))

    async def watch(self) -> None:
        """Read the backlog, and record ended instances."""
        while not self.is_over:
            with suppress(*AWAY):
                self._backlog = await self._arena.ask(_LIVE)
                await self._arena.seal()
            await asyncio.sleep(0.5)


def say(capfd: pytest.CaptureFixture[str], text: str) -> None:
    """Print to the terminal, also from a pytest-xdist process."""
    with capfd.disabled():
        sys.stderr.write(f"\n{text}\n")
