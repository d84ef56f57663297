"""Lease length of a worker, machine or step, at the pick and at every heartbeat."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from gen_durable import Context, Done, Machine, Next, Outcome, Settings, SettingsError, Worker, job, step
from gen_durable._db.pool import Database
from gen_durable.errors import OptionError
from tests.support.rows import row_of
from tests.support.waiting import PATIENCE, happens, holds

SETTINGS = Settings(
    lease=timedelta(seconds=20),
    heartbeat=timedelta(milliseconds=200),
    poll_interval=timedelta(milliseconds=100),
    chain_time=timedelta(minutes=1),  # however slow the machine is
    drain_timeout=timedelta(seconds=1),
)


class Gate:
    """A gate at which steps wait until the test has read their rows."""

    def __init__(self) -> None:
        self.is_there, self.may_go = asyncio.Event(), asyncio.Event()

    async def wait(self) -> None:
        self.is_there.set()
        await self.may_go.wait()
        self.is_there.clear()
        self.may_go.clear()

    async def next(self) -> None:
        self.may_go.set()
        while self.may_go.is_set():
            await asyncio.sleep(0)
        await happens(self.is_there)


class Plain(Machine[None, None], name="m.plain"):
    """Lease of the worker."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    @step
    async def run(self, ctx: Context[None]) -> Outcome[None]:
        await self.gate.wait()
        return Done()


class Own(Plain, name="m.own", lease=timedelta(seconds=40)):
    """One lease for the machine, another for one of its steps."""

    @step(lease=timedelta(minutes=3))
    async def long(self, ctx: Context[None]) -> Outcome[None]:
        await self.gate.wait()
        return Done()


async def lengths(db: Any, id: int) -> tuple[float, float]:
    """Return the lease length at the pick and after a heartbeat."""
    row = await row_of(db, id)
    first = (row["lease_expires_at"] - row["leased_at"]).total_seconds()
    await holds(
        db,
        "select lease_expires_at > $2 from gen_durable.gen_durable where id = $1",
        id,
        row["lease_expires_at"],
    )
    row = await row_of(db, id)
    return first, (row["lease_expires_at"] - row["now"]).total_seconds()


@pytest.mark.clause("LEASE-6")
@pytest.mark.parametrize(
    "source", [{"queues": {"default": 5}}, {"prefixes": ["m."]}], ids=["queue", "prefix"]
)
async def test_pick_and_heartbeat_use_the_lease_of_the_step(durable_dsn: str, db: Any, source: Any) -> None:
    gate = Gate()

    @job("m.job", lease=timedelta(seconds=7))
    async def short() -> None:
        await gate.wait()

    plain, own = Plain(gate), Own(gate)
    cases: list[tuple[Any, str, float]] = [
        (plain, "run", 20),
        (own, "run", 40),
        (own, "long", 180),
        (short, "run", 7),
    ]
    async with Worker([plain, own, short], dsn=durable_dsn, settings=SETTINGS, **source) as worker:
        for machine, name, length in cases:
            ref = await worker.insert(machine, step=name)
            await happens(gate.is_there)
            first, renewed = await lengths(db, ref.id)
            gate.may_go.set()
            await worker.wait(ref.id, timeout=PATIENCE)
            case = (name, length)
            assert length <= first < length + 5, case  # a heartbeat may have come before the look
            assert length - 5 < renewed <= length, case


