"""A failed job inserts a dead letter in the transaction in which it fails."""

from __future__ import annotations

import asyncio
import signal
from datetime import timedelta
from typing import Any, NoReturn

import msgspec
import pytest

from gen_durable import (
    AsyncClient,
    Cancel,
    Context,
    Discard,
    Done,
    Machine,
    Outcome,
    RetryAfter,
    Settings,
    Spec,
    Sql,
    Status,
    Worker,
    job,
    step,
)
from gen_durable._db import lease as leases
from gen_durable._db.pool import Database
from gen_durable.telemetry import OutcomeStale, ReaperReaped
from gen_durable.testing import Crash, DrainCounts, Harness
from tests.support.crashing_workers import poison
from tests.support.rows import SqlConnection
from tests.support.settings import CALM, FAST
from tests.support.waiting import PATIENCE, Events, happens
from tests.support.worker_process import worker_process


class Invoice(msgspec.Struct):
    number: int


class Letter(msgspec.Struct):
    """The payload of a dead letter."""

    id: int
    job: str
    version: int
    payload: Any
    error: str
    attempts: int


@job("ops.dead.v2", version=2, queue="ops")
async def dead(letter: Letter) -> int:
    return letter.id


@job("letters.charge.v1", dead_letter="ops.dead.v2", max_attempts=2)
async def charge(invoice: Invoice, ctx: Context[Invoice]) -> int:
    match invoice.number:
        case 1:
            raise ValueError("no")
        case 2:
            raise Discard("declined")
        case 3:
            raise Cancel("not needed")
        case 4:
            raise RetryAfter(timedelta(0), "busy")
        case 5 if ctx.attempt == 0:
            raise ValueError("at first")
        case 6:
            return Done(6, effect=Sql("select 1 / 0"))  # type: ignore[return-value]
    return invoice.number


LETTERS = "select * from gen_durable.gen_durable where fsm like 'ops.dead%' order by id"


@pytest.mark.clause("JOB-17")
def test_dead_letter_has_payload_and_error(durable: Harness, subtests: pytest.Subtests) -> None:
    durable.use(dead)
    for number, error, attempts in (
        (1, "ValueError: no", 2),
        (2, "declined", 1),
        (4, "busy", 2),
        (6, "DivisionByZeroError: division by zero", 2),
    ):
        with subtests.test(number=number):
            ref = durable.insert(charge, Invoice(number))
            assert durable.drain().done == 1
            durable.assert_failed(ref)
            (letter,) = [one for one in durable.instances(dead) if one.id > ref.id]
            assert letter.state == Letter(ref.id, "letters.charge.v1", 1, {"number": number}, error, attempts)
            assert durable.assert_done(letter.id) == ref.id
            assert (letter.version, letter.queue, letter.priority, letter.parent_id) == (2, "ops", 0, None)


@pytest.mark.clause("JOB-18")
def test_cancelled_and_done_jobs_leave_no_dead_letter(durable: Harness) -> None:
    durable.use(dead)
    for number in (3, 5, 7):
        durable.insert(charge, Invoice(number))
        durable.drain()
        assert durable.instances(dead) == [], number


def test_undecodable_payload_is_copied_to_the_dead_letter(durable: Harness, sql: SqlConnection) -> None:
    durable.insert(charge, Invoice(1))
    sql("""update gen_durable.gen_durable set state = '{"nummer": [1, null, "ä"]}'""")
    assert durable.drain() == DrainCounts(retry=1, stopped=1)
    (letter,) = sql(LETTERS)
    assert letter["state"]["payload"] == {"nummer": [1, None, "ä"]}
    assert letter["state"]["error"].startswith("DecodeError: the state of letters.charge.v1")


