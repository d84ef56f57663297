"""A misbehaving effect fails its own outcome, not the worker or the next effect."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from typing import Any, Final

import pytest

from gen_durable import Context, Done, Machine, Outcome, Spec, Sql, Transaction, Worker, step
from gen_durable.errors import UsageError
from gen_durable.outcome import Effect
from tests.support.ledger import BOOK, booked
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE


class Bad(Machine[int, str]):
    """Runs the effect with this number."""

    def __init__(self, *effects: Effect) -> None:
        self._effects = effects

    @step
    async def run(self, ctx: Context[int]) -> Outcome[str]:
        return Done("done", effect=self._effects[ctx.state])

    def handle(self, error: Exception, ctx: Context[int]) -> Outcome[str]:
        return Done(f"{type(error).__name__}: {error}")


class Good(Machine[None, str]):
    @step
    async def run(self, ctx: Context[None]) -> Outcome[str]:
        return Done("alive", effect=Sql("select 1"))


async def _results(dsn: str, *effects: Effect) -> list[str]:
    """Run one instance per effect, and check that the worker survives."""
    bad = Bad(*effects)
    async with Worker([bad, Good], dsn=dsn, settings=CALM) as worker:
        refs = await worker.insert_all([Spec(bad, number) for number in range(len(effects))])
        ended = await worker.wait_all(refs, timeout=PATIENCE)
        assert (await worker.wait(await worker.insert(Good), timeout=PATIENCE)).result == "alive"
    return [one.result for one in ended]


async def _result(dsn: str, effect: Effect) -> str:
    (result,) = await _results(dsn, effect)
    return result


ENDS: Final = [
    "commit",
    "COMMIT;",
    "  /* done */ commit work",
    "-- now\ncommit",
    "insert into ledger (key) values ('a'); commit",
    "insert into ledger (key) values ('$$'); commit",
    "commit and chain",
    "end",
    "End Transaction",
    "rollback",
    "rollback and chain",
    "rollback transaction",
    "abort",
    "prepare transaction 'x'",
    r"insert into ledger (key) values (E'\''); commit; begin; select 'x'",
    r"insert into ledger (key) values ('\'); commit; begin; select E'\''",
    "select E'a'\n'\\'', 1; commit; begin; select ''",
    r"select date'2026-01-01', name'\'; commit; select '\'",
    "/* a /* b */ ' */ select 1; commit; -- '",
    "select 1 as a$b$; commit; begin; select 1 as c$b$",
]
NO_ENDS: Final = [
    "select 'commit; rollback'",
    "select 1 as end",
    'select 1 as "; commit"',
    "select 1 -- ; commit",
    "/* commit; */ select 1",
    "do $$ begin perform 1; end $$",
    "savepoint a; select 1; rollback to a; release a",
    "savepoint a; rollback to savepoint a",
    "savepoint a; rollback work to a",
    "select case when true then 1 end",
    r"select E'it\'s; end of story'",
    r"select e'\\', E'\\\'; commit', '; commit'",
    "select E'a'\n  '\\'; commit; '",
    "/* a /* b */ ; commit; */ select 1",
    "select $a$ $b$; commit; $A$; commit; $a$",
    "select '\\', $é$ '; commit $é$",
]


def _function(text: str) -> Effect:
    async def effect(tx: Transaction) -> None:
        await tx.execute(BOOK, "first", "")
        await tx.execute(text)

    return effect


async def test_effect_that_ends_its_transaction_is_rejected(durable_dsn: str, db: Any) -> None:
    effects = {**{f"Sql({text!r})": Sql(text) for text in ENDS}, **{text: _function(text) for text in ENDS}}
    results = await _results(durable_dsn, *effects.values())
    refused = "UsageError: the effect ends the transaction that it runs in; remove COMMIT and ROLLBACK"
    assert dict(zip(effects, results, strict=True)) == dict.fromkeys(effects, refused)
    assert await booked(db) == []


async def test_harmless_text_is_not_taken_for_commit_or_rollback(durable_dsn: str, db: Any) -> None:
    results = await _results(durable_dsn, *map(Sql, NO_ENDS))
    assert dict(zip(NO_ENDS, results, strict=True)) == dict.fromkeys(NO_ENDS, "done")


async def test_hidden_commit_is_detected_after_the_effect(
    durable_dsn: str, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the text check misses a COMMIT, the outcome is still not committed."""
    monkeypatch.setattr("gen_durable._runtime.effects._ENDS_TRANSACTION", re.compile("(?!)"))
    for text in ("commit", "commit; begin", "rollback; begin", "commit and chain"):
        assert "the effect has ended its transaction" in await _result(durable_dsn, Sql(text)), text


