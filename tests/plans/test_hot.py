"""Updates of live executions stay on their page and leave every index alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from gen_durable._db import commit, lease
from gen_durable._db.commit import Recorder
from tests.plans.explain import Explainer
from tests.plans.statements import EXECUTING, LEASE, outcomes

ROWS = EXECUTING[:500]


async def test_heartbeats_are_hot(explainer: Explainer) -> None:
    before = await updates(explainer)
    for _ in range(3):
        lost, _ = await explainer.run(lease.renew({(id, id): LEASE for id in ROWS}))
        assert not lost
    assert await updates(explainer) - before == Counter(all=1500, hot=1500)


async def test_noting_that_a_step_began_is_hot(explainer: Explainer) -> None:
    before = await updates(explainer)
    begun = {((id, id), 1): timedelta(seconds=1) for id in ROWS}
    noted, _ = await explainer.run(lease.mark_started(begun))
    assert len(noted) == 500
    assert await updates(explainer) - before == Counter(all=500, hot=500)


@pytest.mark.parametrize("level", ["all", "off"])
@pytest.mark.parametrize("commits", [commit.commit_plain, commit.commit], ids=["plain", "full"])
async def test_chained_commits_are_hot(explainer: Explainer, commits: Callable[..., Any], level: Any) -> None:
    """With records they are as cheap for the instance: a record is a row of another table."""
    before = await updates(explainer)
    for step_seq in (1, 2, 3):
        entries = outcomes(ROWS, "keep", step_seq=step_seq)
        report, _ = await explainer.run(commits(entries, Recorder("worker", level)))
        assert {result.status for result in report.results} == {"executing"}
    assert await updates(explainer) - before == Counter(all=1500, hot=1500)
    written = await explainer.connection.fetchval(
        "select count(*) from gen_durable.executions where instance_id = any ($1)", list(ROWS)
    )
    assert written == (1500 if level == "all" else 0)


async def updates(explainer: Explainer) -> Counter[str]:
    row = await explainer.connection.fetchrow(
        "select n_tup_upd, n_tup_hot_upd from pg_stat_xact_user_tables"
        " where relid = 'gen_durable.gen_durable'::regclass"
    )
    return Counter(all=row["n_tup_upd"], hot=row["n_tup_hot_upd"])
