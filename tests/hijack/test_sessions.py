"""Objects of another role on the search_path never run with the privileges of a worker or client."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from gen_durable import (
    AsyncClient,
    Client,
    Context,
    Done,
    GenDurableError,
    Machine,
    Next,
    Outcome,
    RateLimit,
    Schedule,
    Settings,
    Spec,
    Sql,
    Status,
    Transaction,
    Worker,
    step,
)
from gen_durable._db import blocking, connector, pool
from gen_durable._schema import migrate_schema
from gen_durable.cli.root import root
from tests.hijack.traps import caught
from tests.pooler.machines import Alone, Chain, Parent, Stubborn, Waiter

SOON = timedelta(seconds=30)
SETTINGS = Settings(
    poll_interval=timedelta(milliseconds=50),
    lease=timedelta(seconds=3),
    reap_interval=timedelta(milliseconds=200),
    audit="all",
)


class Booked(Machine[None, None]):
    """Writes to a table of the application, which its effects find by its unqualified name."""

    @step
    async def first(self, ctx: Context[None]) -> Outcome[None]:
        return Next(self.second, effect=Sql("insert into ledger values ($1)", ctx.id))

    @step
    async def second(self, ctx: Context[None]) -> Outcome[None]:
        async def write(transaction: Transaction) -> None:
            await transaction.execute("insert into ledger values ($1)", ctx.id)

        return Done(effect=write)


MACHINES: list[Any] = [Chain, Stubborn, Waiter, Parent, Alone, Booked]


async def worked(dsn: str, db: Any, settings: Settings = SETTINGS) -> None:
    """All work of a worker: outcomes, keys, limits, signals, deadlines, effects, children."""
    await db.execute("create table public.ledger (id bigint)")
    limits = [RateLimit("crm", 1000, per=timedelta(seconds=1))]
    async with Worker(MACHINES, dsn=dsn, settings=settings, limits=limits) as worker:
        refs: list[Any] = await worker.insert_all(
            [
                Spec(Chain, 1),
                Spec(Stubborn, None),
                Spec(Waiter, 0.05),
                Spec(Parent, 3),
                Spec(Booked, None),
                Spec(Chain, 1, rate_limit="crm"),
                *[Spec(Alone, "k", concurrency_key="k") for _ in range(3)],
            ]
        )
        waiter = await worker.insert(Waiter, 60.0, correlation_key="w")
        await worker.signal("w", Waiter.note, "here")
        await worker.wait_all([*refs, waiter], timeout=SOON)


async def used(client: Any) -> None:
    """The verbs of a blocking or async client."""

    async def done(value: Any) -> Any:
        return await value if asyncio.iscoroutine(value) else value

    ref = await done(client.insert(Chain, 1, correlation_key="c", concurrency_key="k"))
    await done(client.insert_all([Spec(Waiter, 1.0, unique_key="u"), Spec(Waiter, 1.0, unique_key="u")]))
    await done(client.signal("c", "note", "x"))
    await done(client.get(ref))
    await done(client.get("c"))
    await done(client.list(Chain, status=[Status.RUNNABLE]))
    await done(client.count(Chain))
    await done(client.children(ref, every=True))
    await done(client.explain(ref))
    await done(client.cancel(ref))
    await done(client.retry(ref))
    await done(client.soft_delete(ref))
    await done(client.restore(ref))
    await done(client.cancel_all(Chain))
    await done(client.executions(ref))
    await done(client.events(ref))
    await done(client.audit(ref))
    await done(client.set_audit("all"))
    await done(client.set_limit(RateLimit("mail", 10, per=timedelta(seconds=1))))
    await done(client.limits())
    await done(client.remove_limit("mail"))
    await done(client.put_schedule(Schedule("s", Spec(Chain, 1), every=timedelta(hours=1))))
    await done(client.trigger_schedule("s"))
    await done(client.pause_schedule("s"))
    await done(client.resume_schedule("s"))
    await done(client.delete_schedule("s"))
    await done(client.pause_queue("q"))
    await done(client.resume_queue("q"))
    await done(client.queues())
    await done(client.workers())
    await done(client.doctor())


@pytest.mark.clause("SQL-10")
async def test_worker_runs_no_planted_object(trapped: str, db: Any, attacker: str) -> None:
    await worked(trapped, db)
    assert await db.fetchval("select count(*) from public.ledger") == 2
    assert await caught(db, attacker) == set()


async def test_worker_behind_a_pooler_runs_no_planted_object(trapped: str, db: Any, attacker: str) -> None:
    """Behind a pooler every transaction sets the pins, on sessions with the defaults of the role."""
    settings = msgspec.structs.replace(SETTINGS, pooler="transaction")
    await worked(trapped, db, settings)
    assert await db.fetchval("select count(*) from public.ledger") == 2
    async with AsyncClient(trapped, settings=settings) as client:
        await used(client)
    assert await caught(db, attacker) == set()


async def test_blocking_client_behind_a_pooler_runs_no_planted_object(
    trapped: str, db: Any, attacker: str
) -> None:
    settings = Settings(pooler="transaction")
    await asyncio.to_thread(lambda: asyncio.run(used_blocking(trapped, settings)))
    assert await caught(db, attacker) == set()


@pytest.mark.clause("SQL-10")
async def test_async_client_runs_no_planted_object(trapped: str, db: Any, attacker: str) -> None:
    async with AsyncClient(trapped) as client:
        await used(client)
    assert await caught(db, attacker) == set()


@pytest.mark.clause("SQL-10")
async def test_blocking_client_runs_no_planted_object(trapped: str, db: Any, attacker: str) -> None:
    await asyncio.to_thread(lambda: asyncio.run(used_blocking(trapped)))
    assert await caught(db, attacker) == set()


COMMANDS = """
insert Chain 1 --correlation-key k
signal k note 1
ls --status runnable
show k
explain k
cancel k --yes
retry k
delete k --yes
restore k
audit ls k
audit level all
queues
queues pause q
workers
limits set crm=10/1s
limits ls
schedules ls
outbox ls
db status
doctor
"""


@pytest.mark.clause("SQL-10")
async def test_command_line_runs_no_planted_object(trapped: str, db: Any, attacker: str) -> None:
    assert await db.fetchval("select usesuper from pg_user where usename = current_user")
    async with Worker([Chain], dsn=trapped, queues={}):
        pass
    for line in COMMANDS.strip().splitlines():
        result = await asyncio.to_thread(CliRunner().invoke, root, [*line.split(), "--dsn", trapped])
        assert result.exit_code in (0, 1), (line, result.output)
    assert await caught(db, attacker) == set()


@pytest.mark.parametrize("what", ["worker", "client", "blocking client"])
async def test_planted_objects_run_on_the_path_of_the_role(
    trapped: str, db: Any, attacker: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Proves that the tests above can fail."""
    monkeypatch.delitem(connector.PINNED, "search_path")
    monkeypatch.setattr(pool, "_PIN_PATH", "select")
    monkeypatch.setattr(blocking, "_OPTIONS", dict.fromkeys((True, False), ""))
    owner = await db.fetchval("select current_user::text")
    with suppress(GenDurableError):  # with these operators some statements do not parse
        if what == "worker":
            await worked(trapped, db)
        elif what == "client":
            async with AsyncClient(trapped) as client:
                await used(client)
        else:
            await asyncio.to_thread(lambda: asyncio.run(used_blocking(trapped)))
    assert await caught(db, attacker) == {owner}


