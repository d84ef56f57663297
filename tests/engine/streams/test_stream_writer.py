"""The batches of the stream writer, without a database."""

from __future__ import annotations

import inspect
from typing import Any

from gen_durable._core.model import Execution
from gen_durable._db.plan import Plan
from gen_durable._runtime.stream_writer import StreamWriter
from gen_durable._runtime.wake import Wakes

KIB = 1024


class Server:
    """Takes appends instead of PostgreSQL."""

    def __init__(self) -> None:
        self.locked: set[int] = set()
        self.batches: list[list[Any]] = []

    async def run(self, plan: Plan[Any]) -> Any:
        next(plan)
        chunks = inspect.getgeneratorlocals(plan)["chunks"]
        self.batches.append(chunks)
        rows = [
            {"place": place, "is_locked": True}
            for place, chunk in enumerate(chunks, 1)
            if chunk.id in self.locked
        ]
        try:
            plan.send(rows)
        except StopIteration as end:
            return end.value

    def items(self, id: int) -> list[tuple[str, int, str]]:
        """The items of an instance in all batches."""
        return [
            (chunk.stream, number, value)
            for batch in self.batches
            for chunk in batch
            if chunk.id == id
            for number, value in enumerate(chunk.values, chunk.first)
        ]


def execution(id: int) -> Execution:
    return Execution(id, 7, "Chat", 1, "answer", 0, 0, "{}", "default")


async def write_all(writer: StreamWriter) -> None:
    while writer._pending:
        await writer.write()


async def test_batches_are_bounded_by_the_size_of_their_items() -> None:
    server = Server()
    writer = StreamWriter(server.run, Wakes())
    for id in range(1, 41):
        while writer.add(execution(id), "tokens", "x" * 64 * KIB):
            pass
    await write_all(writer)
    sizes = [sum(len(value) for chunk in batch for value in chunk.values) for batch in server.batches]
    assert sum(sizes) == 40 * 512 * KIB
    assert max(sizes) <= 4608 * KIB


async def test_locked_row_is_tried_with_one_item() -> None:
    server = Server()
    server.locked = {1}
    writer = StreamWriter(server.run, Wakes())
    for number in range(1, 101):
        writer.add(execution(1), "tokens", str(number))
        writer.add(execution(1), "steps", str(number))
    await writer.write()
    assert len(server.items(1)) == 200
    server.batches.clear()
    for _ in range(3):
        await writer.write()
    assert len(server.items(1)) == 3
    server.locked.clear()
    server.batches.clear()
    await write_all(writer)
    for stream in ("tokens", "steps"):
        found = [(number, value) for name, number, value in server.items(1) if name == stream]
        assert found == [(number, str(number)) for number in range(1, 101)]
    await writer.flush(execution(1).lease)
