"""Instances of an older version are upgraded by the code of a newer one."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable import (
    AsyncClient,
    Backoff,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    Ref,
    Retry,
    ScheduleChildren,
    Spec,
    Status,
    Stop,
    Worker,
    step,
    upgrade,
)
from gen_durable.errors import UpgradeError
from gen_durable.testing import DrainCounts, Harness
from tests.engine.machines.releases import Booking, BookingV2, BookingV3, Guest, GuestV2, GuestV3
from tests.support.rows import row_of
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE

ADA = {"name": "Ada Lovelace", "nights": 2}


@pytest.mark.clause("VER-5", "VER-6")
async def test_parked_instance_continues_on_the_next_version(durable_dsn: str, db: Any) -> None:
    async with Worker([Booking], dsn=durable_dsn, settings=CALM) as old:
        ref = await old.insert(Booking, Guest("Ada Lovelace", 2))
        await old.wait(ref, until="parked", timeout=PATIENCE)
    async with Worker([BookingV2], dsn=durable_dsn, settings=CALM) as new:
        row = await row_of(db, ref.id)
        assert (row["fsm_version"], row["state"]) == (1, '{"name": "Ada Lovelace", "nights": 2}')
        await new.signal(ref, "confirmed")
        ended = await new.wait(ref, timeout=PATIENCE)
    assert ended.result == "2: Lovelace, Ada, 2"
    row = await row_of(db, ref.id)
    assert (row["fsm_version"], row["state"]) == (2, '{"last": "Lovelace", "first": "Ada", "nights": 2}')


@pytest.mark.clause("VER-5")
@pytest.mark.parametrize(
    ("version", "state"), [(1, ADA), (2, {"first": "Ada", "last": "Lovelace", "nights": 2})]
)
def test_upgrades_chain(durable: Harness, version: int, state: dict[str, Any]) -> None:
    ref = durable.load(BookingV3, version=version, step="check_in", state=state, awaits=[BookingV3.confirmed])
    durable.signal(ref, BookingV3.confirmed)
    durable.drain()
    durable.assert_done(ref, "3: Lovelace, Ada, 48")
    assert durable.instances(BookingV3)[0].state == GuestV3("Ada", "Lovelace", 48)


@pytest.mark.clause("VER-5")
async def test_registered_old_version_runs_its_own_code(durable_dsn: str) -> None:
    async with Worker([Booking, BookingV3], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Booking, Guest("Ada Lovelace"))
        await worker.signal(ref, "confirmed")
        ended = await worker.wait(ref, timeout=PATIENCE)
    assert (ended.version, ended.result) == (1, "1: Ada Lovelace, 1")


class Worn(Machine[int, int], name="worn"):
    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)


class Picky(Machine[list[int], int], name="worn", version=2, retry=Backoff(max_attempts=3)):
    """Fails until its third attempt; keeps what `handle` got."""

    def __init__(self, seen: list[Any]) -> None:
        self.seen = seen

    @upgrade(from_version=1)
    @staticmethod
    def wrap(state: int) -> list[int]:
        return [state]

    @step
    async def run(self, ctx: Context[list[int]]) -> Outcome[int]:
        if ctx.attempt < 2:
            raise ValueError("not yet")
        return Done(ctx.state[0])

    def handle(self, error: Exception, ctx: Context[list[int]]) -> Any:
        self.seen.append((ctx.state, ctx.raw_state, ctx.version))
        return super().handle(error, ctx)


@pytest.mark.clause("VER-6", "VER-7")
def test_retry_with_the_stored_state_keeps_the_version(durable: Harness) -> None:
    seen: list[Any] = []
    durable.use(Picky(seen))
    ref = durable.load(Picky, version=1, state=7)
    with pytest.raises(AssertionError, match="still runs after 1 steps"):
        durable.drain(max_steps=1)
    instance = durable.get(ref)
    assert instance is not None
    assert (instance.version, instance.attempt, instance.state) == (1, 1, [7])
    assert durable.get(ref.target).state == 7  # type: ignore[union-attr]  # it exists
    durable.drain()
    durable.assert_done(ref, 7)
    assert seen == [([7], "7", 2)] * 2


@pytest.mark.clause("VER-6")
def test_retry_with_another_state_upgrades(durable: Harness) -> None:
    class Counting(Machine[list[int], int], name="worn", version=2):
        upgrades = Picky.wrap

        @step
        async def run(self, ctx: Context[list[int]]) -> Outcome[int]:
            if len(ctx.state) < 3:
                ctx.state.append(ctx.version)
                return Retry()
            return Done(sum(ctx.state))

    ref = durable.load(Counting, version=1, state=7)
    with pytest.raises(AssertionError, match="still runs after 1 steps"):
        durable.drain(max_steps=1)
    instance = durable.get(ref)
    assert instance is not None
    assert (instance.version, instance.state) == (2, [7, 2])
    durable.drain()
    durable.assert_done(ref, 11)


@pytest.mark.clause("VER-6")
@pytest.mark.parametrize(
    "outcome", [Done(1), Stop("no"), Stop("no", undo=False)], ids=["done", "stop", "no undo"]
)
@pytest.mark.parametrize("changes", [True, False])
def test_state_of_an_ended_instance_fits_its_version(
    durable: Harness, outcome: Outcome[int], changes: bool
) -> None:
    class Ending(Machine[list[int], int], name="worn", version=2):
        upgrades = Picky.wrap

        @step
        async def run(self, ctx: Context[list[int]]) -> Outcome[int]:
            if changes:
                ctx.state.append(8)
            return outcome

    ref = durable.load(Ending, version=1, state=7)
    durable.drain()
    ended = durable.get(ref.target)
    assert ended is not None
    assert isinstance(ended.state, list) == (ended.version == 2)


@pytest.mark.clause("VER-6")
def test_undo_steps_of_an_upgraded_instance_get_its_state_once_upgraded(durable: Harness) -> None:
    class Reserved(Machine[int, int], name="stock"):
        @step(undo="release")
        async def reserve(self, ctx: Context[int]) -> Outcome[int]:
            return Next(self.sell, requeue=True)

        @step
        async def sell(self, ctx: Context[int]) -> Outcome[int]:
            return Done(ctx.state)

        @step
        async def release(self, ctx: Context[int]) -> Outcome[int]:
            return Done(None)  # type: ignore[arg-type]  # an undo step has no result

    seen: list[Any] = []

    class Renewed(Machine[list[int], int], name="stock", version=2):
        wrap = Picky.wrap

        @step(undo="free")
        async def reserve(self, ctx: Context[list[int]]) -> Outcome[int]:
            return Next(self.sell)

        @step
        async def sell(self, ctx: Context[list[int]]) -> Outcome[int]:
            ctx.state.append(8)
            return Stop("sold out")

        @step(was="release")
        async def free(self, ctx: Context[list[int]]) -> Outcome[int]:
            seen.append((ctx.step, list(ctx.state)))
            return Done(None)  # type: ignore[arg-type]  # an undo step has no result

    ref = durable.insert(Reserved, 7)
    with pytest.raises(AssertionError, match="still runs after 1 steps"):
        durable.drain(max_steps=1)
    durable._stepper.registry._machines.pop(("stock", 1))
    durable.use(Renewed)
    durable.drain()
    ended = durable.assert_failed(ref.id, match="sold out")
    assert (seen, ended.version, ended.state) == ([("free", [7, 8])], 2, [7, 8])


@pytest.mark.clause("VER-7")
def test_upgrade_that_raises_goes_to_handle(durable: Harness) -> None:
    class Broken(Machine[list[int], int], name="worn", version=2):
        @upgrade(from_version=1)
        @staticmethod
        def divide(state: int) -> list[int]:
            return [10 // state]

        @step
        async def run(self, ctx: Context[list[int]]) -> Outcome[int]:
            return Done(ctx.state[0])

    class Mending(Broken, name="worn", version=2):
        def handle(self, error: Exception, ctx: Context[list[int]]) -> Any:
            assert isinstance(error, UpgradeError)
            assert isinstance(error.__cause__, ZeroDivisionError)
            assert ctx.raw_state == "0"
            return Next(self.run, [4])

    ref = durable.load(Broken, version=1, state=0)
    durable.drain()
    failed = durable.assert_failed(
        ref, match="UpgradeError: the state of worn .* from version 1 to version 2"
    )
    assert (failed.version, failed.state) == (1, 0)
    assert failed.error is not None
    assert "the upgrade raised ZeroDivisionError" in failed.error.message
    durable.use(Mending)
    durable.retry(ref)
    durable.drain()
    durable.assert_done(ref, 4)
    assert durable.get(ref).version == 2  # type: ignore[union-attr]  # it exists


@pytest.mark.clause("VER-7")
def test_retry_policy_retries_an_upgrade_that_raises(durable: Harness) -> None:
    class Broken(Machine[list[int], int], name="worn", version=2, retry=Backoff(max_attempts=3)):
        @upgrade(from_version=1)
        @staticmethod
        def divide(state: int) -> list[int]:
            return [10 // state]

        @step
        async def run(self, ctx: Context[list[int]]) -> Outcome[int]:
            return Done(ctx.state[0])

    ref = durable.load(Broken, version=1, state=0)
    assert durable.drain() == DrainCounts(retry=2, stopped=1)
    assert durable.assert_failed(ref, match="UpgradeError").state == 0


@pytest.mark.clause("VER-7")
def test_upgrade_to_a_wrong_type_goes_to_handle(durable: Harness) -> None:
    class Wrong(Machine[list[int], int], name="worn", version=2):
        @upgrade(from_version=1)
        @staticmethod
        def forget(state: int) -> Any:
            return {"a": object()} if state else "text"

        @step
        async def run(self, ctx: Context[list[int]]) -> Outcome[int]:
            return Done(0)

    unwritable, misfit = (durable.load(Wrong, version=1, state=state) for state in (1, 0))
    durable.drain()
    durable.assert_failed(unwritable, match="the upgrade returned a dict that cannot be written as JSON")
    durable.assert_failed(misfit, match="the state of worn .* does not match")


@pytest.mark.clause("VER-5")
def test_parent_reads_states_of_old_children_upgraded(durable: Harness) -> None:
    class Parent(Machine[None, list[Any]]):
        @step
        async def begin(self, ctx: Context[None]) -> Outcome[list[Any]]:
            return ScheduleChildren([Spec(Worn, 3)], then=self.join)

        @step
        async def join(self, ctx: Context[None]) -> Outcome[list[Any]]:
            return Done([(child.state, child.result) for child in ctx.children])

    class Renewed(Machine[list[int], int], name="worn", version=2):
        upgrades = Picky.wrap

        @step
        async def run(self, ctx: Context[list[int]]) -> Outcome[int]:
            return Done(ctx.state[0] + 1)

    durable.use(Parent)
    parent = durable.insert(Parent, None)
    with pytest.raises(AssertionError):
        durable.drain(max_steps=1)
    durable._stepper.registry._machines.pop(("worn", 1))
    durable.use(Renewed)
    durable.drain()
    durable.assert_done(parent, [[[3], 4]])


@pytest.mark.clause("VER-5")
async def test_clients_read_old_instances_upgraded(durable_dsn: str) -> None:
    async with AsyncClient(durable_dsn) as client:
        ref = await client.insert(Booking, Guest("Ada Lovelace", 2))
        read = await client.get(Ref(BookingV2, ref.id))
        assert read is not None
        assert (read.version, read.state) == (1, GuestV2("Ada", "Lovelace", 2))
        broken = await client.insert(Spec(Booking, Guest("Ada")).definition, {"name": "Ada", "nights": 1})
        assert [each.state for each in await client.list(BookingV2)] == [
            GuestV2("Ada", "", 1),
            GuestV2("Ada", "Lovelace", 2),
        ]
        assert broken.id > ref.id


@pytest.mark.clause("VER-5")
async def test_explain_counts_workers_that_upgrade(durable_dsn: str) -> None:
    async with Worker([BookingV3], dsn=durable_dsn, settings=CALM) as worker:
        (info,) = await worker.workers()
        assert set(info.machines) == {("booking", 3), ("booking", 1), ("booking", 2)}
        ref = await worker.insert(Booking, Guest("Ada"))
        assert (await worker.wait(ref, until="parked", timeout=PATIENCE)).status is Status.AWAITING_SIGNAL
        assert [type(each).__name__ for each in (await worker.explain(ref)).reasons] == ["AwaitingSignals"]
