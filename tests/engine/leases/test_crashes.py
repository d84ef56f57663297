"""A killed worker costs its steps an attempt: no outcome, no `handle`, the same idempotency key."""

from __future__ import annotations

import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gen_durable import (
    AsyncClient,
    Context,
    Done,
    Machine,
    Outcome,
    ScheduleChildren,
    Spec,
    Stop,
    Worker,
    step,
)
from gen_durable.telemetry import ReaperReaped
from tests.support.crashing_workers import Killer, Rescued, Sleeper
from tests.support.rows import has_no_lease, inbox_of, row_of, signal_rows
from tests.support.settings import FAST
from tests.support.waiting import PATIENCE, Events
from tests.support.worker_process import worker_process

NEVER = "/nonexistent/go"


class Rescue(Machine[str, str], name="Sleeper"):
    """Replaces the step that never ends."""

    def __init__(self) -> None:
        self.handled: list[Exception] = []

    @step
    async def sleep(self, ctx: Context[str]) -> Outcome[str]:
        return Done(f"{ctx.step} {ctx.attempt} {ctx.idempotency_key}")

    @step
    async def block(self, ctx: Context[str]) -> Outcome[str]:
        return Done(f"{ctx.step} {ctx.attempt} {ctx.idempotency_key}")

    def handle(self, error: Exception, ctx: Context[str]) -> Outcome[str]:
        self.handled.append(error)
        return Stop(error)


@pytest.mark.clause("CRASH-10", "CRASH-1", "CRASH-2")
async def test_step_of_a_killed_worker_runs_again_with_the_same_key(durable_dsn: str, db: Any) -> None:
    rescue = Rescue()
    async with AsyncClient(durable_dsn, settings=FAST) as client:
        refs = [await client.insert(Sleeper, NEVER, step=name) for name in ("sleep", "block")]
        async with worker_process(durable_dsn, FAST) as victim:
            begun = {
                (line["id"], line["key"], line["attempt"])
                for _ in refs
                for line in [await victim.wait_for(begun=...)]
            }
            assert begun == {(ref.id, f"{ref.id}:1", 0) for ref in refs}
            await victim.kill()
        async with Worker([rescue], dsn=durable_dsn, settings=FAST) as worker:
            events = Events(worker)
            reaped = await events.wait(ReaperReaped)
            rows = [await row_of(db, ref.id) for ref in refs]
            ended = await worker.wait_all(refs, timeout=PATIENCE)
    assert (reaped.count, set(reaped.ids), reaped.capped) == (2, {ref.id for ref in refs}, ())
    for row in rows:
        assert (row["status"], row["attempt"], row["crash_count"], row["step_seq"]) == ("runnable", 1, 1, 0)
        assert (
            timedelta(milliseconds=900)
            < row["eligible_at"] - row["updated_at"]
            < timedelta(milliseconds=1100)
        )
        assert has_no_lease(row)
    assert {line["key"] for line in victim.lines if "begun" in line} == {f"{ref.id}:1" for ref in refs}
    assert [one.result for one in ended] == [f"sleep 1 {refs[0].id}:1", f"block 1 {refs[1].id}:1"]
    assert [one.crash_count for one in ended] == [0, 0], "a committed outcome forgives"
    assert rescue.handled == []


