"""A failing instance emits an alert in the transaction that fails it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from gen_durable import CloudEvent, Settings, Worker
from gen_durable._core import settle
from gen_durable._core.model import CommitEntry
from gen_durable._core.new_rows import ALERT
from gen_durable._db import commit as commits
from gen_durable._db import lease
from gen_durable._db.pool import Database
from gen_durable.testing import Crash, Harness
from tests.audit.machines import Story, story
from tests.support.engine_plans import inserted, new, picked
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE

RECORDER = commits.Recorder("worker", "all", alerts="ops")


def alerts(stage: Harness, ref: Any) -> list[tuple[str, str, Any]]:
    return [(event.id, event.type, event.data) for event in stage.events(ref, sink="ops")]


@pytest.mark.clause("AUD-9", "AUD-10")
@pytest.mark.parametrize(
    ("name", "cause", "attempts", "error"),
    [
        ("stops", "stop", 1, "no more"),
        ("raises", "error", 1, "ValueError: broken"),
        ("wears_out", "exhausted", 2, "ValueError: broken"),
        ("discards", "stop", 1, "not worth it"),
    ],
)
def test_failure_emits_an_alert(stage: Harness, name: str, cause: str, attempts: int, error: str) -> None:
    ref = story(stage, name)
    stage.assert_failed(ref)
    ((id, type_, data),) = alerts(stage, ref)
    assert (id, type_) == (f"{ref.id}:1:{2 if name == 'stops' else 1}", "gen_durable.instance.failed")
    facts = {"machine": "Story", "version": 1, "step": name, "cause": cause, "error": error}
    assert data == {"id": ref.id, **facts, "attempts": attempts}


@pytest.mark.clause("AUD-9")
@pytest.mark.parametrize("name", ["ends", "goes_on", "again", "recovers", "gives_up", "spawns"])
def test_other_outcomes_emit_no_alert(stage: Harness, name: str) -> None:
    assert alerts(stage, story(stage, name)) == []


@pytest.mark.clause("AUD-9", "AUD-10")
def test_poison_emits_an_alert(stage: Harness) -> None:
    """A retried instance that is poison again emits another alert."""
    ref = stage.insert(Story, step="stops", correlation_key="bad")
    for _ in range(2):
        for _ in range(2):
            with stage.crash_at("stops"), pytest.raises(Crash):
                stage.drain()
        stage.drain()
        stage.assert_failed(ref, match="poison")
        stage.retry(ref)
    stage.drain()
    found = alerts(stage, ref)
    assert [id for id, _, _ in found] == [f"{ref.id}:1:2", f"{ref.id}:1:-4", f"{ref.id}:1:-2"]
    data = found[-1][2]
    assert (data["cause"], data["machine"], data["step"]) == ("poison", "Story", "stops")
    assert data["error"].startswith("poison: the process died 2 times")
    assert {event.subject for event in stage.events(ref)} == {"bad"}
    assert {type for _, type, _ in found} == {ALERT}


@pytest.mark.clause("AUD-9")
async def test_unknown_machine_and_refused_outcome_emit_alerts(stage: Harness, database: Database) -> None:
    ids = await inserted(database, *[new(queue="unknown") for _ in range(3)])
    first, second, third = await picked(database, queue="unknown")
    unknown = settle.no_handler(first)
    refused = settle.refused(CommitEntry(execution=second, kind="done", payload="1"), ValueError("too large"))
    stale = settle.no_handler(msgspec.structs.replace(third, lease_token=third.lease_token + 1))
    await database.run_in_transaction(commits.commit([unknown, refused, stale], RECORDER))
    causes = {id: [data["cause"] for _, _, data in alerts(stage, id)] for id in ids}
    assert causes == {first.id: ["no_handler"], second.id: ["refused"], third.id: []}
    quiet = lease.reap_execution((third.id, third.lease_token), 0, lease.CrashPolicy(1, "all"))
    assert (await database.run_in_transaction(quiet)).capped == [third.id]
    assert alerts(stage, third.id) == [], "no sink is set"


@pytest.mark.clause("AUD-10")
async def test_alert_is_published_at_least_once_with_one_id(durable_dsn: str) -> None:
    taken: list[CloudEvent] = []

    async def fussy(event: CloudEvent) -> None:
        taken.append(event)
        if len(taken) == 1:
            raise ConnectionError("lost on the way back")

    settings = msgspec.structs.replace(CALM, alerts="ops")
    async with Worker([Story], dsn=durable_dsn, sinks={"ops": fussy}, settings=settings) as worker:
        ref = await worker.insert(Story, step="raises")
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while not await worker.events(ref, state="published"):
                await asyncio.sleep(0.02)
        (record,) = await worker.executions(ref)
    assert [(event.id, event.type) for event in taken] == [
        (f"{ref.id}:1:1", "gen_durable.instance.failed")
    ] * 2
    assert (record.status, record.outcome) == ("DONE", "stop")
    assert Settings().alerts == ""


@pytest.mark.clause("AUD-11")
@pytest.mark.parametrize(
    ("alerts", "sinks", "has"),
    [("ops", ["ops"], None), ("", [], None), ("osp", ["ops"], "ops"), ("ops", [], "none")],
)
async def test_worker_without_the_alert_sink_logs_it(
    durable_dsn: str, caplog: pytest.LogCaptureFixture, alerts: str, sinks: list[str], has: str | None
) -> None:
    async def drop(event: CloudEvent) -> None: ...

    settings = msgspec.structs.replace(CALM, alerts=alerts)
    async with Worker([Story], dsn=durable_dsn, sinks=dict.fromkeys(sinks, drop), settings=settings):
        pass
    lines = [record.getMessage() for record in caplog.records if "settings.alerts" in record.getMessage()]
    assert len(lines) == (has is not None)
    if has is not None:
        assert lines[0].startswith(
            f"settings.alerts is '{alerts}', but this worker has no sink of that name (sinks: {has})"
        )
        assert lines[0].endswith(f"until a worker with sinks={{'{alerts}': …}} publishes them")
