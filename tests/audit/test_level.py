"""The audit level applies to clients, SQL producers and workers."""

from __future__ import annotations

import json
from datetime import timedelta

import psycopg
import pytest
from click.testing import CliRunner

from gen_durable import AsyncClient, Client, Settings, Worker
from gen_durable._db import collect
from gen_durable._db.pool import Database
from gen_durable.cli.root import root
from gen_durable.errors import NoTargetError, UsageError
from gen_durable.testing import Harness
from tests.audit.machines import Story, story


@pytest.mark.clause("AUD-6")
async def test_level_applies_to_all_clients(dsn: str) -> None:
    with Client(dsn) as client, psycopg.connect(dsn, autocommit=True) as sql:
        async with AsyncClient(dsn) as other:
            assert (await other.audit_level(), client.audit_level()) == ("failures", "failures")
            assert client.set_audit("all", actor="ann") == "failures"
            assert await other.audit_level() == "all"
            assert await other.set_audit("off") == "all"
            assert sql.execute("select gen_durable.set_audit('all')").fetchone() == ("off",)
            assert client.audit_level() == "all"
        assert sql.execute("select updated_by = current_user from gen_durable.settings").fetchone() == (True,)
        with pytest.raises(psycopg.errors.UniqueViolation):
            sql.execute("insert into gen_durable.settings (audit) values ('off')")
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="off, failures or all"):
            sql.execute("select gen_durable.set_audit('loud')")
        with pytest.raises(UsageError, match="'loud' is not an audit level"):
            client.set_audit("loud")  # type: ignore[arg-type]
        client.set_audit("failures")


@pytest.mark.clause("AUD-6")
async def test_worker_sets_the_level_of_its_settings(dsn: str) -> None:
    async with Worker([Story], dsn=dsn) as worker:
        assert await worker.audit_level() == "failures"
    async with Worker([Story], dsn=dsn, settings=Settings(audit="all")) as worker:
        assert await worker.audit_level() == "all"
        ref = await worker.insert(Story, step="goes_on")
        await worker.wait(ref)
        names = [event.event for event in await worker.audit(ref)]
    # Chained steps keep their lease.
    assert names == ["created", "leased", "succeeded", "succeeded"]
    async with Worker([Story], dsn=dsn) as worker:
        assert await worker.set_audit("failures") == "all"


@pytest.mark.clause("AUD-6")
def test_command_line(stage: Harness, dsn: str) -> None:
    def say(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(root, ["audit", *arguments, "--dsn", dsn])
        return result.exit_code, result.output

    assert say("level", "all", "--actor", "ann") == (0, "audit level set to all (was failures)\n")
    assert json.loads(say("level", "--json")[1]) == {"level": "all"}
    ref = story(stage, "stops")
    code, lines = say("ls", str(ref.id))
    assert (code, [line.split()[4] for line in lines.splitlines()[1:]]) == (
        0,
        ["created", "leased", "failed"],
    )
    assert "error=no more" in lines
    failed = json.loads(say("ls", str(ref.id), "--json")[1])[-1]
    assert (failed["event"], failed["data"]["cause"]) == ("failed", "stop")
    assert say("ls", "missing")[0] == 2
    assert say("ls", "99999")[0] == 2
    stage.cancel(stage.insert(Story, step="ends", correlation_key="k"), reason="why", actor="ann")
    login = json.loads(say("ls", "k", "--json")[1])[-1]["login"]
    last = say("ls", "k")[1].splitlines()[-1]
    assert " ".join(last.split()[4:9]) == f"cancelled ann (login {login}) why"
    assert say("level", "failures") == (0, "audit level set to failures (was all)\n")
    quiet = stage.insert(Story, step="ends")
    assert say("ls", str(quiet.id)) == (0, "no audit events\n")


@pytest.mark.clause("AUD-7")
def test_pages(stage: Harness) -> None:
    stage.set_audit("all")
    ref = story(stage, "goes_on")
    events = stage.audit(ref)
    assert [*stage.audit(ref, limit=2), *stage.audit(ref, after=events[1])] == events
    assert stage.audit(ref, after=events[-1].number) == []
    for missing in ("missing", 99_999):
        with pytest.raises(NoTargetError):
            stage.audit(missing)
    with pytest.raises(UsageError, match="the limit of audit events"):
        stage.audit(ref, limit=0)
    stage.set_audit("failures")


@pytest.mark.clause("AUD-8")
async def test_retention_removes_old_events_in_batches(database: Database, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as sql:
        sql.execute("delete from gen_durable.audit_events")
        sql.execute(
            "insert into gen_durable.audit_events (instance_id, event, created_at)"
            " select 1, 'x', now() - interval '91 days' from generate_series(1, 1100)"
        )
        sql.execute("insert into gen_durable.audit_events (instance_id, event) values (1, 'young')")
        left = []
        has_more = True
        while has_more:
            has_more = await database.run(collect.sweep_audit(timedelta(days=90)))
            left += [row[0] for row in sql.execute("select count(*) from gen_durable.audit_events")]
        assert left == [601, 101, 1]
        assert sql.execute("select event from gen_durable.audit_events").fetchone() == ("young",)
