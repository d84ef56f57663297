"""Inject faults in a seeded order, and count them."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable

from tests.chaos.arena import Arena
from tests.chaos.cluster import Cluster
from tests.chaos.worker_processes import Process

__all__ = ["BACKENDS", "TERMINATE", "Nemesis"]

# Sessions of clients and workers, not of the test.
BACKENDS = """
select array(select pid from pg_stat_activity
              where application_name = 'gen_durable' and datname = current_database() order by pid)"""
TERMINATE = "select count(*) filter (where pg_terminate_backend(pid)) from unnest($1::int[]) pid"
_HOLDERS = """
select array(select split_part(locked_by, ':', 2)::int from gen_durable.gen_durable where status = 'executing')"""
# The reaper waits one lease after a server start; crashes in shorter intervals would only test that.
_CALM_AFTER_CRASH = 6.0


class Nemesis:
    """Kills, stops, terminates and crashes; then heals everything."""

    def __init__(
        self, arena: Arena, cluster: Cluster, rng: random.Random, workers: int, launch: Callable[[], Process]
    ) -> None:
        self._arena = arena
        self._cluster = cluster
        self._rng = rng
        self._launch = launch
        self._crew: list[Process] = []
        self._wanted = workers
        self._last_crash = time.monotonic()
        self.counters: Counter[str] = Counter()

    async def rage(self, seconds: float) -> None:
        """Inject faults for this long, then heal."""
        give_up = time.monotonic() + seconds
        lease = self._arena.workers.settings.lease.total_seconds()
        stops: set[asyncio.Task[None]] = set()
        while time.monotonic() < give_up:
            self._man()
            await asyncio.sleep(self._rng.uniform(0.2, 0.9))
            match self._rng.choices(["kill", "retire", "stop", "terminate", "crash"], [4, 1, 3, 4, 2])[0]:
                case "kill" if victim := await self._victim():
                    victim.kill()
                    self.counters["kills"] += 1
                case "retire" if victim := await self._victim():
                    # As in a rolling deploy: the next worker starts while this one drains.
                    victim.terminate()
                    self._crew.remove(victim)
                    self.counters["retirements"] += 1
                case "stop" if victim := await self._victim():
                    # Sometimes it resumes before its leases expire.
                    stop = self._stop(victim, self._rng.uniform(0.5, 3.0) * lease)
                    stops.add(asyncio.get_running_loop().create_task(stop))
                case "terminate":
                    await self._terminate()
                case "crash" if time.monotonic() - self._last_crash > _CALM_AFTER_CRASH:
                    await self._crash()
        if stops:
            await asyncio.wait(stops)
        self._man()

    def _man(self) -> None:
        """Replace workers that were killed or exited."""
        self._crew = [process for process in self._crew if process.exit_code is None]
        while len(self._crew) < self._wanted:
            self._crew.append(self._launch())

    async def _victim(self) -> Process | None:
        """A random running worker."""
        holders = await self._arena.ask(_HOLDERS)
        busy = [process for process in self._crew if process.pid in holders and not process.is_stopped]
        return self._rng.choice(busy) if busy else None

    async def _stop(self, victim: Process, seconds: float) -> None:
        victim.stop()
        self.counters["stops"] += 1
        await asyncio.sleep(seconds)
        victim.resume()

    async def _terminate(self) -> None:
        pids = await self._arena.ask(BACKENDS)
        chosen = self._rng.sample(pids, min(len(pids), self._rng.randint(1, 4)))
        self.counters["backends terminated"] += await self._arena.ask(TERMINATE, chosen)

    async def _crash(self) -> None:
        self._cluster.crash()
        await asyncio.sleep(self._rng.choice([0.0, self._rng.uniform(0, 1)]))
        await asyncio.to_thread(self._cluster.start)
        self._last_crash = time.monotonic()
        self.counters["server crashes"] += 1