def test_dead_letter_for_an_unregistered_job_waits_in_default(durable: Harness, sql: SqlConnection) -> None:
    durable.insert(charge, Invoice(2))
    durable.drain()
    (letter,) = sql(LETTERS)
    assert (letter["fsm"], letter["fsm_version"], letter["step"], letter["queue"]) == (
        "ops.dead.v2",
        1,
        "run",
        "default",
    )
    assert (letter["status"], letter["attempt"], letter["parent_id"]) == ("runnable", 0, None)


async def test_dead_letter_uses_the_queue_its_receiver_registered(durable_dsn: str, db: Any) -> None:
    class Archive(Machine[Letter, str], name="ops.dead.v2", version=3, queue="archive"):
        @step
        async def look(self, ctx: Context[Letter]) -> Outcome[str]:
            return Done("unused")

        @step(initial=True)
        async def file(self, ctx: Context[Letter]) -> Outcome[str]:
            return Done(ctx.state.error)

    async with AsyncClient(durable_dsn) as client:
        async with Worker([dead, Archive], dsn=durable_dsn, settings=CALM) as ops:
            async with Worker([charge], dsn=durable_dsn, settings=CALM) as shop:
                await shop.wait(await shop.insert(charge, Invoice(2)), timeout=PATIENCE)
            found = await db.fetchrow(LETTERS)
            assert (found["fsm_version"], found["step"], found["queue"]) == (3, "file", "archive")
            assert (await ops.wait(found["id"], timeout=PATIENCE)).result == "declined"
        assert await client.count(status=Status.RUNNABLE) == 0


def test_dead_letter_takes_a_job_object(durable: Harness) -> None:
    @job("letters.typed.v1", dead_letter=dead, max_attempts=1)
    def typed() -> NoReturn:
        raise ValueError("no")

    durable.use(dead)
    durable.insert(typed)
    assert durable.drain() == DrainCounts(stopped=1, done=1)
    (letter,) = durable.instances(dead)
    assert letter.state.payload is None


def test_failing_receiver_has_its_own_dead_letter(durable: Harness) -> None:
    @job("ops.last.v1")
    def last(letter: Letter) -> str:
        return f"{letter.job}: {letter.payload['job']}"

    @job("ops.dead.v2", max_attempts=1, dead_letter=last)
    def failing(letter: Letter) -> NoReturn:
        raise ValueError("full")

    durable.use(failing)
    durable.use(last)
    durable.insert(charge, Invoice(2))
    durable.drain()
    (letter,) = durable.instances(last)
    assert durable.assert_done(letter.id) == "ops.dead.v2: letters.charge.v1"


async def test_failures_in_one_batch_leave_one_dead_letter_each(durable_dsn: str, db: Any) -> None:
    async with Worker(
        [charge, dead], dsn=durable_dsn, settings=CALM, queues={"default": 50, "ops": 50}
    ) as worker:
        refs = await worker.insert_all([Spec(charge, Invoice(2)) for _ in range(100)])
        assert {one.status for one in await worker.wait_all(refs, timeout=PATIENCE)} == {Status.FAILED}
    letters = await db.fetch(LETTERS)
    assert sorted(_content(letter).id for letter in letters) == [ref.id for ref in refs]


def _content(row: Any) -> Letter:
    return msgspec.json.decode(row["state"], type=Letter)


class Slow:
    """A job that fails when the test lets it."""

    def __init__(self) -> None:
        self.is_there, self.may_go = asyncio.Event(), asyncio.Event()

        @job("letters.slow.v1", max_attempts=1, dead_letter="ops.dead.v1")
        async def slow() -> None:
            self.is_there.set()
            await self.may_go.wait()
            raise ValueError("too late")

        self.job = slow


@pytest.mark.clause("JOB-18")
async def test_stale_execution_leaves_no_dead_letter(durable_dsn: str, db: Any) -> None:
    slow = Slow()
    async with Worker([slow.job], dsn=durable_dsn, settings=CALM) as worker:
        events = Events(worker)
        ref = await worker.insert(slow.job)
        await happens(slow.is_there)
        await db.execute("update gen_durable.gen_durable set lease_token = lease_token + 1")
        slow.may_go.set()
        await events.wait(OutcomeStale)
    assert await db.fetch(LETTERS) == []
    assert (
        await db.fetchval("select status::text from gen_durable.gen_durable where id = $1", ref.id)
        == "executing"
    )