MODES: Final = {
    "set transaction isolation level repeatable read": "REPEATABLE READ",
    "set local transaction_isolation = serializable": "SERIALIZABLE",
    "set transaction read only": "READ ONLY",
}


async def test_effect_that_changes_its_transaction_mode_fails_at_once(durable_dsn: str, db: Any) -> None:
    results = await _results(durable_dsn, *map(Sql, MODES))
    assert results == [
        f"UsageError: the effect made its transaction {mode}, so the outcome cannot be written; "
        "do that in the step, in your own transaction"
        for mode in MODES.values()
    ]


async def test_effect_that_writes_in_its_read_only_transaction_fails(
    durable_dsn: str, db: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def forbidden(tx: Transaction) -> None:
        await tx.execute("set transaction read only")
        await tx.execute(BOOK, "first", "")

    assert "cannot execute INSERT in a read-only transaction" in await _result(durable_dsn, forbidden)
    assert "database unreachable" not in caplog.text


async def test_log_names_the_statement_of_a_failed_effect(
    durable_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "gen_durable")
    result = await _result(durable_dsn, Sql("update missing\n  set paid = $1", 1))
    assert result == 'UndefinedTableError: relation "missing" does not exist'
    assert "The effect of the step raised this: update missing set paid = $1" in caplog.text


async def test_swallowed_sql_error_still_fails_the_effect(durable_dsn: str, db: Any) -> None:
    async def swallow(tx: Transaction) -> None:
        await tx.execute(BOOK, "first", "")
        with contextlib.suppress(Exception):
            await tx.execute("select 1 / 0")

    result = await _result(durable_dsn, swallow)
    assert result.startswith("StatementError: current transaction is aborted")
    assert await booked(db) == []


async def test_sql_error_behind_a_savepoint_can_be_swallowed(durable_dsn: str, db: Any) -> None:
    async def careful(tx: Transaction) -> None:
        await tx.execute("savepoint here")
        with contextlib.suppress(Exception):
            await tx.execute("select 1 / 0")
        await tx.execute("rollback to here")
        await tx.execute(BOOK, "second", "")

    assert await _result(durable_dsn, careful) == "done"
    assert await booked(db) == ["second"]


async def test_deferred_trigger_error_at_commit_goes_to_handle(durable_dsn: str, db: Any) -> None:
    await db.execute("""
        create function refuse() returns trigger language plpgsql as $$ begin raise 'the books are closed'; end $$;
        create constraint trigger refuse after insert on ledger deferrable initially deferred
          for each row execute function refuse()""")
    result = await _result(durable_dsn, Sql(BOOK, "a", ""))
    assert result == "StatementError: the books are closed (SQLSTATE P0001)"
    assert await booked(db) == []


async def test_deferred_foreign_key_error_at_commit_goes_to_handle(durable_dsn: str, db: Any) -> None:
    await db.execute("""
        create table customer (id int primary key);
        create table bill (customer int references customer deferrable initially deferred)""")
    result = await _result(durable_dsn, Sql("insert into bill values (7)"))
    assert result.startswith('StatementError: insert or update on table "bill" violates foreign key')


async def test_effect_that_calls_exit_does_not_end_the_worker(durable_dsn: str, db: Any) -> None:
    async def leave(tx: Transaction) -> None:
        await tx.execute(BOOK, "first", "")
        sys.exit(3)

    assert await _result(durable_dsn, leave) == "StepExitError: called sys.exit(3)"
    assert await booked(db) == []


async def test_effect_that_raises_cancelled_error_fails(durable_dsn: str, db: Any) -> None:
    async def cancel(tx: Transaction) -> None:
        raise asyncio.CancelledError

    assert (await _result(durable_dsn, cancel)).startswith("StepExitError: raised CancelledError")


async def test_effect_with_a_wrong_number_of_parameters_fails(durable_dsn: str, db: Any) -> None:
    async def two(tx: Transaction, more: int) -> None:
        raise AssertionError

    effect: Any = two
    assert "missing 1 required positional argument: 'more'" in await _result(durable_dsn, effect)


async def test_effect_with_an_unawaited_statement_fails(durable_dsn: str, db: Any) -> None:
    left: list[asyncio.Task[str]] = []

    async def hasten(tx: Transaction) -> None:
        left.append(asyncio.get_running_loop().create_task(tx.execute("select pg_sleep(50)")))
        await asyncio.sleep(0.05)

    assert await _result(durable_dsn, hasten) == (
        "UsageError: the effect returned while its statements were running; await each of them"
    )
    assert left[0].cancelled()


async def test_statement_after_the_end_of_the_effect_is_rejected(durable_dsn: str, db: Any) -> None:
    left: list[asyncio.Task[str]] = []

    async def later(tx: Transaction) -> None:
        async def book() -> str:
            await asyncio.sleep(0.2)
            return await tx.execute(BOOK, "later", "")

        left.append(asyncio.get_running_loop().create_task(book()))

    assert await _result(durable_dsn, later) == "done"
    with pytest.raises(UsageError, match="this transaction is over; use it only while the effect runs"):
        await left[0]
    assert await booked(db) == []


async def test_effect_that_drops_its_privileges_fails_alone(durable_dsn: str, db: Any) -> None:
    role = await db.fetchval("select 'nobody_' || pg_backend_pid()")
    await db.execute(f"create role {role}")
    try:
        result = await _result(durable_dsn, Sql(f"set local role {role}"))
        assert result.startswith("StatementError: permission denied")
    finally:
        await db.execute(f"drop role {role}")


async def test_effect_runs_with_the_search_path_of_the_role(durable_dsn: str, db: Any) -> None:
    name = await db.fetchval("select current_database()")
    await db.execute("create schema shop; create table shop.bill (id int)")
    await db.execute(f'alter database "{name}" set search_path = shop')
    assert await _result(durable_dsn, Sql("insert into bill values (1)")) == "done"
    assert await db.fetchval("select count(*) from shop.bill") == 1


async def test_deferred_trigger_runs_with_the_search_path_of_the_effect(durable_dsn: str, db: Any) -> None:
    await db.execute("""
        create schema shop; create table shop.bill (id int); create table shop.seen (path text);
        create function shop.see() returns trigger language plpgsql as $$
        begin insert into seen values (current_setting('search_path')); return null; end $$;
        create constraint trigger see after insert on shop.bill deferrable initially deferred
          for each row execute function shop.see()""")
    effect = Sql("set local search_path = shop; insert into bill values (1)")
    assert await _result(durable_dsn, effect) == "done"
    assert await db.fetchval("select path from shop.seen") == "shop"


async def test_effect_can_set_its_own_search_path(durable_dsn: str, db: Any) -> None:
    await db.execute("create schema shop; create table shop.bill (id int)")
    assert (
        await _result(durable_dsn, Sql("set local search_path = shop; insert into bill values (1)")) == "done"
    )
    assert await db.fetchval("select count(*) from shop.bill") == 1


@pytest.mark.parametrize("fails", [False, True])
async def test_session_settings_do_not_leak_into_the_next_effect(
    durable_dsn: str, db: Any, *, fails: bool
) -> None:
    role = await db.fetchval("select 'guest_' || pg_backend_pid()")
    await db.execute(f"create role {role}; grant all on schema gen_durable to {role}")
    await db.execute(f"grant all on all tables in schema gen_durable to {role}")
    seen: list[tuple[str, ...]] = []
    look = """
        select current_setting('search_path'), current_setting('statement_timeout'), current_setting('lock_timeout'),
               current_setting('jit'), current_user::text"""

    class First(Machine[None, None]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            return Done(
                effect=Sql(
                    f"set search_path = nowhere; set statement_timeout = '7s'; set lock_timeout = '7s'; set role {role}"
                )
            )

    class Second(Machine[None, None]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            async def note(tx: Transaction) -> None:
                seen.append(tuple(await tx.fetchrow(look)))
                if fails:
                    raise ValueError

            return Done(effect=note)

    async with Worker([First, Second], dsn=durable_dsn, settings=CALM) as worker:
        for machine in (Second, First, Second, Second):
            await worker.wait(await worker.insert(machine), timeout=PATIENCE)
    await db.execute(f"drop owned by {role}; drop role {role}")
    assert len(seen) == 3
    assert len(set(seen)) == 1
    assert seen[0][1:4] == ("30s", "10s", "off")
