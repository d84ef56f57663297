"""The number of statements of the hot path, counted on the wire. A changed number is a changed cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import msgspec
import pytest

from gen_durable import AsyncClient, RateLimit, Settings, Spec, Sql, Status
from gen_durable._core.model import Committed, DeadLetter, EventRow, Execution, Stale
from gen_durable._db import admission, lease, pick, step_data
from gen_durable._db.pool import Database
from gen_durable._db.signals import deliver
from gen_durable._runtime.database_status import DatabaseStatus
from gen_durable._runtime.maintenance.deadlines import Deadlines
from gen_durable._runtime.maintenance.reaper import Reaper
from gen_durable._runtime.pick_source import FromQueue
from gen_durable._runtime.step_counts import StepCounts
from gen_durable._runtime.wake import Wakes
from gen_durable.progress import Progress
from gen_durable.telemetry import Telemetry
from tests.clients.machines import Checkout, Order
from tests.db.raw import fetch
from tests.support.engine_plans import LEASE, entry, flushed, inserted, new, picked
from tests.support.wire_proxy import ARRAYS, BEGIN, COMMIT, Wire


@pytest.fixture
async def wire(durable_dsn: str) -> AsyncIterator[Wire]:
    with Wire(durable_dsn) as opened:
        yield opened


@pytest.fixture
async def database(wire: Wire) -> AsyncIterator[Database]:
    async with await Database.open(wire.dsn, "gen_durable", size=1) as opened:
        await fetch(opened, ARRAYS, *[[]] * 7)
        yield opened


async def test_empty_pick_is_one_statement(wire: Wire, database: Database) -> None:
    for _ in range(3):
        with wire.counted() as sent:
            assert await picked(database) == []
        assert sent == ["pick"]


async def test_pick_of_any_number_of_plain_rows_is_one_statement(wire: Wire, database: Database) -> None:
    for count in (1, 10, 300):
        await inserted(database, *[new() for _ in range(count)])
        with wire.counted() as sent:
            assert len(await picked(database)) == count
        assert sent == ["pick"], count


async def family(database: Database, parents: int) -> None:
    """Parents whose children have ended, each with a signal in its inbox."""
    ids = await inserted(database, *[new("A") for _ in range(parents)])
    await flushed(
        database,
        [entry(e, "schedule_children", children=(new("B"), new("B"))) for e in await picked(database)],
    )
    await flushed(database, [entry(e, "done", payload="1") for e in await picked(database)])
    for id in ids:
        await database.run(deliver(id, "paid", "{}", None))


async def test_pick_with_signals_and_children_is_three_statements(wire: Wire, database: Database) -> None:
    for count in (1, 50):
        await family(database, count)
        with wire.counted() as sent:
            executions = await picked(database)
        assert sent == ["pick", "inboxes", "children"], count
        assert [(len(e.inbox), len(e.children)) for e in executions] == [(1, 2)] * count


async def test_flush_of_any_number_of_plain_outcomes_is_one_statement(wire: Wire, database: Database) -> None:
    kinds = ["continue", "next", "retry", "done", "stop"]
    for count in (1, 10, 300):
        queue = f"{count} rows"  # some of them run again
        await inserted(database, *[new(queue=queue) for _ in range(count)])
        entries = [
            entry(e, kinds[n % 5], payload="{}", error="no" if kinds[n % 5] == "stop" else None)
            for n, e in enumerate(await picked(database, queue=queue))
        ]
        with wire.counted() as sent:
            results = await flushed(database, entries)
        assert sent == ["commit_plain"], count
        assert [type(result) for result in results] == [Committed] * count


async def test_flush_of_instances_that_are_not_kept_is_one_statement(wire: Wire, database: Database) -> None:
    for count in (1, 10, 300):
        await inserted(database, *[new() for _ in range(count)])
        entries = [entry(e, "done", payload="1", keep=False) for e in await picked(database)]
        with wire.counted() as sent:
            results = await flushed(database, entries)
        assert sent == ["delete_done"], count
        assert results == [Committed("done")] * count
    await inserted(database, *[new() for _ in range(4)])
    entries = [entry(e, "done", payload="1", keep=e.id % 2 == 0) for e in await picked(database)]
    with wire.counted() as sent:
        await flushed(database, entries)
    assert sent == ["delete_done", "commit_plain"]


async def mixed(database: Database, sets: int) -> dict[str, list[Execution]]:
    """Executions for a flush with outcomes of every kind, by role. All but the role `free` have a signal."""
    queue = f"{sets} sets"  # a queue per call: some executions run again
    ids = await inserted(
        database,
        *[
            new(state=f'"{role}"', queue=queue)
            for role in ("continue", "await", "spawn", "end")
            for _ in range(sets)
        ],
        *[new(state='"free"', queue=queue, concurrency_key=f"key {n} of {sets}") for n in range(sets)],
    )
    await inserted(database, new("B", unique_key=b"taken", queue="elsewhere"))
    for id in ids[: 4 * sets]:
        await database.run(deliver(id, "early", "{}", None))
    by_role: dict[str, list[Execution]] = {}
    for execution in await picked(database, queue=queue):
        by_role.setdefault(execution.state.strip('"'), []).append(execution)
    assert [len(executions) for executions in by_role.values()] == [sets] * 5
    return by_role


async def test_most_expensive_flush_has_ten_extra_statements_at_any_size(
    wire: Wire, database: Database, durable_dsn: str
) -> None:
    async with AsyncClient(durable_dsn) as client:
        await client.set_limit(RateLimit("crm", 100))
    children = (new("B"), new("B", unique_key=b"taken"))
    event, letter = EventRow("sink", "paid", "order", "{}"), DeadLetter("B", "{}")
    # The batch has: a rate limit, a refused child, a dead letter by a worker and one by the database, events, an await
    # with its signal already there, an inbox to clear, a freed key, and a chained step with an inbox.
    riders = [
        "insert",
        "fix_barriers",
        "insert_dead_letters",
        "dead_letter_failed",
        "emit",
        "recheck",
        "sweep",
        "ungate",
    ]
    for sets in (1, 50):
        by_role = await mixed(database, sets)
        entries = [
            *[entry(e, "continue", payload="1") for e in by_role["continue"]],
            *[entry(e, "await", awaits=("early",), rate_limit="crm") for e in by_role["await"]],
            *[entry(e, "schedule_children", children=children, events=(event,)) for e in by_role["spawn"]],
            *[entry(e, "stop", error="no", letter=letter) for e in by_role["end"]],
            *[entry(e, "stop", error="no", leaves_letter=True) for e in by_role["free"]],
        ]
        with wire.counted() as sent:
            results = await flushed(database, entries)
        assert sent == [BEGIN, "check_limits", "commit", *riders, "inboxes", COMMIT], sets
        assert not any(isinstance(result, Stale) for result in results), sets


async def test_flush_without_refused_children_and_dead_letters_has_seven_extra(
    wire: Wire, database: Database
) -> None:
    for sets in (1, 50):
        by_role = await mixed(database, sets)
        entries = [
            *[entry(e, "continue", payload="1") for e in by_role["continue"]],
            *[entry(e, "await", awaits=("early",)) for e in by_role["await"]],
            *[entry(e, "schedule_children", children=(new("B"), new("B"))) for e in by_role["spawn"]],
            *[entry(e, "done", payload="1") for e in by_role["free"]],
        ]
        with wire.counted() as sent:
            await flushed(database, entries)
        assert sent == [BEGIN, "commit", "insert_plain", "recheck", "ungate", "inboxes", COMMIT], sets


async def test_plain_outcomes_with_signals_are_three_statements(wire: Wire, database: Database) -> None:
    for sets in (1, 50):
        by_role = await mixed(database, sets)
        # The signals arrive after the pick, so the worker has not loaded them.
        unaware = {
            role: [msgspec.structs.replace(e, inbox=(), has_signals=False) for e in by_role[role]]
            for role in ("continue", "end")
        }
        kept = [entry(e, "continue", payload="1") for e in unaware["continue"]]
        ended = [entry(e, "done", payload="1") for e in unaware["end"]]
        with wire.counted() as sent:
            await flushed(database, kept + ended)
        assert sent == ["commit_plain", "sweep", "inboxes"], sets


async def test_flush_sends_only_the_statements_that_it_needs(wire: Wire, database: Database) -> None:
    by_role = await mixed(database, 3)
    with wire.counted() as sent:
        await flushed(database, [entry(e, "await", awaits=("other",)) for e in by_role["await"]])
    assert sent == [BEGIN, "commit", "recheck", COMMIT]
    with wire.counted() as sent:
        await flushed(database, [entry(e, "next") for e in by_role["free"]])
    assert sent == [BEGIN, "commit", "ungate", COMMIT]


async def test_outcome_with_an_effect_is_one_transaction_and_shares_another(
    wire: Wire, database: Database
) -> None:
    await inserted(database, *[new() for _ in range(10)])
    entries = [entry(e, "done", payload="1", effect=Sql("select 1")) for e in await picked(database)]
    async with await Database.open(wire.dsn, "gen_durable", size=1, for_effects=True) as effects:
        await fetch(effects, ARRAYS, *[[]] * 7)
        with wire.counted() as sent:
            results = await flushed(database, entries, effects)
    # COMMIT restores the search_path of the effect, and the session is reset afterwards.
    alone = [
        f"{BEGIN} READ WRITE",
        "SELECT 1",
        "lock_for_effect",
        "commit",
        COMMIT,
        "RESET SESSION AUTHORIZATION",
    ]
    each = [COMMIT if text.endswith(COMMIT) else text.split(";")[0] for text in sent if text != "finish"]
    assert each == alone * 10
    assert 1 <= sent.count("finish") <= 11  # one that the close of the flusher interrupts is run again
    assert [type(result) for result in results] == [Committed] * 10


async def test_heartbeat_is_one_statement_or_two_if_leases_are_lost(wire: Wire, database: Database) -> None:
    for count in (1, 10, 300):
        await inserted(database, *[new() for _ in range(count)])
        held = {(e.id, e.lease_token): LEASE for e in await picked(database)}
        assert len(held) == count
        with wire.counted() as sent:
            assert await database.run(lease.renew(held)) == (set(), set())
        assert sent == ["renew"], count
        lost = {(id, token + 1): LEASE for id, token in held}
        with wire.counted() as sent:
            assert await database.run(lease.renew(held | lost)) == (set(lost), set())
        assert sent == ["renew", "still_held"], count


async def test_long_steps_cost_one_statement_to_record_and_one_to_watch(
    wire: Wire, database: Database
) -> None:
    for count in (1, 300):
        await inserted(database, *[new() for _ in range(count)])
        held = {((e.id, e.lease_token), e.step_seq): e.leased_at for e in await picked(database)}
        with wire.counted() as sent:
            assert await database.run(lease.mark_started(held)) == held.keys()
            assert await database.run(lease.watch([key for key, _ in held])) == (set(), set())
        assert sent == ["mark_started", "watch"], count


async def test_progress_of_any_number_of_steps_is_one_statement(wire: Wire, database: Database) -> None:
    for count in (1, 300):
        await inserted(database, *[new() for _ in range(count)])
        reports = [step_data.Report(each, Progress(done=1)) for each in await picked(database)]
        with wire.counted() as sent:
            assert len(await database.run(step_data.progress(reports))) == count
            assert await database.run(step_data.checkpoint(reports[0].execution, "7"))
        assert sent == ["progress", "checkpoint"], count


@pytest.mark.parametrize("count", [0, 300])
async def test_idle_services_cost_the_same_in_a_full_table(
    wire: Wire, database: Database, count: int
) -> None:
    await inserted(database, *[new(concurrency_key=f"k{n}") for n in range(count)])
    await picked(database)
    settings = Settings(lease=timedelta(milliseconds=2), heartbeat=timedelta(milliseconds=1))
    reaper = Reaper(database, settings, Telemetry(), Wakes(), DatabaseStatus(), StepCounts())
    await asyncio.sleep(0.005)  # the reaper waits one lease before it reaps
    with wire.counted() as sent:
        await reaper.tick()
    assert sent == [
        "suspect",
        "finish_abandoned",
        "deleted_live",
        "pull_forward",
        "mark_unserved",
        "stuck_keys",
    ]
    deadlines = Deadlines(database, Telemetry(), Wakes(), DatabaseStatus())
    with wire.counted() as sent:
        await deadlines.tick()
    assert sent == ["expire"]


async def test_each_verb_of_a_client_is_one_statement(wire: Wire) -> None:
    async with AsyncClient(wire.dsn) as client:
        await client.insert_all([Spec(Checkout, Order(1))])
        await client.list()
        with wire.counted() as sent:
            order = await client.insert(Checkout, Order(1), correlation_key="order:1")
            await client.insert_all([Spec(Checkout, Order(n), unique_key=f"u{n % 700}") for n in range(1000)])
            await client.signal(order, Checkout.withdrawn)
            await client.signal("order:1", Checkout.withdrawn)
            await client.get(order)
            await client.get("order:1")
            await client.list(Checkout, status=Status.RUNNABLE)
            await client.count(Checkout)
            await client.children(order)
            await client.executions(order)
            await client.cancel(order)
            await client.retry(order)
            await client.cancel("order:1")
            await client.retry("order:1")
    assert sent == [
        "insert",
        "insert",
        "deliver",
        "deliver",
        "get",
        "get_by_key",
        "page",
        "count",
        "children_of",
        "executions",
        "cancel",
        "retry",
        *("get_by_key", "cancel"),
        *("get_by_key", "retry"),
    ]


async def test_opening_a_client_is_four_statements(wire: Wire) -> None:
    with wire.counted() as sent:
        async with AsyncClient(wire.dsn):
            pass
    assert sent == [BEGIN, "is_there", "version", COMMIT]


async def test_pick_costs_a_second_statement_when_it_first_meets_a_key(
    wire: Wire, database: Database
) -> None:
    source = FromQueue("default")

    async def lease(count: int) -> list[str]:
        request = pick.PickRequest((["A"], [1]), count, 7, "worker", pick.Leases(LEASE))
        with wire.counted() as sent:
            assert len((await database.run(source.pick(request))).executions) == count
        return sent

    await inserted(database, *[new(concurrency_key=f"k{number % 9}") for number in range(9)])
    await inserted(database, *[new() for _ in range(9)])
    assert await lease(3) == ["pick", "pick_with_admission"]
    assert await lease(6) == ["pick_with_admission"]
    assert await lease(3) == ["pick_with_admission"]
    assert await lease(6) == ["pick"]


async def test_gating_a_busy_key_is_two_statements_in_a_transaction(wire: Wire, database: Database) -> None:
    await inserted(database, *[new(concurrency_key="k") for _ in range(50)])
    assert len(await picked(database)) == 1
    with wire.counted() as sent:
        assert await database.run_in_transaction(admission.gate(["k"])) == {"k": 49}
    assert sent == [BEGIN, "lock_holders", "gate", COMMIT]
