"""Streams are appended to and read through primary keys, however many items the table has."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from gen_durable._db import outbox, streams
from tests.plans.explain import Explainer, check
from tests.plans.statements import EXECUTING, statement

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Reader(NamedTuple):
    id: int
    stream: str = "tokens"
    after: int = 0
    closing: int | None = None


@pytest.mark.parametrize(("executions", "items"), [(1, 1), (1, 1000), (200, 5)])
async def test_append_uses_primary_keys(explainer: Explainer, executions: int, items: int) -> None:
    # The lease token of a row is its id.
    chunks = [
        streams.Chunk(id, id, 1, "tokens", 1, [f"{n}" for n in range(items)]) for id in EXECUTING[:executions]
    ]
    appended, (found,) = await explainer.run(streams.append(chunks))
    assert appended == (set(), set())
    check(found, {"gen_durable_pkey", "stream_items_pkey"}, blocks=60 * executions + 8 * executions * items)


@pytest.mark.parametrize("count", [1, 500])
async def test_read_of_waiting_streams_is_two_probes_each(explainer: Explainer, count: int) -> None:
    readers = [Reader(id, after=20) for id in range(10_003, 10_003 + 100 * count, 100)]
    _, (found,) = await explainer.run(streams.read(readers, 10))
    check(found, {"gen_durable_pkey", "stream_items_pkey"}, blocks=12 * count)


async def test_page_of_a_stream_reads_its_items_only(explainer: Explainer) -> None:
    rows, (found,) = await explainer.run(streams.read([Reader(10_003, after=5)], 10))
    assert [row["position"] for _, row in rows] == list(range(6, 16))
    check(found, {"gen_durable_pkey", "stream_items_pkey"}, blocks=20)


async def test_items_of_deleted_instances_are_found_by_index(explainer: Explainer) -> None:
    _, (found,) = await explainer.run(streams.delete([10_003, 10_103]))
    check(found, {"stream_items_pkey"}, blocks=400)


async def test_orphaned_items_are_found_block_by_block(explainer: Explainer) -> None:
    rows, (found,) = await explainer.run(statement("collect.sql", "sweep_items", block=0, blocks=4))
    assert rows[0]["deleted"] == 0
    check(found, {"gen_durable_pkey"}, blocks=2500)


async def test_tail_of_the_outbox_walks_the_primary_key(explainer: Explainer) -> None:
    newest, (found,) = await explainer.run(outbox.newest(0))
    assert newest is not None
    check(found, {"outbox_pkey"}, blocks=10)
    wanted = {"instance_id": None, "sink": None, "state": None}
    rows, (found,) = await explainer.run(outbox.tail(wanted, 5000, newest[0], 50))
    assert [row["id"] for row in rows] == list(range(5001, 5051))
    check(found, {"outbox_pkey"}, blocks=80)