async def test_outcome_is_written_on_the_pinned_path_after_an_effect(
    trapped: str, db: Any, attacker: str
) -> None:
    """Without the pin of lock_for_effect, the commit would run on the search_path of the effect."""
    await db.execute("create table public.ledger (id bigint)")

    async def effects() -> set[str]:
        async with Worker([Booked], dsn=trapped, settings=SETTINGS) as worker:
            await worker.wait(await worker.insert(Booked), timeout=SOON)
        return await caught(db, attacker)

    assert await effects() == set()
    text = await db.fetchval("select pg_get_functiondef('gen_durable.lock_for_effect'::regproc)")
    without = text.replace("'search_path', 'pg_catalog, pg_temp', true", "'search_path', 'public', true")
    assert without != text
    await db.execute(without)
    with suppress(GenDurableError):
        await effects()
    assert await caught(db, attacker) == {await db.fetchval("select current_user::text")}


async def used_blocking(dsn: str, settings: Settings | None = None) -> None:
    with Client(dsn, settings=settings) as client:
        await used(client)


async def test_every_function_is_pinned_or_bound_when_it_is_created(db: Any) -> None:
    """One exception pins the path for the rest of its transaction."""
    rows = await db.fetch(
        """select p.proname from pg_proc p
            where p.pronamespace = 'gen_durable'::regnamespace and p.prosqlbody is null
              and not coalesce(p.proconfig, '{}') @> '{"search_path=pg_catalog, pg_temp"}'"""
    )
    assert [row["proname"] for row in rows] == ["lock_for_effect"]


@pytest.mark.clause("SQL-10")
async def test_migrations_bind_no_planted_object(trapped: str, db: Any, attacker: str) -> None:
    """Views, defaults, constraints and indexes keep the operators that they were created with."""
    await migrate_schema(trapped, "second")
    bound = await db.fetch(
        """select distinct pg_describe_object(d.classid, d.objid, d.objsubid) as what
             from pg_depend d
             left join pg_operator o on d.refclassid = 'pg_operator'::regclass and o.oid = d.refobjid
             left join pg_proc p on d.refclassid = 'pg_proc'::regclass and p.oid = d.refobjid
            where coalesce(o.oprnamespace, p.pronamespace) = 'public'::regnamespace
              and pg_describe_object(d.classid, d.objid, d.objsubid) ~ 'second'"""
    )
    assert bound == []
    assert await caught(db, attacker) == set()
