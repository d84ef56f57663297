"""`census`: where instances are, by machine, version, step and state."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from gen_durable import Context, Done, Machine, Outcome, step
from gen_durable._db import census
from gen_durable.stats import Awaited, CensusGroup
from tests.operations.rows import put


class A(Machine[None, None]):
    @step
    async def s(self, ctx: Context[None]) -> Outcome[None]:
        return Done(None)


async def _states(client: Any, machine: Any = None) -> dict[tuple[str, int, str, str], int]:
    groups = (await client.census(machine)).groups
    return {(each.machine, each.version, each.step, each.state): each.count for each in groups}


async def _put_each_state(db: Any) -> None:
    for status in ("executing", "awaiting_children", "done", "failed", "cancelled"):
        await put(db, status, rest_step="s")
    for name in ("paid", "paid", "shipped"):
        await put(db, "awaiting_signal", awaits=f"{{{name}}}", queue=name, rest_step="s")
    await put(db)
    await put(db, attempt=2)
    await put(db, attempt=1, eligible_at="=now() + interval '1 h'")
    await put(db, eligible_at="=now() + interval '1 h'", step="t")
    await put(db, concurrency_key="k", gated=True)
    await put(db, fsm="B", fsm_version=2)
    await put(db, "done", rest_step="s", deleted_at="=now()")


@pytest.mark.clause("OPS-15")
async def test_instances_are_counted_by_step_and_state(db: Any, client: Any) -> None:
    await _put_each_state(db)
    expected = {
        ("A", 1, "s", "due"): 1,
        ("A", 1, "s", "retrying"): 2,
        ("A", 1, "t", "later"): 1,
        ("A", 1, "s", "gated"): 1,
        ("A", 1, "s", "executing"): 1,
        ("A", 1, "s", "awaiting_signal"): 3,
        ("A", 1, "s", "awaiting_children"): 1,
        ("A", 1, "s", "done"): 1,
        ("A", 1, "s", "failed"): 1,
        ("A", 1, "s", "cancelled"): 1,
    }
    assert await _states(client, "A") == await _states(client, A) == expected
    assert await _states(client) == {**expected, ("B", 2, "s", "due"): 1}
    assert await _states(client, "C") == {}


@pytest.mark.clause("OPS-15")
async def test_group_has_the_oldest_and_the_awaited_signals(db: Any, client: Any) -> None:
    await _put_each_state(db)
    await db.execute("update gen_durable.gen_durable set updated_at = now() - id * interval '1 min'")
    oldest = await db.fetchval("select max(id) from gen_durable.gen_durable where status = 'awaiting_signal'")
    (waiting,) = [each for each in (await client.census("A")).groups if each.state == "awaiting_signal"]
    assert waiting.awaits == (Awaited(("paid",), 2), Awaited(("shipped",), 1))
    assert waiting.oldest is not None
    assert timedelta(0) <= waiting.oldest - timedelta(minutes=oldest) < timedelta(seconds=30)


@pytest.mark.clause("OPS-15")
async def test_count_of_a_group_is_bounded(db: Any, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census, "_OF_EACH", {"most": 3, "most_ended": 2, "sample": 1})
    for _ in range(4):
        await put(db, "done", rest_step="s")
        await put(db, "awaiting_signal", awaits="{paid}", rest_step="s")
        await put(db)
    await put(db, "failed", rest_step="s")

    def facts(groups: tuple[CensusGroup, ...]) -> list[tuple[str, int, bool]]:
        return [(each.state, each.count, each.at_least) for each in groups]

    found = (await client.census()).groups
    assert facts(found) == [
        ("awaiting_signal", 3, True),
        ("done", 2, True),
        ("due", 3, True),
        ("failed", 1, False),
    ]
    assert found[0].awaits == (Awaited(("paid",), 1),)
    assert facts((await client.census("A")).groups) == [
        ("awaiting_signal", 4, False),
        ("done", 4, False),
        ("due", 4, False),
        ("failed", 1, False),
    ]
