"""Deliveries and sweeps of inboxes."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable._db import signals
from tests.plans.explain import Explainer, check
from tests.plans.statements import PARKED

pytestmark = pytest.mark.asyncio(loop_scope="session")

TARGET = PARKED[7]


@pytest.mark.parametrize(
    ("target", "index"),
    [(TARGET, "gen_durable_pkey"), (f"order:{TARGET}", "gen_durable_correlation")],
    ids=["id", "key"],
)
async def test_delivery(explainer: Explainer, target: Any, index: str) -> None:
    arrival, (found, *measured, written, woken, _) = await explainer.run(
        signals.deliver(target, "paid", "100", "event-7")
    )
    assert arrival is not None
    assert arrival.has_woken
    check(found, {index}, blocks=40)
    for bound in measured:
        assert bound.blocks == 0, bound
    check(written, set(), blocks=60)
    check(woken, {"gen_durable_pkey"}, blocks=60)


async def test_delivery_without_a_target_is_two_probes(explainer: Explainer) -> None:
    arrival, (first, second, _) = await explainer.run(signals.deliver("order:none", "paid", "100", None))
    assert arrival is None
    for look in (first, second):
        check(look, {"gen_durable_correlation"}, blocks=40)


async def test_delivery_does_not_count_a_large_inbox(explainer: Explainer) -> None:
    await explainer.connection.execute(
        "insert into gen_durable.signals (target_id, name) select $1, 'note' from generate_series(1, 9000)",
        TARGET,
    )
    _, plans = await explainer.run(signals.deliver(TARGET, "note", "1", None))
    assert sum(found.blocks for found in plans) < 200, plans


async def test_delivery_counts_a_full_inbox_by_index(explainer: Explainer) -> None:
    await explainer.connection.execute(
        "insert into gen_durable.signals (target_id, name) select $1, 'note' from generate_series(1, 9000)",
        TARGET,
    )
    await explainer.connection.execute(
        "update gen_durable.gen_durable set inbox_count = 10000 where id = $1", TARGET
    )
    _, (_, _, counted, *_) = await explainer.run(signals.deliver(TARGET, "note", "1", None))
    check(counted, {"signals_target"}, blocks=9200)


@pytest.mark.parametrize("batch", [1, 100])
async def test_sweep_of_inboxes(explainer: Explainer, batch: int) -> None:
    (found,) = await explainer.explain(signals.sweep(PARKED[:batch]))
    check(found, {"signals_target", "signals_dedup"}, blocks=20 + 10 * batch)