async def test_second_worker_takes_over_from_a_killed_one(durable_dsn: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with (
        AsyncClient(durable_dsn, settings=FAST) as client,
        worker_process(durable_dsn, FAST) as first,
        worker_process(durable_dsn, FAST) as second,
    ):
        for process in (first, second):
            await process.wait_for(ready=True)
        refs = await client.insert_all([Spec(Sleeper, str(go)) for _ in range(20)])
        # Each worker can run ten, so each runs ten of the twenty.
        for process in (first, second):
            for _ in range(10):
                await process.wait_for(begun="sleep")
        await first.kill()
        go.touch()
        ended = await client.wait_all(refs, timeout=PATIENCE)
        second.send(signal.SIGTERM)
        assert await second.ends() == 0
    assert {one.result for one in ended} == {str(second.lines[0]["pid"])}
    dead = {line["id"] for line in first.lines if "begun" in line}
    (reaped,) = [line for line in second.lines if line.get("event") == "reaper.reaped"]
    assert set(reaped["ids"]) == dead
    again = {(line["id"], line["attempt"]) for line in second.lines if "begun" in line and line["attempt"]}
    assert again == {(id, 1) for id in dead}


@pytest.mark.clause("CRASH-4", "SIG-14", "CHD-6")
async def test_step_that_keeps_killing_its_process_fails_as_poison(durable_dsn: str, db: Any) -> None:
    settings = msgspec.structs.replace(
        FAST, crash_limit=3, lease=timedelta(milliseconds=500), heartbeat=timedelta(milliseconds=200)
    )

    class Parent(Machine[None, str]):
        @step
        async def start(self, ctx: Context[None]) -> Outcome[str]:
            return ScheduleChildren([Spec(Killer)], then=self.finish)

        @step
        async def finish(self, ctx: Context[None]) -> Outcome[str]:
            (child,) = ctx.children
            return Done(f"{child.status}: {child.last_error}")

    waits: list[float] = []
    async with Worker([Parent], dsn=durable_dsn, settings=settings) as worker:
        events = Events(worker)
        parent = await worker.insert(Parent)
        await worker.wait(parent, timeout=PATIENCE, until="parked")
        (child,) = await worker.children(parent)
        await worker.signal(child.id, "unread", dedup_key="once")
        for crash in (1, 2, 3):
            async with worker_process(durable_dsn, settings) as victim:
                begun = await victim.wait_for(begun="kill")
                assert (begun["id"], begun["attempt"], begun["key"]) == (child.id, crash - 1, f"{child.id}:1")
                assert await victim.ends() == -signal.SIGKILL
                assert not any("handled" in line for line in victim.lines)
            reaped = await events.wait(ReaperReaped, count=crash)
            assert reaped.ids == (child.id,)
            assert reaped.capped == ((child.id,) if crash == 3 else ())
            hurt = await row_of(db, child.id)
            assert (hurt["attempt"], hurt["crash_count"]) == (min(crash, 2), crash)
            waits.append((hurt["eligible_at"] - hurt["updated_at"]).total_seconds())
            # Skip the backoff.
            await db.execute(
                "update gen_durable.gen_durable set eligible_at = now() where status = 'runnable'"
            )
        ended = await worker.wait(parent, timeout=PATIENCE)
    row = await row_of(db, child.id)
    assert waits[:2] == [1.0, 2.0]
    assert (row["status"], row["last_error"]) == ("failed", "poison: the process died 3 times in step kill")
    assert has_no_lease(row)
    assert row["finished_at"] is not None
    assert await inbox_of(db, child.id) == []
    assert await signal_rows(db, child.id) == 0
    assert ended.result == "failed: poison: the process died 3 times in step kill"


@pytest.mark.clause("CRASH-12", "ERR-12")
async def test_on_failure_of_a_killed_step_survives_another_kill(durable_dsn: str, db: Any) -> None:
    settings = msgspec.structs.replace(FAST, crash_limit=2)
    async with (
        AsyncClient(durable_dsn, settings=settings) as client,
        Worker([Sleeper], dsn=durable_dsn, settings=settings) as reaper,
    ):
        events = Events(reaper)
        ref = await client.insert(Rescued)
        for crash, name in enumerate(("kill", "kill", "mend"), 1):
            async with worker_process(durable_dsn, settings) as victim:
                await victim.wait_for(begun=name)
                assert await victim.ends() == -signal.SIGKILL
            assert (await events.wait(ReaperReaped, count=crash)).capped == ()
            await db.execute(
                "update gen_durable.gen_durable set eligible_at = now() where status = 'runnable'"
            )
        async with worker_process(durable_dsn, settings):
            ended = await client.wait(ref, timeout=PATIENCE)
    assert ended.result == f"Poison kill, {ref.id}:2"
