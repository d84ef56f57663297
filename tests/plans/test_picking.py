"""Picks, inboxes, children, gating."""

from __future__ import annotations

import pytest

from gen_durable._db import admission, pick
from tests.plans.explain import Explainer, check
from tests.plans.statements import GATE_ALL, LEASES, MACHINES, PARENTS, PARKED, statement

pytestmark = pytest.mark.asyncio(loop_scope="session")

PICK = {"gen_durable_pick", "gen_durable_pkey"}
KEYS = {"gen_durable_slot", "gen_durable_concurrency", "limits_pkey"}
GATED = {"gen_durable_gated"}


@pytest.mark.parametrize("demand", [1, 10, 100, 1000])
async def test_pick_reads_only_what_it_leases(explainer: Explainer, demand: int) -> None:
    picked, (found,) = await explainer.run(
        pick.pick("q1", pick.PickRequest(MACHINES, demand, 7, "worker", LEASES))
    )
    assert len(picked.executions) == found.rows == demand
    check(found, PICK, blocks=60 + 22 * demand)


async def test_pick_from_an_empty_queue_is_one_probe(explainer: Explainer) -> None:
    picked, (found,) = await explainer.run(
        pick.pick("nothing", pick.PickRequest(MACHINES, 100, 7, "worker", LEASES))
    )
    assert not picked.executions
    check(found, {"gen_durable_pick"}, blocks=40)


async def test_rows_of_unknown_machines_are_skipped_one_by_one(explainer: Explainer) -> None:
    """The pick index does not contain the machine, so each due row of a shared queue is read."""
    picked, (found,) = await explainer.run(
        pick.pick("q1", pick.PickRequest((["Other"], [1]), 10, 7, "worker", LEASES))
    )
    assert not picked.executions
    check(found, {"gen_durable_pick"}, blocks=10_000)


async def test_keyed_rows_are_admitted_by_index(explainer: Explainer) -> None:
    """Every second key loses its holder, so its first row is admitted; the rows of other keys are not."""
    await explainer.connection.execute(
        "update gen_durable.gen_durable set status = 'done', lease_token = null, concurrency_slot = null"
        " where concurrency_slot = 0 and id % 400 < 200"
    )
    picked, (_, found) = await explainer.run(
        pick.pick("keyed", pick.PickRequest(MACHINES, 1000, 7, "worker", LEASES))
    )
    assert picked.executions
    assert picked.denied
    check(found, PICK | KEYS, blocks=20 * 1000)


@pytest.mark.parametrize("demand", [1, 10, 100])
async def test_pick_by_prefix_reads_the_first_rows_of_each_group(explainer: Explainer, demand: int) -> None:
    """Three machines with three priorities each, 50,000 due rows; :reach is five times the demand."""
    plan = pick.pick_by_prefix("Machine", pick.PickRequest(None, demand, 7, "worker", LEASES), 5 * demand)
    picked, (found,) = await explainer.run(plan)
    assert demand / 2 < len(picked.executions) <= demand  # some of their keys are busy
    assert not found.seq_scans, found
    assert found.indexes - KEYS == {"gen_durable_machine", "gen_durable_pkey"}, found
    assert found.blocks <= 300 + 80 * demand, found


async def test_inboxes_of_a_hundred_rows(explainer: Explainer) -> None:
    inboxes, (found,) = await explainer.run(pick.inboxes(PARKED[:100]))
    assert sum(map(len, inboxes.values())) == found.rows == 200
    check(found, {"signals_target", "gen_durable_pkey"}, blocks=14 * 100)


async def test_children_of_a_hundred_barriers(explainer: Explainer) -> None:
    rows, (found,) = await explainer.run(
        statement("pick.sql", "children", ids=PARENTS[:100], rounds=[1] * 100, budget=pick.BUDGET)
    )
    assert len(rows) == 1000
    check(found, {"gen_durable_parent"}, blocks=2 * 1000)


async def test_gating_fifty_keys(explainer: Explainer) -> None:
    gated, (holders, lines) = await explainer.run(admission.gate([f"key{number}" for number in range(50)]))
    assert gated.total() == 50 * 5
    check(holders, {"gen_durable_slot", "limits_pkey"}, blocks=8 * 50)
    check(lines, {"gen_durable_concurrency", "gen_durable_pkey"}, blocks=25 * gated.total())


async def test_ungating_fifty_keys(explainer: Explainer) -> None:
    await explainer.connection.execute(
        "update gen_durable.gen_durable set status = 'done', lease_token = null, concurrency_slot = null"
        " where concurrency_slot = 0 and id < 10000"
    )
    await explainer.connection.execute(GATE_ALL)
    queues, (found, _) = await explainer.run(admission.ungate([f"key{number}" for number in range(50)]))
    assert queues == {"keyed"}
    check(found, KEYS | GATED | {"gen_durable_pkey"}, blocks=60 * 50)


async def test_stuck_keys_is_a_skip_scan(explainer: Explainer) -> None:
    stuck, (found,) = await explainer.run(admission.stuck_keys())
    assert not stuck.keys
    assert not found.seq_scans, found
    assert found.indexes <= KEYS | GATED, found
    assert found.blocks <= 20 * 1000, found
