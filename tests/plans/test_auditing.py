"""Cost of a disabled audit: one lookup of the level per statement."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable._db import commit, lease, pick
from gen_durable._db.insert import insert
from gen_durable._db.plan import Plan
from gen_durable._db.signals import deliver
from tests.plans.explain import Explained, Explainer
from tests.plans.statements import EXECUTING, LEASES, MACHINES, PARKED, RECORDER, outcomes
from tests.support.engine_plans import new

pytestmark = pytest.mark.asyncio(loop_scope="session")


def looks(found: Explained) -> list[int]:
    """How often each lookup of the level was executed."""
    return [node["Actual Loops"] for node in found.nodes if node.get("Relation Name") == "settings"]


def filters(found: Explained) -> list[str]:
    """Conditions that are evaluated before any row is read."""
    return [node["One-Time Filter"] for node in found.nodes if "'all'" in node.get("One-Time Filter", "")]


def plan(name: str) -> Plan[Any]:
    match name:
        case "pick":
            return pick.pick("q1", pick.PickRequest(MACHINES, 100, 7, "worker", LEASES))
        case "pick_by_prefix":
            return pick.pick_by_prefix("Machine", pick.PickRequest(None, 100, 7, "worker", LEASES), 500)
        case "insert":
            return insert([new() for _ in range(100)], autocommit=True)
        case "deliver":
            return deliver(PARKED[0], "paid", "{}", None)
        case _:
            return lease.expire()


@pytest.mark.clause("AUD-3")
@pytest.mark.parametrize("level", ["off", "failures", "all"])
@pytest.mark.parametrize("name", ["pick", "pick_by_prefix", "insert", "deliver", "expire"])
async def test_statements_that_write_events_only_at_level_all(
    explainer: Explainer, name: str, level: str
) -> None:
    await explainer.connection.execute(f"update gen_durable.settings set audit = '{level}'")
    explained = await explainer.explain(plan(name))
    (found,) = [one for one in explained if "audit_events" in one.query and "audited" in one.query]
    assert looks(found) == [1], found
    assert len(filters(found)) == 1, found
    written = await explainer.connection.fetchval("select count(*) from gen_durable.audit_events")
    assert bool(written) == (level == "all")


@pytest.mark.clause("AUD-3")
@pytest.mark.parametrize("level", ["off", "failures", "all"])
@pytest.mark.parametrize("kind", ["done", "stop"])
@pytest.mark.parametrize("is_plain", [True, False], ids=["plain", "any"])
async def test_commits_read_the_audit_level_once(
    explainer: Explainer, kind: Any, level: str, *, is_plain: bool
) -> None:
    await explainer.connection.execute(f"update gen_durable.settings set audit = '{level}'")
    commits = commit.commit_plain if is_plain else commit.commit
    explained = await explainer.explain(commits(outcomes(EXECUTING[:10], kind), RECORDER))
    found = next(one for one in explained if "committed as (" in one.query)
    assert looks(found) == [1], found
    written = await explainer.connection.fetchval("select count(*) from gen_durable.audit_events")
    assert written == (10 if level == "all" or (level == "failures" and kind == "stop") else 0)
