"""A job is a machine of one step: registration, children, versions."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import msgspec
import pytest

from gen_durable import (
    Await,
    Context,
    Done,
    Machine,
    Outcome,
    ScheduleChildren,
    Signal,
    Spec,
    Status,
    Worker,
    job,
    step,
)
from gen_durable.errors import DuplicateMachineError, UsageError
from gen_durable.testing import DrainCounts, Harness
from tests.jobs import billing, elsewhere
from tests.jobs.billing import Charge, Invoice, charge, sweep
from tests.support.rows import row_of
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE


class Refund(msgspec.Struct):
    order: int
    cents: int = 0


@job("growth.refund.v1", queue="growth")
async def refund(refund: Refund, ctx: Context[Refund]) -> str:
    if ctx.attempt == 0:
        raise ConnectionError("the bank does not answer")
    return f"refunded {refund.order}"


class GrownRefund(Machine[Refund, str], name="growth.refund.v1", queue="growth"):
    """A later version of the job as a machine; it also runs instances inserted before."""

    approved = Signal("approved", str)

    @step
    async def run(self, ctx: Context[Refund]) -> Outcome[str]:
        return Await(self.approved, then=self.pay)

    @step
    async def pay(self, ctx: Context[Refund]) -> Outcome[str]:
        who = ctx.awaited.get(self.approved)
        return Done(f"refunded {ctx.state.order} by {who}")


@pytest.mark.clause("JOB-8")
async def test_machine_can_replace_a_job(durable_dsn: str, db: Any) -> None:
    async with Worker([refund], dsn=durable_dsn, settings=CALM) as old:
        retried = await old.insert(refund, Refund(1))
        while (await row_of(db, retried.id))["attempt"] != 1:
            pass
        waiting = await old.insert(refund, Refund(2), schedule_in=PATIENCE)
    await db.execute("update gen_durable.gen_durable set eligible_at = now()")
    async with Worker([GrownRefund], dsn=durable_dsn, settings=CALM) as new:
        fresh = await new.insert(GrownRefund, Refund(3))
        for ref in (retried, waiting, fresh):
            parked = await new.wait(ref.id, timeout=PATIENCE, until="parked")
            assert (parked.status, parked.awaits) == (Status.AWAITING_SIGNAL, ("approved",))
            await new.signal(ref.id, GrownRefund.approved, "the boss")
        ended = [(await new.wait(ref.id, timeout=PATIENCE)).result for ref in (retried, waiting, fresh)]
    assert ended == [f"refunded {order} by the boss" for order in (1, 2, 3)]


def test_job_can_replace_a_machine(durable: Harness) -> None:
    ref = durable.insert(GrownRefund, Refund(4))
    durable.use(refund)
    durable.drain()
    assert durable.assert_done(ref) == "refunded 4"


class Close(Machine[list[int], dict[str, Any]]):
    """Closes a month: each invoice is a job, with a typed result."""

    @step
    async def split(self, ctx: Context[list[int]]) -> Outcome:
        charges = [Spec(charge, Invoice(number, cents=1 if number else -1)) for number in ctx.state]
        return ScheduleChildren([*charges, Spec(sweep, priority=-1)], then=self.join)

    @step
    async def join(self, ctx: Context[list[int]]) -> Outcome[dict[str, Any]]:
        charges: list[Charge] = ctx.children.results(charge)
        (swept,) = ctx.children.results(sweep)
        return Done(
            {
                "charges": [each.id.partition("/")[0] for each in charges],
                "swept": swept,
                "states": [type(child.state).__name__ for child in ctx.children],
                "failed": [child.last_error for child in ctx.children.failed],
            }
        )


async def test_jobs_are_children_with_typed_results(durable_dsn: str) -> None:
    async with Worker([Close, charge, sweep], dsn=durable_dsn, settings=CALM) as worker:
        ref = await worker.insert(Close, [1, 2, 0])
        assert (await worker.wait(ref, timeout=PATIENCE)).result == {
            "charges": ["1", "2"],
            "swept": 7,
            "states": ["Invoice", "Invoice", "Invoice", "NoneType"],
            "failed": ["card declined"],
        }
        kinds = {child.machine for child in await worker.children(ref)}
    assert kinds == {"billing.charge.v1", "billing.sweep.v1"}


def test_harness_registers_jobs_scheduled_as_children(durable: Harness) -> None:
    ref = durable.insert(Close, [1])
    assert durable.drain() == DrainCounts(children=1, done=3)
    assert durable.assert_done(ref)["swept"] == 7


def test_parent_waits_for_retries_of_its_children(durable: Harness) -> None:
    @job("growth.stubborn.v1")
    def stubborn(number: int, ctx: Context[int]) -> int:
        if ctx.attempt < number:
            raise ValueError("not yet")
        return number

    class Parent(Machine[None, list[int]]):
        @step
        async def split(self, ctx: Context[None]) -> Outcome[list[int]]:
            return ScheduleChildren([Spec(stubborn, n) for n in (0, 1, 2, 3)], then=self.join)

        @step
        async def join(self, ctx: Context[None]) -> Outcome[list[int]]:
            return Done(ctx.children.results(stubborn))

    parent = durable.insert(Parent)
    assert durable.drain() == DrainCounts(children=1, retry=5, done=4, stopped=1)
    assert durable.assert_done(parent) == [0, 1, 2]


# What a worker registers


def names(*machines: Any) -> list[str]:
    return sorted(machine.name for machine in Worker(machines).machines)


def test_worker_registers_the_jobs_defined_in_a_module() -> None:
    ours = ["charge", "charge_in_words", "flaky", "record", "sweep", "where"]
    assert names(billing) == [f"billing.{name}.v1" for name in ours]
    assert names(elsewhere) == ["ops.notify.v1"], "what another module imports is still at home here"
    assert names(billing, elsewhere)[-1] == "ops.notify.v1"


def test_worker_ignores_jobs_reexported_by_a_package() -> None:
    package = ModuleType("tests.jobs")
    vars(package).update(charge=charge)
    with pytest.raises(UsageError, match=r"module tests\.jobs defines no machine"):
        Worker([package])


def test_job_registered_twice_counts_once() -> None:
    assert names(charge, charge) == ["billing.charge.v1"]
    assert names(billing, charge, billing.alias) == names(billing)


def test_two_jobs_of_one_name_and_version_are_rejected() -> None:
    @job("billing.charge.v1")
    async def other(invoice: Invoice) -> Charge:
        return Charge("")

    @job("billing.charge.v1", version=2)
    async def second(invoice: Invoice) -> Charge:
        return Charge("")

    class Grown(Machine[Invoice, Charge], name="billing.charge.v1"):
        @step
        async def run(self, ctx: Context[Invoice]) -> Outcome[Charge]:
            return Done(Charge(""))

    for double in (other, Grown):
        with pytest.raises(
            DuplicateMachineError, match=r"'billing.charge.v1' version 1: tests\.jobs\.billing\.charge and"
        ):
            Worker([charge, double])
    assert names(charge, second) == ["billing.charge.v1", "billing.charge.v1"]


async def test_worker_runs_several_versions_of_a_job(durable_dsn: str) -> None:
    @job("growth.greet.v1")
    async def first(name: str) -> str:
        return f"hello {name}"

    @job("growth.greet.v1", version=2)
    async def second(names: list[str]) -> str:
        return f"hello {' and '.join(names)}"

    async with Worker([first, second], dsn=durable_dsn, settings=CALM) as worker:
        old, new = await worker.insert(first, "Ada"), await worker.insert(second, ["Ada", "Max"])
        assert (await worker.wait(old, timeout=PATIENCE)).result == "hello Ada"
        assert (await worker.wait(new, timeout=PATIENCE)).result == "hello Ada and Max"
