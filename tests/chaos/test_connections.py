"""Connections that break in a statement, between COMMIT and its reply, or silently."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from gen_durable import AsyncClient
from tests.chaos.arena import Arena
from tests.chaos.history import Producer
from tests.chaos.machines import Chain, Collector, Fan, Payer, Work
from tests.chaos.nemesis import BACKENDS, TERMINATE
from tests.chaos.worker_processes import CHAOS, PATIENT
from tests.chaos.workload import mixed, place
from tests.support.tcp_proxy import (
    COMMIT,
    FLUSH,
    INSERT,
    LOCK_FOR_EFFECT,
    PICK,
    PLAIN,
    RENEW,
    SIGNAL,
    SWEEP,
    Match,
    Proxy,
    Verdict,
    When,
    saying,
)


async def test_terminated_backends_under_load_lose_nothing(database: str, tmp_path: Path) -> None:
    rng = random.Random(1)
    terminated = 0
    async with Arena.open(database, tmp_path, PATIENT) as arena:
        for _ in range(2):
            await arena.workers.start()
        async with asyncio.TaskGroup() as group:
            for order in mixed(rng, 24):
                group.create_task(place(arena.producer, order, rng))
            for _ in range(25):
                pids = await arena.ask(BACKENDS)
                terminated += await arena.ask(TERMINATE, rng.sample(pids, min(len(pids), 2)))
                await asyncio.sleep(0.08)
        report = await arena.reckoning()
    assert terminated >= 40
    assert report.counters["duplicate step runs"] == 0, "no worker died, so no lease was lost"


@pytest.mark.parametrize(
    ("verdict", "when"),
    [
        pytest.param(Verdict.CUT, "asked", id="the request is lost"),
        pytest.param(Verdict.CUT, "answered", id="the answer is lost"),
        pytest.param(Verdict.LATE, "asked", id="the request comes late"),
    ],
)
async def test_lost_commit_is_checked_before_it_is_repeated(
    arena: Arena, verdict: Verdict, when: When
) -> None:
    async with Proxy.open(arena.dsn) as proxy:
        for match in (saying(PLAIN), saying(COMMIT, after=LOCK_FOR_EFFECT), saying(COMMIT, after=FLUSH)):
            proxy.on(match, when, lambda: verdict, times=5)
        await arena.workers.start(proxy.dsn)
        rng = random.Random(2)
        async with asyncio.TaskGroup() as group:
            for order in mixed(rng, 24):
                group.create_task(place(arena.producer, order, rng))
        report = await arena.reckoning()
    assert proxy.cuts >= 8
    assert (report.counters["reaped"], report.counters["stale outcomes"]) == (0, 0)
    assert report.counters["duplicate step runs"] == 0


async def test_inbox_is_deleted_when_the_reply_to_an_end_is_lost(arena: Arena) -> None:
    async with Proxy.open(arena.dsn) as proxy:
        trap = proxy.trap(saying(SWEEP), "asked")
        await arena.workers.start(proxy.dsn)
        await _collect(arena.producer, 1)
        (await trap.springs()).give(Verdict.CUT)
        await arena.reckoning()


async def test_lost_reply_to_a_pick_costs_a_lease(arena: Arena) -> None:
    async with Proxy.open(arena.dsn) as proxy:
        for number in range(4):
            await arena.producer.insert_surely(f"chain {number}", Chain, Work(steps=2))
        trap = proxy.trap(saying(PICK), "answered")
        arena.workers.launch(proxy.dsn)
        (await trap.springs()).give(Verdict.CUT)
        report = await arena.reckoning()
    assert (report.counters["reaped"], report.counters["duplicate step runs"]) == (4, 0)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("plain commit", saying(PLAIN)),
        ("commit", saying(COMMIT, after=FLUSH)),
        ("effect", saying(LOCK_FOR_EFFECT)),
        ("pick", saying(PICK)),
        ("heartbeat", saying(RENEW)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_silent_connection_is_closed(arena: Arena, name: str, match: Match) -> None:
    async with Proxy.open(arena.dsn) as proxy:
        await arena.producer.insert_surely("chain", Chain, Work(steps=2, pace=0.5))
        await arena.producer.insert_surely("payer", Payer, Work(steps=2, pace=0.2))
        await arena.producer.insert_surely("fan", Fan, Work(rounds=[[Work(pace=0.2)]]))
        proxy.on(match, "answered", lambda: Verdict.SILENCE)
        arena.workers.launch(proxy.dsn)
        report = await arena.reckoning()
    assert proxy.silences == 1
    assert (report.counters["reaped"] > 0) == (name == "pick"), "only what a lost answer has leased"
    assert report.counters["duplicate step runs"] == 0


async def test_repeated_insert_after_a_lost_reply_changes_nothing(arena: Arena) -> None:
    await arena.workers.start()
    async with (
        Proxy.open(arena.dsn) as proxy,
        AsyncClient(proxy.dsn, settings=CHAOS) as client,
    ):
        producer = Producer(client)
        producer.history = arena.producer.history
        rng = random.Random(3)
        for match in (saying(INSERT), saying(SIGNAL)):
            for when in ("asked", "answered"):
                proxy.on(match, when, lambda: rng.choice([Verdict.CUT, Verdict.PASS]), times=12)
        async with asyncio.TaskGroup() as group:
            for number in range(8):
                group.create_task(_collect(producer, number))
        report = await arena.reckoning()
    assert (report.counters["instances"], report.counters["unknown answers"] > 5) == (8, True)


async def _collect(producer: Producer, number: int) -> None:
    id = await producer.insert_surely(f"collector {number}", Collector, Work(wants=2))
    for token in ("first", "second"):
        await producer.signal_surely(id, token)
