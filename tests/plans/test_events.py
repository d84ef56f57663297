"""Lists of events."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable._db import outbox
from tests.plans.explain import Explainer, check

pytestmark = pytest.mark.asyncio(loop_scope="session")

ANY: dict[str, Any] = {"instance_id": None, "sink": None, "state": None, "before": None}


@pytest.mark.parametrize(
    ("wanted", "index", "count", "blocks"),
    [
        ({}, "outbox_pkey", 50, 80),
        ({"before": 5000}, "outbox_pkey", 50, 80),
        ({"sink": "sink1"}, "outbox_pkey", 50, 120),
        ({"state": "published", "sink": "sink1"}, "outbox_pkey", 50, 120),
        ({"state": "dead"}, "outbox_dead", 50, 120),
        ({"state": "dead", "sink": "nothing"}, "outbox_dead", 0, 250),
        ({"state": "published", "instance_id": 25}, "outbox_instance", 1, 10),
        ({"state": "pending", "instance_id": 105}, "outbox_order", 1, 10),
        ({"state": "dead", "instance_id": 5}, "outbox_order", 1, 10),
    ],
    ids=str,
)
async def test_list_of_events_uses_an_index(
    explainer: Explainer, wanted: dict[str, Any], index: str, count: int, blocks: int
) -> None:
    rows, (found,) = await explainer.run(outbox.list_events(ANY | wanted, 50))
    assert len(rows) == count
    assert {row["state"] for row in rows} <= {wanted.get("state", row["state"]) for row in rows}
    check(found, {index}, blocks=blocks)


async def test_events_of_an_instance_in_any_state_use_two_indexes(explainer: Explainer) -> None:
    rows, (found,) = await explainer.run(outbox.list_events(ANY | {"instance_id": 25}, 50))
    assert len(rows) == 1
    check(found, {"outbox_order", "outbox_instance"}, blocks=10)


@pytest.mark.parametrize("sink", [None, "sink1"])
async def test_pending_events_are_listed_without_published_ones(
    explainer: Explainer, sink: str | None
) -> None:
    rows, (found,) = await explainer.run(outbox.list_events(ANY | {"state": "pending", "sink": sink}, 50))
    assert len(rows) == 50
    assert found.indexes < {"outbox_due", "outbox_order"}, found
    assert not found.seq_scans, found
    assert found.blocks <= 250, found


@pytest.mark.parametrize("sink", [None, "sink0"])
async def test_dead_letters_are_read_in_order_and_replayed_by_id(
    explainer: Explainer, sink: str | None
) -> None:
    (count, newest), (found,) = await explainer.run(outbox.dead_letters(sink))
    assert count > 0
    check(found, {"outbox_dead"}, blocks=250)
    numbers, (found,) = await explainer.run(outbox.dead_upwards(sink, 10, 0, newest))
    assert numbers == sorted(numbers)
    check(found, {"outbox_dead"}, blocks=250)
    replayed, explained = await explainer.run(outbox.replay(numbers))
    assert replayed == len(numbers)
    used = {index for one in explained for index in one.indexes}
    assert used <= {"outbox_pkey"}, explained
    assert not any(one.seq_scans for one in explained), explained
