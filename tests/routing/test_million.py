"""With a million rows of many types and priorities, a pick reads a bounded part of one index."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest

from gen_durable._db.pick import Picked, PickRequest, pick
from gen_durable._db.plan import Plan
from tests.plans.explain import Explained, Explainer, check
from tests.plans.statements import LEASES
from tests.routing.filling import indexed_late
from tests.routing.picking import by_prefix

_HERE: Final = Path(__file__).parent
_MILLION: Final = (_HERE / "million.sql").read_text(encoding="utf-8")
_OTHERS: Final = (_HERE / "others.sql").read_text(encoding="utf-8")
_OWN: Final = {"gen_durable_machine", "gen_durable_pkey"}
_TYPES: Final = [
    (f"{namespace}job{number}.v1", version)
    for namespace in ("billing.", "billing_", "media.", "email.")
    for number in range(97)
    for version in (1, 2)
]
_NAMESPACE: Final = [each for each in _TYPES if each[0].startswith("billing.")]
_MACHINES: Final = ([fsm for fsm, _ in _TYPES], [version for _, version in _TYPES])
_FEW: Final = """
insert into gen_durable.gen_durable (id, fsm, step, queue, priority) overriding system value
select -n, 'billing.job7.v1', 'run', 'q0', 0 from generate_series(1, 1000) as n"""
_FIRST: Final = """
select id from gen_durable.gen_durable
 where status = 'runnable' and not gated and starts_with(fsm, 'billing.') and eligible_at <= now()
 order by priority, eligible_at, id limit 500"""


# One test, because filling the table takes most of the time.
@pytest.mark.clause("ROUTE-6")
@pytest.mark.timeout(240)
async def test_pick_with_a_million_rows(durable_dsn: str) -> None:
    async with Explainer.open(durable_dsn) as explainer:
        await explainer.connection.execute(_FEW)
        alone = await _by_queue(explainer)
    await _fill(durable_dsn)
    async with Explainer.open(durable_dsn) as explainer:
        assert await explainer.connection.fetchval("show plan_cache_mode") == "force_generic_plan"
        # Two more index levels, and one probe of the urgent priority.
        behind = await _by_queue(explainer)
        assert behind.blocks <= alone.blocks + 100, behind
        await _reads_little(explainer)
        await _leaves_what_is_unknown_at_no_cost(explainer)
        await _takes_the_first_rows(explainer)


async def _by_queue(explainer: Explainer) -> Explained:
    picked, report = await _tried(explainer, pick("q0", PickRequest(_MACHINES, 10, 7, "worker", LEASES)))
    assert len(picked.executions) == 10
    check(report, {"gen_durable_pick", "gen_durable_pkey"}, blocks=1000)
    return report


async def _reads_little(explainer: Explainer) -> None:
    """The number of blocks grows with the number of types (a few per queue, version and priority) and with the demand."""
    for prefix, demand, found, most in (
        ("billing.", 1, 1, 9000),
        ("billing.", 10, 10, 9500),
        ("billing.", 100, 100, 13000),
        ("billing", 10, 10, 18500),  # twice as many types
        ("billing.job7.", 10, 10, 550),  # one type
        ("missing.", 10, 0, 10),
        ("a", 10, 0, 10),
        ("zzz", 10, 0, 10),
    ):
        for reach in (2 * demand, 1000):
            picked, report = await _tried(explainer, by_prefix(prefix, demand, reach=reach))
            case = (prefix, demand, reach, report.blocks, report.indexes)
            assert len(picked.executions) == found, case
            assert all(each.fsm.startswith(prefix) for each in picked.executions), case
            assert report.seq_scans == set(), case
            assert "gen_durable_machine" in report.indexes <= _OWN, case
            assert report.blocks <= most + 12 * (reach - 2 * demand), case
            assert "$1" in str(report), "its conditions name parameters: it is one plan for all values"


async def _leaves_what_is_unknown_at_no_cost(explainer: Explainer) -> None:
    for machines, found in (
        (_NAMESPACE, 10),
        (_NAMESPACE[:1], 10),
        ([each for each in _NAMESPACE if each[1] == 2], 10),
        ([("billing.missing.v1", 1)], 0),
    ):
        picked, report = await _tried(explainer, by_prefix("billing.", 10, machines=machines))
        case = (machines[0], report.blocks, report.indexes)
        assert len(picked.executions) == found, case
        assert {(each.fsm, each.version) for each in picked.executions} <= set(machines), case
        assert report.seq_scans == set(), case
        assert "gen_durable_machine" in report.indexes <= _OWN, case
        assert report.blocks <= 9500, case


async def _takes_the_first_rows(explainer: Explainer) -> None:
    first = [row["id"] for row in await explainer.connection.fetch(_FIRST)]
    for demand in (1, 10, 500):
        picked, _ = await _tried(explainer, by_prefix("billing.", demand))
        assert [each.id for each in picked.executions] == first[:demand]


async def _tried(explainer: Explainer, plan: Plan[Picked]) -> tuple[Picked, Explained]:
    """Run a pick and roll it back."""
    transaction = explainer.connection.transaction()
    await transaction.start()
    try:
        picked, reports = await explainer.run(plan)
    finally:
        await transaction.rollback()
    (report,) = [
        each for each in reports if "candidate" in each.query
    ]  # the driver asks for types, the first time
    return picked, report


async def _fill(dsn: str) -> None:
    connection: Any = await asyncpg.connect(dsn)
    async with indexed_late(connection):
        assert await connection.execute(_MILLION) == "INSERT 0 1001040"
    await connection.execute(_OTHERS)
    await connection.execute("analyze gen_durable.gen_durable")
    await connection.close()
