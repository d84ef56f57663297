"""A rolling upgrade of a machine over four releases and three versions, and a rollback."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.arena import Arena
from tests.chaos.campaign import FAULTS, SECONDS, SEED, SETTINGS, WORKERS, Campaign, say
from tests.chaos.cluster import Cluster
from tests.chaos.nemesis import Nemesis
from tests.chaos.releases import RELEASES, ROUNDS, First, Second, Third, new_parcel
from tests.chaos.worker_processes import Process

_ORDER = tuple(RELEASES)
_PRODUCERS = 3
# Parcels whose state does not fit their version, or that have not counted as far as they should.
_MISFITS = f"""
select count(*) from gen_durable.gen_durable
 where fsm_version <> case when state ? 'count' then 1 when state ? 'counts' then 2 when state ? 'total' then 3 end
    or coalesce((state ->> 'count')::int, jsonb_array_length(state -> 'counts'), (state ->> 'total')::int) <> {ROUNDS}"""


class _Deploy:
    """New workers get the release whose turn it is or, with a growing chance, the next one."""

    def __init__(self, arena: Arena, rng: random.Random, group: asyncio.TaskGroup) -> None:
        self._arena = arena
        self._rng = rng
        self._group = group
        self._began = time.monotonic()
        self._launched: list[tuple[Process, str]] = []

    def release(self) -> str:
        # The last release is alone for the last fifth.
        passed = (time.monotonic() - self._began) / SECONDS / 0.8 * (len(_ORDER) - 1)
        return _ORDER[min(int(passed + self._rng.random()), len(_ORDER) - 1)]

    def launch(self) -> Process:
        release = self.release()
        process = self._arena.workers.launch(queues={"default": 5}, release=release)
        self._launched.append((process, release))
        return process

    async def complete(self) -> None:
        """Stop the workers of all releases but the last one."""
        old = [process for process, release in self._launched if release != _ORDER[-1]]
        for process in old:
            if process.exit_code is None:
                process.terminate()
        for process in old:
            await process.ends()
        await self._arena.workers.start(release=_ORDER[-1])

    async def place(self, name: str, rng: random.Random) -> None:
        """Insert a parcel as a producer of a release that is deployed; wake it later if it waits."""
        release, waits = self.release(), rng.random() < 0.5
        parcel = new_parcel(release, waits=waits, pace=rng.choice([0.0, rng.uniform(0, 0.3)]))
        id = await self._arena.producer.insert_surely(name, RELEASES[release], parcel)
        if waits:
            # At any later moment of the deploy, so that some parcels wait over several releases.
            left = max(0.0, SECONDS - (time.monotonic() - self._began))
            self._group.create_task(self._wake(id, rng.uniform(0, left)))

    async def _wake(self, id: int, after: float) -> None:
        await asyncio.sleep(after)
        await self._arena.producer.signal_surely(id, f"token {id}")


@pytest.mark.timeout(SECONDS + 90)
@pytest.mark.clause("VER-4", "VER-5", "VER-6", "VER-8")
async def test_rolling_upgrade_over_three_versions_under_faults(
    durable_cluster: Cluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    say(capfd, f"upgrade: seed {SEED}; GEN_DURABLE_TEST_CHAOS_SEED={SEED} repeats it")
    async with Arena.open(durable_cluster.dsn, tmp_path, SETTINGS) as arena:
        campaign = Campaign(arena)
        async with asyncio.TaskGroup() as group:
            deploy = _Deploy(arena, random.Random(f"{SEED} deploy"), group)
            rng = random.Random(f"{SEED} nemesis")
            nemesis = Nemesis(arena, durable_cluster, rng, WORKERS, deploy.launch)
            for number in range(_PRODUCERS):
                group.create_task(_produce(campaign, deploy, f"{SEED} {number}"))
            group.create_task(campaign.watch())
            # They are parked until version 3 alone is left, which continues states of both older versions.
            kept = [
                await arena.producer.insert_surely(
                    f"kept {release} {n}", RELEASES[release], new_parcel(release, waits=True, pace=0)
                )
                for release in ("first", "third")
                for n in range(5)
            ]
            await nemesis.rage(SECONDS)
            campaign.is_over = True
        await deploy.complete()
        for id in kept:
            await arena.producer.signal_surely(id, f"token {id}")
        await arena.finishes()
        assert await arena.ask(_MISFITS) == 0
        report = await arena.reckoning()
        ran = arena.workers.lines(what="begin")
    counters = {**nemesis.counters, **report.counters}
    pairs = {(line["code"], line["stored"]) for line in ran}
    say(capfd, f"upgrade: seed {SEED}: " + ", ".join(f"{count} {name}" for name, count in counters.items()))
    for name in FAULTS:
        assert counters[name] > 0, f"{name}: these faults did not bite"
    # Code ran states of its version and of older ones, and each kind of upgrade happened.
    assert all(stored <= code for code, stored in pairs)
    assert {(2, 1), (3, 1), (3, 2)} <= pairs, pairs
    assert _renamed(ran) > 0


def _renamed(ran: list[dict[str, Any]]) -> int:
    """The number of parcels that version 1 ran at the former name and at the new name of a step."""
    steps: defaultdict[int, set[str]] = defaultdict(set)
    for line in ran:
        if line["code"] == 1:
            steps[line["instance"]].add(line["step"])
    return sum({"work", "carry"} <= names for names in steps.values())


async def _produce(campaign: Campaign, deploy: _Deploy, name: str) -> None:
    rng = random.Random(name)
    count = 0

    async def place() -> None:
        nonlocal count
        count += 1
        await deploy.place(f"{name} parcel {count}", rng)

    await campaign.produce(rng, place)


@pytest.mark.clause("VER-8")
async def test_rolled_back_code_leaves_upgraded_instances(arena: Arena) -> None:
    await arena.workers.start(release="first")
    parcel = new_parcel("third", waits=True, pace=0)
    upgraded = await arena.producer.insert_surely("upgraded", Third, parcel)
    old = new_parcel("first", waits=False, pace=0)
    # Only the second release has this step.
    renamed = await arena.producer.insert_surely("renamed", Second, old, step="carry")
    ended = await arena.producer.insert_surely("ended", First, old, step="finish")
    await arena.holds("select status = 'done' from gen_durable.gen_durable where id = $1", ended)
    returned = "select exists (select from gen_durable.executions where instance_id = $1 and outcome = 'unknown_step')"
    await arena.holds(returned, renamed)
    assert await arena.ask("select execution from gen_durable.gen_durable where id = $1", upgraded) == 0
    await arena.workers.start(release="fourth")
    await arena.producer.signal_surely(upgraded, "go")
    await arena.finishes()
    await arena.workers.dismiss()
    versions = "select array_agg(fsm_version order by id) from gen_durable.gen_durable where status = 'done'"
    assert await arena.ask(versions) == [3, 3, 1]
