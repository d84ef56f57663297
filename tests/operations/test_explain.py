"""`explain`: why an instance does not run."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pytest

from gen_durable import (
    AsyncClient,
    Backoff,
    ConcurrencyLimit,
    Context,
    Explanation,
    Machine,
    NoTargetError,
    Outcome,
    RateLimit,
    Status,
    Worker,
    step,
)
from gen_durable._db import admission, explain, pick, workers
from gen_durable._db.pool import Database
from gen_durable.operations import BlockedLoop
from gen_durable.progress import Progress
from gen_durable.reasons import (
    AwaitingChildren,
    AwaitingSignals,
    BucketEmpty,
    CancelPending,
    Deletion,
    Executing,
    Finished,
    Holder,
    KeyBusy,
    LoopBlocked,
    NotDue,
    NotFirstInLine,
    NoWorkerForMachine,
    NoWorkerForQueue,
    QueuePaused,
    Reason,
    Retrying,
    UnknownLimit,
    UnreadSignals,
    Waiting,
    WorkersBusy,
)
from tests.operations.rows import put
from tests.support.machines import Order
from tests.support.settings import AN_HOUR, CALM
from tests.support.waiting import PATIENCE, holds
from tests.support.worker_rows import WORKER_ROW

NINE: Final = datetime(2030, 1, 1, 9, tzinfo=UTC)


@pytest.fixture
async def served(database: Database) -> None:
    """A live worker that could run machine A."""
    await database.run(workers.announce(WORKER_ROW, AN_HOUR))


async def reasons(client: Any, id: int) -> list[Any]:
    explained: Explanation = await client.explain(id)
    assert explained.id == id
    assert str(explained).startswith(f"A {id} has status {explained.status} at step s\n  ")
    # Reasons survive a JSON round trip.
    assert msgspec.json.decode(msgspec.json.encode(explained), type=Explanation) == explained
    return list(explained.reasons)


async def at(db: Any, id: int, column: str) -> Any:
    return await db.fetchval(f"select {column} from gen_durable.gen_durable where id = $1", id)


@pytest.mark.clause("OPS-8")
@pytest.mark.usefixtures("served")
async def test_runnable_instance_has_no_obstacle(db: Any, client: Any) -> None:
    await put(db, priority=-1)
    await put(db, priority=9)
    id = await put(db)
    assert await reasons(client, id) == [Waiting(since=await at(db, id, "eligible_at"), ahead=1, workers=1)]


@pytest.mark.clause("OPS-8")
@pytest.mark.usefixtures("served")
async def test_every_obstacle_is_named(db: Any, client: Any) -> None:
    holder = await put(
        db, "executing", concurrency_key="k", concurrency_slot=0, locked_by="w9", leased_at="=now()"
    )
    id = await put(db, concurrency_key="k", eligible_at="=now() + interval '1 h'")
    paused = await client.pause_queue("default", actor="ann")
    assert await reasons(client, id) == [
        QueuePaused(queue="default", since=paused.paused_at, by="ann"),
        NotDue(until=await at(db, id, "eligible_at")),
        KeyBusy(key="k", slots=1, holders=(Holder(holder, "w9", await at(db, holder, "leased_at")),)),
    ]


@pytest.mark.clause("OPS-11")
@pytest.mark.usefixtures("served")
async def test_failed_attempts_come_before_the_delay_of_the_retry(db: Any, client: Any) -> None:
    """The error of the step is named, not that of an earlier step, and how many attempts it has left."""
    failed: Any = {
        "last_error": "OSError: no answer",
        "error": '{"type": "OSError", "step": "s", "attempt": 1}',
    }
    later: Any = {"eligible_at": "=now() + interval '1 h'", **failed}
    id = await put(db, attempt=2, max_attempts=3, **later)
    until = await at(db, id, "eligible_at")
    assert await reasons(client, id) == [
        Retrying(step="s", attempts=2, max_attempts=3, last_error="OSError: no answer", until=until)
    ]
    (delayed,) = await reasons(client, await put(db, **later))
    assert type(delayed) is NotDue
    other = {**later, "error": '{"type": "OSError", "step": "earlier", "attempt": 1}'}
    (returned,) = await reasons(client, await put(db, attempt=2, max_attempts=3, **other))
    assert (returned.attempts, returned.max_attempts, returned.last_error) == (2, None, None)
    (crashed,) = await reasons(client, await put(db, attempt=2, crash_count=1, **later))
    assert (crashed.crashes, crashed.last_error) == (1, "OSError: no answer")
    due, waiting = await reasons(client, await put(db, attempt=2, **failed))
    assert (due.until, type(waiting)) == (None, Waiting)
    running, executing = await reasons(
        client, await put(db, "executing", attempt=2, leased_at="=now()", **failed)
    )
    assert (running.attempts, running.until, type(executing)) == (2, None, Executing)


@pytest.mark.clause("OPS-11")
async def test_limit_of_attempts_is_that_of_the_step(durable_dsn: str) -> None:
    class Broken(Machine[None, None], retry=Backoff(max_attempts=5, base=AN_HOUR)):
        @step(was=("former",))
        async def charge(self, ctx: Context[None]) -> Outcome[None]:
            raise TimeoutError("no answer")

    async with Worker([Broken], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Broken)
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while not isinstance((explained := await worker.explain(ref)).reasons[0], Retrying):
                await asyncio.sleep(0.01)
    (reason,) = explained.reasons
    assert str(reason).startswith(
        "step charge failed in attempt 1 of 5: TimeoutError: no answer; next attempt at "
    )


@pytest.mark.clause("OPS-8")
@pytest.mark.usefixtures("served")
async def test_earlier_row_of_the_key_is_named(db: Any, client: Any) -> None:
    first = await put(db, concurrency_key="k", queue="elsewhere")
    id = await put(db, concurrency_key="k")
    assert await reasons(client, id) == [NotFirstInLine(key="k", first=first, ahead=1)]
    last = await put(db, concurrency_key="k")
    (behind,) = await reasons(client, last)
    assert str(behind) == f'2 instances due before it with concurrency key "k", first: {first}'


@pytest.mark.clause("OPS-8")
@pytest.mark.usefixtures("served")
async def test_key_with_several_slots(db: Any, client: Any) -> None:
    """While a slot is free, earlier rows are named; when all slots are in use, their holders are."""
    await client.set_limit(ConcurrencyLimit("k", 12))
    held = [await put(db, "executing", concurrency_key="k:1", concurrency_slot=n) for n in range(11)]
    first, second = [await put(db, concurrency_key="k:1") for _ in range(2)]
    assert [type(each) for each in await reasons(client, first)] == [Waiting]
    assert await reasons(client, second) == [NotFirstInLine(key="k:1", first=first, ahead=1)]
    held.append(await put(db, "executing", concurrency_key="k:1", concurrency_slot=11))
    (busy,) = await reasons(client, first)
    assert (busy.slots, [each.id for each in busy.holders]) == (12, held)
    assert str(busy).startswith(f'all 12 slots of concurrency key "k:1" in use by {held[0]} (worker ')
    assert str(busy).endswith(" and 2 more")
    await client.set_limit(ConcurrencyLimit("k", 14))
    assert [type(each) for each in await reasons(client, second)] == [Waiting]


@pytest.mark.clause("OPS-8")
@pytest.mark.usefixtures("served")
async def test_empty_bucket(db: Any, database: Database, client: Any) -> None:
    """Burst 2, one token per hour, both tokens spent: weight 1 waits for an hour, weight 2 for two."""
    await client.set_limit(RateLimit("crm", 1, AN_HOUR, burst=2))
    light, heavy = await put(db, rate_limit="crm:7"), await put(db, rate_limit="crm:7", weight=2)
    for id in (light, heavy):
        assert [type(each) for each in await reasons(client, id)] == [Waiting]
    full_at = await db.fetchval(
        "insert into gen_durable.buckets values ('crm:7', now() + interval '2 h') returning full_at"
    )
    assert await reasons(client, light) == [BucketEmpty(key="crm:7", weight=1, until=full_at - AN_HOUR)]
    (waits,) = await reasons(client, heavy)
    assert waits == BucketEmpty(key="crm:7", weight=2, until=full_at)
    assert str(waits).startswith('rate limit "crm:7" is exhausted for weight 2; next start at ')
    # A row that is not due has only that reason.
    later = await put(db, rate_limit="crm:7", eligible_at="=now() + interval '5 h'")
    assert [type(each) for each in await reasons(client, later)] == [NotDue]
    # Deferred rows are eligible at the same times.
    throttled = pick.Throttled("crm:7", "default", 2, 0, "A", "s")
    await database.run_in_transaction(admission.defer_throttled([throttled], None))
    assert await reasons(client, light) == [BucketEmpty(key="crm:7", weight=1, until=full_at - AN_HOUR)]
    assert await reasons(client, heavy) == [
        BucketEmpty(key="crm:7", weight=2, until=await at(db, heavy, "eligible_at"))
    ]
    behind = await put(db, rate_limit="crm:7")
    assert await reasons(client, behind) == [
        BucketEmpty(key="crm:7", weight=1, until=await at(db, heavy, "eligible_at") + AN_HOUR)
    ]


@pytest.mark.clause("OPS-8")
@pytest.mark.usefixtures("served")
async def test_unknown_limit(db: Any, database: Database, client: Any) -> None:
    id = await put(db, rate_limit="crm:7")
    gone = [UnknownLimit(key="crm:7", limit="crm")]
    assert await reasons(client, id) == gone
    assert "limits set crm=" in str(gone[0])
    throttled = pick.Throttled("crm:7", "default", 1, 0, "A", "s", is_known=False)
    await database.run_in_transaction(admission.defer_throttled([throttled], None))
    assert await reasons(client, id) == gone


@pytest.mark.clause("OPS-8")
async def test_no_worker_serves_it(db: Any, database: Database, client: Any) -> None:
    id = await put(db)
    no_worker = [NoWorkerForQueue(queue="default", machine="A")]
    assert await reasons(client, id) == no_worker
    await database.run(workers.announce(msgspec.structs.replace(WORKER_ROW, queues=["other"]), AN_HOUR))
    assert await reasons(client, id) == no_worker
    older = msgspec.structs.replace(WORKER_ROW, name="older", fsm_versions=[2])
    await database.run(workers.announce(older, AN_HOUR))
    assert await reasons(client, id) == [NoWorkerForMachine(machine="A", version=1, known_elsewhere=1)]
    await database.run(
        workers.announce(msgspec.structs.replace(WORKER_ROW, name="leaving"), AN_HOUR, is_draining=True)
    )
    await database.run(workers.announce(msgspec.structs.replace(WORKER_ROW, name="dead"), timedelta(0)))
    assert await reasons(client, id) == [NoWorkerForMachine(machine="A", version=1, known_elsewhere=1)]


@pytest.mark.clause("OPS-8")
@pytest.mark.parametrize(("leaves_unknown", "kind"), [(False, Waiting), (True, NoWorkerForMachine)])
async def test_prefix_worker_and_unknown_machines(
    db: Any, database: Database, client: Any, *, leaves_unknown: bool, kind: type
) -> None:
    id = await put(db, fsm="A")
    owner = msgspec.structs.replace(
        WORKER_ROW, queues=[], prefixes=["A"], leaves_unknown=leaves_unknown, fsms=[], fsm_versions=[]
    )
    await database.run(workers.announce(owner, AN_HOUR))
    assert [type(reason) for reason in await reasons(client, id)] == [kind]


@pytest.mark.clause("OPS-8")
@pytest.mark.usefixtures("served")
async def test_waiting_instances(db: Any, client: Any) -> None:
    id = await put(db, "awaiting_signal", awaits="{paid,shipped}", await_deadline="=now() + interval '1 h'")
    assert await reasons(client, id) == [
        AwaitingSignals(
            names=("paid", "shipped"),
            since=await at(db, id, "updated_at"),
            until=await at(db, id, "await_deadline"),
        )
    ]
    parent = await put(db, "awaiting_children", step_seq=2, spawn_round=2, children_pending=2)
    await put(db, "done", parent_id=parent, parent_round=2)
    live = [await put(db, parent_id=parent, parent_round=2) for _ in range(2)]
    await put(db, parent_id=parent, parent_round=1)
    assert await reasons(client, parent) == [AwaitingChildren(pending=2, total=3, live=tuple(live))]


@pytest.mark.usefixtures("served")
async def test_signals_that_are_not_awaited_are_named(db: Any, client: Any) -> None:
    id = await put(db, "awaiting_signal", awaits="{paid}")
    for name in ("payd", "payd", "note"):
        await client.signal(id, name)
    unread, waiting = await reasons(client, id)
    assert unread == UnreadSignals(names=("note", "payd"), meant={"payd": "paid"})
    assert type(waiting) is AwaitingSignals
    await db.execute("delete from gen_durable.signals where name = 'payd'")
    _, unread = await reasons(client, id)
    assert unread == UnreadSignals(names=("note",))


@pytest.mark.clause("OPS-11")
@pytest.mark.usefixtures("served")
async def test_undeclared_signals_are_named_in_every_live_status(db: Any, client: Any) -> None:
    """A declared signal may be for a later step, so it is named only beside what the instance awaits."""
    id = await put(db)
    for name in ("steer", "stear", "unlike"):
        await client.signal(id, name)
    assert [type(each) for each in await reasons(client, id)] == [Waiting]
    await db.execute(
        "insert into gen_durable.machines (fsm, fsm_version, initial_step, queue, signals)"
        " values ('A', 1, 's', 'default', '{\"steer\": null, \"paid\": null}')"
    )
    _, unread = await reasons(client, id)
    assert unread == UnreadSignals(names=("stear", "unlike"), meant={"stear": "steer"})
    await db.execute("update gen_durable.gen_durable set status = 'awaiting_signal', awaits = '{paid}'")
    unread, _ = await reasons(client, id)
    assert unread == UnreadSignals(names=("stear", "steer", "unlike"), meant={"stear": "steer"})


@pytest.mark.clause("OPS-11")
async def test_busy_workers_are_named(db: Any, database: Database, client: Any) -> None:
    """Only if all workers that could run it are busy, by their queue or by what their queues share."""

    async def serve(name: str, concurrency: int, **columns: Any) -> None:
        row = msgspec.structs.replace(WORKER_ROW, name=name, capacities=[concurrency], **columns)
        await database.run(workers.announce(row, AN_HOUR))

    async def run_on(worker: str, queue: str = "default") -> int:
        return await put(db, "executing", locked_by=worker, queue=queue, leased_at="=now()")

    id = await put(db)
    await serve("w1", 2)
    await serve("other", 9, fsms=["B"])
    first = await run_on("w1")
    assert [type(each) for each in await reasons(client, id)] == [Waiting]
    await run_on("w1")
    oldest = Holder(first, "w1", await at(db, first, "leased_at"))
    busy, waiting = await reasons(client, id)
    assert busy == WorkersBusy(queue="default", running=2, capacity=2, workers=1, oldest=oldest)
    assert type(waiting) is Waiting
    assert [
        type(each) for each in await reasons(client, await put(db, eligible_at="=now() + interval '1 h'"))
    ] == [NotDue]
    await client.set_queue("default", concurrency=3)
    assert [type(each) for each in await reasons(client, id)] == [Waiting]
    await client.set_queue("default", concurrency=None)
    await serve("w2", 5, capacity=1)
    assert [type(each) for each in await reasons(client, id)] == [Waiting]
    await run_on("w2", "elsewhere")
    busy, _ = await reasons(client, id)
    assert (busy.running, busy.capacity, busy.workers) == (2, 7, 2)
    prefixed = msgspec.structs.replace(
        WORKER_ROW, name="w3", queues=[], capacities=[], prefixes=["A"], prefix_capacities=[1]
    )
    await database.run(workers.announce(prefixed, AN_HOUR))
    assert [type(each) for each in await reasons(client, id)] == [Waiting]


@pytest.mark.clause("OPS-8")
async def test_executing_instance(db: Any, database: Database, client: Any) -> None:
    id = await put(
        db, "executing", locked_by="w", leased_at="=now()", cancel_requested_at="=now()", cancelled_by="ann"
    )
    (cancel, runs) = await reasons(client, id)
    assert cancel == CancelPending(at=await at(db, id, "cancel_requested_at"), by="ann")
    assert runs == Executing(
        worker="w",
        since=await at(db, id, "leased_at"),
        until=await at(db, id, "lease_expires_at"),
        is_worker_live=False,
        is_lease_over=False,
        is_any_worker_live=False,
    )
    await database.run(workers.announce(WORKER_ROW, AN_HOUR))
    await db.execute("update gen_durable.gen_durable set lease_expires_at = now() - interval '1 s'")
    (_, runs) = await reasons(client, id)
    assert (runs.is_worker_live, runs.is_lease_over, runs.is_any_worker_live) == (True, True, True)


@pytest.mark.clause("OPS-8")
@pytest.mark.parametrize(
    ("status", "columns", "why"),
    [
        ("done", {"last_error": "an old one"}, None),
        ("failed", {"last_error": "boom"}, "boom"),
        ("cancelled", {"cancel_reason": "withdrawn"}, "withdrawn"),
    ],
)
async def test_ended_instance(
    db: Any, client: Any, status: str, columns: dict[str, Any], why: str | None
) -> None:
    id = await put(db, status, attempt=2, deleted_at="=now()", delete_reason="tidy", **columns)
    assert await reasons(client, id) == [
        Deletion(at=await at(db, id, "deleted_at"), why="tidy"),
        Finished(
            status=Status(status),
            at=await at(db, id, "finished_at"),
            why=why,
            attempts=3 if status == "failed" else 1,
        ),
    ]


# Each condition, its reason, and the rows that it needs. Conditions of one group exclude each other.
BLOCKS: Final[Sequence[Mapping[str, type]]] = (
    {"": Waiting, "deleted": Deletion},
    {"": Waiting, "paused": QueuePaused},
    {"": Waiting, "unlimited": UnknownLimit},
    {"": Waiting, "unserved": NoWorkerForQueue, "unknown": NoWorkerForMachine},
    {"": Waiting, "later": NotDue},
    {"": Waiting, "busy": KeyBusy},
    {"": Waiting, "behind": NotFirstInLine},
    {"": Waiting, "exhausted": BucketEmpty},
)


@pytest.mark.clause("OPS-8")
async def test_every_combination_of_reasons_is_named(db: Any, database: Database, durable_dsn: str) -> None:
    seen = 0
    async with AsyncClient(durable_dsn) as client:
        await client.set_limit(RateLimit("crm", 1, AN_HOUR))
        for chosen in itertools.product(*BLOCKS):
            if {"exhausted", "unlimited"} <= set(chosen):
                continue
            id = await _build(db, database, set(chosen))
            expected = [block[name] for block, name in zip(BLOCKS, chosen, strict=True) if name]
            assert [type(each) for each in await reasons(client, id)] == (expected or [Waiting]), chosen
            seen += 1
    assert seen == 2**5 * 3 * 3  # without the pairs of "exhausted" and "unlimited"


async def _build(db: Any, database: Database, chosen: set[str]) -> int:
    """Insert an instance of machine A in queue default with these obstacles."""
    for table in ("gen_durable", "workers", "queues", "buckets"):
        await db.execute(f"delete from gen_durable.{table}")
    if "unserved" not in chosen:
        machines = ["B"] if "unknown" in chosen else ["A"]
        await database.run(workers.announce(msgspec.structs.replace(WORKER_ROW, fsms=machines), AN_HOUR))
    if "busy" in chosen:
        await put(
            db, "executing", concurrency_key="k", concurrency_slot=0, locked_by="w9", leased_at="=now()"
        )
    if "behind" in chosen:
        await put(db, concurrency_key="k", priority=-1)
    if "exhausted" in chosen:
        await db.execute("insert into gen_durable.buckets values ('crm:7', now() + interval '9 h')")
    if "paused" in chosen:
        await db.execute("select gen_durable.pause_queue('default')")
    key = "k" if chosen & {"busy", "behind"} else None
    limit = "crm:7" if "exhausted" in chosen else "gone" if "unlimited" in chosen else None
    times: dict[str, Any] = {"eligible_at": "=now() + interval '1 h'"} if "later" in chosen else {}
    deleted: dict[str, Any] = {"deleted_at": "=now()"} if "deleted" in chosen else {}
    return await put(db, concurrency_key=key, rate_limit=limit, **times, **deleted)


@pytest.mark.clause("OPS-8")
@pytest.mark.parametrize("status", ["awaiting_signal", "awaiting_children"])
async def test_parked_instance_names_lasting_obstacles(
    db: Any, database: Database, client: Any, status: str
) -> None:
    """A busy key or an empty bucket may be free when the instance wakes, so they are not named."""
    await put(db, "executing", concurrency_key="k", concurrency_slot=0)
    waits = {"awaits": "{paid}"} if status == "awaiting_signal" else {"children_pending": 1, "spawn_round": 0}
    id = await put(db, status, concurrency_key="k", rate_limit="gone", **waits)
    await client.pause_queue("default")
    first, *others = [type(each) for each in await reasons(client, id)]
    assert first is (AwaitingSignals if status == "awaiting_signal" else AwaitingChildren)
    assert others == [QueuePaused, UnknownLimit, NoWorkerForQueue]


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (Finished(status=Status.FAILED, at=NINE, why="boom"), "failed at 2030-01-01 09:00:00+00:00: boom"),
        (
            Finished(status=Status.FAILED, at=NINE, why="boom", attempts=3),
            "failed at 2030-01-01 09:00:00+00:00 after 3 attempts: boom",
        ),
        (
            Retrying(
                step="charge", attempts=4, max_attempts=10, last_error="TimeoutError: no answer", until=NINE
            ),
            "step charge failed in attempt 4 of 10: TimeoutError: no answer; next attempt at 2030-01-01 09:00:00+00:00",
        ),
        (
            Retrying(step="charge", attempts=1, last_error="KeyError: 7"),
            "step charge failed once: KeyError: 7",
        ),
        (
            Retrying(step="charge", attempts=3, max_attempts=5, crashes=2),
            "step charge failed in attempt 3 of 5; its process died in the last 2 attempts",
        ),
        (
            Retrying(step="charge", attempts=1, crashes=1),
            "step charge failed once; its process died in the last attempt",
        ),
        (
            Retrying(step="poll", attempts=2, until=NINE),
            "step poll returned Retry 2 times; next attempt at 2030-01-01 09:00:00+00:00",
        ),
        (UnreadSignals(names=("note",)), 'unread signal that nothing awaits: "note"'),
        (
            UnreadSignals(names=("note", "payd"), meant={"payd": "paid"}),
            'unread signals that nothing awaits: "note", "payd" (did you mean "paid"?)',
        ),
        (
            WorkersBusy(queue="mail", running=20, capacity=20, workers=2, oldest=Holder(7, "w-1", NINE)),
            'queue "mail" is at capacity: 2 workers, 20 of 20 executions in use, the oldest (7 on worker w-1) since '
            "2030-01-01 09:00:00+00:00; start workers, or raise it: gen-durable queues set mail --concurrency N",
        ),
        (Deletion(at=NINE), "deleted at 2030-01-01 09:00:00+00:00; undo: gen-durable restore"),
        (
            CancelPending(at=NINE, by="ada", why="wrong"),
            "cancel requested at 2030-01-01 09:00:00+00:00 by ada: wrong; it takes effect when the running step ends",
        ),
        (
            AwaitingSignals(names=("paid", "void"), since=NINE),
            'waiting for signal "paid" or "void" since 2030-01-01 09:00:00+00:00, no deadline',
        ),
        (
            AwaitingSignals(names=(), since=NINE, until=NINE),
            "sleeping since 2030-01-01 09:00:00+00:00, deadline 2030-01-01 09:00:00+00:00",
        ),
        (
            Executing(worker="w-1", since=NINE, until=NINE, is_worker_live=False, is_lease_over=True),
            "executing on worker w-1 since 2030-01-01 09:00:00+00:00; lease expired at 2030-01-01 09:00:00+00:00, "
            "a reaper returns it; no recent heartbeat of this worker",
        ),
        (
            Executing(
                worker="w-1",
                since=NINE,
                until=NINE,
                is_worker_live=False,
                is_lease_over=True,
                is_any_worker_live=False,
            ),
            "executing on worker w-1 since 2030-01-01 09:00:00+00:00; lease expired at 2030-01-01 09:00:00+00:00, "
            "no live worker takes it back; start one: gen-durable worker app.py",
        ),
        (
            Executing(
                worker="w-1",
                since=None,
                until=NINE,
                is_worker_live=True,
                is_lease_over=False,
                progress=Progress(done=3, total=4),
            ),
            "executing on worker w-1, lease until 2030-01-01 09:00:00+00:00; progress: 3 of 4 (75%)",
        ),
        (
            LoopBlocked(
                worker="w-1", blocked=BlockedLoop(machine="Checkout", id=42, step="ship", since=NINE)
            ),
            "event loop of worker w-1 blocked since 2030-01-01 09:00:00+00:00 by Checkout 42, step ship; use a plain "
            "`def` step or asyncio.to_thread for blocking code",
        ),
        (
            QueuePaused(queue="mail", since=NINE, by="ada"),
            'queue "mail" paused at 2030-01-01 09:00:00+00:00 by ada; resume: gen-durable queues resume mail',
        ),
        (
            QueuePaused(queue="a; id", since=NINE),
            "queue \"a; id\" paused at 2030-01-01 09:00:00+00:00; resume: gen-durable queues resume 'a; id'",
        ),
        (
            NoWorkerForQueue(queue="$(id)", machine="A"),
            'no live worker serves queue "$(id)" or a prefix of machine "A"; '
            "start one: gen-durable worker app.py --queue '$(id)'=10",
        ),
        (
            UnknownLimit(key="a b:1", limit="a b"),
            "rate limit \"a b\" does not exist; set it: gen-durable limits set 'a b'=100/1m",
        ),
        (
            KeyBusy(key="k", slots=1, holders=(Holder(7, "w-1", NINE),)),
            'concurrency key "k" in use by 7 (worker w-1)',
        ),
        (
            BucketEmpty(key="crm", weight=1, until=NINE),
            'rate limit "crm" is exhausted; next start at 2030-01-01 09:00:00+00:00',
        ),
        (
            NoWorkerForMachine(machine="A", version=2, known_elsewhere=1),
            'no live worker of its queue runs machine "A" version 2 (1 of other queues do); deploy this version to one',
        ),
        (
            Waiting(since=NINE, ahead=1000, workers=2),
            "ready since 2030-01-01 09:00:00+00:00; 1000+ instances due before it, 2 workers serve its queue",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_text_of_a_reason(reason: Reason, text: str) -> None:
    assert str(reason) == text


async def test_explain_by_key_and_not_found(db: Any, client: Any) -> None:
    id = await put(
        db,
        correlation_key="order:1",
        correlation_scope="{runnable,executing,awaiting_signal,awaiting_children}",
    )
    assert (await client.explain("order:1")).id == id
    for missing in (999, "order:2"):
        with pytest.raises(NoTargetError, match="cannot explain"):
            await client.explain(missing)


async def test_live_worker_is_counted(db: Any, durable_dsn: str) -> None:
    async with Worker([Order], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Order, 1)
        await worker.wait(ref, until="parked")
        await holds(db, "select count(*) = 1 from gen_durable.workers")
        (reason,) = (await worker.explain(ref)).reasons
        assert isinstance(reason, AwaitingSignals)
        assert reason.names == ("paid",)
        later = await worker.insert(Order, 1, schedule_in=AN_HOUR)
        assert [type(each) for each in (await worker.explain(later)).reasons] == [NotDue]


async def test_explain_is_one_statement(database: Database) -> None:
    plan = explain.facts(1)
    next(plan)
    with pytest.raises(StopIteration) as done:
        plan.send([])
    assert done.value.value is None
