"""30 seconds of random faults from a seed, then the check.

GEN_DURABLE_TEST_CHAOS_SEED repeats the faults and the work of a run (not its timing);
GEN_DURABLE_TEST_CHAOS_SECONDS makes it longer.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from tests.chaos.arena import AWAY, Arena
from tests.chaos.cluster import Cluster
from tests.chaos.nemesis import Nemesis
from tests.chaos.worker_processes import CHAOS
from tests.chaos.workload import mixed, place

SEED = int(os.environ.get("GEN_DURABLE_TEST_CHAOS_SEED") or random.randrange(2**31))
SECONDS = float(os.environ.get("GEN_DURABLE_TEST_CHAOS_SECONDS") or 30)
_SETTINGS = msgspec.structs.replace(CHAOS, lease=timedelta(seconds=2), heartbeat=timedelta(milliseconds=600))
_WORKERS = 3
_PRODUCERS = 2
# Enough to keep all workers busy, few enough to finish soon after the faults.
_BACKLOG = 40
_LIVE = "select count(*) from gen_durable.gen_durable where status in ('runnable', 'executing')"


@pytest.mark.timeout(SECONDS + 90)
async def test_guarantees_hold_under_random_faults(
    durable_cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _say(capfd, f"chaos: seed {SEED}; GEN_DURABLE_TEST_CHAOS_SEED={SEED} repeats it")
    async with Arena.open(durable_cluster.dsn, tmp_path, _SETTINGS) as arena:
        nemesis = Nemesis(arena, durable_cluster, random.Random(f"{SEED} nemesis"), _WORKERS)
        campaign = _Campaign(arena)
        async with asyncio.TaskGroup() as group:
            for number in range(_PRODUCERS):
                group.create_task(campaign.produce(f"{SEED} {number}"))
            group.create_task(campaign.watch())
            await nemesis.rage(SECONDS)
            campaign.is_over = True
        report = await arena.reckoning()
    counters = {**nemesis.counters, **report.counters}
    _say(capfd, f"chaos: seed {SEED}: " + ", ".join(f"{count} {name}" for name, count in counters.items()))
    for name in ("kills", "stops", "backends terminated", "server crashes", "reaped", "duplicate step runs"):
        assert counters[name] > 0, f"{name}: these faults did not bite"


class _Campaign:
    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._backlog = 0
        self.is_over = False

    async def produce(self, name: str) -> None:
        """Insert orders as long as the workers keep up."""
        rng = random.Random(name)
        while not self.is_over:
            for order in mixed(rng, 8, pace=0.2, slow=2.5, prefix=f"{name} {rng.random()} "):
                while self._backlog > _BACKLOG and not self.is_over:
                    await asyncio.sleep(0.05)
                if not self.is_over:
                    await place(self._arena.producer, order, rng)
                    await asyncio.sleep(rng.uniform(0, 0.6))

    async def watch(self) -> None:
        """Read the backlog, and record ended instances."""
        while not self.is_over:
            with suppress(*AWAY):
                self._backlog = await self._arena.ask(_LIVE)
                await self._arena.seal()
            await asyncio.sleep(0.5)


def _say(capfd: pytest.CaptureFixture[str], text: str) -> None:
    """Print to the terminal, also from a pytest-xdist process."""
    with capfd.disabled():
        sys.stderr.write(f"\n{text}\n")
