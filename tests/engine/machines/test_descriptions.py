"""What workers store about their machines in the table `machines`."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pydantic
import pytest

from gen_durable import Context, Done, Graph, Machine, Next, Outcome, Signal, Worker, graph, job, step
from gen_durable._core.schemas import violation
from gen_durable._graph.description import describe
from tests.support.settings import CALM


class Order(msgspec.Struct):
    number: int
    note: str = ""


class Odd:
    """A type that msgspec reads by a hook, and that has no JSON Schema."""

    @classmethod
    def model_validate_json(cls, text: bytes) -> Odd:
        return cls()

    @classmethod
    def model_json_schema(cls) -> dict[str, Any]:
        raise RuntimeError("no schema")


class Shop(Machine[Order, int]):
    paid = Signal("paid", Order)
    closed = Signal("closed")
    odd = Signal("odd", Odd)

    @step
    async def charge(self, ctx: Context[Order]) -> Outcome[int]:
        return Next(self.ship)

    @step
    async def ship(self, ctx: Context[Order]) -> Outcome[int]:
        return Done(ctx.state.number)


class OddShop(Machine[Odd, None]):
    @step
    async def only(self, ctx: Context[Odd]) -> Outcome[None]:
        return Done(None)


@job("mail.send")
async def send(order: Order) -> None:
    pass


async def stored(db: Any, name: str) -> Any:
    return await db.fetchrow("select *, xmin::text from gen_durable.machines where fsm = $1", name)


@pytest.mark.clause("GRAPH-1")
async def test_worker_stores_steps_graph_and_schemas_of_its_machines(durable_dsn: str, db: Any) -> None:
    async with Worker([Shop, send], dsn=durable_dsn, settings=CALM):
        pass
    shop = await stored(db, "Shop")
    assert json.loads(shop["steps"]) == ["charge", "ship"]
    assert msgspec.json.decode(shop["graph"], type=Graph) == graph(Shop)
    definition = json.loads(shop["state_schema"])["$defs"]["Order"]
    assert (definition["required"], set(definition["properties"])) == (["number"], {"number", "note"})
    signals = json.loads(shop["signals"])
    assert set(signals) == {"paid", "closed", "odd"}
    assert signals["paid"]["$defs"]["Order"]["required"] == ["number"]
    assert (signals["closed"], signals["odd"]) == ({"type": "null"}, None)
    mail = await stored(db, "mail.send")
    assert mail["signals"] is None
    assert json.loads(mail["steps"]) == ["run"]
    assert msgspec.json.decode(mail["graph"], type=Graph).steps == ("run",)


class Nested(msgspec.Struct):
    orders: list[Order]
    by_name: dict[str, Order]
    properties: Order | None = None
    free: dict[str, Any] = {}


class Line(pydantic.BaseModel):
    number: int


class Extra(pydantic.BaseModel, extra="allow"):
    order: Line


@pytest.mark.clause("GRAPH-1")
@pytest.mark.parametrize(
    ("type_", "value", "problem"),
    [
        (Nested, {"orders": [], "by_name": {}, "free": {"any": {"thing": 1}}}, None),
        (Nested, {"orders": [], "by_name": {"any": {"number": 1}}, "properties": {"number": 1}}, None),
        (
            Nested,
            {"orders": [], "by_name": {}, "ordrs": 1},
            "at $: the key 'ordrs' is unknown; did you mean 'orders'?",
        ),
        (
            Nested,
            {"orders": [{"number": 1, "nte": ""}], "by_name": {}},
            "at $.orders[0]: the key 'nte' is unknown; did you mean 'note'?",
        ),
        (
            Nested,
            {"orders": [], "by_name": {"a": {"x": 1}}},
            "at $.by_name.a: the key 'number' is missing",
        ),
        (Nested, {}, "at $: the keys 'orders', 'by_name' are missing"),
        (Order | None, None, None),
        (Extra, {"order": {"number": 1}, "more": 2}, None),
        (Extra, {"order": {"number": 1, "more": 2}}, "at $.order: the key 'more' is unknown"),
    ],
)
def test_stored_schema_refuses_unknown_keys(type_: Any, value: Any, problem: str | None) -> None:
    class Typed(Machine[type_, None]):
        @step
        async def only(self, ctx: Context[Any]) -> Outcome[None]:
            return Done(None)

    assert violation(value, describe(Typed).state_schema) == problem


async def test_state_type_without_a_schema_does_not_stop_the_worker(durable_dsn: str, db: Any) -> None:
    async with Worker([OddShop], dsn=durable_dsn, settings=CALM):
        pass
    row = await stored(db, "OddShop")
    assert row["state_schema"] is None
    assert json.loads(row["steps"]) == ["only"]


async def test_unreadable_source_does_not_stop_the_worker(durable_dsn: str, db: Any) -> None:
    names: dict[str, Any] = {}
    text = (
        "from gen_durable import *\n"
        "class Typed(Machine[int, int]):\n"
        "    @step\n"
        "    async def first(self, ctx): return Next(self.second)\n"
        "    @step\n"
        "    async def second(self, ctx): return Done(1)\n"
    )
    exec(text, names)
    async with Worker([names["Typed"]], dsn=durable_dsn, settings=CALM):
        pass
    row = await stored(db, "Typed")
    found = msgspec.json.decode(row["graph"], type=Graph)
    assert found.unread == ("first", "second")
    assert [(edge.source, edge.target, edge.kind) for edge in found.edges] == [
        ("first", "second", "possible")
    ]


async def test_restarted_worker_writes_only_changes(durable_dsn: str, db: Any) -> None:
    async with Worker([Shop], dsn=durable_dsn, settings=CALM):
        pass
    before = await stored(db, "Shop")
    async with Worker([Shop], dsn=durable_dsn, settings=CALM):
        pass
    assert await stored(db, "Shop") == before
    await db.execute("update gen_durable.machines set steps = '[]', digest = null")
    async with Worker([Shop], dsn=durable_dsn, settings=CALM):
        pass
    assert json.loads((await stored(db, "Shop"))["steps"]) == ["charge", "ship"]
