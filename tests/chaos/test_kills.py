"""SIGKILL at every point of an execution: uncommitted work is repeated, committed work is not.

Each point has its own worker, queue and proxy. The worker is killed while the proxy holds a statement or its reply, or
by its step; a second worker then serves all queues.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from gen_durable import Machine, Status
from tests.chaos.arena import Arena
from tests.chaos.machines import Brief, Chain, Collector, Fan, Payer, Result, Work
from tests.support.tcp_proxy import (
    COMMIT,
    DELETE_DONE,
    FINISH,
    FLUSH,
    INBOX,
    INSERT_PLAIN,
    LOCK_FOR_EFFECT,
    PICK,
    PLAIN,
    REAP,
    RENEW,
    UNGATE,
    Match,
    Proxy,
    Verdict,
    When,
    saying,
)


@dataclass(frozen=True)
class Point:
    """A point to be killed at, and its cost: expired leases on record, and steps that run twice.

    `None`: it may have continued on another connection.
    """

    name: str
    machine: type[Machine[Work, Result]]
    work: Work
    match: Match | None = None
    when: When = "asked"
    skips: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    lost_leases: int | None = 1
    second_runs: int = 1


KEYED = {"concurrency_key": "one at a time"}
NO_KEY_WHEN_DONE: dict[str, Any] = {"unique_scope": [status for status in Status if not status.is_terminal]}
ONE_CHILD = [[Work()]]
POINTS = {
    "claim": [
        Point("before it is sent", Chain, Work(), saying(PICK), lost_leases=0, second_runs=0),
        Point("before its answer", Chain, Work(), saying(PICK), "answered", second_runs=0),
        Point("leased, not begun", Collector, Work(wants=1), saying(INBOX), second_runs=0),
        Point("heartbeat", Chain, Work(pace=1.0), saying(RENEW), "answered"),
    ],
    "step": [
        Point("begun", Chain, Work(kill="begin@1")),
        Point("after an effect", Chain, Work(kill="effect@1")),
        Point("returned", Chain, Work(kill="end@1")),
        Point("in the second step of a chain", Chain, Work(steps=3, kill="effect@2")),
    ],
    "plain commit": [
        Point("before it is sent", Chain, Work(), saying(PLAIN)),
        Point("before its answer", Chain, Work(), saying(PLAIN), "answered", lost_leases=0, second_runs=0),
        Point(
            "before its answer, in a chain", Chain, Work(steps=2), saying(PLAIN), "answered", second_runs=0
        ),
    ],
    "commit": [
        Point("before it is sent", Chain, Work(), saying(FLUSH), options=KEYED),
        Point("rows are updated", Chain, Work(), saying(FLUSH), "answered", options={"concurrency_key": "2"}),
        Point("before COMMIT", Chain, Work(), saying(COMMIT, after=FLUSH), options={"concurrency_key": "3"}),
        Point(
            "before the answer to COMMIT",
            Chain,
            Work(),
            saying(COMMIT, after=FLUSH),
            "answered",
            options={"concurrency_key": "4"},
            lost_leases=0,
            second_runs=0,
        ),
    ],
    "commit that deletes": [
        Point(
            "before it is sent", Brief, Work(), saying(DELETE_DONE), options=NO_KEY_WHEN_DONE, lost_leases=0
        ),
        Point(
            "before its answer",
            Brief,
            Work(),
            saying(DELETE_DONE),
            "answered",
            options=NO_KEY_WHEN_DONE,
            lost_leases=0,
            second_runs=0,
        ),
    ],
    "children": [
        Point(
            "parked, children not inserted", Fan, Work(rounds=ONE_CHILD), saying(INSERT_PLAIN, after=FLUSH)
        ),
        Point("before COMMIT", Fan, Work(rounds=ONE_CHILD), saying(COMMIT, after=INSERT_PLAIN)),
        Point(
            "before the answer to COMMIT",
            Fan,
            Work(rounds=ONE_CHILD),
            saying(COMMIT, after=INSERT_PLAIN),
            "answered",
            lost_leases=None,
        ),
        Point(
            "child ended, before COMMIT", Fan, Work(rounds=ONE_CHILD), saying(COMMIT, after=FLUSH), skips=1
        ),
        Point(
            "child ended, before the answer to COMMIT",
            Fan,
            Work(rounds=ONE_CHILD),
            saying(COMMIT, after=FLUSH),
            "answered",
            skips=1,
            lost_leases=None,
        ),
    ],
    "effect": [
        Point("row is locked", Payer, Work(steps=2), saying(LOCK_FOR_EFFECT), "answered"),
        Point("in the effect", Payer, Work(steps=2, kill="paid@1")),
        Point("before COMMIT", Payer, Work(steps=2), saying(COMMIT, after=LOCK_FOR_EFFECT)),
        Point(
            "before the answer to COMMIT",
            Payer,
            Work(),
            saying(COMMIT, after=LOCK_FOR_EFFECT),
            "answered",
            lost_leases=0,
            second_runs=0,
        ),
        Point("committed, not done", Payer, Work(), saying(FINISH), lost_leases=0, second_runs=0),
    ],
}


@pytest.mark.parametrize("group", POINTS)
async def test_worker_killed_at_any_point_costs_at_most_its_leases(arena: Arena, group: str) -> None:
    points = POINTS[group]
    ids: dict[str, int] = {}
    async with AsyncExitStack() as stack:
        killed = []
        for point in points:
            ids[point.name] = id = await arena.producer.insert_surely(
                point.name, point.machine, _placed(point.work, point.name), queue=point.name, **point.options
            )
            if point.machine is Collector:
                await arena.producer.signal_surely(id, f"token of {id}")
            proxy = await stack.enter_async_context(Proxy.open(arena.dsn))
            trap = None if point.match is None else proxy.trap(point.match, point.when, skips=point.skips)
            victim = arena.workers.launch(proxy.dsn, queues={point.name: 1})
            killed.append((victim, trap))
        for victim, trap in killed:
            if trap is None:
                assert await victim.ends() == -9
                continue
            held = await trap.springs()
            victim.kill()
            held.give(Verdict.CUT)
    await arena.workers.start(queues={point.name: 2 for point in points})
    await arena.reckoning()
    for point in points:
        if point.lost_leases is not None:
            assert await _costs(arena, ids[point.name]) == (point.lost_leases, point.second_runs), point.name


# Before it frees the keys, and after its COMMIT but before the reply.
REAPING: list[tuple[str, When]] = [(UNGATE, "asked"), (COMMIT, "answered")]


async def test_next_reaper_continues_after_a_killed_one(arena: Arena) -> None:
    works = {f"key {number}": Work(kill="effect@1") for number in range(3)}
    for key, work in works.items():
        await arena.producer.insert_surely(key, Chain, work, concurrency_key=key, queue=key)
        victim = arena.workers.launch(queues={key: 1})
        assert await victim.ends() == -9
    async with Proxy.open(arena.dsn) as proxy:
        for point, when in REAPING:
            trap = proxy.trap(saying(point, after=REAP), when)
            reaper = arena.workers.launch(proxy.dsn, queues={"other": 1})
            held = await trap.springs()
            reaper.kill()
            held.give(Verdict.CUT)
            assert await arena.reaped() == (0 if when == "asked" else 3)
    await arena.workers.start(queues=dict.fromkeys(works, 1))
    report = await arena.reckoning()
    assert (report.counters["reaped"], report.counters["duplicate step runs"]) == (3, 3)


def _placed(work: Work, queue: str) -> Work:
    """Children use the queue of their parent, so the killed worker runs them too."""
    for round in work.rounds:
        for child in round:
            child.queue = queue
    return work


async def _costs(arena: Arena, id: int) -> tuple[int, int]:
    """Expired leases, and repeated steps, of an instance and its children."""
    family = f"select id from gen_durable.gen_durable where {id} in (id, parent_id)"
    lost = await arena.ask(
        f"select count(*) from gen_durable.executions where outcome = 'lease' and instance_id in ({family})"
    )
    members = [id, *(await arena.ask(f"select coalesce(array_agg(id), '{{}}') from ({family}) one"))]
    begins = [(line["instance"], line["step_seq"]) for line in arena.workers.lines(what="begin")]
    of_family = [begin for begin in begins if begin[0] in members]
    return lost, len(of_family) - len(set(of_family))
