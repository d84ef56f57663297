"""Heartbeats, the reaper and deadlines."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gen_durable._db import lease
from tests.plans.explain import Explainer, check
from tests.plans.statements import (
    EXECUTING,
    EXECUTING_CHILDREN,
    GATE_ALL,
    HOLDERS,
    LEASE,
    UNGATE,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

PKEY = {"gen_durable_pkey"}


@pytest.mark.parametrize("batch", [1, 100, 500])
async def test_heartbeat_finds_its_rows_by_id(explainer: Explainer, batch: int) -> None:
    (lost, _), (found,) = await explainer.run(lease.renew({(id, id): LEASE for id in EXECUTING[:batch]}))
    assert not lost
    check(found, PKEY, blocks=40 + 30 * batch)


async def test_heartbeat_reads_again_what_it_could_not_renew(explainer: Explainer) -> None:
    (lost, _), (renewed, looked) = await explainer.run(
        lease.renew({(id, 1): LEASE for id in EXECUTING[:100]})
    )
    assert len(lost) == 100
    check(renewed, PKEY, blocks=8 * 100)
    check(looked, PKEY, blocks=6 * 100)


async def test_mark_started_finds_its_rows_by_id(explainer: Explainer) -> None:
    begun = {((id, id), 1): None for id in EXECUTING[:100]}
    marked, (found,) = await explainer.run(lease.mark_started(begun))
    assert len(marked) == 100
    check(found, PKEY, blocks=30 * 100)


async def test_reaper_reads_only_executing_rows(explainer: Explainer) -> None:
    """lease_expires_at is in no index, so that heartbeats are HOT: the reaper reads all executing rows, 4,000 here."""
    reaped, (found,) = await explainer.run(lease.reap(timedelta(0), lease.CrashPolicy(20, "all")))
    assert not reaped.ids
    check(found, {"gen_durable_lease"}, blocks=2 * 4000)
    suspects, (found,) = await explainer.run(lease.suspect())
    assert not suspects
    check(found, {"gen_durable_lease"}, blocks=2 * 4000)


async def test_reaper_requeues_orphaned_executions(explainer: Explainer) -> None:
    """100 of each: plain rows, children (which count down) and holders of keys (which are ungated)."""
    dead = [*EXECUTING[:100], *EXECUTING_CHILDREN[:100], *HOLDERS[:100]]
    await explainer.connection.execute(
        "update gen_durable.gen_durable set lease_expires_at = now() - interval '1 h' where id = any ($1)",
        dead,
    )
    await explainer.connection.execute(GATE_ALL)
    suspects, (found, _) = await explainer.run(lease.suspect())
    check(found, {"gen_durable_lease"}, blocks=2 * 4000 + 10 * 300)
    reaped, (joined, found, letters, _, ungated, _) = await explainer.run(
        lease.reap(timedelta(0), lease.CrashPolicy(1, "all"), suspects)
    )
    assert sorted(reaped.ids) == sorted(reaped.capped) == sorted(dead)
    check(joined, {"gen_durable_pkey"}, blocks=40 + 20 * 100)
    check(found, {"gen_durable_lease", "gen_durable_pkey", "machines_pkey"}, blocks=2 * 4000 + 40 * 300)
    check(letters, {"gen_durable_pkey", "machines_pkey"}, blocks=30 * 300)
    check(ungated, UNGATE, blocks=60 * 100)


async def test_expired_deadlines_are_found_by_index(explainer: Explainer) -> None:
    expired, (found,) = await explainer.run(lease.expire())
    assert len(expired) == 100
    check(found, {"gen_durable_deadline", "gen_durable_pkey"}, blocks=30 * 100)
