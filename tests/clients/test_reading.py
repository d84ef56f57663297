"""get, list, count and children, through both clients."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gen_durable import Context, Done, Instance, Machine, Outcome, Ref, Spec, Status, Worker, step
from gen_durable.errors import UsageError
from tests.clients.machines import Checkout, Double, Family, Number, Order, Ping, Refund


async def finish(db: Any, id: int, status: str = "done") -> None:
    await db.execute(
        "update gen_durable.gen_durable"
        "   set status = $2::text::gen_durable.durable_status, rest_step = step, finished_at = now() where id = $1",
        id,
        status,
    )


async def test_get_of_an_unknown_target_returns_none(client: Any) -> None:
    for target in (4711, "order:1", Ref(Checkout, 4711), Ref(Checkout, "order:1")):
        assert await client.get(target) is None


async def test_get_by_ref_is_typed_and_by_id_is_plain_json(client: Any) -> None:
    order = await client.insert(Checkout, Order(42), correlation_key="order:42")
    typed = [
        await client.get(target) for target in (order, Ref(Checkout, "order:42"), Ref(Checkout, order.id))
    ]
    plain = [await client.get(target) for target in (order.id, "order:42")]
    assert [instance.state for instance in typed] == [Order(42)] * 3
    assert [instance.state for instance in plain] == [{"number": 42, "paid": False}] * 2
    assert {instance.id for instance in typed + plain} == {order.id}


async def test_ref_of_another_machine_is_rejected(client: Any) -> None:
    order = await client.insert(Checkout, Order(42))
    with pytest.raises(
        UsageError, match=f"instance {order.id} is a Checkout, not a Refund; use the machine that it"
    ):
        await client.get(Ref(Refund, order.id))


async def test_get_by_key_prefers_the_live_instance(client: Any, db: Any) -> None:
    ids = []
    for number in range(3):
        ids.append((await client.insert(Checkout, Order(number), correlation_key="k")).id)
        if number < 2:
            await finish(db, ids[-1])
    assert (await client.get("k")).id == ids[2]
    await client.insert(Checkout, Order(3), correlation_key="k", correlation_scope=[])
    assert (await client.get("k")).id == ids[2], "the newer one does not hold the key"
    await finish(db, ids[2])
    assert (await client.get("k")).state["number"] == 3


async def test_list_pages_newest_first_without_gap_or_overlap(client: Any) -> None:
    inserted = await client.insert_all([Spec(Number, number) for number in range(25)])
    pages = []
    before = None
    while page := await client.list(limit=10, before=before):
        pages.append([instance.id for instance in page])
        before = page[-1].id
        await client.insert(Number, 99)  # later inserts do not shift the pages
    assert [len(page) for page in pages] == [10, 10, 5]
    assert [id for page in pages for id in page] == [one.id for one in reversed(inserted)]
    assert len(await client.list()) == 28


Wanted = dict[str, Any]
FILTERS: list[tuple[Any, Wanted, list[str]]] = [
    (None, {}, ["new", "old", "child", "refund", "keyed"]),
    (Checkout, {}, ["new", "old", "child"]),
    ("Refund", {}, ["refund"]),
    ("unknown", {}, []),
    (None, {"version": 2}, ["new", "old", "child"]),
    (None, {"version": 9}, []),
    (None, {"step": "ship"}, ["old"]),
    (Checkout, {"step": Checkout.ship}, ["old"]),
    (None, {"status": "done"}, ["old"]),
    (None, {"status": Status.FAILED}, ["refund"]),
    (None, {"status": ["failed", Status.DONE]}, ["old", "refund"]),
    (None, {"status": []}, []),
    (None, {"status": "pending"}, ["new", "child", "keyed"]),
    (None, {"status": "leased"}, []),
    (None, {"status": "succeeded"}, ["old"]),
    (None, {"status": ["succeeded", "failed", Status.EXECUTING]}, ["old", "refund"]),
    (None, {"queue": "checkout"}, ["new", "child"]),
    (None, {"queue": "slow"}, ["old"]),
    (None, {"correlation_key": "order:1"}, ["old"]),
    (None, {"unique_key": "u"}, ["refund"]),
    (None, {"unique_key": b"u"}, ["refund"]),
    (None, {"concurrency_key": ("tenant", 7)}, ["keyed"]),
    (None, {"concurrency_key": "tenant:7"}, ["keyed"]),
    (None, {"inserted_after": datetime(2021, 1, 1, tzinfo=UTC)}, ["new", "child", "refund", "keyed"]),
    (None, {"inserted_before": datetime(2021, 1, 1, tzinfo=UTC)}, ["old"]),
    (None, {"inserted_before": datetime(2020, 1, 1, tzinfo=UTC)}, []),
    (
        None,
        {
            "inserted_after": datetime(2020, 1, 1, tzinfo=UTC),
            "inserted_before": datetime(2020, 1, 2, tzinfo=UTC),
        },
        ["old"],
    ),
    (Checkout, {"version": 2, "queue": "checkout", "status": "runnable"}, ["new", "child"]),
]


async def test_list_filters_combine(client: Any, db: Any) -> None:
    answers = await client.insert_all(
        [
            Spec(Checkout, Order(1)),
            Spec(Checkout, Order(2), step="ship", queue="slow", correlation_key="order:1"),
            Spec(Checkout, Order(3)),
            Spec(Refund, Order(4), unique_key="u"),
            Spec(Ping, concurrency_key=("tenant", 7)),
        ]
    )
    ids = dict(zip(["new", "old", "child", "refund", "keyed"], [one.id for one in answers], strict=True))
    await finish(db, ids["old"])
    await finish(db, ids["refund"], "failed")
    await db.execute(
        "update gen_durable.gen_durable set inserted_at = '2020-01-01 00:00+00' where id = $1", ids["old"]
    )
    await db.execute(
        "update gen_durable.gen_durable set parent_id = $2 where id = $1", ids["child"], ids["new"]
    )
    of_parent: list[tuple[Any, Wanted, list[str]]] = [
        (None, {"parent": ids["new"]}, ["child"]),
        (None, {"parent": answers[0]}, ["child"]),
        (None, {"parent": answers[1]}, []),
    ]
    for machine, wanted, names in FILTERS + of_parent:
        found = await client.list(machine, **wanted)
        expected = sorted((ids[name] for name in names), reverse=True)
        assert [instance.id for instance in found] == expected, (machine, wanted)
        assert await client.count(machine, **wanted) == len(names), (machine, wanted)


async def test_list_skips_rows_of_other_versions(client: Any) -> None:
    class Older(Machine[int, int], name="Checkout", version=1):
        @step
        async def start(self, ctx: Context[int]) -> Outcome[int]:
            return Done(ctx.state)

    await client.insert_all([Spec(Older, 7), Spec(Checkout, Order(1))])
    assert [instance.state for instance in await client.list(Checkout)] == [Order(1), 7]


async def test_deleted_instances_are_not_listed(client: Any, db: Any) -> None:
    order = await client.insert(Checkout, Order(1))
    await db.execute("update gen_durable.gen_durable set deleted_at = now()")
    assert (await client.list(), await client.count()) == ([], 0)
    assert await client.get(order) is None
    assert (await client.get(order, with_deleted=True)).deleted_at is not None
    assert [one.id for one in await client.list(with_deleted=True)] == [order.id]
    assert await client.count(with_deleted=True) == 1


BAD: list[tuple[Wanted, str]] = [
    (
        {"sttus": "done"},
        r"there is no filter 'sttus'; did you mean 'status'\? The filters are version, step, status",
    ),
    ({"status": "dnoe"}, "'dnoe' is not a status; the statuses are runnable, executing"),
    ({"version": 0}, "version is 0; give a number from 1 to"),
    ({"version": "2"}, "version is of type str; give a whole number"),
    ({"queue": ""}, "queue is empty; give 1 to 255 bytes"),
    ({"correlation_key": ""}, "correlation_key is empty"),
    ({"unique_key": ""}, "unique_key is empty"),
    ({"step": 7}, "a value of type int is not a step"),
    ({"concurrency_key": ("a", "b", "c")}, r"concurrency_key is a tuple of 3; give \(name, partition\)"),
    ({"parent": Ref(Checkout, "k")}, "parent is given by its key; use its id"),
    ({"inserted_after": datetime(2020, 1, 1)}, r"inserted_after has no time zone .*; write datetime"),  # noqa: DTZ001
    ({"inserted_before": "yesterday"}, "inserted_before is of type str; write datetime"),
]


async def test_invalid_filter_is_rejected(client: Any) -> None:
    for name, problem in [
        ("", "the machine is empty"),
        ("a\0", "contains a NUL"),
        ("\ud800", "a lone surrogate"),
    ]:
        for verb in (client.list, client.count):
            with pytest.raises(UsageError, match=problem):
                await verb(name)
    for wanted, problem in BAD:
        for verb in (client.list, client.count):
            with pytest.raises(UsageError, match=problem):
                await verb(**wanted)
    paging: list[tuple[Wanted, str]] = [
        ({"limit": 0}, "limit is 0; give a number from 1 to 10000"),
        ({"limit": 10_001}, "limit is 10001"),
        ({"before": 0}, "the id is 0"),
        ({"before": "x"}, "the id is of type str"),
    ]
    for options, problem in paging:
        with pytest.raises(UsageError, match=problem):
            await client.list(**options)


async def test_children_returns_the_last_round_or_all(client: Any, durable_dsn: str) -> None:
    async with Worker([Family, Double], dsn=durable_dsn) as worker:
        family = await worker.insert(Family, [1, 2, 3])
        assert (await worker.wait(family, timeout=timedelta(seconds=20))).result == 24
    parent: Instance[Any, Any] = await client.get(family)
    assert (parent.children_pending, parent.step_seq) == (0, 3)

    def numbers(found: Any) -> list[Any]:
        return [(child.state, child.result) for child in found]

    assert numbers(await client.children(family)) == [(2, 4), (4, 8), (6, 12)]
    assert numbers(await client.children(family, every=True)) == [
        (1, 2),
        (2, 4),
        (3, 6),
        (2, 4),
        (4, 8),
        (6, 12),
    ]
    assert {child.parent_id for child in await client.children(family.id)} == {family.id}
    assert await client.count(parent=family) == 6


async def test_children_of_an_unknown_key_raise(client: Any) -> None:
    order = await client.insert(Checkout, Order(1), correlation_key="k")
    assert [await client.children(target) for target in (order, "k", 4711)] == [[], [], []]
    with pytest.raises(
        LookupError, match="cannot list the children: no instance has correlation_key 'unknown'"
    ):
        await client.children("unknown")
