"""Steps in the process pool."""

from __future__ import annotations

import asyncio
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gen_durable import Context, Done, Instance, Machine, Outcome, Spec, Status, Worker, job, step
from gen_durable._runtime.processes.child import IS_CHILD
from gen_durable.errors import OptionError, ProcessStepError, UsageError
from gen_durable.telemetry import CompensationStarted, ReaperReaped
from gen_durable.testing import Harness
from gen_durable.worker import CallNext
from tests.support.rows import has_no_lease, row_of
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, Events, process_ends
from tests.support.worker_process import program
from tests.workers.pool_machines import Crunch, Part, Press, Pressed, Undone, Work, crunch

ONE = msgspec.structs.replace(CALM, pool_processes=1)
TWO = msgspec.structs.replace(CALM, pool_processes=2)


@asynccontextmanager
async def worker_on(dsn: str, **options: Any) -> AsyncIterator[Worker]:
    async with Worker([Crunch, Part, crunch], dsn=dsn, **{"settings": TWO, **options}) as worker:
        yield worker


async def end_of(worker: Worker, work: Work, **options: Any) -> Instance[Any, Any]:
    return await worker.wait(await worker.insert(Crunch, work, **options), timeout=PATIENCE)


async def lines(file: Path, count: int = 1) -> list[list[int]]:
    async with asyncio.timeout(PATIENCE.total_seconds()):
        while not file.exists() or len(file.read_text().splitlines()) < count:
            await asyncio.sleep(0.01)
    return [[int(word) for word in line.split()] for line in file.read_text().splitlines()]


@pytest.mark.clause("VER-5", "VER-6")
async def test_process_steps_upgrade_old_instances(durable_dsn: str, db: Any) -> None:
    async with Worker([Pressed], dsn=durable_dsn, settings=ONE) as worker:
        ref = await worker.insert(Press, 40)
        ended = await worker.wait(ref, timeout=PATIENCE)
        assert (ended.result, (await row_of(db, ref.id))["fsm_version"]) == (42, 2)
    async with Worker([Pressed, Press], dsn=durable_dsn, settings=ONE) as worker:
        new, old = await worker.insert_all([Spec(Pressed, [40]), Spec(Press, 40)])
        assert [one.result for one in await worker.wait_all([new, old], timeout=PATIENCE)] == [42, 40]


# One test, because starting processes takes most of the time.
@pytest.mark.clause("POL-1", "POL-2", "POL-3")
async def test_process_steps_return_outcomes_errors_and_effects(durable_dsn: str, db: Any) -> None:
    async with worker_on(durable_dsn) as worker:
        await _every_outcome_is_returned(worker)
        await _exceptions_reach_the_handler_in_the_process(worker)
        await _effects_are_sent_as_sql_or_import_path(worker, db)
        pids = await _processes_are_reused_up_to_the_limit(worker)
    for pid in pids:
        await process_ends(pid)


async def _every_outcome_is_returned(worker: Worker) -> None:
    pid, parent, id, key = (await end_of(worker, Work("pid"))).result
    assert parent == os.getpid() != pid
    assert key == f"{id}:1"
    assert (await end_of(worker, Work("chain"))).result == 5
    assert (await end_of(worker, Work("loop"))).result == 5
    assert (await end_of(worker, Work("retry"))).result == 1
    assert (await end_of(worker, Work("children"))).result == [0, 2, 4]
    waiting = await worker.insert(Crunch, Work("await"))
    await worker.signal(waiting, Crunch.paid, 42)
    assert (await worker.wait(waiting, timeout=PATIENCE)).result == 42
    assert (await worker.wait(await worker.insert(crunch, 10), timeout=PATIENCE)).result == 45


async def _exceptions_reach_the_handler_in_the_process(worker: Worker) -> None:
    assert (await end_of(worker, Work("raise"))).last_error == "Declined True there: no money"
    assert (await end_of(worker, Work("discard"))).last_error == "for good"
    encode = (await end_of(worker, Work("encode"))).last_error
    assert encode is not None
    assert encode.startswith("EncodeError False there")
    resources = (await end_of(worker, Work("resources"))).last_error
    assert resources is not None
    assert "ctx.resources.pool is not available" in resources


async def _effects_are_sent_as_sql_or_import_path(worker: Worker, db: Any) -> None:
    await db.execute("create table booked (how text)")
    await db.execute(
        "create table typed (a int, b text, c bool, d text, e numeric, f uuid, g bytea, h text[], i timestamptz, j interval)"
    )
    assert (await end_of(worker, Work("sql"), step="effect")).status is Status.DONE
    assert (await end_of(worker, Work("function"), step="effect")).status is Status.DONE
    refused = (await end_of(worker, Work("local"), step="effect")).last_error
    assert refused is not None
    assert "cannot be sent from the process of the step to the worker; give Sql" in refused
    row = tuple(await db.fetchrow("select a, b, c, d, e::text, f::text, g, h, i::text, j from typed"))
    assert row[:3] == (1, "text", True)
    assert row[3] is None
    assert row[4:8] == ("1.50", "00000000-0000-0000-0000-000000000007", b"\0\1", ["a", "b"])
    assert row[9] == timedelta(seconds=90)
    assert await db.fetchval("select how from booked") == "by a function"


