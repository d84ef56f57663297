"""Control of a hundred instances at once: each is found by its id."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable._db import batches, control, search, snapshots
from gen_durable._db.plan import Plan
from gen_durable._verbs import BatchRun, start_batch
from gen_durable._verbs.changes import Cancel, Delete, Restore, Retry, Verb
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
BATCHES = {
    "batches_pkey",
    "batches_unfinished",
    "audit_events_instance",
    "audit_events_pkey",
    "settings_pkey",
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


VERBS = [Cancel(actor="me", force=True), Retry(), Delete(), Restore()]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
async def test_page_of_a_batch_of_ids(explainer: Explainer, verb: Verb) -> None:
    batch, _ = await explainer.run(start_batch(verb, LIVE if verb.name in ("cancel", "delete") else FAILED))
    ((batch, pause), _), statements = await explainer.run(BatchRun(batch.id).plan())
    assert (batch.visited, pause) == (100, None)
    for found in statements:
        assert not found.seq_scans, found
        assert found.blocks <= 100 * 120, found
    used = set[str]().union(*(found.indexes for found in statements))
    assert used <= EXPECTED | BATCHES | {"signals_target", "signals_dedup", "machines_pkey"}, used


async def test_page_of_a_batch_reads_no_other_rows(explainer: Explainer) -> None:
    """Of 8,000 failed instances, a page reads 500, after one read of 10,000 ids."""
    wanted = search.Filter(fsms=["Machine1"], statuses=["failed"])
    batch, _ = await explainer.run(start_batch(Retry(), wanted))
    runner = BatchRun(batch.id)
    _, first = await explainer.run(runner.plan())
    ((batch, _), _), second = await explainer.run(runner.plan())
    assert batch.visited == 1000
    assert sum("gen_durable_resting" in found.indexes for found in first) == 1
    assert not any("gen_durable_resting" in found.indexes for found in second)
    for found in (*first, *second):
        assert not found.seq_scans, found
        assert found.blocks <= 500 * 120, found


async def test_next_children_of_a_cascade(explainer: Explainer) -> None:
    level = batches.Level(list(PARENTS[:100]), 0)
    ids, (found,) = await explainer.run(batches.children(level, 500))
    assert len(ids) == 500
    check(found, {"gen_durable_parent"}, blocks=5 * 1000)


@pytest.mark.parametrize("children", [control.live_children, control.unfinished_children])
async def test_children_of_a_hundred_instances(explainer: Explainer, children: Any) -> None:
    plan: Plan[list[int]] = children(list(PARENTS[:100]))
    ids, (found,) = await explainer.run(plan)
    assert len(ids) == 500
    check(found, {"gen_durable_parent"}, blocks=5 * 1000)


async def test_deleted_instance_is_found_by_key(explainer: Explainer) -> None:
    id, (found,) = await explainer.run(control.deleted_with_key(f"order:{ENDED[3]}"))
    assert id is None
    check(found, {"gen_durable_correlation", "gen_durable_correlation_former"}, blocks=40)


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
