"""Machines: names, state and result types, versions."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gen_durable import (
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    Stop,
    Worker,
    step,
)
from gen_durable.errors import DuplicateMachineError
from gen_durable.testing import Harness
from tests.support.machines import Say, probe
from tests.support.rows import SqlConnection
from tests.support.settings import CALM


class Order(msgspec.Struct):
    number: int
    paid: bool = False


class Receipt(msgspec.Struct):
    number: int


class Shop(Machine[Order, Receipt]):
    @step
    async def open(self, ctx: Context[Order]) -> Outcome:
        return Next(self.close, Order(ctx.state.number, paid=True))

    @step
    async def close(self, ctx: Context[Order]) -> Outcome[Receipt]:
        assert isinstance(ctx.state, Order)
        return Done(Receipt(ctx.state.number))


@pytest.mark.clause("MCH-1")
def test_machine_is_named_after_its_class_by_default(durable: Harness, sql: SqlConnection) -> None:
    class Named(Machine[int], name="billing.charge.v1", version=3, queue="money"):
        @step
        async def run(self, ctx: Context[int]) -> Outcome[None]:
            return Done()

    assert sql.columns(durable.insert(Say, "hi").id, "fsm fsm_version queue") == ("Say", 1, "default")
    named = durable.insert(Named, 1)
    assert sql.columns(named.id, "fsm fsm_version queue") == ("billing.charge.v1", 3, "money")


@pytest.mark.clause("MCH-2")
def test_instance_begins_at_the_first_or_the_initial_step(durable: Harness, sql: SqlConnection) -> None:
    class Marked(Machine[int]):
        @step
        async def first(self, ctx: Context[int]) -> Outcome[None]:
            return Stop("not here")

        @step(initial=True)
        async def second(self, ctx: Context[int]) -> Outcome[None]:
            return Done()

    assert sql.columns(durable.insert(Shop, Order(1)).id, "step") == ("open",)
    assert sql.columns(durable.insert(Marked, 1).id, "step") == ("second",)


@pytest.mark.clause("MCH-3", "MCH-6")
def test_state_and_result_are_stored_as_json_and_read_typed(durable: Harness, sql: SqlConnection) -> None:
    ref = durable.insert(Shop, Order(42))
    durable.drain()
    assert sql.columns(ref.id, "state result") == ({"number": 42, "paid": True}, {"number": 42})
    assert durable.assert_done(ref) == Receipt(42)
    assert not hasattr(Context, "result")


@pytest.mark.clause("MCH-4")
def test_untyped_state_is_a_dict(durable: Harness) -> None:
    class Free(Machine):
        @step
        async def run(self, ctx: Context[dict[str, Any]]) -> Outcome[Any]:
            return Done(ctx.state | {"b": 2})

    ref = durable.insert(Free, {"a": 1})
    durable.drain()
    assert durable.assert_done(ref) == {"a": 1, "b": 2}


@pytest.mark.clause("MCH-8")
def test_context_of_step_and_handle_have_the_same_fields(durable: Harness) -> None:
    fields = {
        *("id", "machine", "version", "step", "attempt", "step_seq", "idempotency_key", "state", "raw_state"),
        *(
            "awaited",
            "inbox",
            "timed_out",
            "failure",
            "children",
            "parent_id",
            "correlation_key",
            "max_attempts",
        ),
        *("progress", "checkpoint", "checkpoint_sync", "last_checkpoint"),
        *("publish", "publish_sync", "close_stream", "close_stream_sync"),
        *("cancellation", "cancelled", "raise_if_cancelled", "emit", "emitted", "fire_time", "resources"),
    }
    offered = {name for name in dir(Context) if not name.startswith("_")}
    seen: list[Context[int]] = []

    def one(ctx: Context[int]) -> Outcome[Any]:
        seen.append(ctx)
        raise ValueError

    def handle(error: Exception, ctx: Context[int]) -> Outcome[Any]:
        seen.append(ctx)
        return Done(0)

    durable.insert(probe(one, handle=handle), 7, correlation_key="order:7")
    durable.drain()
    assert offered == fields
    assert [(ctx.machine, ctx.version, ctx.step, ctx.state) for ctx in seen] == [("Probe", 1, "one", 7)] * 2
    assert msgspec.structs.asdict(seen[0]).keys() == msgspec.structs.asdict(seen[1]).keys()
    assert seen[1].correlation_key == "order:7"


@pytest.mark.clause("MCH-9")
def test_another_process_continues_an_instance(durable_dsn: str, sql: SqlConnection) -> None:
    with Harness(durable_dsn) as first:
        ref = first.insert(machine := probe(lambda ctx: Next("two", delay=CALM.lease)), 7)
        first.drain(collapse=False)
    sql("update gen_durable.gen_durable set eligible_at = now()")
    with Harness(durable_dsn) as second:
        second.use(machine)
        second.drain()
        second.assert_done(ref, 7)


class Old(Machine[int, str], name="Deployed", version=1):
    @step
    async def run(self, ctx: Context[int]) -> Outcome[str]:
        return Done("old")


class New(Machine[int, str], name="Deployed", version=2):
    @step
    async def run(self, ctx: Context[int]) -> Outcome[str]:
        return Done("new")


@pytest.mark.clause("VER-3")
def test_two_machines_of_one_name_and_version_are_rejected() -> None:
    class Again(Machine[int, str], name="Deployed", version=2):
        @step
        async def run(self, ctx: Context[int]) -> Outcome[str]:
            return Done("another")

    Worker([Old, New])
    with pytest.raises(DuplicateMachineError, match="Deployed"):
        Worker([New, Again])
