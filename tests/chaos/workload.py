"""A seeded workload."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Iterator
from typing import Any, NamedTuple

from gen_durable import Machine, Status
from tests.chaos.history import Producer
from tests.chaos.machines import Brief, Chain, Collector, Fan, Payer, Result, Stubborn, Work

__all__ = ["Order", "mixed", "place"]

# A row that occupied its key also when it is done would be kept without its state, and not deleted.
_LIVE = [status for status in Status if not status.is_terminal]


class Order(NamedTuple):
    """An instance to insert, and the tokens to send to it."""

    key: str
    machine: type[Machine[Work, Result]]
    work: Work
    options: dict[str, Any]
    tokens: list[str]


def mixed(
    rng: random.Random, count: int, *, pace: float = 0.03, slow: float = 0.0, prefix: str = ""
) -> Iterator[Order]:
    """`count` orders: chains, retries, awaits, fan-outs, keys, payments, rows that are deleted when they are done.

    A step takes up to `pace` seconds; in one of ten orders, up to `slow`.
    """
    kinds = ["chain", "chain", "stubborn", "collector", "fan", "keyed", "payer", "brief"]
    for number in range(count):
        kind = kinds[number % len(kinds)] if number < len(kinds) else rng.choice(kinds)
        key = f"{prefix}{kind} {number}"
        steps, paced = rng.randint(1, 6), rng.choice([0.0, rng.uniform(0, pace)])
        if slow and rng.random() < 0.1:
            steps, paced = rng.randint(1, 2), rng.uniform(pace, slow)
        match kind:
            case "chain":
                yield Order(key, Chain, Work(steps=steps, pace=paced, requeues=rng.random() < 0.2), {}, [])
            case "stubborn":
                yield Order(key, Stubborn, Work(steps=rng.randint(1, 3), fails=rng.randint(1, 3)), {}, [])
            case "collector":
                tokens = [f"{key} token {token}" for token in range(rng.randint(1, 4))]
                work = Work(
                    wants=len(tokens), pace=paced, timeout=rng.choice([0.0, 0.0, rng.uniform(0.3, 1.5)])
                )
                yield Order(key, Collector, work, {}, tokens)
            case "fan":
                yield Order(key, Fan, Work(rounds=[*_rounds(rng, pace)]), {}, [])
            case "keyed":
                options = {"concurrency_key": f"{prefix}key {rng.randint(1, 3)}"}
                yield Order(key, Chain, Work(steps=rng.randint(1, 2), pace=rng.uniform(0, pace)), options, [])
            case "brief":
                yield Order(key, Brief, Work(steps=steps, pace=paced), {"unique_scope": _LIVE}, [])
            case "payer":
                yield Order(key, Payer, Work(steps=steps, pace=paced), {}, [])


def _rounds(rng: random.Random, pace: float, depth: int = 1) -> Iterator[list[Work]]:
    for _ in range(rng.randint(1, 2)):
        width = rng.randint(1, 20) if depth == 1 else rng.randint(1, 3)
        yield [
            Work(rounds=[*_rounds(rng, pace, depth + 1)])
            if depth < 2 and rng.random() < 0.15
            else Work(steps=rng.randint(1, 2), pace=rng.choice([0.0, rng.uniform(0, pace)]))
            for _ in range(width)
        ]


async def place(producer: Producer, order: Order, rng: random.Random) -> None:
    """Insert it and send its tokens, each until it is acknowledged."""
    id = await producer.insert_surely(order.key, order.machine, order.work, **order.options)
    if order.tokens and rng.random() < 0.3:
        await asyncio.sleep(rng.uniform(0, 1.5))  # late enough for some awaits to time out
    tokens = list(order.tokens)
    rng.shuffle(tokens)
    sends: list[Awaitable[None]] = []
    for token in tokens:
        sends.append(producer.signal_surely(id, token))
        if rng.random() < 0.2:
            sends.append(producer.signal_surely(id, token))  # sent twice, counted once
    for send in sends:
        await send
        await asyncio.sleep(rng.choice([0.0, rng.uniform(0, 0.3)]))
