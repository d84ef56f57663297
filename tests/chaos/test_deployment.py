"""Outages, failover, and rotating passwords."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from gen_durable import AsyncClient, Client, Transaction, Worker
from gen_durable._core.model import CommitEntry, Execution
from gen_durable._db.failures import StatementError
from gen_durable._db.plan import Plan, Script
from gen_durable._db.pool import Database
from gen_durable._db.sqlstates import READ_ONLY
from gen_durable._runtime.effects import commit_with_effect
from gen_durable.errors import DatabaseError, UnreachableError
from tests.chaos.arena import Arena
from tests.chaos.cluster import FORGETFUL, Cluster, Installation
from tests.chaos.machines import Chain, Work
from tests.chaos.worker_processes import CHAOS, PATIENCE, PATIENT
from tests.chaos.workload import mixed, place
from tests.support.engine_plans import RECORDER
from tests.telemetry.machines import Leg

PASSWORDS = "host all app 127.0.0.1/32 scram-sha-256\n"


@pytest.mark.clause("DEP-1")
async def test_outage_and_recovery_are_logged_once(cluster: Cluster, tmp_path: Path) -> None:
    async with Arena.open(cluster.dsn, tmp_path, PATIENT) as arena:
        process = await arena.workers.start()
        for number in range(8):
            await arena.producer.insert_surely(f"chain {number}", Chain, Work(steps=4, pace=0.2))
        await arena.workers.wait_for(what="begin", count=8)
        cluster.stop()
        await asyncio.sleep(1.5)  # long enough for several retries of the driver
        await asyncio.to_thread(cluster.start)
        await arena.finishes()
        # The recovery is logged when the slowest service has reconnected.
        async with asyncio.timeout(30):
            while "reachable again after" not in (log := process.log.read_text(encoding="utf-8")):
                await asyncio.sleep(0.1)
    lines = [line for line in log.splitlines() if "reachable again" in line or "WARNING" in line]
    assert ["database unreachable" in line for line in lines] == [True, False], log
    assert "reachable again after" in lines[1]
    assert "Traceback" not in log


@pytest.mark.clause("DEP-2")
async def test_failover_to_a_standby_loses_nothing_acknowledged(
    installation: Installation, tmp_path: Path
) -> None:
    with installation.cluster(FORGETFUL) as primary, installation.standby_of(primary) as standby:
        async with Arena.open(primary.dsn, tmp_path, PATIENT) as arena:
            # Synchronous replication: acknowledged commits are on the standby.
            await arena.ask("alter system set synchronous_standby_names = '*'")
            await arena.ask("select pg_reload_conf()")
            await arena.holds("select exists (select from pg_stat_replication where sync_state = 'sync')")
            for _ in range(2):
                await arena.workers.start()
            rng = random.Random(6)
            async with asyncio.TaskGroup() as group:
                for order in mixed(rng, 24, pace=0.1):
                    group.create_task(place(arena.producer, order, rng))
                await asyncio.sleep(0.4)
                await arena.seal()
                primary.crash()
                await _promote(standby)
            report = await arena.reckoning()
            assert await arena.ask("select inet_server_port()") == standby.port
    assert report.counters["duplicate step runs"] == 0, "no worker died"


async def test_no_effect_starts_on_a_standby(installation: Installation) -> None:
    """So a read-only error after the start of an effect is caused by the effect."""
    runs: list[str] = []

    async def effect(tx: Transaction) -> None:
        runs.append(await tx.fetchval("select pg_is_in_recovery()::text"))

    execution = Execution(
        id=1, lease_token=1, fsm="F", version=1, step="s", step_seq=0, attempt=0, state="{}", queue="default"
    )
    entry = CommitEntry(execution=execution, kind="done", effect=effect)
    with installation.cluster(FORGETFUL) as primary, installation.standby_of(primary) as standby:
        async with await Database.open(standby.dsn, "gen_durable", for_effects=True) as database:
            with pytest.raises(StatementError) as refused:
                await commit_with_effect(database, entry, RECORDER)
    assert (refused.value.sqlstate, runs) == (READ_ONLY, [])


@pytest.fixture
async def secured(cluster: Cluster) -> Cluster:
    """A server with password authentication for the role `app`."""
    rules = cluster.directory / "data" / "pg_hba.conf"
    rules.write_text(PASSWORDS + rules.read_text(encoding="utf-8"), encoding="utf-8")
    conn = await asyncpg.connect(cluster.dsn)
    await conn.execute("create role app superuser login password 'first'")
    await conn.execute("select pg_reload_conf()")
    await conn.close()
    return cluster


class Tokens:
    """Issues passwords; with `rotates`, earlier ones become invalid."""

    def __init__(self, cluster: Cluster, *, rotates: bool) -> None:
        self._cluster = cluster
        self._rotates = rotates
        self.asked = 0
        self.is_down = False

    async def ask(self) -> str:
        if self.is_down:
            raise RuntimeError("the vault is sealed")
        self.asked += 1
        token = f"token-{self.asked}" if self._rotates else "first"
        if self._rotates:
            conn = await asyncpg.connect(self._cluster.dsn)
            await conn.execute(f"alter role app password '{token}'")
            await conn.close()
        return f"postgresql://app:{token}@127.0.0.1:{self._cluster.port}/postgres?sslmode=disable"

    def ask_now(self) -> str:
        return asyncio.run(self.ask())


@pytest.mark.clause("DEP-3")
async def test_dsn_function_is_called_before_every_connection(secured: Cluster) -> None:
    tokens = Tokens(secured, rotates=True)
    ways: tuple[Callable[[], str | Awaitable[str]], ...] = (tokens.ask, tokens.ask_now)
    for dsn in ways:
        tokens.asked = 0
        # One after the other: of two concurrently issued passwords only the second is valid.
        id = await asyncio.to_thread(_produce, dsn)
        assert tokens.asked == 1, dsn
        async with AsyncClient(dsn) as client:
            assert (await client.get(id)) is not None, dsn
            asked = tokens.asked
            await _throw_out(secured)
            assert await _surely(partial(client.get, id)) is not None, dsn
            assert tokens.asked > asked, dsn


@pytest.mark.clause("DEP-3")
async def test_worker_waits_for_a_slow_dsn_function(secured: Cluster, caplog: Any) -> None:
    tokens = Tokens(secured, rotates=False)
    async with Worker([Leg], dsn=tokens.ask, settings=CHAOS) as worker:
        tokens.is_down = True
        await _throw_out(secured)
        await _holds(lambda: "Tokens.ask() raised RuntimeError: the vault is sealed" in caplog.text)
        tokens.is_down = False
        ref = await _surely(lambda: worker.insert(Leg, 1))
        assert (await _surely(lambda: worker.wait(ref))).is_finished
    assert caplog.text.count("database unreachable") == 1
    assert ":first@" not in caplog.text


@pytest.mark.parametrize("kind", ["AsyncClient", "Client"])
async def test_error_of_the_dsn_function_is_raised_at_opening(kind: str) -> None:
    def vault() -> str:
        raise KeyError("no such secret")

    with pytest.raises(UnreachableError, match=r"vault\(\): .* raised KeyError: 'no such secret'"):
        if kind == "Client":
            with Client(vault):
                pass
        else:
            async with AsyncClient(vault):
                pass


@pytest.mark.parametrize("kind", ["AsyncClient", "Client"])
async def test_returned_dsn_is_not_shown(kind: str) -> None:
    def vault() -> str:
        return "postgresql://app:s3cr3t/x@127.0.0.1:1/shop"

    with pytest.raises(UnreachableError) as unreachable:
        if kind == "Client":
            with Client(vault):
                pass
        else:
            async with AsyncClient(vault):
                pass
    assert "s3cr3t" not in str(unreachable.value)


async def test_connection_to_a_former_primary_is_closed(direct_dsn: str) -> None:
    def write() -> Plan[None]:
        yield Script("set transaction read only")
        yield Script("create table gen_durable.t ()")

    def who() -> Plan[None]:
        yield Script("create temporary table mark ()")  # fails if the session has one

    async with await Database.open(direct_dsn, "gen_durable", size=1) as database:
        await database.run(who())
        with pytest.raises(StatementError) as refused:
            await database.run_in_transaction(write())
        assert refused.value.sqlstate == READ_ONLY
        await database.run(who())


def _produce(dsn: Callable[[], str | Awaitable[str]]) -> int:
    with Client(dsn) as client:
        return client.insert(Leg, 1).id


async def _promote(standby: Cluster) -> None:
    conn = await asyncpg.connect(standby.dsn)
    assert await conn.fetchval("select pg_promote()")
    await conn.close()


async def _throw_out(cluster: Cluster) -> None:
    conn = await asyncpg.connect(cluster.dsn)
    await conn.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'app'")
    await conn.close()


async def _surely(call: Callable[[], Awaitable[Any]]) -> Any:
    """Repeat the query while the connection breaks."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await call()
            except DatabaseError:
                await asyncio.sleep(0.02)


async def _holds(fact: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not fact():
            await asyncio.sleep(0.01)
