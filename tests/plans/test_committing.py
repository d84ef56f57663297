"""Group commits find every row by its id."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable._core.model import Committed, Kind
from gen_durable._db import commit
from tests.plans.explain import Explainer, check
from tests.plans.statements import (
    EXECUTING,
    EXECUTING_CHILDREN,
    GATE_ALL,
    HOLDERS,
    LEASE,
    PARENTS,
    PARKED,
    RECORDER,
    UNGATE,
    outcomes,
    statement,
)
from tests.support.engine_plans import new

pytestmark = pytest.mark.asyncio(loop_scope="session")

PKEY = {"gen_durable_pkey"}
# Blocks per row: read and update the row, insert entries in the indexes of the new status, insert the execution record,
# and for failures an audit event.
PER_ROW = {"continue": 14, "next": 30, "retry": 30, "done": 29, "stop": 34, "await": 29, "release": 25}


@pytest.mark.parametrize("batch", [1, 100, 500])
@pytest.mark.parametrize("kind", ["continue", "next", "retry", "done", "stop"])
async def test_commit_plain(explainer: Explainer, kind: Kind, batch: int) -> None:
    explained = await explainer.explain(commit.commit_plain(outcomes(EXECUTING[:batch], kind), RECORDER))
    # Before it, for each failed row: the lookup of a retention that its machine declares.
    found = next(one for one in explained if "committed as (" in one.query)
    assert found.update["Actual Rows"] == batch
    check(found, PKEY, blocks=200 + PER_ROW[kind] * batch)


@pytest.mark.parametrize("batch", [1, 100, 500])
@pytest.mark.parametrize("kind", ["continue", "next", "done", "await", "release"])
async def test_commit(explainer: Explainer, kind: Kind, batch: int) -> None:
    entries = outcomes(EXECUTING[:batch], kind, awaits=("paid",) if kind == "await" else None)
    found, *_ = await explainer.explain(commit.commit(entries, RECORDER))
    assert found.update["Actual Rows"] == batch
    check(found, PKEY, blocks=80 + (PER_ROW[kind] + 5) * batch)


async def test_stale_outcomes_only_read_the_row(explainer: Explainer) -> None:
    found, *_ = await explainer.explain(
        commit.commit_plain(outcomes(EXECUTING[:100], "done", lease_token=1), RECORDER)
    )
    assert found.update["Actual Rows"] == 0
    check(found, PKEY, blocks=6 * 100)


@pytest.mark.parametrize("batch", [1, 100, 500])
async def test_ended_children_count_down_their_parents(explainer: Explainer, batch: int) -> None:
    entries = outcomes(EXECUTING_CHILDREN[:batch], "done", parent_id=19)
    joined, found, *_ = await explainer.explain(commit.commit(entries, RECORDER))
    assert found.update["Actual Rows"] == batch
    check(joined, PKEY, blocks=40 + 20 * batch)
    check(found, PKEY, blocks=180 + 45 * batch)  # the first call of a function in a session reads the catalog
    waiting = await explainer.connection.fetchval(
        "select count(*) from gen_durable.gen_durable where children_pending = 9"
    )
    assert waiting == batch


@pytest.mark.parametrize("batch", [1, 100, 500])
async def test_done_instances_that_are_not_kept_are_deleted_by_id(explainer: Explainer, batch: int) -> None:
    entries = outcomes(EXECUTING[:batch], "done")
    (report, (found,)) = await explainer.run(commit.delete_done(entries))
    assert len([one for one in report.results if isinstance(one, Committed)]) == batch
    check(found, PKEY | {"audit_events_instance"}, blocks=100 + 12 * batch)


async def test_history_of_deleted_instances_is_found_by_instance(explainer: Explainer) -> None:
    ids = EXECUTING[:100]
    await explainer.connection.execute(
        f"update gen_durable.gen_durable set execution = 2 where id between {ids[0]} and {ids[-1]}"
    )
    found, *_ = await explainer.explain(commit.delete_done(outcomes(ids, "done")))
    history = {"executions_commit", "executions_aborted", "audit_events_instance"}
    check(found, PKEY | history, blocks=100 + 40 * 100)


async def test_freed_keys_are_ungated(explainer: Explainer) -> None:
    entries = [
        entry
        for number, id in enumerate(HOLDERS[:100])
        for entry in outcomes([id], "done", held_key=f"key{number}")
    ]
    await explainer.connection.execute(GATE_ALL)
    committed, ungated, _ = await explainer.explain(commit.commit(entries, RECORDER))
    check(committed, PKEY, blocks=80 + 30 * 100)
    assert ungated.rows == 100
    check(ungated, UNGATE, blocks=60 * 100)


async def test_consumed_signals_are_found_by_id(explainer: Explainer) -> None:
    rows = await explainer.connection.fetch("select id from gen_durable.signals order by id limit 300")
    entries = outcomes(EXECUTING[:1], "next", consumed=tuple(row["id"] for row in rows))
    found, *_ = await explainer.explain(commit.commit(entries, RECORDER))
    check(found, {"gen_durable_pkey", "signals_pkey"}, blocks=80 + 12 * 300)


async def test_children_are_inserted_without_index_scans(explainer: Explainer) -> None:
    entries = outcomes(EXECUTING[:10], "schedule_children", children=tuple(new() for _ in range(10)))
    committed, inserted, call = await explainer.explain(commit.commit(entries, RECORDER))
    check(committed, PKEY, blocks=80 + 30 * 10)
    check(
        inserted, set(), blocks=100 + 500 * 100
    )  # before a full index page is split, dead entries are looked up
    assert inserted.rows == call.rows == 1  # an array of ids


async def test_parking_rows_check_their_inboxes(explainer: Explainer) -> None:
    (found,) = await explainer.explain(statement("commit.sql", "recheck", ids=PARKED[:100]))
    check(found, {"gen_durable_pkey", "signals_target"}, blocks=10 * 100)


async def test_rejected_children_fix_the_barrier(explainer: Explainer) -> None:
    found, *_ = await explainer.explain(statement("commit.sql", "fix_barriers", ids=PARENTS[:100]))
    assert found.rows == 100
    # Each parent has ten children, each on another page.
    check(found, {*PKEY, "gen_durable_parent"}, blocks=40 * 100)


@pytest.mark.parametrize(
    ("name", "values", "per_row"),
    [
        ("unlocked", {"ids": EXECUTING[:100]}, 10),
        ("commit_status", {"ids": EXECUTING[:100]}, 10),
    ],
)
async def test_reads_of_single_rows(
    explainer: Explainer, name: str, values: dict[str, Any], per_row: int
) -> None:
    (found,) = await explainer.explain(statement("commit.sql", name, **values))
    assert found.rows == len(values.get("ids", [0]))
    check(found, PKEY, blocks=per_row * found.rows)


async def test_lock_for_effect(explainer: Explainer) -> None:
    row = EXECUTING[0]
    plans = await explainer.explain(
        statement("commit.sql", "lock_for_effect", id=row, lease_token=row, step_seq=1)
    )
    (found,) = [each for each in plans if each.indexes]
    assert found.rows == 1
    check(found, PKEY, blocks=12)


async def test_committed_executions_are_finished(explainer: Explainer) -> None:
    """Unfinished executions are few and have a partial index."""
    (found,) = await explainer.explain(
        statement("commit.sql", "finish", ids=[7, 26, 27], step_seqs=[1, 1, 1])
    )
    assert not found.seq_scans, found
    assert found.indexes <= {"executions_committed", "executions_commit"}, found
    assert found.blocks <= 200, found


async def test_abandoned_executions_are_finished(explainer: Explainer) -> None:
    (finished, _), (found,) = await explainer.run(commit.finish_abandoned(LEASE))
    assert finished == 80
    assert not found.seq_scans, found
    assert found.indexes <= {"executions_committed", "executions_commit", "outbox_order"}, found
    assert found.blocks <= 40 * 80, found


async def test_marking_events_does_not_read_all_pending_events(explainer: Explainer) -> None:
    await explainer.connection.execute(
        "insert into gen_durable.outbox (instance_id, step_seq, n, sink, type, subject, data)"
        " select n, 1, 1, 's', 't', 'u', '{}' from generate_series(1, 40000) n"
    )
    rows = await explainer.connection.fetch(
        "select instance_id, step_seq from gen_durable.executions where status = 'COMMITTED'"
    )
    assert len(rows) == 80
    ids = {
        "instance_ids": [row["instance_id"] for row in rows],
        "step_seqs": [row["step_seq"] for row in rows],
    }
    (found,) = await explainer.explain(statement("outbox.sql", "finish_executions", **ids))
    assert not found.seq_scans, found
    assert found.indexes <= {"executions_committed", "executions_commit", "outbox_order"}, found
    assert found.blocks <= 40 * 80, found