@pytest.mark.clause("JOB-18")
async def test_cancelled_execution_leaves_no_dead_letter(durable_dsn: str, db: Any) -> None:
    slow = Slow()
    async with Worker([slow.job], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(slow.job)
        await happens(slow.is_there)
        await worker.cancel(ref)
        slow.may_go.set()
        assert (await worker.wait(ref, timeout=PATIENCE)).status is Status.CANCELLED
    assert await db.fetch(LETTERS) == []


@pytest.mark.clause("JOB-17")
async def test_dead_letter_and_failure_commit_together(durable_dsn: str, db: Any) -> None:
    """If the dead letter cannot be inserted, the failure does not commit either."""
    await db.execute(
        """create function refuse() returns trigger language plpgsql as $$ begin
             if exists (select from gen_durable.gen_durable where fsm = 'letters.charge.v1' and status = 'failed')
                and (select count(*) from public.gate) = 0 then
               raise exception 'not yet' using errcode = '40001';
             end if;
             return new; end $$;
           create table public.gate (open int);
           create trigger refuse before insert on gen_durable.gen_durable for each row
             when (new.fsm = 'ops.dead.v2') execute function refuse()"""
    )
    async with Worker([charge], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(charge, Invoice(2))
        async with asyncio.timeout(PATIENCE.total_seconds()):
            # A trigger sees the failure in the same transaction; other sessions do not.
            await asyncio.sleep(0.5)
            assert (
                await db.fetchval("select status::text from gen_durable.gen_durable where id = $1", ref.id)
                == "executing"
            )
            await db.execute("insert into public.gate values (1)")
        assert (await worker.wait(ref, timeout=PATIENCE)).status is Status.FAILED
    assert len(await db.fetch(LETTERS)) == 1


def test_retried_job_that_fails_again_leaves_another_dead_letter(
    durable: Harness, sql: SqlConnection
) -> None:
    ref = durable.insert(charge, Invoice(2))
    durable.drain()
    durable.retry(ref)
    durable.drain()
    assert [letter["state"]["id"] for letter in sql(LETTERS)] == [ref.id, ref.id]
    assert sql.row(ref.id)["step_seq"] == 2


# Failures without a decision of a worker


@pytest.mark.clause("JOB-21")
async def test_poisoned_job_leaves_a_dead_letter(durable_dsn: str, db: Any) -> None:
    """The worker that reaps it has registered neither the job nor the receiver."""
    settings = msgspec.structs.replace(
        FAST, crash_limit=2, lease=timedelta(milliseconds=500), heartbeat=timedelta(milliseconds=200)
    )

    @job("letters.other.v1")
    def other() -> None: ...

    async with Worker([other], dsn=durable_dsn, settings=settings) as bystander:
        events = Events(bystander)
        ref = await bystander.insert(poison, 7)
        for crash in (1, 2):
            async with worker_process(durable_dsn, settings) as victim:
                assert (await victim.wait_for(begun="poison"))["attempt"] == crash - 1
                assert await victim.ends() == -signal.SIGKILL
            await events.wait(ReaperReaped, count=crash)
            await db.execute(
                "update gen_durable.gen_durable set eligible_at = now() where status = 'runnable'"
            )
        assert (await bystander.wait(ref, timeout=PATIENCE)).status is Status.FAILED
    (letter,) = await db.fetch("select * from gen_durable.gen_durable where fsm = 'crashing.dead.v1'")
    assert (letter["status"], letter["step"], letter["queue"]) == ("runnable", "run", "default")
    assert _content(letter) == Letter(
        ref.id, "crashing.poison.v1", 1, 7, "poison: the process died 2 times in step run", 2
    )


@pytest.mark.clause("JOB-21")
async def test_job_with_a_rejected_outcome_leaves_a_dead_letter(durable_dsn: str, db: Any) -> None:
    await db.execute(
        "alter table gen_durable.gen_durable add constraint no_seven check (result is distinct from '7')"
    )
    async with Worker([charge, dead], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(charge, Invoice(7))
        ended = await worker.wait(ref, timeout=PATIENCE)
        assert ended.status is Status.FAILED
        (letter,) = await worker.list(dead)
        assert (await worker.wait(letter.id, timeout=PATIENCE)).result == ref.id
    assert letter.state.payload == {"number": 7}
    assert letter.state.error == ended.last_error
    assert letter.state.error.startswith("the database refused the outcome: new row")
    assert letter.state.attempts == 1


@pytest.mark.clause("JOB-21")
async def test_unknown_job_leaves_the_dead_letter_its_workers_registered(durable_dsn: str, db: Any) -> None:
    async with Worker([charge], dsn=durable_dsn, settings=CALM):
        pass
    async with Worker([dead], dsn=durable_dsn, settings=CALM, prefixes=["letters."]) as worker:
        ref = await worker.insert(charge, Invoice(1))
        assert (await worker.wait(ref, timeout=PATIENCE)).last_error == "no_handler_registered"
    (letter,) = await db.fetch(LETTERS)
    assert (_content(letter).error, _content(letter).id) == ("no_handler_registered", ref.id)


def test_harness_leaves_dead_letters_of_poisoned_and_rejected_jobs(
    durable_dsn: str, sql: SqlConnection
) -> None:
    sql("alter table gen_durable.gen_durable add constraint no_seven check (result is distinct from '7')")
    with Harness(durable_dsn, settings=Settings.load(crash_limit=1)) as durable:
        durable.use(dead)
        dies = durable.insert(charge, Invoice(8))
        with durable.crash_at("run"), pytest.raises(Crash):
            durable.drain()
        refused = durable.insert(charge, Invoice(7))
        durable.drain()
        letters = {letter.state.id: letter.state.error for letter in durable.instances(dead)}
    assert set(letters) == {refused.id, dies.id}


async def test_failing_dead_letter_blocks_neither_reaper_nor_failure(durable_dsn: str, db: Any) -> None:
    await db.execute(
        """create function refuse() returns trigger language plpgsql as $$ begin
             if new.state ->> 'id' = '1' then raise exception 'no letters today'; end if; return new; end $$;
           create trigger refuse before insert on gen_durable.gen_durable for each row
             when (new.fsm = 'ops.dead.v2') execute function refuse()"""
    )
    async with Worker([charge], dsn=durable_dsn, settings=CALM):
        pass
    async with AsyncClient(durable_dsn) as client:
        refs = [await client.insert(charge, Invoice(n)) for n in (1, 2)]
    await db.execute(
        """update gen_durable.gen_durable set status = 'executing', lease_token = 1,
                  lease_expires_at = now() - interval '1 s'"""
    )
    async with await Database.open(durable_dsn, "gen_durable", size=1) as database:
        reaped = await database.run_in_transaction(leases.reap(timedelta(0), leases.CrashPolicy(1, "all")))
    assert reaped.capped == [ref.id for ref in refs]
    assert [_content(letter).id for letter in await db.fetch(LETTERS)] == [refs[1].id]


async def test_last_registered_worker_decides_the_dead_letter(durable_dsn: str, db: Any) -> None:
    @job("letters.changes.v1", dead_letter="ops.dead.v1")
    def first() -> None: ...

    @job("letters.changes.v1")
    def second() -> None: ...

    for each, receiver in ((first, "ops.dead.v1"), (second, None), (first, "ops.dead.v1")):
        async with Worker([each], dsn=durable_dsn, settings=CALM):
            pass
        assert await db.fetchval("select dead_letter from gen_durable.machines") == receiver