async def _processes_are_reused_up_to_the_limit(worker: Worker) -> set[int]:
    refs = await worker.insert_all([Spec(Crunch, Work("pid")) for _ in range(20)])
    pids = {(await worker.wait(ref, timeout=PATIENCE)).result[0] for ref in refs}
    assert 1 <= len(pids) <= 2
    return pids


@pytest.mark.clause("POL-4")
async def test_dead_process_crashes_only_its_execution(
    durable_dsn: str, db: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with worker_on(durable_dsn) as worker:
        events = Events(worker)
        deaths = {
            "kill": "was killed by SIGKILL",
            "exit": "exited with code 7",
            "fork": "was killed by SIGKILL",
        }
        for number, (what, ending) in enumerate(deaths.items(), 1):
            beside = await worker.insert(Crunch, Work("", number=300), step="beside")
            ref = await worker.insert(Crunch, Work(what, number=1), step="die")
            crashed = await events.wait(ReaperReaped, count=number)
            assert (crashed.ids, crashed.capped) == ((ref.id,), ()), what
            assert (await row_of(db, ref.id))["crash_count"] == 1, what
            found = await worker.wait(ref, timeout=PATIENCE)
            assert (found.result, found.crash_count) == (1, 0), what
            assert (await worker.wait(beside, timeout=PATIENCE)).result == os.getpid(), what
            (record,) = await db.fetch(
                "select * from gen_durable.executions where instance_id = $1 and status = 'ABORTED'", ref.id
            )
            assert record["outcome"] == "lease", what
            assert f"step crashed: Crunch {ref.id}, step die: its process {ending}" in caplog.text


@pytest.mark.clause("POL-4")
async def test_idle_process_that_died_is_replaced(durable_dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    async with worker_on(durable_dsn, settings=ONE) as worker:
        events, pids = Events(worker), set[int]()
        for _ in range(3):
            pid = (await end_of(worker, Work("pid"))).result[0]
            pids.add(pid)
            os.kill(pid, signal.SIGKILL)
            await process_ends(pid)
        assert not events.of(ReaperReaped)
    assert len(pids) == 3
    assert "an idle process of the pool died" in caplog.text
    assert "step crashed" not in caplog.text


async def test_step_that_always_kills_its_process_is_poison(durable_dsn: str) -> None:
    async with worker_on(durable_dsn, settings=msgspec.structs.replace(TWO, crash_limit=2)) as worker:
        found = await end_of(worker, Work("kill", number=9), step="die")
        assert found.last_error == "poison: the process died 2 times in step die"


@pytest.mark.clause("TEL-13")
async def test_undo_after_the_death_of_a_process_is_reported(durable_dsn: str) -> None:
    settings = msgspec.structs.replace(TWO, crash_limit=1)
    async with Worker([Undone], dsn=durable_dsn, settings=settings) as worker:
        events = Events(worker)
        ref = await worker.insert(Undone)
        assert (await worker.wait(ref, timeout=PATIENCE)).status is Status.FAILED
        assert [(one.id, one.step) for one in events.of(CompensationStarted)] == [(ref.id, "die")]


@pytest.mark.clause("POL-5")
async def test_timeout_kills_the_process_and_calls_the_handler(durable_dsn: str, tmp_path: Path) -> None:
    async with worker_on(durable_dsn) as worker:
        found = await end_of(worker, Work("", file=str(tmp_path / "begun")), step="slow")
        assert found.last_error is not None
        assert found.last_error.startswith("StepTimeoutError False here")
        ((pid, _),) = await lines(tmp_path / "begun")
        await process_ends(pid)


@pytest.mark.clause("POL-6")
async def test_kill_includes_programs_started_by_the_step(durable_dsn: str, db: Any, tmp_path: Path) -> None:
    hasty = msgspec.structs.replace(TWO, drain_timeout=timedelta(milliseconds=100))
    async with worker_on(durable_dsn, settings=hasty) as worker:

        async def begun(why: str) -> tuple[int, int, int]:
            """Start a step. Returns the ids of the instance, its process, and the program that the step has started."""
            ref = await worker.insert(Crunch, Work("", file=str(tmp_path / why)), step="long")
            ((pid, _, started),) = await lines(tmp_path / why)
            return ref.id, pid, started

        id, pid, started = await begun("cancel")
        await worker.cancel(id)
        assert (await worker.wait(id, timeout=PATIENCE)).status is Status.CANCELLED
        await process_ends(pid)
        await process_ends(started)
        id, pid, started = await begun("lost lease")
        await db.execute(
            "update gen_durable.gen_durable set lease_token = null, lease_expires_at = null, locked_by = null,"
            " status = 'awaiting_signal', awaits = '{}' where id = $1",
            id,
        )
        await process_ends(pid)
        await process_ends(started)
        id, pid, started = await begun("shutdown")
    await process_ends(pid)
    await process_ends(started)
    row = await row_of(db, id)
    assert (row["status"], row["attempt"], row["crash_count"]) == ("runnable", 0, 0)
    assert has_no_lease(row)


@pytest.mark.clause("POL-7")
async def test_processes_exit_with_a_killed_worker(durable_dsn: str, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    async with program("tests.workers.endless_step", durable_dsn, str(begun)):
        ((pid, _, program_pid),) = await lines(begun)
    await process_ends(pid)
    await process_ends(program_pid)


@pytest.mark.clause("POL-8")
async def test_middleware_wraps_process_steps(durable_dsn: str) -> None:
    seen: list[Any] = []

    async def watch(ctx: Context[Any], call_next: CallNext) -> Outcome[Any]:
        try:
            outcome = await call_next()
        except ProcessStepError as error:
            seen.append(error.reason)
            raise
        seen.append(outcome)
        return outcome if ctx.state != Work("replace") else Done("replaced")

    async with worker_on(durable_dsn, settings=ONE, middleware=[watch]) as worker:
        assert (await end_of(worker, Work("loop"))).result == 5
        assert (await end_of(worker, Work("raise"))).last_error == "Declined True there: no money"
        assert (await end_of(worker, Work("replace"))).result == "replaced"
        assert (await end_of(worker, Work("retry"))).result == 1
        assert (await end_of(worker, Work("children"))).result == [0, 2, 4]
    assert seen[:3] == [Done(5), "Declined: no money", Done(0)]


@pytest.mark.clause("POL-9")
def test_machines_that_cannot_be_imported_are_refused(durable: Harness) -> None:
    class Local(Machine[None, None]):
        @step(pool="process")
        def run(self, ctx: Context[None]) -> Outcome[None]:
            return Done()

    @job("local.v1", pool="process")
    def local() -> int:
        return 7

    with pytest.raises(
        OptionError, match=r"'Local' has pool=\"process\" at run, but .*Local is defined inside a"
    ):
        Worker([Local])
    with pytest.raises(OptionError, match=r"'local\.v1' has .*; move it to the top level of its module"):
        Worker([local])
    holder = Part()
    vars(holder)["stripe"] = object()
    with pytest.raises(OptionError, match="is given as an object with attributes: stripe; give the class"):
        Worker([holder])
    with pytest.raises(OptionError, match="is an `async def` with pool"):

        @step(pool="process")
        async def run(self: Any, ctx: Context[Any]) -> Outcome[Any]:
            return Done()

    with pytest.raises(OptionError, match='give "thread" or "process"'):
        step(pool="fork")(lambda self, ctx: None)  # type: ignore[call-overload]
    # The harness runs the step without another process.
    ref = durable.insert(local)
    durable.drain()
    durable.assert_done(ref, 7)


SCRIPT = """
import asyncio, os, sys
from gen_durable import Worker, job

@job("script.v1", pool="process", max_attempts=1)
def where() -> int:
    return os.getpid()

async def main():
    async with Worker([where], dsn=sys.argv[1]) as worker:
        print((await worker.wait(await worker.insert(where))).result != os.getpid())

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize(
    "start", ["asyncio.run(main())", "Worker([where], dsn=sys.argv[1]).run(processes=2)"]
)
def test_module_must_not_start_a_worker_on_import(
    durable_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str
) -> None:
    """A process of the pool imports the module: it must not start processes in turn."""
    module = tmp_path / "bare.py"
    module.write_text(SCRIPT[: SCRIPT.index("if __name__")] + start)
    monkeypatch.setattr(sys, "argv", ["x", durable_dsn])
    IS_CHILD.set()
    try:
        with pytest.raises(UsageError, match='start the worker below `if __name__ == "__main__":`'):
            runpy.run_path(str(module), run_name="bare")
    finally:
        IS_CHILD.clear()


@pytest.mark.parametrize("guard", [True, False])
def test_script_needs_a_main_guard(durable_dsn: str, tmp_path: Path, guard: bool) -> None:
    script = tmp_path / "script.py"
    bare = SCRIPT.replace('if __name__ == "__main__":\n    ', "")
    script.write_text(SCRIPT if guard else bare)
    done = subprocess.run(
        [sys.executable, str(script), durable_dsn], capture_output=True, text=True, timeout=50, check=False
    )
    if guard:
        assert (done.stdout, done.stderr, done.returncode) == ("True\n", "", 0)
    else:
        assert 'start the worker below `if __name__ == "__main__":`' in done.stderr