class Chain(Machine[None, list[int]], name="m.chain"):
    """Two steps with the lease of the worker, two with another, one with a third."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    @step
    async def a(self, ctx: Context[None]) -> Outcome[list[int]]:
        await self.gate.wait()
        return Next(self.b)

    @step
    async def b(self, ctx: Context[None]) -> Outcome[list[int]]:
        await self.gate.wait()
        return Next(self.c)

    @step(lease=timedelta(seconds=50))
    async def c(self, ctx: Context[None]) -> Outcome[list[int]]:
        await self.gate.wait()
        return Next(self.d)

    @step(lease=timedelta(seconds=50))
    async def d(self, ctx: Context[None]) -> Outcome[list[int]]:
        await self.gate.wait()
        return Next(self.e)

    @step(lease=timedelta(seconds=2))
    async def e(self, ctx: Context[None]) -> Outcome[list[int]]:
        await self.gate.wait()
        return Done([])


async def test_chained_step_gets_its_own_lease_length(durable_dsn: str, db: Any) -> None:
    gate = Gate()
    # No heartbeat, so the row shows the lease of the pick.
    settings = msgspec.structs.replace(SETTINGS, heartbeat=timedelta(seconds=1))
    seen: dict[str, tuple[int, float]] = {}
    async with Worker([chain := Chain(gate)], dsn=durable_dsn, settings=settings) as worker:
        ref = await worker.insert(chain)
        await happens(gate.is_there)
        while True:
            row = await row_of(db, ref.id)
            left = (row["lease_expires_at"] - row["now"]).total_seconds()
            seen[row["step"]] = (row["lease_token"], left)
            if row["step"] == "e":
                break
            await gate.next()
        gate.may_go.set()
        ended = await worker.wait(ref, timeout=PATIENCE)
        records = await worker.executions(ref)
    assert ended.step_seq == 5
    tokens = {name: token for name, (token, _) in seen.items()}
    assert tokens["a"] == tokens["b"] != tokens["c"] == tokens["d"] != tokens["e"]
    for name, length in {"a": 20, "b": 20, "c": 50, "d": 50, "e": 2}.items():
        assert length - 2 < seen[name][1] <= length, name
    assert [(each.step, each.outcome, each.attempt) for each in records] == [
        ("a", "next", 1),
        ("b", "next", 2),
        ("c", "next", 3),
        ("d", "next", 4),
        ("e", "done", 5),
    ]


async def test_short_lease_is_renewed_during_long_steps(durable_dsn: str, db: Any) -> None:
    """The step takes three leases: the heartbeat is fast enough for the shortest lease."""

    @job("m.short", lease=timedelta(milliseconds=500))
    async def short() -> int:
        await asyncio.sleep(1.5)
        return 1

    async with Worker([short], dsn=durable_dsn, settings=SETTINGS) as worker:
        ref = await worker.insert(short)
        assert (await worker.wait(ref, timeout=PATIENCE)).result == 1
    row = await row_of(db, ref.id)
    assert (row["execution"], row["attempt"], row["crash_count"]) == (1, 0, 0)


@job("m.half_minute", lease=timedelta(seconds=30))
async def half_minute() -> None: ...


@pytest.mark.clause("LEASE-6")
def test_default_heartbeat_follows_a_shorter_lease() -> None:
    worker = Worker([half_minute])
    assert worker.settings.renew_after() == timedelta(seconds=20)
    assert worker.settings.renew_after(timedelta(minutes=1)) == timedelta(seconds=20)
    assert worker.settings.renew_after(timedelta(minutes=5)) == timedelta(seconds=20)
    assert worker.settings.renew_after(timedelta(seconds=30)) == timedelta(seconds=10)
    copied = msgspec.structs.replace(worker.settings, threads=3)
    assert copied.renew_after(timedelta(seconds=30)) == timedelta(seconds=10)
    explicit = Settings(heartbeat=timedelta(seconds=15))
    assert explicit.renew_after(timedelta(seconds=30)) == timedelta(seconds=15)
    problem = r"settings\.heartbeat must be at most half of every lease: .*'m\.half_minute' is 30s, got 20s"
    with pytest.raises(SettingsError, match=problem):
        Worker([half_minute], settings=Settings(heartbeat=timedelta(seconds=20)))


@pytest.mark.clause("LEASE-6")
async def test_short_lease_is_kept_with_the_default_heartbeat(durable_dsn: str, db: Any) -> None:
    gate, long_gate = Gate(), Gate()

    @job("m.short", lease=timedelta(seconds=3))
    async def short() -> None:
        await gate.wait()

    plain = Plain(long_gate)
    async with Worker([short, plain], dsn=durable_dsn) as worker:
        kept, long = await worker.insert(short), await worker.insert(plain)
        await happens(gate.is_there)
        await happens(long_gate.is_there)
        first, long_first = await row_of(db, kept.id), await row_of(db, long.id)
        until = first["lease_expires_at"] + timedelta(seconds=0.5)
        while (row := await row_of(db, kept.id))["now"] < until:
            assert row["lease_expires_at"] > row["now"], "the lease ran out under a live worker"
            await asyncio.sleep(0.1)
        # The lease of the worker is renewed after 10 s; the short lease does not cause more renewals of it.
        assert (await row_of(db, long.id))["lease_expires_at"] == long_first["lease_expires_at"]
        gate.may_go.set()
        long_gate.may_go.set()
        await worker.wait(kept, timeout=PATIENCE)
        await worker.wait(long, timeout=PATIENCE)
    assert (await row_of(db, kept.id))["crash_count"] == 0


async def test_silent_heartbeat_connection_is_replaced_in_time(
    durable_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[float] = []
    original = Database.open

    async def recording_open(*given: Any, **options: Any) -> Any:
        if options["name"] == "the heartbeat":
            opened.append(options["reply_timeouts"].reply)
        return await original(*given, **options)

    monkeypatch.setattr(Database, "open", recording_open)
    async with Worker([half_minute, Plain(Gate())], dsn=durable_dsn):
        async with asyncio.timeout(PATIENCE.total_seconds()):
            while not opened:
                await asyncio.sleep(0.01)
    assert opened == [10]


# Invalid leases


def refused(*machines: Any, heartbeat: float) -> str:
    with pytest.raises(SettingsError) as caught:
        Worker(machines, settings=Settings(heartbeat=timedelta(seconds=heartbeat)))
    return str(caught.value)


@pytest.mark.clause("LEASE-6")
def test_heartbeat_above_half_of_a_lease_is_refused() -> None:
    @job("m.job", lease=timedelta(seconds=7))
    async def short() -> None: ...

    assert refused(Own(Gate()), heartbeat=20.1) == (
        "settings.heartbeat must be at most half of every lease: the lease of step 'run' of machine 'm.own' is 40s, "
        "got 20.1s; lower it, or omit it"
    )
    assert "step 'run' of machine 'm.job' is 7s" in refused(short, heartbeat=3.51)
    assert "step 'e' of machine 'm.chain' is 2s" in refused(Chain(Gate()), heartbeat=1.01)
    Worker([Own(Gate())], settings=Settings(heartbeat=timedelta(seconds=20)))
    Worker([short], settings=Settings(heartbeat=timedelta(seconds=3.5)))


@pytest.mark.parametrize(
    "length", [timedelta(0), timedelta(milliseconds=99), timedelta(days=2), -timedelta(1), 60]
)
def test_invalid_lease_is_refused(length: Any) -> None:
    with pytest.raises(OptionError, match="lease of machine 'Wrong' is"):

        class Wrong(Machine[None, None], lease=length):
            @step
            async def run(self, ctx: Context[None]) -> Outcome[None]:
                return Done()

    with pytest.raises(OptionError, match=r"lease of step '.*run' is"):

        class WrongStep(Machine[None, None]):
            @step(lease=length)
            async def run(self, ctx: Context[None]) -> Outcome[None]:
                return Done()

    with pytest.raises(OptionError, match=r"lease of job 'm\.wrong' is"):
        job("m.wrong", lease=length)


@pytest.mark.clause("LEASE-6")
def test_precedence_of_lease_options() -> None:
    class Sub(Own, lease=timedelta(seconds=90)):
        pass

    leases = [
        {name: found.lease for name, found in machine.__definition__.steps.items()}
        for machine in (Plain, Own, Sub)
    ]
    assert leases == [
        {"run": None},
        {"run": timedelta(seconds=40), "long": timedelta(minutes=3)},
        {"run": timedelta(seconds=90), "long": timedelta(minutes=3)},
    ]
