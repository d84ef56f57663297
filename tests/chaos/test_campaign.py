"""30 seconds of random faults from a seed, then the check.

GEN_DURABLE_TEST_CHAOS_SEED repeats the faults and the work of a run (not its timing);
GEN_DURABLE_TEST_CHAOS_SECONDS makes it longer.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from functools import partial
from pathlib import Path

import pytest

from tests.chaos.arena import Arena
from tests.chaos.campaign import FAULTS, SECONDS, SEED, SETTINGS, WORKERS, Campaign, say
from tests.chaos.cluster import Cluster
from tests.chaos.nemesis import Nemesis
from tests.chaos.workload import mixed, place

_PRODUCERS = 2


@pytest.mark.timeout(SECONDS + 90)
async def test_guarantees_hold_under_random_faults(
    durable_cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    say(capfd, f"chaos: seed {SEED}; GEN_DURABLE_TEST_CHAOS_SEED={SEED} repeats it")
    async with Arena.open(durable_cluster.dsn, tmp_path, SETTINGS) as arena:
        launch = partial(arena.workers.launch, queues={"default": 5})
        nemesis = Nemesis(arena, durable_cluster, random.Random(f"{SEED} nemesis"), WORKERS, launch)
        campaign = Campaign(arena)
        async with asyncio.TaskGroup() as group:
            for number in range(_PRODUCERS):
                group.create_task(_produce(campaign, arena, f"{SEED} {number}"))
            group.create_task(campaign.watch())
            await nemesis.rage(SECONDS)
            campaign.is_over = True
        report = await arena.reckoning()
    counters = {**nemesis.counters, **report.counters}
    say(capfd, f"chaos: seed {SEED}: " + ", ".join(f"{count} {name}" for name, count in counters.items()))
    for name in FAULTS:
        assert counters[name] > 0, f"{name}: these faults did not bite"


async def _produce(campaign: Campaign, arena: Arena, name: str) -> None:
    rng = random.Random(name)
    batches = (mixed(rng, 8, pace=0.2, slow=2.5, prefix=f"{name} {rng.random()} ") for _ in itertools.count())
    orders = itertools.chain.from_iterable(batches)
    await campaign.produce(rng, lambda: place(arena.producer, next(orders), rng))
