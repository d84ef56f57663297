"""An effect commits in the transaction of its outcome: exactly once, or not at all."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

import asyncpg
import msgspec
import pytest

from gen_durable import (
    AsyncClient,
    Await,
    Backoff,
    Context,
    Done,
    ExecutionStatus,
    Machine,
    Next,
    Outcome,
    Ref,
    Retry,
    ScheduleChildren,
    Spec,
    Sql,
    Stop,
    Transaction,
    Worker,
    step,
)
from gen_durable.outcome import Effect
from gen_durable.testing import Harness
from tests.support.ledger import BOOK, booked, booking, busy_with
from tests.support.machines import Say, probe
from tests.support.rows import SqlConnection, row_of
from tests.support.settings import AN_HOUR, CALM, FAST
from tests.support.waiting import PATIENCE, happens, holds

# Much shorter than the slow effects below.
SOON = timedelta(seconds=1.5)
_CANCEL = "update gen_durable.gen_durable set cancel_requested_at = now() where id = $1"


class Leaf(Machine[None, str]):
    @step
    async def run(self, ctx: Context[None]) -> Outcome[str]:
        return Done("leaf", effect=booking(ctx))


class Every(Machine[str, str]):
    """Returns the outcome that its state names, with an effect; then ends."""

    @step
    async def run(self, ctx: Context[str]) -> Outcome[str]:
        effect = booking(ctx)
        outcomes: dict[str, Outcome[str]] = {
            "next": Next(self.end, effect=effect),
            "later": Next(self.end, delay=timedelta(milliseconds=1), effect=effect),
            "requeue": Next(self.end, requeue=True, effect=effect),
            "await": Await(then=self.end, timeout=timedelta(milliseconds=1), effect=effect),
            "await a signal": Await("early", then=self.end, effect=effect),
            "children": ScheduleChildren([Spec(Leaf), Spec(Leaf)], then=self.end, effect=effect),
            "no children": ScheduleChildren([], then=self.end, effect=effect),
            "done": Done("done", effect=effect),
            "stop": Stop("stopped", effect=effect),
        }
        return outcomes[ctx.state]

    @step
    def end(self, ctx: Context[str]) -> Outcome[str]:
        return Done("the end", effect=booking(ctx))


TRANSITIONS: Final = {
    **dict.fromkeys(("next", "later", "requeue", "await", "await a signal", "children", "no children"), 2),
    **dict.fromkeys(("done", "stop"), 1),
}


async def test_every_outcome_but_retry_takes_an_effect(
    durable_dsn: str, db: Any, subtests: pytest.Subtests
) -> None:
    async with AsyncClient(durable_dsn, settings=CALM) as client:
        refs = {kind: await client.insert(Every, kind) for kind in TRANSITIONS}
        for ref in refs.values():
            await client.signal(ref, "early")
        async with Worker([Every, Leaf], dsn=durable_dsn, settings=CALM):
            ended = await client.wait_all(refs.values(), timeout=PATIENCE)
        leaves = [child.id for child in await client.children(refs["children"])]
        lines = await booked(db)
        for (kind, ref), one in zip(refs.items(), ended, strict=True):
            with subtests.test(kind=kind):
                transitions = TRANSITIONS[kind]
                expected = [f"{ref.id}:{n}" for n in range(1, transitions + 1)]
                assert [line for line in lines if line.startswith(f"{ref.id}:")] == expected
                assert (one.status, one.step_seq) == ("failed" if kind == "stop" else "done", transitions)
                records = await client.executions(ref)
                assert [record.status for record in records] == [ExecutionStatus.DONE] * transitions
    assert sorted(line for line in lines if int(line.split(":")[0]) in leaves) == [f"{id}:1" for id in leaves]
    assert len(lines) == sum(TRANSITIONS.values()) + len(leaves)
    assert len(leaves) == 2


@pytest.mark.clause("EFF-1", "EXEC-5")
def test_effect_and_outcome_share_a_transaction(
    durable: Harness, sql: SqlConnection, subtests: pytest.Subtests
) -> None:
    async def book(transaction: Transaction) -> None:
        await transaction.execute("insert into payments values ($1)", "paid")

    paid = Sql("insert into payments values ($1)", "paid")
    sql("create table payments (entry text)")
    outcomes: list[Outcome[Any]] = [
        Next("two", delay=AN_HOUR, effect=paid),
        Next("two", delay=AN_HOUR, effect=book),
        Await("go", then="two", effect=paid),
        ScheduleChildren([Spec(Say, "a", schedule_in=AN_HOUR)], then="two", effect=book),
        Done(0, effect=paid),
        Stop("no", effect=book),
    ]
    machine = probe(lambda ctx: outcomes[ctx.state])
    for number, outcome in enumerate(outcomes):
        with subtests.test(outcome=outcome):
            sql("delete from payments")
            ref = durable.insert(machine, number)
            durable.drain(collapse=False)
            assert (sql.value("select entry from payments"), sql.row(ref.id)["step_seq"]) == ("paid", 1)
            assert sql.value(
                "select (select xmin::text from payments) ="
                "       (select xmin::text from gen_durable.gen_durable where id = %s)",
                ref.id,
            ), "one transaction wrote both"
            assert [row["status"] for row in sql.executions(ref.id)] == ["DONE"]


async def test_chain_continues_on_its_lease_after_an_effect(durable_dsn: str, db: Any) -> None:
    class Chain(Machine[int, int]):
        @step
        async def count(self, ctx: Context[int]) -> Outcome[int]:
            if ctx.state == 5:
                return Done(5, effect=booking(ctx))
            return Next(self.count, ctx.state + 1, effect=booking(ctx))

    async with Worker([Chain], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Chain, 0)
        assert (await worker.wait(ref, timeout=PATIENCE)).result == 5
        records = await worker.executions(ref)
    assert await booked(db) == [f"{ref.id}:{n}" for n in range(1, 7)]
    assert [one.leased_at for one in records[1:]] == [one.finished_at for one in records[:-1]]


async def test_async_function_effect_reads_and_writes(durable_dsn: str, db: Any) -> None:
    await db.execute(
        "create table stock (item text primary key, count int); insert into stock values ('a', 3)"
    )
    kept: list[Transaction] = []

    class Sale(Machine[int, int]):
        @step
        async def sell(self, ctx: Context[int]) -> Outcome[int]:
            async def take(tx: Transaction) -> None:
                row = await tx.fetchrow("select item, count from stock where item = $1", "a")
                assert row["count"] == 3
                assert await tx.execute("update stock set count = count - $1", ctx.state) == "UPDATE 1"
                assert [one["count"] for one in await tx.fetch("select count from stock")] == [1]
                assert await tx.fetchval("select count from stock") == 1
                # The outcome is written later in this transaction.
                status = "select status from gen_durable.gen_durable where id = $1"
                assert await tx.fetchval(status, ctx.id) == "executing"
                kept.append(tx)

            return Done(ctx.state, effect=take)

        def handle(self, error: Exception, ctx: Context[int]) -> Outcome[int]:
            return Stop(error)

    async with Worker([Sale], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Sale, 2)
        assert (await worker.wait(ref, timeout=PATIENCE, raise_failed=True)).result == 2
        assert await db.fetchval("select count from stock") == 1
        for use in (kept[0].execute, kept[0].fetch, kept[0].fetchrow, kept[0].fetchval):
            with pytest.raises(Exception, match="this transaction is over"):
                await use("update stock set count = 100")
    assert await db.fetchval("select count from stock") == 1


async def test_methods_partials_and_callable_objects_are_effects(durable_dsn: str, db: Any) -> None:
    class Booker:
        def __init__(self, who: str) -> None:
            self._who = who

        async def __call__(self, tx: Transaction) -> None:
            await tx.execute(BOOK, self._who, "")

    class Many(Machine[str, None]):
        async def _book(self, who: str, tx: Transaction) -> None:
            await tx.execute(BOOK, who, "")

        async def _book_two(self, tx: Transaction) -> str:
            await tx.execute(
                "insert into ledger (key) values ('two'); insert into ledger (key) values ('statements')"
            )
            return "what it returns does not matter"

        @step
        def run(self, ctx: Context[str]) -> Outcome[None]:
            effects: dict[str, Callable[[Transaction], Awaitable[object]]] = {
                "object": Booker("object"),
                "partial": functools.partial(self._book, "partial"),
                "method": self._book_two,
            }
            return Done(effect=effects[ctx.state])

    async with Worker([Many], dsn=durable_dsn, settings=CALM) as worker:
        for name in ("object", "partial", "method"):
            await worker.wait(await worker.insert(Many, name), timeout=PATIENCE, raise_failed=True)
    assert await booked(db) == ["object", "partial", "two", "statements"]


@pytest.mark.clause("EFF-2", "INV-2")
async def test_effect_of_a_step_that_runs_three_times_runs_once(durable_dsn: str, db: Any) -> None:
    keys: list[str] = []

    class Flaky(Machine[None, int], retry=Backoff(base=timedelta(milliseconds=1))):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[int]:
            keys.append(ctx.idempotency_key)
            if ctx.attempt == 0:
                return Retry()
            if ctx.attempt == 1:
                raise ConnectionError
            return Done(ctx.attempt, effect=booking(ctx))

    async with Worker([Flaky], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Flaky)
        assert (await worker.wait(ref, timeout=PATIENCE)).result == 2
    assert keys == [f"{ref.id}:1"] * 3
    assert await booked(db) == [f"{ref.id}:1"]


@pytest.mark.clause("EFF-1")
def test_retry_takes_no_effect() -> None:
    with pytest.raises(TypeError, match="effect"):
        Retry(effect=Sql("select 1"))  # type: ignore[call-arg]


# ---------------------------------------------------------------------------------------------------- effects that fail


class Careful(Machine[dict[str, Any], str]):
    """Its effect fails when the ledger has a unique index."""

    def __init__(self) -> None:
        self.handled: list[Exception] = []

    @step
    async def wait(self, ctx: Context[dict[str, Any]]) -> Outcome[str]:
        return Await("go", then=self.run)

    @step
    async def run(self, ctx: Context[dict[str, Any]]) -> Outcome[str]:
        ctx.state["changed"] = "by the step"
        effect = Sql(BOOK, ctx.state["key"], "")
        outcomes: dict[str, Outcome[str]] = {
            "next": Next(self.end, effect=effect),
            "await": Await("never", then=self.end, effect=effect),
            "children": ScheduleChildren([Spec(Leaf), Spec(Leaf)], then=self.end, effect=effect),
            "done": Done("done", effect=effect),
            "stop": Stop("stopped", effect=effect),
        }
        return outcomes[ctx.state["kind"]]

    @step
    async def end(self, ctx: Context[dict[str, Any]]) -> Outcome[str]:
        return Done(f"{sorted(ctx.state)}")

    def handle(self, error: Exception, ctx: Context[dict[str, Any]]) -> Outcome[str]:
        self.handled.append(error)
        assert [message.name for message in ctx.awaited] == ["go"], "what it was woken with is still there"
        return Next(self.end)


@pytest.mark.clause("EFF-3", "INV-2")
async def test_failing_effect_rolls_its_outcome_back(
    durable_dsn: str, db: Any, subtests: pytest.Subtests
) -> None:
    await db.execute("create unique index on ledger (key); insert into ledger (key) values ('taken')")
    machine = Careful()
    async with Worker([machine, Leaf], dsn=durable_dsn, settings=CALM) as worker:
        for number, kind in enumerate(("next", "await", "children", "done", "stop"), start=1):
            with subtests.test(kind=kind):
                machine.handled.clear()
                ref = await worker.insert(machine, {"kind": kind, "key": "taken"})
                await worker.signal(ref, "go")
                ended = await worker.wait(ref, timeout=PATIENCE)
                records = await worker.executions(ref)
                (error,) = machine.handled
                assert isinstance(error, asyncpg.UniqueViolationError)
                assert ended.result == "['key', 'kind']", "the state is as it was before the step"
                assert await booked(db) == ["taken"]
                instances = await db.fetchval("select count(*) from gen_durable.gen_durable")
                assert instances == number, "there are no children"
                assert [(one.status.value, one.outcome, one.step) for one in records] == [
                    ("DONE", "await", "wait"),
                    ("DONE", "next", "run"),
                    ("DONE", "done", "end"),
                ]
                assert records[1].error is not None
                assert records[1].error.startswith("UniqueViolationError: duplicate key value")


async def test_failing_effect_can_be_retried(durable_dsn: str, db: Any) -> None:
    await db.execute("create unique index on ledger (key); insert into ledger (key) values ('taken')")

    class Stubborn(Machine[None, int], retry=Backoff(base=timedelta(milliseconds=1))):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[int]:
            key = "taken" if ctx.attempt < 2 else "free"
            return Done(ctx.attempt, effect=Sql(BOOK, key, ""))

    async with Worker([Stubborn], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Stubborn)
        assert (await worker.wait(ref, timeout=PATIENCE)).result == 2
        records = await worker.executions(ref)
    assert [one.outcome for one in records] == ["retry", "retry", "done"]
    assert await booked(db) == ["taken", "free"]


async def test_outcome_of_handle_may_have_an_effect(durable_dsn: str, db: Any) -> None:
    class Saved(Machine[None, str]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[str]:
            return Done("", effect=Sql("insert into nowhere values (1)"))

        def handle(self, error: Exception, ctx: Context[None]) -> Outcome[str]:
            return Done(type(error).__name__, effect=booking(ctx, "handle"))

    async with Worker([Saved], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Saved)
        assert (await worker.wait(ref, timeout=PATIENCE)).result == "UndefinedTableError"
    assert await booked(db) == [f"{ref.id}:1"]


@pytest.mark.clause("EFF-4")
async def test_failing_effect_of_handles_outcome_fails_the_instance(durable_dsn: str, db: Any) -> None:
    class Doomed(Machine[dict[str, int], None]):
        @step
        async def run(self, ctx: Context[dict[str, int]]) -> Outcome[None]:
            ctx.state["n"] = 2
            return Done(effect=Sql("insert into nowhere values (1)"))

        def handle(self, error: Exception, ctx: Context[dict[str, int]]) -> Outcome[None]:
            ctx.state["n"] = 3
            return Next(self.run, effect=Sql("select 1 / 0"))

    async with Worker([Doomed], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Doomed, {"n": 1})
        ended = await worker.wait(ref, timeout=PATIENCE)
        (record,) = await worker.executions(ref)
    assert (ended.status, ended.step_seq, ended.state) == ("failed", 1, {"n": 1})
    reason = (
        'UndefinedTableError: relation "nowhere" does not exist; '
        "then the effect of the outcome of handle raised DivisionByZeroError: division by zero"
    )
    assert ended.last_error == record.error == reason
    assert (record.status, record.outcome) == (ExecutionStatus.DONE, "stop")


async def test_handle_that_raises_after_a_failed_effect_fails_the_instance(durable_dsn: str, db: Any) -> None:
    class Doomed(Machine[None, None]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            return Done(effect=Sql("select 1 / 0"))

        def handle(self, error: Exception, ctx: Context[None]) -> Outcome[None]:
            raise KeyError("what now")

    async with Worker([Doomed], dsn=durable_dsn, settings=CALM) as worker:
        ended = await worker.wait(await worker.insert(Doomed), timeout=PATIENCE)
    assert (
        ended.last_error == "DivisionByZeroError: division by zero; then handle raised KeyError: 'what now'"
    )


async def test_invalid_effect_statement_goes_to_handle(durable_dsn: str, db: Any) -> None:
    async def wait(tx: Transaction) -> None:
        await tx.execute("set local statement_timeout = 50")
        await tx.execute("select pg_sleep(5)")

    effects: dict[str, Effect] = {
        "UndefinedParameterError": Sql("insert into ledger (key) values ($1)"),
        "DataError": Sql("insert into ledger (key) values ($1)", 5),
        "UndefinedColumnError": Sql("insert into ledger (nothing) values ('a')"),
        "PostgresSyntaxError": Sql("insert"),
        "QueryCanceledError": wait,
    }

    class Wrong(Machine[str, str]):
        @step
        async def run(self, ctx: Context[str]) -> Outcome[str]:
            return Done("", effect=effects[ctx.state])

        def handle(self, error: Exception, ctx: Context[str]) -> Outcome[str]:
            return Done(type(error).__name__)

    async with Worker([Wrong], dsn=durable_dsn, settings=CALM) as worker:
        refs = await worker.insert_all([Spec(Wrong, error) for error in effects])
        ended = await worker.wait_all(refs, timeout=PATIENCE)
    assert [one.result for one in ended] == list(effects)


# ---------------------------------------------------------------------------------------------------------- concurrent outcomes


@pytest.mark.clause("EFF-5")
async def test_failing_effects_do_not_affect_concurrent_outcomes(durable_dsn: str, db: Any) -> None:
    """Sixty concurrent outcomes: plain, with effects, and with failing effects."""
    await db.execute("create unique index on ledger (key); insert into ledger (key) values ('taken')")

    class Mixed(Machine[int, str]):
        @step
        async def run(self, ctx: Context[int]) -> Outcome[str]:
            match ctx.state % 3:
                case 0:
                    return Done("plain")
                case 1:
                    return Done("good", effect=booking(ctx))
                case _:
                    return Done("bad", effect=Sql(BOOK, "taken", ""))

        def handle(self, error: Exception, ctx: Context[int]) -> Outcome[str]:
            return Stop(f"handled {ctx.state}")

    async with Worker([Mixed], dsn=durable_dsn, queues={"default": 60}, settings=CALM) as worker:
        refs = await worker.insert_all([Spec(Mixed, n) for n in range(60)])
        ended = await worker.wait_all(refs, timeout=PATIENCE)
    results = [one.stored_result or one.last_error for one in ended]
    assert results == [["plain", "good", f"handled {n}"][n % 3] for n in range(60)]
    assert sorted(await booked(db)) == sorted(["taken", *(f"{refs[n].id}:1" for n in range(1, 60, 3))])


class Sleeper(Machine[bool, str]):
    """Sleeps in its effect until its statement is cancelled, if its state says so."""

    @step
    async def run(self, ctx: Context[bool]) -> Outcome[str]:
        return Done("slept", effect=Sql("select pg_sleep(50)")) if ctx.state else Done("plain")

    def handle(self, error: Exception, ctx: Context[bool]) -> Outcome[str]:
        return Done(type(error).__name__)


async def _woken(db: Any, pid: int, worker: Worker, ref: Ref[Any, str]) -> None:
    """Assert that the effect slept throughout."""
    assert await busy_with(db, "%pg_sleep%") == pid
    await db.execute("select pg_cancel_backend($1)", pid)
    assert (await worker.wait(ref, timeout=PATIENCE)).result == "QueryCanceledError"


@pytest.mark.clause("EFF-5")
async def test_slow_effect_does_not_delay_other_outcomes(durable_dsn: str, db: Any) -> None:
    async with Worker([Sleeper, Leaf], dsn=durable_dsn, settings=CALM) as worker:
        slow = await worker.insert(Sleeper, True)
        pid = await busy_with(db, "%pg_sleep%")
        plain = await worker.insert_all([Spec(Sleeper, False) for _ in range(20)])
        with_effect = await worker.insert_all([Spec(Leaf) for _ in range(5)])
        await worker.wait_all([*plain, *with_effect], timeout=PATIENCE)
        assert len(await booked(db)) == len(with_effect)
        await _woken(db, pid, worker, slow)


async def test_slow_effect_delays_only_its_concurrency_key(durable_dsn: str, db: Any) -> None:
    async with Worker([Sleeper], dsn=durable_dsn, settings=CALM) as worker:
        slow = await worker.insert(Sleeper, True, concurrency_key="k")
        pid = await busy_with(db, "%pg_sleep%")
        behind = await worker.insert(Sleeper, False, concurrency_key="k")
        await asyncio.sleep(0.1)
        other = await worker.wait(await worker.insert(Sleeper, False), timeout=SOON)
        await db.execute("select pg_cancel_backend($1)", pid)
        await worker.wait_all([slow, behind], timeout=PATIENCE)
    assert other.is_finished


async def test_slow_effect_does_not_block_signals_to_its_instance(durable_dsn: str, db: Any) -> None:
    async with Worker([Sleeper], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Sleeper, True)
        pid = await busy_with(db, "%pg_sleep%")
        try:
            async with asyncio.timeout(SOON.total_seconds()):
                await worker.signal(ref, "more")
        finally:
            await _woken(db, pid, worker, ref)


async def test_slow_effect_of_a_child_does_not_block_its_siblings(durable_dsn: str, db: Any) -> None:
    class Family(Machine[None, int]):
        @step
        async def split(self, ctx: Context[None]) -> Outcome[int]:
            specs = [Spec(Sleeper, True), *[Spec(Sleeper, False) for _ in range(5)], Spec(Leaf)]
            return ScheduleChildren(specs, then=self.join)

        @step
        async def join(self, ctx: Context[None]) -> Outcome[int]:
            return Done(len(ctx.children))

    async with Worker([Family, Sleeper, Leaf], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Family)
        pid = await busy_with(db, "%pg_sleep%")
        await holds(db, "select children_pending = 1 from gen_durable.gen_durable where id = $1", ref.id)
        assert await busy_with(db, "%pg_sleep%") == pid
        await db.execute("select pg_cancel_backend($1)", pid)
        assert (await worker.wait(ref, timeout=PATIENCE)).result == 7


async def test_effect_may_run_longer_than_the_lease(durable_dsn: str, db: Any) -> None:
    class Long(Machine[None, int]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[int]:
            async def book(tx: Transaction) -> None:
                await tx.execute(BOOK, ctx.idempotency_key, "")
                await tx.execute("select pg_sleep(1.6)")

            return Done(ctx.attempt, effect=book)

    async with Worker([Long], dsn=durable_dsn, settings=FAST) as worker:
        ref = await worker.insert(Long)
        assert (await worker.wait(ref, timeout=PATIENCE)).result == 0
        assert [one.attempt for one in await worker.executions(ref)] == [1]
    assert await booked(db) == [f"{ref.id}:1"]


async def test_key_is_released_after_the_effect_commits(durable_dsn: str, db: Any) -> None:
    class Keyed(Machine[int, None]):
        @step
        async def run(self, ctx: Context[int]) -> Outcome[None]:
            async def look(tx: Transaction) -> None:
                lines = await tx.fetch("select key from ledger")
                await tx.execute("select pg_sleep(0.1)")
                await tx.execute(BOOK, f"after {len(lines)}", "")

            return Done(effect=look)

    async with Worker([Keyed], dsn=durable_dsn, settings=CALM) as worker:
        refs = [await worker.insert(Keyed, n, concurrency_key="k") for n in range(3)]
        await worker.wait_all(refs, timeout=PATIENCE)
    assert await booked(db) == ["after 0", "after 1", "after 2"]


async def test_effects_that_deadlock_are_retried(durable_dsn: str, db: Any) -> None:
    name = await db.fetchval("select current_database()")
    await db.execute(f"alter database \"{name}\" set deadlock_timeout = '50ms'")
    await db.execute(
        "create table account (id int primary key, sum int); insert into account values (1, 0), (2, 0)"
    )
    both = asyncio.Barrier(2)
    runs: list[int] = []

    class Transfer(Machine[list[int], None]):
        @step
        async def run(self, ctx: Context[list[int]]) -> Outcome[None]:
            async def move(tx: Transaction) -> None:
                runs.append(ctx.id)
                first, second = ctx.state
                await tx.execute("update account set sum = sum + 1 where id = $1", first)
                if runs.count(ctx.id) == 1:
                    await both.wait()
                await tx.execute("update account set sum = sum - 1 where id = $1", second)

            return Done(effect=move)

    async with Worker([Transfer], dsn=durable_dsn, settings=CALM) as worker:
        refs = [await worker.insert(Transfer, state) for state in ([1, 2], [2, 1])]
        await worker.wait_all(refs, timeout=PATIENCE)
        ended = [await worker.get(ref) for ref in refs]
    assert [one and one.status for one in ended] == ["done", "done"]
    assert len(runs) == 3, "one of the two was run again"
    assert [row["sum"] for row in await db.fetch("select sum from account order by id")] == [0, 0]


# ------------------------------------------------------------------------------------------------- cancelled, shut down


async def test_cancelled_execution_runs_no_effect(durable_dsn: str, db: Any) -> None:
    is_there, may_go = asyncio.Event(), asyncio.Event()

    class Cancelled(Machine[None, str]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[str]:
            is_there.set()
            await may_go.wait()
            return ScheduleChildren([Spec(Leaf)], then=self.run, effect=booking(ctx))

    async with Worker([Cancelled, Leaf], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Cancelled)
        await happens(is_there)
        await db.execute(_CANCEL, ref.id)
        may_go.set()
        ended = await worker.wait(ref, timeout=PATIENCE)
        (record,) = await worker.executions(ref)
    assert (ended.status, ended.step_seq) == ("cancelled", 0)
    assert (record.status, record.outcome) == (ExecutionStatus.ABORTED, "cancelled")
    assert await booked(db) == []
    assert await db.fetchval("select count(*) from gen_durable.gen_durable") == 1


async def test_cancel_during_an_effect_is_atomic(durable_dsn: str, db: Any) -> None:
    """Either the instance is cancelled and the effect rolled back, or both effect and outcome commit."""

    class Slow(Machine[None, None]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            async def book(tx: Transaction) -> None:
                await tx.execute(BOOK, ctx.idempotency_key, "")
                await tx.execute("select pg_sleep(0.3)")

            return Done(effect=book)

    async with Worker([Slow], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Slow)
        await busy_with(db, "%pg_sleep%")
        await db.execute(_CANCEL + " and status not in ('done', 'failed', 'cancelled')", ref.id)
        ended = await worker.wait(ref, timeout=PATIENCE)
    assert (ended.status, await booked(db)) in (("done", [f"{ref.id}:1"]), ("cancelled", []))


async def test_shutdown_finishes_running_effects(durable_dsn: str, db: Any) -> None:
    class Nap(Machine[None, None]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            return Done(effect=Sql("select pg_sleep(0.2)"))

    async with Worker([Nap], dsn=durable_dsn, settings=CALM) as worker:
        refs = await worker.insert_all([Spec(Nap) for _ in range(5)])
        await busy_with(db, "%pg_sleep%")
    rows = await db.fetch("select status, outcome from gen_durable.executions order by instance_id")
    assert [tuple(row) for row in rows] == [("DONE", "done")] * len(refs)


async def test_effect_longer_than_the_drain_is_rolled_back(
    durable_dsn: str, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gen_durable._runtime.shutdown_timeouts.COMMITS", 0.2)

    class Endless(Machine[None, None]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            async def book(tx: Transaction) -> None:
                await tx.execute(BOOK, ctx.idempotency_key, "")
                await tx.execute("select pg_sleep(20)")

            return Done(effect=book)

    before = asyncio.all_tasks()
    settings = msgspec.structs.replace(CALM, drain_timeout=timedelta(milliseconds=100))
    async with Worker([Endless], dsn=durable_dsn, settings=settings) as worker:
        ref = await worker.insert(Endless)
        await busy_with(db, "%pg_sleep%")
        began = time.monotonic()
    assert time.monotonic() - began < 5
    await holds(
        db,
        "select count(*) = 0 from pg_stat_activity where query like '%pg_sleep(20)%' and pid <> pg_backend_pid()",
    )
    assert await booked(db) == []
    assert (await row_of(db, ref.id))["status"] == "executing", (
        "its lease expires, and another worker runs it again"
    )
    assert asyncio.all_tasks() == before, "nothing goes on behind the back of a worker that is closed"
