"""Updates of live executions are HOT: same page, no new index entries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gen_durable._db import commit, lease
from gen_durable._db.commit import Recorder
from tests.plans.explain import Explainer
from tests.plans.statements import EXECUTING, LEASE, outcomes

pytestmark = pytest.mark.asyncio(loop_scope="session")


def rows(number: int) -> Sequence[int]:
    """250 rows that no other test has updated: dead rows of a rollback fill pages too."""
    return EXECUTING[500 + 250 * number :][:250]


async def test_heartbeats_are_hot(explainer: Explainer) -> None:
    async with hot_updates(explainer, 750):
        for _ in range(3):
            (lost, _), _ = await explainer.run(lease.renew({(id, id): LEASE for id in rows(0)}))
            assert not lost


async def test_mark_started_is_hot(explainer: Explainer) -> None:
    begun = {((id, id), 1): None for id in rows(1)}
    async with hot_updates(explainer, 250):
        marked, _ = await explainer.run(lease.mark_started(begun))
        assert len(marked) == 250


@pytest.mark.parametrize(
    ("commits", "level", "number"),
    [
        (commit.commit_plain, "all", 2),
        (commit.commit_plain, "off", 3),
        (commit.commit, "all", 4),
        (commit.commit, "off", 5),
    ],
    ids=["plain with records", "plain", "full with records", "full"],
)
async def test_chained_commits_are_hot(
    explainer: Explainer, commits: Callable[..., Any], level: Any, number: int
) -> None:
    """With and without execution records, which are in another table."""
    ids = rows(number)
    async with hot_updates(explainer, 750):
        for step_seq in (1, 2, 3):
            entries = outcomes(ids, "continue", step_seq=step_seq)
            report, _ = await explainer.run(commits(entries, Recorder("worker", level)))
            assert {result.status for result in report.results} == {"executing"}
    written = await explainer.connection.fetchval(
        "select count(*) from gen_durable.executions where instance_id = any ($1)", list(ids)
    )
    assert written == (750 if level == "all" else 0)


@asynccontextmanager
async def hot_updates(explainer: Explainer, count: int) -> AsyncIterator[None]:
    """Assert that `count` updates happen inside, and at least 95 % of them are HOT."""
    all_before, hot_before = await updates(explainer)
    yield
    all_after, hot_after = await updates(explainer)
    assert all_after - all_before == count
    assert hot_after - hot_before >= 0.95 * count  # a page may be full


async def updates(explainer: Explainer) -> tuple[int, int]:
    row = await explainer.connection.fetchrow(
        "select n_tup_upd, n_tup_hot_upd from pg_stat_xact_user_tables"
        " where relid = 'gen_durable.gen_durable'::regclass"
    )
    return row["n_tup_upd"], row["n_tup_hot_upd"]
