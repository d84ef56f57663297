"""Throws one fault after the other, as a seed says, and counts them."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

from tests.chaos.arena import Arena
from tests.chaos.cluster import Cluster
from tests.chaos.fleet import Process

__all__ = ["BACKENDS", "TERMINATE", "Nemesis"]

# Of clients and workers; those of our own questions have no such name.
BACKENDS = """
select array(select pid from pg_stat_activity
              where application_name = 'gen_durable' and datname = current_database() order by pid)"""
TERMINATE = "select count(*) filter (where pg_terminate_backend(pid)) from unnest($1::int[]) pid"
_HOLDERS = """
select array(select split_part(locked_by, ':', 2)::int from gen_durable.gen_durable where status = 'executing')"""
# A server that has just been started takes nothing back for one lease; crashes that follow each other more closely
# would only prove that nothing happens then.
_CALM_AFTER_CRASH = 6.0


class Nemesis:
    """Kills, stops, terminates and crashes; in the end it heals everything."""

    def __init__(self, arena: Arena, cluster: Cluster, rng: random.Random, workers: int) -> None:
        self._arena = arena
        self._cluster = cluster
        self._rng = rng
        self._crew: list[Process] = []
        self._wanted = workers
        self._last_crash = time.monotonic()
        self.counters: Counter[str] = Counter()

    async def rage(self, seconds: float) -> None:
        """Faults for so long; then the healing."""
        give_up = time.monotonic() + seconds
        lease = self._arena.fleet.settings.lease.total_seconds()
        stops: set[asyncio.Task[None]] = set()
        while time.monotonic() < give_up:
            self._man()
            await asyncio.sleep(self._rng.uniform(0.2, 0.9))
            match self._rng.choices(["kill", "retire", "stop", "terminate", "crash"], [4, 1, 3, 4, 2])[0]:
                case "kill" if victim := await self._victim():
                    victim.kill()
                    self.counters["kills"] += 1
                case "retire" if victim := await self._victim():
                    # As a deployment does it: the next one starts while this one gives back what it has.
                    victim.terminate()
                    self._crew.remove(victim)
                    self.counters["retirements"] += 1
                case "stop" if victim := await self._victim():
                    # Now and then it comes back in time.
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
        """As many workers as there should be: who was killed is replaced, and who met no server when it started."""
        self._crew = [process for process in self._crew if process.exit_code is None]
        while len(self._crew) < self._wanted:
            self._crew.append(self._arena.fleet.launch(queues={"default": 5}))

    async def _victim(self) -> Process | None:
        """One of those who have something to lose."""
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
