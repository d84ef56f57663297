# ruff: noqa: F811, RET503, T201 - deliberate errors
"""Wrong uses. Both checkers, or the one that the mark names, must report each line with an E mark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, TypedDict, assert_never

import msgspec
import psycopg
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as async_sqlalchemy

from gen_durable import (
    AsyncClient,
    Await,
    Backoff,
    Client,
    Context,
    Discard,
    Done,
    Inserted,
    Machine,
    Next,
    Outcome,
    Queue,
    Retry,
    RetryAfter,
    ScheduleChildren,
    Settings,
    Signal,
    Spec,
    Sql,
    Stop,
    Stream,
    Transaction,
    Worker,
    job,
    step,
    upgrade,
)
from gen_durable.telemetry import PickStop, StepStop, Telemetry

DAY = timedelta(days=1)
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Parcel(msgspec.Struct):
    number: int
    is_paid: bool = False


class Other(msgspec.Struct):
    x: int


class Label(msgspec.Struct):
    number: int


class Payment(msgspec.Struct):
    cents: int


class Tick(Machine[None, int]):
    @step
    async def only(self, ctx: Context[None]) -> Outcome[int]:
        return Done(1)


class Radio(Machine[None, None]):
    words = Stream("words", str)

    @step
    async def play(self, ctx: Context[None]) -> Outcome[None]:
        await ctx.publish(self.words, 1)  # E: an item of another type
        await ctx.publish(self.words)  # E: the item is missing
        ctx.publish_sync(self.words, 1)  # E: an item of another type
        await ctx.publish(7, 1)  # E: not a stream
        await ctx.publish(self.wrods, "a")  # E: unknown stream
        await ctx.close_stream(7)  # E: not a stream
        return Done()


async def listening(client: AsyncClient) -> None:
    async for item in client.stream(7, Radio.words):
        print(item.value.cents)  # E: a str has none
    await client.list(where=["status:failed"])  # E: a search is one text
    await client.search("status:failed", before="7")  # E: an id is a number
    async for _ in client.stream(7, Radio.words, after="1"):  # E: a position is a number
        pass
    async for _ in await client.stream(7, Radio.words):  # E: an iterator is not awaited
        pass
    for _ in client.stream(7, Radio.words):  # E: an async iterator
        pass


class Delivery(Machine[Parcel, Label]):
    payment = Signal("payment_confirmed", Payment)
    withdrawn = Signal("withdrawn")

    @step
    async def states(self, ctx: Context[Parcel]) -> Outcome[Label]:
        if ctx.attempt == 1:
            return Next(self.send, Other(1))  # E: a state of another type
        if ctx.attempt == 2:
            return Await(self.payment, then=self.send, state=Other(1))  # E: a state of another type
        if ctx.attempt == 3:
            return ScheduleChildren([], then=self.send, state=Other(1))  # E: a state of another type
        if ctx.attempt == 4:
            return Next(self.send, Parcel())  # E: a field is missing
        ctx.state.is_payed = True  # E: unknown field
        return Retry(state=Other(1))  # allowed: Retry does not know its machine

    @step
    async def targets(self, ctx: Context[Parcel]) -> Outcome[Label]:
        if ctx.attempt == 1:
            return Next(self.sned)  # E: unknown step
        if ctx.attempt == 2:
            return Next(self.helper)  # E: a method that is not a step
        if ctx.attempt == 3:
            return self.send  # E: a step is not an outcome
        if ctx.attempt == 4:
            return Next(self.send(ctx))  # E: a step that was called
        if ctx.attempt == 5:
            return Next(self.foreign)  # E: a step that takes another state
        if ctx.attempt == 6:
            return Next(Tick)  # E: a machine is not a step
        return Next("sned")  # allowed: a name is only text

    @step
    async def results(self, ctx: Context[Parcel]) -> Outcome[Label]:
        if ctx.attempt == 1:
            return Done(Other(1))  # E: a result of another type
        if ctx.attempt == 2:
            return Done()  # E: the result is missing
        return Stop(404)  # E: a reason is a text or an exception

    @step
    async def sleeps(self, ctx: Context[Parcel]) -> Outcome[Label]:
        if ctx.attempt == 1:
            return Await(then=self.send)  # E: it would never end
        if ctx.attempt == 2:
            return Await(self.payment)  # E: nothing runs afterwards
        if ctx.attempt == 3:
            return Await(self.paymnt, then=self.send)  # E: unknown signal
        if ctx.attempt == 4:
            return Await([self.payment], then=self.send)  # E: signals are given one by one
        if ctx.attempt == 8:
            return Next(self.send, consume=[1])  # E: messages and signals
        if ctx.attempt == 5:
            return Await(self.payment, then=self.send, timeout=30)  # E: a number is not a duration
        if ctx.attempt == 6:
            return Await(then=self.send, timeout=DAY, deadline=NOON)  # E: one of the two
        if ctx.attempt == 7:
            return Await("a", then=self.send, timeout=DAY, deadline=NOON)  # E: one of the two
        payment = ctx.awaited.get(self.payment)
        print(payment.cents)  # E: it may not have come
        return Retry(5)  # E: a number is not a duration

    @step
    async def options(self, ctx: Context[Parcel]) -> Outcome[Label]:
        if ctx.attempt == 1:
            return Next(self.send, delay=5)  # E: a number is not a duration
        if ctx.attempt == 2:
            return Next(self.send, concurrency_key=7)  # E: a key is a text, or a text and a partition
        if ctx.attempt == 3:
            return Next(self.send, rate_limits="crm")  # E: unknown option
        if ctx.attempt == 4:
            return ScheduleChildren([Parcel(1)], then=self.send)  # E: a state is not a spec
        if ctx.attempt == 5:
            return ScheduleChildren([Spec(Delivery, Other(1))], then=self.send)  # E: a child of another state
        return ScheduleChildren(Spec(Tick), then=self.send)  # E: a spec is not a list

    @step
    def send(self, ctx: Context[Parcel]) -> Outcome[Label]:
        return Done(Label(1))

    @step
    def foreign(self, ctx: Context[Other]) -> Outcome[Label]:
        return Stop("refused wherever it is used, and at import")

    @step  # E: missing ctx
    def lonely(self) -> Outcome[Label]:
        return Stop("")

    @step  # E: a parameter too many
    async def crowded(self, ctx: Context[Parcel], more: int) -> Outcome[Label]:
        return Stop("")

    @step  # E: the parameter is not a Context
    async def direct(self, parcel: Parcel) -> Outcome[Label]:
        return Stop("")

    @step  # E: what it returns is not an outcome
    def counting(self, ctx: Context[Parcel]) -> int:
        return 1

    @step
    def falling(self, ctx: Context[Parcel]) -> Outcome[Label]:  # E: one path returns nothing
        if ctx.state.is_paid:
            return Stop("")

    @step(initail=True)  # E: unknown option
    def misspelt(self, ctx: Context[Parcel]) -> Outcome[Label]:
        return Stop("")

    @step(retry=5)  # E: a number is not a policy
    def stubborn(self, ctx: Context[Parcel]) -> Outcome[Label]:
        return Stop("")

    def helper(self, ctx: Context[Parcel]) -> Outcome[Label]:
        return Stop("")

    @step(on_failure=helper)  # E: not a step
    def failing(self, ctx: Context[Parcel]) -> Outcome[Label]:
        return Stop("")

    @step(retry=Backoff(on="TimeoutError"))  # E: a name is not a class
    def selective(self, ctx: Context[Parcel]) -> Outcome[Label]:
        return Stop("")

    def handle(self, error: Exception, ctx: Context[Other]) -> Outcome[Label]:  # E: another state
        return Stop(error)


async def write_down(tx: Transaction) -> None:
    await tx.commit()  # E: it ends by itself
    await tx.execute()  # E: missing statement
    await tx.execute(Sql("select 1"))  # E: a text is wanted
    tx.execute("select 1")  # E: it is not awaited


def plain(tx: Transaction) -> None: ...


async def two(tx: Transaction, number: int) -> None: ...


async def none() -> None: ...


async def other(client: AsyncClient) -> None: ...


class Booking(Machine[Parcel, Label]):
    @step
    async def only(self, ctx: Context[Parcel]) -> Outcome[Label]:
        if ctx.attempt == 1:
            return Next(self.only, effect="update a set b = 1")  # E: a bare text
        if ctx.attempt == 2:
            return Await("a", then=self.only, effect=plain)  # E: a plain function
        if ctx.attempt == 3:
            return ScheduleChildren([], then=self.only, effect=two)  # E: a parameter too many
        if ctx.attempt == 4:
            return Done(Label(1), effect=none)  # E: no parameter
        return Retry(effect=Sql("select 1"))  # E: a retry is not a transition

    @step
    async def more(self, ctx: Context[Parcel]) -> Outcome[Label]:
        if ctx.attempt == 5:
            return Done(Label(1), effect=other)  # E: a parameter of another type
        if ctx.attempt == 6:
            return Stop("late", effect=lambda tx: None)  # E: a plain function
        if ctx.attempt == 7:
            return Stop("late", effect=[Sql("select 1"), Sql("select 2")])  # E: one is enough
        if ctx.attempt == 8:
            return Stop("late", effect=Sql())  # E: missing statement
        if ctx.attempt == 9:
            return Stop("late", effect=Sql(5))  # E: a statement is a text
        return Next(self.only, effect=write_down(ctx))  # E: an effect that was called


class Twice(Machine[Parcel]):
    @step
    def start(self, ctx: Context[Parcel]) -> Outcome:  # E(pyright): two steps of one name
        return Stop("")

    @step  # E(mypy): two steps of one name
    def start(self, ctx: Context[Parcel]) -> Outcome:
        return Stop("")


class Misspelt(Machine[Parcel], versoin=2):  # E: unknown option
    @step
    def start(self, ctx: Context[Parcel]) -> Outcome:
        return Stop("")


class Numbered(Machine[Parcel], name=7):  # E: a name is a text
    @step
    def start(self, ctx: Context[Parcel]) -> Outcome:
        return Stop("")


class Fields(TypedDict):
    n: int


class Typed(Machine[Fields]):
    @step
    async def start(self, ctx: Context[Fields]) -> Outcome:
        if ctx.state["n"]:
            return Next(self.start, Fields(m=1))  # E: unknown key
        return Next(self.start, Fields())  # E: a key is missing


class Pool:
    """Like the pools of both drivers: it returns connections, but is not one."""

    async def acquire(self) -> object:
        raise NotImplementedError

    async def execute(self, query: str, *args: object) -> str:
        raise NotImplementedError


async def producer(client: AsyncClient, pool: Pool, blocking_conn: psycopg.Connection[Any]) -> None:
    await client.insert(Delivery, Other(1))  # E: a state of another type
    await client.insert(Delivery, args=Other(1))  # E: a state of another type, by its other name
    await client.insert(Delivery, {1: 2})  # E: a mapping with keys that are not names
    await client.insert(Delivery, [("number", 1)])  # E: neither the state nor a mapping
    await client.insert(Delivery)  # E: the state is missing
    await client.insert(Tick, Parcel(1))  # E: it takes no state
    await client.insert(Parcel, Parcel(1))  # E: not a machine
    await client.insert(Delivery, Parcel(1), priorty=3)  # E: unknown option
    await client.insert(Delivery, Parcel(1), priority="high")  # E: an option of another type
    await client.insert(Delivery, Parcel(1), schedule_in=60)  # E: a number is not a duration
    await client.insert(Delivery, Parcel(1), conn=pool)  # E: a pool is not a transaction
    await client.insert(Delivery, Parcel(1), conn=blocking_conn)  # E: a blocking connection
    client.insert(Delivery, Parcel(1))  # E: it is not awaited
    await client.insert_all([Delivery, Parcel(1)])  # E: specs are wanted

    parcel = await client.insert(Delivery, Parcel(1))
    print((await client.wait(parcel)).result.cents)  # E: a Label has none
    print((await client.wait(parcel, timeout=5)).result)  # E: a number is not a duration
    print((await client.wait(parcel, until="finshed")).result)  # E: a status
    await client.wait(parcel, until={"ship"})  # E: a step by name is a pair
    await client.wait(parcel, until=["done"])  # E: a set
    async for _ in client.watch(parcel, after=3):  # E: a position is text
        pass
    async for change in client.watch(parcel):
        print(change.step)  # E: of the instance
    print((await client.get(parcel)).status)  # E: there may be none
    await client.signal(parcel, Delivery.payment, Other(1))  # E: a payload of another type
    await client.signal(parcel, Delivery.payment)  # E: the payload is missing
    await client.signal(parcel, Delivery.withdrawn, Payment(1))  # E: it carries nothing
    await client.signal(parcel, Delivery.paymnt, Payment(1))  # E: unknown signal
    match parcel:
        case Inserted():
            pass
        case _:
            assert_never(parcel)  # E: Duplicate is forgotten


@job("shop.weigh.v1")
async def weigh(parcel: Parcel, ctx: Context[Parcel]) -> Label:
    if ctx.attempt == 1:
        raise RetryAfter(60)  # E: a number is not a duration
    if ctx.attempt == 2:
        return Discard("no")  # E: it is raised, not returned
    return Label(1)


@job("shop.sweep.v1")
def sweep() -> int:
    return 1


@job("shop.book.v1")
def book(parcel: Parcel) -> Done[Label]:
    return Done(Other(1))  # E: a result of another type


@job  # E: the name is missing
def nameless(parcel: Parcel) -> Label:
    return Label(1)


job(7)  # E: a name is a text
job("a", max_attemps=3)  # E: unknown option
job("a", max_attempts="3")  # E: a text is not a number
job("a", retry=5)  # E: a number is not a policy
job("a", lease=60)  # E: a number is not a duration
job("a", dead_letter=Parcel)  # E: neither a job nor a machine
job("a")(Parcel(1))  # E: not a function


async def job_producer(client: AsyncClient, ctx: Context[Parcel], other: Context[Other]) -> None:
    await weigh(Other(1), ctx)  # E: a payload of another type
    await weigh(Parcel(1), other)  # E: a context of another payload
    await weigh(Parcel(1))  # E: the context is missing
    sweep(Parcel(1))  # E: it takes nothing
    print(sweep().number)  # E: an int has none
    await client.insert(weigh, Other(1))  # E: a payload of another type
    await client.insert(weigh)  # E: the payload is missing
    await client.insert(sweep, Parcel(1))  # E: it takes no payload
    await client.insert(weigh, Parcel(1), ctx)  # E: a context is not inserted
    await client.insert(weigh, Parcel(1), max_attempts="5")  # E: a text is not a number
    await client.insert(weigh, Parcel(1), idempotency_key=7)  # E: a key is a text
    await client.insert(weigh, Parcel(1), dead_letter="x")  # E: an option of the job, not of an insert
    print((await client.wait(await client.insert(weigh, Parcel(1)))).result.cents)  # E: a Label has none
    booked = await client.wait(await client.insert(book, Parcel(1)))
    print(booked.result.result)  # E: it is a Label, no Done
    await client.insert_all([Spec(weigh, Other(1))])  # E: a payload of another type
    await client.insert_all([Spec(sweep, 1)])  # E: it takes no payload
    await client.insert_all([weigh])  # E: specs are wanted


class Leads(Machine[Parcel]):
    @step
    async def start(self, ctx: Context[Parcel]) -> Outcome:
        if ctx.attempt:
            return Next(weigh)  # E: a job is not a step
        return ScheduleChildren([Spec(weigh, ctx)], then=self.start)  # E: a context is not a payload


async def mixed(client: Client, conn: psycopg.AsyncConnection[Any]) -> None:
    await client.insert(Delivery, Parcel(1))  # E: a blocking call cannot be awaited
    print(client.executions(7)[0].state)  # E: an execution has none
    client.insert(Delivery, Parcel(1), conn=conn)  # E: a connection of the other kind


def settle(outcome: Outcome) -> str:
    match outcome:
        case Next() | Await() | ScheduleChildren():
            return "on"
        case Done() | Stop():
            return "end"
        case _:
            assert_never(outcome)  # E: Retry is forgotten


def subscribers(telemetry: Telemetry) -> None:
    def on_step(event: StepStop) -> None: ...

    telemetry.subscribe(on_step, int)  # E: not a kind of event
    telemetry.subscribe(on_step)  # E: it would get every kind
    print(PickStop(count=1, demand=1, queue="q"))  # E: a field is missing


Worker([Parcel])  # E: not a machine
Worker([Delivery], queue={"default": 1})  # E: unknown option
Worker([Delivery], queues={"default": "many"})  # E: a text is not a number
Worker([weigh], prefixes=[7])  # E: a prefix is a text
Worker([weigh], prefixes=["shop."], on_unknown="ignore")  # E: fail or leave
Settings(leese=timedelta(1))  # E: unknown setting
Settings(lease=60)  # E: a number is not a duration
Settings(executions="some")  # E: all, failures or off
Settings(pooler="session")  # E: none or transaction
Queue(5)  # E: by name only


async def in_sessions(
    client: AsyncClient,
    session: async_sqlalchemy.AsyncSession,
    conn: async_sqlalchemy.AsyncConnection,
    engine: sqlalchemy.Engine,
    blocking: Client,
    blocking_session: orm.Session,
) -> None:
    await client.insert(Tick, conn=engine)  # E: an engine is not a transaction
    await client.insert(Tick, conn=blocking_session)  # E: a blocking session
    blocking.insert(Tick, conn=engine)  # E: an engine is not a transaction
    blocking.insert(Tick, conn=session)  # E: a session of the other kind
    blocking.insert(Tick, conn=conn)  # E(pyright): a connection of the other kind


class Renewed(Machine[Parcel, None], version=2):
    @upgrade(from_version=1)  # E: takes the state only
    def number(self, state: dict[str, Any]) -> dict[str, Any]:
        return state

    @upgrade  # E: needs a version
    @staticmethod
    def pay(state: Any) -> Any:
        return state

    @step(was=1)  # E: not a name
    async def ship(self, ctx: Context[Parcel]) -> Outcome[None]:
        return Done(None)


class Undone(Machine[Parcel, str]):
    @step(undo=len)  # E: not a step
    async def reserve(self, ctx: Context[Parcel]) -> Outcome[str]:
        return Done("reserved")

    @step(on_cancel=1)  # E: not a step
    async def recall(self, ctx: Context[Parcel]) -> Outcome[str]:
        return Stop("recalled", undo="no")  # E: not a bool


class Kept(Machine[Parcel, str], history="some"):  # E: not a level
    @step
    async def run(self, ctx: Context[Parcel]) -> Outcome[str]:
        ctx.progress("half")  # E: not a number
        return Done("done")


async def repair(client: AsyncClient) -> None:
    await client.edit(7, expected_step_seq="1")  # E: not a number
    await client.edit(7, step=1)  # E: not a step
    await client.history(7, limit="10")  # E: not a number
    await client.fork(7, at="1")  # E: not a number
