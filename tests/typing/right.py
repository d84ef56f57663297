"""Right uses, with their inferred types. Type checkers read this file; it is not executed."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict, assert_never, assert_type

import msgspec
import psycopg
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as async_sqlalchemy

from gen_durable import (
    AsyncClient,
    Await,
    Backoff,
    Cancel,
    Change,
    Child,
    Client,
    Context,
    Delivered,
    Discard,
    Done,
    Duplicate,
    DuplicateSignal,
    Edge,
    Edited,
    ExecutionRecord,
    ExecutionStatus,
    Failure,
    Finding,
    Forked,
    Graph,
    Inserted,
    Instance,
    Job,
    KeyTaken,
    KeyTakenError,
    Machine,
    Next,
    NotEdited,
    Outcome,
    Queue,
    Ref,
    Retry,
    RetryAfter,
    Schedule,
    ScheduleChildren,
    ScheduleRecord,
    Settings,
    Signal,
    Spec,
    Sql,
    StateChange,
    Status,
    Step,
    Stop,
    Stream,
    StreamItem,
    Suggestion,
    Transaction,
    Transition,
    Worker,
    backoff,
    check,
    graph,
    job,
    step,
    upgrade,
)
from gen_durable.events import EventRecord
from gen_durable.instance import CancelResult, EditRefusal, EditResult, RetryResult
from gen_durable.machine import BoundStep, Upgrade
from gen_durable.telemetry import Event, PickStop, StepStop, Telemetry
from gen_durable.testing import AsyncHarness, Harness
from gen_durable.worker import CallNext, Middleware


class Parcel(msgspec.Struct):
    number: int
    is_paid: bool = False


class Payment(msgspec.Struct):
    cents: int


class Label(msgspec.Struct, tag=True):
    number: int


class Refund(msgspec.Struct, tag=True):
    cents: int


class Delivery(Machine[Parcel, Label | Refund], version=2, queue="parcels", retry=Backoff(max_attempts=5)):
    """Targets and signals by reference; each step may end with a part of the result."""

    payment = Signal("payment_confirmed", Payment)
    withdrawn = Signal("withdrawn")

    @step
    async def wait(self, ctx: Context[Parcel]) -> Outcome:
        assert_type(ctx.state, Parcel)
        assert_type(ctx.idempotency_key, str)
        assert_type(self.send, BoundStep[Parcel, Outcome[Label]])
        assert_type(await self.wait(ctx), Outcome[Any])
        if ctx.state.is_paid:
            return Await("by name", then="send", deadline=datetime(2030, 1, 1, tzinfo=UTC))
        return Await(self.payment, self.withdrawn, then=self.send, timeout=timedelta(days=1))

    @step(
        retry=Backoff(max_attempts=1, on=TimeoutError, never=(KeyError, IndexError)),
        to=["refund"],
        on_failure="refund",
    )
    def send(self, ctx: Context[Parcel]) -> Outcome[Label]:
        payment = ctx.awaited.get(self.payment)
        assert_type(payment, Payment | None)
        assert_type(ctx.awaited.all(self.payment), list[Payment])
        assert_type(self.withdrawn in ctx.awaited, bool)
        assert_type(ctx.inbox.get("by name"), Any | None)
        assert_type(ctx.inbox.take(self.payment), Payment | None)
        assert_type(ctx.inbox.take("by name"), Any | None)
        if payment is None:
            return Next(self.refund, Parcel(ctx.state.number), concurrency_key=None, consume=ctx.inbox)
        if payment.cents == 0:
            return Next(self.refund, consume=[self.withdrawn, "by name", ctx.inbox[0]])
        return Done(Label(ctx.state.number))

    @step
    async def refund(self, ctx: Context[Parcel]) -> Next | Done[Refund] | Stop:
        if ctx.state.is_paid:
            return Next("wait", delay=timedelta(hours=1), concurrency_key=("tenant", 7), requeue=True)
        return Done(Refund(ctx.state.number))

    async def handle(self, error: Exception, ctx: Context[Parcel]) -> Outcome[Label | Refund]:
        assert_type(ctx.state, Parcel)
        return Retry(backoff(ctx.attempt), state=ctx.state) if ctx.attempt < 3 else Stop(error)


assert_type(Delivery.send, Step[Parcel, Outcome[Label]])
assert_type(Delivery.payment, Signal[Payment])
assert_type(Delivery.withdrawn, Signal[None])


class Open(Machine[Parcel]):
    """The result may be left open, and the handler plain."""

    @step
    async def only(self, ctx: Context[Parcel]) -> Outcome:
        return Done()

    @step(on_failure=only, checkpoint=list[Parcel])
    async def other(self, ctx: Context[Parcel]) -> Outcome:
        ctx.progress(1, 2.5, "weighing")
        done: list[Parcel] = ctx.last_checkpoint or []
        await ctx.checkpoint(done)
        ctx.checkpoint_sync(done)
        assert_type(ctx.failure, Failure | None)
        return Done()

    def handle(self, error: Exception, ctx: Context[Parcel]) -> Outcome:
        return Stop(error) if ctx.attempt > 3 else super().handle(error, ctx)


class Deferring(
    Machine[Parcel, Label],
    priority=5,
    max_attempts=3,
    concurrency_key=lambda parcel: ("tenant", parcel.number),
    rate_limit="scales",
):
    """A typed handler may be async and leave the rest to the default."""

    @step
    async def only(self, ctx: Context[Parcel]) -> Outcome[Label]:
        return Stop("")

    async def handle(self, error: Exception, ctx: Context[Parcel]) -> Outcome[Label]:
        if isinstance(error, ValueError):
            return Next(self.only)
        return super().handle(error, ctx)


class Bare(Machine):
    """Every generic name works without arguments."""

    @step
    def only(self, ctx: Context) -> Outcome:
        assert_type(ctx.state, Any)
        return Next(self.only)


class Nested(Machine):
    """The state may be a nested class."""

    @dataclass
    class State:
        n: int

    @step
    async def only(self, ctx: Context[State]) -> Outcome:
        assert_type(ctx.state.n, int)
        return Next(self.only, Nested.State(1))


class Base(Machine[Parcel, Label]):
    """Machines may be extended."""

    @step
    async def first(self, ctx: Context[Parcel]) -> Outcome[Label]:
        return Next(self.second)

    @step
    async def second(self, ctx: Context[Parcel]) -> Outcome[Label]:
        return Done(Label(1))


class Extended(Base):
    @step
    async def second(self, ctx: Context[Parcel]) -> Outcome[Label]:
        return await super().second(ctx)


class Booker:
    """An object may be an effect."""

    async def __call__(self, tx: Transaction) -> int:
        return 1


class Booking(Machine[Parcel, Label]):
    """A statement or an async function, with any outcome but Retry."""

    async def book(self, tx: Transaction) -> None:
        assert_type(await tx.execute("update a set b = $1", 5), str)
        assert_type(await tx.fetch("select 1"), list[Any])
        assert_type(await tx.fetchval("select 1"), Any)
        row = await tx.fetchrow("select 1 as n")
        assert_type(row["n"], Any)

    async def book_for(self, number: int, tx: Transaction) -> str:
        return await tx.execute("update a set b = $1", number)

    @step
    async def only(self, ctx: Context[Parcel]) -> Outcome[Label]:
        if ctx.attempt == 1:
            return Next(self.only, effect=Sql("update a set b = $1 where c = $2", ctx.state.number, "x"))
        if ctx.attempt == 2:
            return Await("paid", then=self.only, effect=self.book)
        if ctx.attempt == 3:
            return ScheduleChildren([], then=self.only, effect=Booker())
        if ctx.attempt == 4:
            return Done(Label(1), effect=functools.partial(self.book_for, ctx.state.number))

        async def inner(tx: Transaction) -> None:
            await tx.execute("select 1", ctx.id)

        return Stop("late", effect=inner)


class Fields(TypedDict):
    n: int


class Typed(Machine[Fields, None]):
    @step
    async def only(self, ctx: Context[Fields]) -> Outcome[None]:
        return Next(self.only, Fields(n=1)) if ctx.state["n"] else Done()


class Tick(Machine[None, int]):
    """A machine may need no state."""

    @step
    async def only(self, ctx: Context[None]) -> Outcome[int]:
        return Done(1)


class Fleet(Machine[list[int], int]):
    @step
    async def split(self, ctx: Context[list[int]]) -> Outcome:
        specs = [Spec(Delivery, Parcel(n)) for n in ctx.state]
        return ScheduleChildren([*specs, Spec(Tick), Spec(Open(), Parcel(1), priority=3)], then=self.join)

    @step
    async def join(self, ctx: Context[list[int]]) -> Outcome[int]:
        assert_type(ctx.children.of(Tick), list[Child[int]])
        assert_type(ctx.children.results(Delivery), list[Label | Refund])
        assert_type(ctx.children.failed, list[Child[Any]])
        async for child in ctx.children.stream(Tick):
            assert_type(child.result, int | None)
        return Done(len(ctx.children))


@job(
    "shop.weigh.v1",
    queue="scales",
    max_attempts=5,
    retry=Backoff(jitter=0, on=(TimeoutError,)),
    lease=timedelta(minutes=5),
    priority=1,
    concurrency_key=lambda parcel: None,
    rate_limit=("scales", 7),
)
async def weigh(parcel: Parcel, ctx: Context[Parcel]) -> Label:
    """A payload and a context, async."""
    assert_type(ctx.state, Parcel)
    if ctx.attempt:
        raise RetryAfter(timedelta(minutes=1), "the scales are busy")
    if parcel.is_paid:
        raise Discard("paid twice") from ValueError()
    raise Cancel


@job("shop.print.v1", dead_letter="ops.dead.v1")
def print_label(parcel: Parcel) -> Label:
    """A payload, plain."""
    return Label(parcel.number)


@job("shop.sweep.v1", dead_letter=print_label)
def sweep() -> int:
    """Nothing at all."""
    return 0


@job("shop.count.v1")
async def count() -> list[int]:
    return [1]


@job("shop.book.v1", dead_letter=Delivery, version=2)
async def book(parcel: Parcel, ctx: Context[Parcel]) -> Done[Label]:
    """The result and an effect; callers see the result."""
    return Done(Label(1), effect=Sql("update parcel set booked = true where number = $1", parcel.number))


@job("shop.book_plain.v1")
def book_plain(parcel: Parcel) -> Done[Label]:
    return Done(Label(parcel.number))


@job("shop.scale.v1")
def scale(parcel: Parcel, *, factor: int = 2) -> None:
    """Parameters after payload and context need defaults."""


def takes_a_job(which: Job[Parcel, Label]) -> None: ...


async def called(ctx: Context[Parcel]) -> None:
    """A job can be called as a function."""
    assert_type(await weigh(Parcel(1), ctx), Label)
    assert_type(print_label(Parcel(1)), Label)
    assert_type(sweep(), int)
    assert_type(await count(), list[int])
    assert_type((await book(Parcel(1), ctx)).result, Label)
    assert_type(book_plain(Parcel(1)).result, Label)
    scale(Parcel(1), factor=3)
    assert_type(weigh.name, str)
    for each in (weigh, print_label, book, book_plain):
        takes_a_job(each)


async def job_producer(client: AsyncClient, blocking_client: Client) -> None:
    weighed = await client.insert(weigh, Parcel(1), max_attempts=2, idempotency_key="parcel:1")
    assert_type(weighed, Inserted[Parcel, Label] | Duplicate[Parcel, Label])
    if isinstance(weighed, Duplicate):
        assert_type(weighed.status, Status)
    assert_type((await client.wait(weighed)).result, Label)
    for child in await client.children(weighed):
        assert_type(await client.wait(child), Instance[Any, Any])
    assert_type(await client.wait_all(await client.children(weighed)), Sequence[Instance[Any, Any]])
    assert_type((await client.wait(weighed)).state, Parcel)
    assert_type((await client.wait(await client.insert(print_label, Parcel(1)))).result, Label)
    assert_type((await client.wait(await client.insert(book, Parcel(1)))).result, Label)
    assert_type((await client.wait(await client.insert(book_plain, Parcel(1)))).result, Label)
    assert_type((await client.wait(await client.insert(sweep))).result, int)
    assert_type((await client.wait(await client.insert(count))).result, list[int])
    assert_type((await client.wait(await client.insert(weigh, args=Parcel(1)))).result, Label)
    assert_type((await client.get(Ref(weigh, "parcel:1"))), Instance[Parcel, Label] | None)
    assert_type([each.result for each in await client.list(weigh)], list[Label])
    assert_type(blocking_client.wait(blocking_client.insert(print_label, Parcel(1))).result, Label)
    many = await client.insert_all([Spec(weigh, Parcel(n), max_attempts=1) for n in range(3)])
    assert_type((await client.wait(many[0])).result, Label)
    await client.insert_all([Spec(weigh, Parcel(1)), Spec(sweep), Spec(Delivery, Parcel(1))])


async def scheduler(client: AsyncClient, blocking_client: Client) -> None:
    weekly = Schedule("weekly", spec=Spec(weigh, Parcel(1), priority=2), cron="@weekly", tz="Asia/Tokyo")
    assert_type(await client.put_schedule(weekly), ScheduleRecord)
    assert_type((await client.trigger_schedule("weekly")).id, int)
    assert_type([each.next_at for each in blocking_client.schedules()], list[datetime | None])
    Worker(
        [weigh], schedules=[weekly, Schedule("often", Spec(sweep), every=timedelta(hours=1), missed="all")]
    )


class JobFleet(Machine[list[int], int]):
    """Jobs are children like any machine."""

    @step
    async def split(self, ctx: Context[list[int]]) -> Outcome:
        return ScheduleChildren([*(Spec(weigh, Parcel(n)) for n in ctx.state), Spec(sweep)], then=self.join)

    @step
    async def join(self, ctx: Context[list[int]]) -> Outcome[int]:
        assert_type(ctx.children.of(weigh), list[Child[Label]])
        assert_type(ctx.children.results(book), list[Label])
        return Done(sum(ctx.children.results(sweep)))


async def producer(client: AsyncClient, conn: psycopg.AsyncConnection[Any]) -> None:
    parcel = await client.insert(
        Delivery, Parcel(1), correlation_key="parcel:1", schedule_in=timedelta(hours=1), step=Delivery.send
    )
    assert_type(parcel, Inserted[Parcel, Label | Refund] | Duplicate[Parcel, Label | Refund])
    match parcel:
        case Inserted(id):
            assert_type(id, int)
        case Duplicate(id, key):
            assert_type(key, str | bytes)
        case _:
            assert_never(parcel)
    assert_type(parcel.status, Status)
    assert_type(await client.wait(parcel), Instance[Parcel, Label | Refund])
    assert_type((await client.wait(parcel)).error, Failure | None)
    assert_type((await client.wait(parcel, timeout=timedelta(1), until="parked")).result, Label | Refund)
    assert_type(await client.get(parcel), Instance[Parcel, Label | Refund] | None)
    assert_type((await client.wait(Ref(Delivery, "parcel:1"))).state, Parcel)
    assert_type((await client.wait("parcel:1")).result, Any)
    assert_type((await client.wait(7)).status, Status)
    assert_type((await client.wait(await client.insert(Tick))).result, int)
    assert_type((await client.wait(await client.insert(Delivery, {"number": 1}))).state, Parcel)
    assert_type((await client.wait(await client.insert(Delivery, args={"number": 1}))).result, Label | Refund)
    await client.insert_all([Spec(Delivery, {"number": n}) for n in range(3)])
    await client.insert_all([Spec(Delivery, {"number": 1}), Spec(Tick), Spec(weigh, {"number": 1})])
    assert_type((await client.wait(await client.insert(Delivery, args=Parcel(1)))).state, Parcel)

    for execution in await client.executions(parcel):
        assert_type(execution, ExecutionRecord)
        assert_type(execution.status is ExecutionStatus.COMMITTED, bool)
        assert_type(execution.started_at, datetime | None)

    many = await client.insert_all([Spec(Delivery, Parcel(n)) for n in range(3)], conn=conn)
    assert_type(many[0].id, int)
    await client.count(Delivery, status="leased")
    await client.list(status=["pending", Status.DONE])
    assert_type(await client.list(weigh, where="age:>1h"), Sequence[Instance[Parcel, Label]])
    assert_type(await client.count(where="status:failed error:~timeout"), int)
    page = await client.search("status:failed", limit=10, before=7)
    assert_type(page.items, tuple[Instance[Any, Any], ...])
    assert_type(page.next, int | None)
    assert_type((await client.search_count("status:failed")).by_status, Mapping[Status, int])
    assert_type((await client.complete("sta", 3)).suggestions, tuple[Suggestion, ...])
    match many[0]:
        case Inserted(id) | Duplicate(id):
            assert_type(id, int)
        case KeyTaken(error):
            assert_type(error, KeyTakenError)
    await client.insert_all([Spec(Delivery, Parcel(1)), Spec(Tick)])

    delivery = await client.signal(parcel, Delivery.payment, Payment(1), dedup_key="evt-7")
    match delivery:
        case Delivered(is_awaited=was_awaited):
            assert_type(was_awaited, bool)
        case DuplicateSignal(id):
            assert_type(id, int)
        case _:
            assert_never(delivery)
    await client.signal("parcel:1", Delivery.withdrawn, conn=conn)
    await client.signal(7, "by name", {"n": 1})


class Radio(Machine[None, None]):
    tracks = Stream("tracks", Label)
    words = Stream("words", str)
    anything = Stream("anything")

    @step
    async def play(self, ctx: Context[None]) -> Outcome[None]:
        assert_type(self.words, Stream[str])
        await ctx.publish(self.words, "a")
        await ctx.publish(self.tracks, Label(1))
        await ctx.publish(self.anything, {"n": 1})
        await ctx.publish("by name", [1])
        await ctx.close_stream(self.words)
        return Done()

    @step
    def play_in_thread(self, ctx: Context[None]) -> Outcome[None]:
        ctx.publish_sync(self.words, "a")
        ctx.publish_sync("by name", [1])
        ctx.close_stream_sync("by name")
        return Done()


async def listening(client: AsyncClient, blocking: Client, durable: Harness) -> None:
    radio = await client.insert(Radio)
    async for item in client.stream(radio, Radio.words):
        assert_type(item, StreamItem[str])
        assert_type(item.value, str)
    async for track in client.stream(radio, Radio.tracks, after=7):
        assert_type(track.value, Label)
        client.stream(radio, Radio.tracks, after=track)
    async for thing in client.stream(7, "by name"):
        assert_type(thing.value, Any)
    for blocked in blocking.stream("radio:1", Radio.words):
        assert_type(blocked, StreamItem[str])
    assert_type(durable.published(radio, Radio.tracks)[0].value, Label)
    assert_type(list(blocking.follow_events()), list[EventRecord])
    async for event in client.follow_events(radio, sink="default", after=3):
        assert_type(event, EventRecord)
        assert_type(await client.events(after=event), Sequence[EventRecord])


async def watching(client: AsyncClient, blocking: Client) -> None:
    radio = await client.insert(Radio)
    async for change in client.watch(radio):
        assert_type(change, Change[None, None])
        assert_type(change.executions, tuple[ExecutionRecord, ...])
        client.watch(radio, after=change)
    async for plain in client.watch(7, after="1:2"):
        assert_type(plain, Change[Any, Any])
    for blocked in blocking.watch(radio):
        assert_type(blocked.instance.status, Status)
    assert_type(await client.wait(radio, until=Radio.play), Instance[None, None])
    await client.wait(radio, until={"parked", Status.FAILED, Radio.play, ("step", "play")})
    blocking.wait_all([radio], until={"executing", "done"})
    await client.wait(radio, until=("step", "play"))


def blocking(client: Client, conn: psycopg.Connection[Any]) -> None:
    assert_type(client.dsn, str)
    assert_type(client.wait(client.insert(Delivery, {"number": 1})).state, Parcel)
    parcel = client.insert(Delivery, Parcel(1), conn=conn)
    assert_type(client.wait(parcel).result, Label | Refund)
    client.signal(parcel, Delivery.payment, Payment(1), conn=conn)
    assert_type(client.executions(parcel)[0].attempt, int)


def workers() -> None:
    settings = Settings(lease=timedelta(minutes=2), executions="failures", pooler="transaction")
    Worker([Delivery, Open()], queues={"parcels": 1, "default": Queue(concurrency=2)}, settings=settings)
    Worker([weigh, sweep, Delivery], prefixes=["shop.", "ops."], on_unknown="leave")
    Worker([weigh], prefixes={"shop.": 5, "ops.": Queue(concurrency=1)}, queues={"default": 1})


class Tools(msgspec.Struct):
    url: str


class Equipped(Machine[int, str]):
    @step(timeout=timedelta(seconds=1))
    async def look(self, ctx: Context[int, Tools]) -> Outcome[str]:
        assert_type(ctx.state, int)
        return Done(assert_type(ctx.resources, Tools).url)

    @step(pool="process")
    def crunch(self, ctx: Context[int]) -> Outcome[str]:
        return Next(self.look)


async def timed(ctx: Context[Any], call_next: CallNext) -> Outcome[Any]:
    return await call_next()


@asynccontextmanager
async def tools(worker: Worker) -> AsyncGenerator[Tools]:
    yield Tools("https://…")


def equipped() -> None:
    layers: list[Middleware] = [timed]
    queues = {"default": Queue(concurrency=2, prefetch=1, min_demand=2, weight=3)}
    Worker([Equipped], middleware=layers, lifespan=tools, queues=queues).run(processes=2)


def subscribers(telemetry: Telemetry) -> None:
    def on_step(event: StepStop) -> None: ...
    def on_either(event: StepStop | PickStop) -> None: ...
    def on_any(event: Event) -> None: ...

    telemetry.subscribe(on_step, StepStop)()
    telemetry.subscribe(on_either, StepStop, PickStop)
    telemetry.subscribe(on_any)


def settle(outcome: Outcome) -> str:
    """A seventh outcome would be an error here."""
    match outcome:
        case Next(step=name) | Await(then=name) | ScheduleChildren(then=name):
            return name
        case Retry():
            return "again"
        case Done() | Stop():
            return "end"
        case _:
            assert_never(outcome)


async def in_sessions(
    client: AsyncClient,
    session: async_sqlalchemy.AsyncSession,
    conn: async_sqlalchemy.AsyncConnection,
    blocking: Client,
    blocking_session: orm.Session | orm.scoped_session[orm.Session],
    blocking_conn: sqlalchemy.Connection,
) -> None:
    assert_type((await client.insert(Tick, conn=session)).id, int)
    await client.signal("parcel:1", Delivery.withdrawn, conn=conn)
    assert_type(blocking.insert(Tick, conn=blocking_session).id, int)
    blocking.signal("parcel:1", Delivery.withdrawn, conn=blocking_conn)


class Renewed(Machine[Parcel, None], version=3):
    """Former names of a step, and upgrades of stored states."""

    @upgrade(from_version=1)
    @staticmethod
    def number(state: dict[str, Any]) -> dict[str, Any]:
        return {**state, "number": int(state["number"])}

    @upgrade(from_version=2)
    @staticmethod
    def pay(state: Any) -> Parcel:
        return Parcel(state["number"], is_paid=True)

    @step(was="send")
    async def ship(self, ctx: Context[Parcel]) -> Outcome[None]:
        return Done(None)

    @step(was=("wrap", "pack"))
    async def prepare(self, ctx: Context[Parcel]) -> Outcome[None]:
        return Next(self.ship)


assert_type(Renewed.number, Upgrade)
assert_type(Renewed.pay({"number": 1}), Any)


def load_old_rows(durable: Harness, async_durable: AsyncHarness) -> None:
    assert_type(
        durable.load(
            Renewed, version=1, step="send", state={"number": "7"}, awaits=["paid", Delivery.payment]
        ),
        Ref[Parcel, None],
    )
    assert_type(async_durable.load(Renewed, state={"number": 7}, step=Renewed.ship), Ref[Parcel, None])


def draw_and_check(client: Client) -> None:
    found = graph(Renewed)
    assert_type(found, Graph)
    assert_type(found.edges_from("ship"), tuple[Edge, ...])
    assert_type(found.svg(), str)
    assert_type(check(Renewed, Delivery), list[Finding])
    assert_type(client.check(Renewed, every=True), Sequence[Finding])


async def compare(client: AsyncClient) -> None:
    assert_type(await client.check(Renewed), Sequence[Finding])


class Undone(Machine[Parcel, str]):
    """Undo and on_cancel steps, by reference and by name. An undo step has no result."""

    @step
    async def release(self, ctx: Context[Parcel]) -> Outcome:
        return Done()

    @step(initial=True, undo=release, on_cancel="recall")
    async def reserve(self, ctx: Context[Parcel]) -> Outcome[str]:
        return Next(self.recall)

    @step(undo="release", on_cancel=release)
    def recall(self, ctx: Context[Parcel]) -> Outcome[str]:
        return Stop("recalled", undo=False)


async def undo_verbs(client: AsyncClient, blocking: Client) -> None:
    assert_type(await client.cancel(7, undo=False), CancelResult)
    assert_type(blocking.cancel(7, undo=False), CancelResult)
    assert_type(await client.cancel_all(Undone, undo=False, compensating=True), int)
    instance = await client.get(7)
    if instance is not None and instance.compensation is not None:
        assert_type(instance.is_compensating, bool)
        assert_type(instance.compensation.undone, tuple[str, ...])
        assert_type(instance.compensation.status, Status)


class Kept(Machine[Parcel, str], history="all"):
    @step
    async def run(self, ctx: Context[Parcel]) -> Outcome[str]:
        return Done("done")


@job("kept", history="off")
def forgotten(parcel: Parcel) -> int:
    return 1


async def repair(client: AsyncClient, blocking: Client) -> None:
    given = await client.insert(Kept, Parcel(1))
    edited = await client.edit(given, state=Parcel(2), step=Kept.run, expected_step_seq=0, wake=True)
    match edited:
        case Edited(step_seq=seq):
            assert_type(seq, int)
        case NotEdited(why=why):
            assert_type(why, EditRefusal)
    assert_type(blocking.edit("key", state={"n": 1}, machine=Kept, validate=False), EditResult)
    assert_type(await client.retry(given, step="run", state=Parcel(1)), RetryResult)
    assert_type(await client.history(given, after=1, limit=10), Sequence[Transition])
    for transition in blocking.history("key"):
        assert_type(transition.changes, tuple[StateChange, ...] | None)
        assert_type(transition.duration, timedelta | None)
    forked = await client.fork(given, at=1, state=Parcel(1), step=Kept.run, correlation_key=("copy", 1))
    assert_type(forked, Forked)
    assert_type(blocking.fork(7), Forked)
