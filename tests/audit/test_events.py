"""Audit events of each level, written in the transaction of the change."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import asyncpg
import msgspec
import psycopg
import pytest

from gen_durable import Inserted, NoTargetError
from gen_durable._core.model import Committed, Stale
from gen_durable._db import commit as commits
from gen_durable._db import lease
from gen_durable._db.pool import Database
from gen_durable.audit import AuditName
from gen_durable.config import AuditLevel
from gen_durable.testing import Crash, Harness
from tests.audit.machines import Story, add, story
from tests.db.raw import fetch
from tests.support.engine_plans import RECORDER, entry, flushed, inserted, new, picked

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "audit.md").read_text(encoding="utf-8")
# No delay after a crash.
DUE = "update gen_durable.gen_durable set eligible_at = now() where id = $1"
Tale = Callable[[Harness], Any]


def names(stage: Harness, ref: Any) -> str:
    return " ".join(event.event for event in stage.audit(ref))


def runs(name: str) -> Tale:
    return lambda stage: story(stage, name)


def a_job(stage: Harness) -> Any:
    ref = stage.insert(add, [1, 2])
    stage.drain()
    return ref


def a_signal(stage: Harness) -> Any:
    ref = story(stage, "awaits")
    stage.signal(ref, Story.go, 1, dedup_key="one")
    stage.signal(ref, Story.go, 1, dedup_key="one")
    stage.drain()
    return ref


def a_deadline(stage: Harness) -> Any:
    ref = story(stage, "awaits")
    stage.advance(timedelta(hours=2))
    stage.drain()
    return ref


def a_crash(stage: Harness) -> Any:
    ref = stage.insert(Story, step="ends")
    with stage.crash_at("ends"), pytest.raises(Crash):
        stage.drain()
    stage.drain()
    return ref


def people(stage: Harness) -> Any:
    ref = stage.insert(Story, step="ends")
    stage.cancel(ref, reason="not today", actor="ann")
    stage.soft_delete(ref, reason="old", actor="ben")
    stage.restore(ref, actor="cid")
    stage.retry(ref, reason="after all", actor="dan")
    stage.drain()
    return ref


TALES: dict[str, tuple[Tale, str, str]] = {
    "job": (a_job, "created leased succeeded", ""),
    "next": (runs("goes_on"), "created leased succeeded leased succeeded", ""),
    "retry": (runs("again"), "created leased retried leased succeeded", ""),
    "error": (runs("recovers"), "created leased retried leased succeeded", "retried"),
    "stop": (runs("stops"), "created leased failed", "failed"),
    "raise": (runs("raises"), "created leased failed", "failed"),
    "exhausted": (runs("wears_out"), "created leased retried leased failed", "retried failed"),
    "cancel": (runs("gives_up"), "created leased cancelled", "cancelled"),
    "signal": (a_signal, "created leased succeeded signalled leased succeeded", ""),
    "deadline": (a_deadline, "created leased succeeded expired leased succeeded", ""),
    "children": (runs("spawns"), "created leased succeeded leased succeeded", ""),
    "crash": (a_crash, "created leased crashed leased succeeded", "crashed"),
    "people": (
        people,
        "created cancelled deleted restored retried leased succeeded",
        "cancelled deleted restored retried",
    ),
}


@pytest.mark.clause("AUD-1", "AUD-3")
@pytest.mark.parametrize("tale", TALES)
@pytest.mark.parametrize("level", ["off", "failures", "all"])
def test_events_of_each_level(stage: Harness, level: AuditLevel, tale: str) -> None:
    run, everything, trouble = TALES[tale]
    stage.set_audit(level)
    expected = {"off": "", "failures": trouble, "all": everything}[level]
    assert names(stage, run(stage)) == expected


@pytest.mark.clause("AUD-1")
def test_every_event_is_documented() -> None:
    documented = {
        name for line in PAGE.splitlines() if line.startswith("| `") for name in re.findall(r"`(\w+)`", line)
    }
    assert set(get_args(AuditName)) <= documented


@pytest.mark.clause("AUD-2")
def test_data_of_events(stage: Harness) -> None:
    stage.set_audit("all")
    ref = story(stage, "recovers")
    created, leased, retried, _, succeeded = stage.audit(ref)
    assert created.data == {"machine": "Story", "version": 1, "step": "recovers", "queue": "default"}
    worker = leased.data["worker"]
    first = {"step": "recovers", "step_seq": 1, "execution": 1, "attempt": 0, "worker": worker}
    assert leased.data == first
    assert {**first, "error": "ValueError: not yet"}.items() <= retried.data.items()
    assert (succeeded.data["execution"], succeeded.data["outcome"]) == (2, "done")
    (_, _, onward, _, _) = stage.audit(story(stage, "goes_on"))
    assert (onward.data["outcome"], onward.data["to"]) == ("next", "ends")
    assert created.at <= leased.at <= retried.at
    assert created.number < leased.number < retried.number
    (child,) = stage.children(story(stage, "spawns"))
    assert stage.audit(child.id)[0].data["parent_id"] == child.parent_id
    signalled = stage.audit(a_signal(stage))[3]
    assert signalled.data == {"signal": "go", "dedup_key": "one", "is_awaited": True}


@pytest.mark.clause("AUD-4")
def test_events_of_actions_have_actor_and_reason(stage: Harness) -> None:
    stage.set_audit("failures")
    deeds = [(event.event, event.actor, event.reason) for event in stage.audit(people(stage))]
    assert deeds == [
        ("cancelled", "ann", "not today"),
        ("deleted", "ben", "old"),
        ("restored", "cid", None),
        ("retried", "dan", "after all"),
    ]
    (event,) = stage.audit(story(stage, "gives_up"))
    assert (event.actor, event.reason) == (None, "not wanted"), "its own decision"


@pytest.mark.clause("AUD-4", "AUD-5")
async def test_cancel_wins_over_an_outcome(stage: Harness, database: Database) -> None:
    stage.set_audit("all")
    (id,) = await inserted(database, new(queue="cancel"))
    (execution,) = await picked(database, queue="cancel")
    stage.cancel(id, reason="no", actor="ann")
    assert await flushed(database, [entry(execution, "done", payload="1")]) == [Committed("cancelled")]
    events = [(event.event, event.actor, event.reason) for event in stage.audit(id)][2:]
    assert events == [("cancel_requested", "ann", "no"), ("cancelled", "ann", "no")]


@pytest.mark.clause("AUD-1")
async def test_events_that_only_a_worker_writes(stage: Harness, database: Database) -> None:
    stage.set_audit("all")
    (id,) = await inserted(database, new(queue="rare"))
    (execution,) = await picked(database, queue="rare")
    lived = {((id, execution.lease_token), 0): execution.leased_at}
    assert await database.run(lease.mark_started(lived)) == set(lived)
    await flushed(database, [entry(execution, "release")])
    for _ in range(2):
        (execution,) = await picked(database, queue="rare")
        plan = lease.reap_execution((id, execution.lease_token), 0, lease.CrashPolicy(2, "all", "ops"))
        assert (await database.run_in_transaction(plan)).ids == [id]
        await fetch(database, DUE, id)
    assert names(stage, id) == "created leased started released leased crashed leased failed"
    assert stage.audit(id)[-1].data["cause"] == "poison"
    assert stage.audit(id)[2].data["execution"] == 1


@pytest.mark.clause("AUD-5")
async def test_rolled_back_changes_leave_no_event(stage: Harness, database: Database, dsn: str) -> None:
    stage.set_audit("all")
    (id,) = await inserted(database, new(queue="stale"))
    (execution,) = await picked(database, queue="stale")
    before = names(stage, id)
    for kind in ("done", "await"):
        lost = msgspec.structs.replace(execution, lease_token=execution.lease_token + 1)
        late = entry(lost, kind, awaits=("x",) if kind == "await" else None)
        assert await flushed(database, [late]) == [Stale()]
    with psycopg.connect(dsn) as connection:
        undone = stage.insert(Story, step="ends", conn=connection)
        stage.cancel(id, actor="ann", conn=connection)
        connection.rollback()
    assert isinstance(undone, Inserted)
    with pytest.raises(NoTargetError):  # neither the instance nor an event of it
        stage.audit(undone.id)
    assert names(stage, id) == before
    assert not await database.run(lease.mark_started({((id, 0), 0): None}))
    assert (await database.run(commits.commit_plain([], RECORDER))).results == []


async def test_forced_cancel_names_the_aborted_execution(stage: Harness, database: Database) -> None:
    stage.set_audit("all")
    (id,) = await inserted(database, new(queue="forced"))
    await picked(database, queue="forced")
    stage.cancel(id, force=True, actor="ann", reason="why")
    event, (run,) = stage.audit(id)[-1], stage.executions(id)
    assert (event.event, event.actor, event.reason) == ("cancelled", "ann", "why")
    assert (event.data["execution"], event.data["step"]) == (run.attempt, run.step)
    assert (event.data["step_seq"], event.data["worker"]) == (run.step_seq, run.lease_owner)


@pytest.mark.clause("AUD-13")
@pytest.mark.parametrize("level", ["failures", "all"])
async def test_concurrent_signals_keep_their_own_reasons(stage: Harness, dsn: str, level: AuditLevel) -> None:
    stage.set_audit(level)
    ref = stage.insert(Story, None, queue="elsewhere")
    first, second = await asyncpg.connect(dsn), await asyncpg.connect(dsn)
    deliver = "select gen_durable.signal($1::bigint, $2)"
    give_reason = "select gen_durable.audit_reason($1, 'signalled', $2, $2, '{}')"
    async with second.transaction():
        await second.execute("select 1")
        async with first.transaction():
            await first.execute(deliver, ref.id, "one")
            await first.execute(give_reason, ref.id, "ann")
        await second.execute(deliver, ref.id, "two")
        await second.execute(give_reason, ref.id, "ben")
    await first.close()
    await second.close()
    signalled = [event for event in stage.audit(ref.id) if event.event == "signalled"]
    assert [(event.actor, event.reason) for event in signalled] == [("ann", "ann"), ("ben", "ben")]
