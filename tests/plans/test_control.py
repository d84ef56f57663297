"""Control of a hundred instances at once: each is found by its id."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable._db import control, snapshots
from gen_durable._db.plan import Plan
from tests.plans.explain import Explainer, check
from tests.plans.statements import ENDED, EXECUTING_CHILDREN, HOLDERS, PARENTS, PARKED

pytestmark = pytest.mark.asyncio(loop_scope="session")

LIVE = [*PARKED[:30], *HOLDERS[:30], *EXECUTING_CHILDREN[:30], *PARENTS[:10]]
FAILED = [id for id in ENDED if id // 20 % 10 == 0][:100]
EXPECTED = {
    "gen_durable_pkey",
    "gen_durable_parent",
    "gen_durable_slot",
    "gen_durable_gated",
    "limits_pkey",
    "gen_durable_concurrency",
    "executions_commit",
    "executions_aborted",
    "gen_durable_deleted_live",
}


@pytest.mark.parametrize(
    ("plan", "answers"),
    [
        (lambda: control.cancel(LIVE, "no longer wanted", "me", force=True), 100),
        (lambda: control.delete(LIVE, "no longer wanted", "me"), 100),
        (lambda: control.restore(FAILED, None, "me"), 100),
        (lambda: control.retry(FAILED, None, "once more", "me"), 100),
    ],
    ids=["cancel", "delete", "restore", "retry"],
)
async def test_control_of_a_hundred_instances(explainer: Explainer, plan: Any, answers: int) -> None:
    rows, statements = await explainer.run(plan())
    assert len(rows) == answers
    for found in statements:
        assert not found.seq_scans, found
        assert found.indexes <= EXPECTED | {"signals_target", "signals_dedup", "machines_pkey"}, found
        assert found.blocks <= 100 * 95, found


@pytest.mark.parametrize("children", [control.live_children, control.unfinished_children])
async def test_children_of_a_hundred_instances(explainer: Explainer, children: Any) -> None:
    plan: Plan[list[int]] = children(list(PARENTS[:100]))
    ids, (found,) = await explainer.run(plan)
    assert len(ids) == 500
    check(found, {"gen_durable_parent"}, blocks=5 * 1000)


async def test_deleted_instance_is_found_by_key(explainer: Explainer) -> None:
    id, (found,) = await explainer.run(control.deleted_with_key(f"order:{ENDED[3]}"))
    assert id is None
    check(found, {"gen_durable_key"}, blocks=40)


async def test_details_of_one_instance(explainer: Explainer) -> None:
    plans: list[tuple[Plan[Any], set[str]]] = [
        (snapshots.details(PARKED[3]), {"gen_durable_pkey"}),
        (snapshots.inbox(PARKED[3]), {"signals_target"}),
        (snapshots.children_summary(PARENTS[3]), {"gen_durable_parent"}),
        (snapshots.audit(PARKED[3]), {"audit_events_instance"}),
    ]
    for plan, indexes in plans:
        (found,) = await explainer.explain(plan)
        check(found, indexes, blocks=60)
