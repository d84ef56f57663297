"""Large inboxes and fan-ins: awaited payloads are loaded with the step, others on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import pytest

from gen_durable import (
    Await,
    Context,
    Done,
    Machine,
    Next,
    NotLoadedError,
    Outcome,
    ScheduleChildren,
    Signal,
    Spec,
    Status,
    Worker,
    step,
)
from gen_durable._core.model import ChildContent, Execution
from gen_durable._db import pick as picks
from gen_durable._db.failures import StatementError
from gen_durable._db.pool import Database
from gen_durable._loading import chunks
from gen_durable._runtime.step_channel import WorkerChannel
from gen_durable.testing import AsyncHarness
from tests.support.engine_plans import entry, flushed, inserted, new, picked
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE

LARGE = 400_000


class Sized(NamedTuple):
    id: int
    size: int


class Photo(Machine[int, str]):
    """Returns 400,000 bytes; three such results exceed the budget of a pick."""

    @step
    async def scale(self, ctx: Context[int]) -> Outcome[str]:
        if ctx.state < 0:
            raise ValueError("broken")
        return Done(str(ctx.state) * LARGE)


class Album(Machine[str, list[int]]):
    """Adds up the lengths of its children's results; the state names the method used to load them."""

    photos: ClassVar[tuple[int, ...]] = (1, 2, 3, 4)

    @step
    async def start(self, ctx: Context[str]) -> Outcome[list[int]]:
        then: Any = getattr(self, ctx.state)
        return ScheduleChildren([Spec(Photo, n) for n in self.photos], then=then)

    @step
    async def unloaded(self, ctx: Context[str]) -> Outcome[list[int]]:
        assert [child.status for child in ctx.children] == [Status.DONE] * 4
        assert not any(child.is_loaded for child in ctx.children)
        with pytest.raises(
            NotLoadedError, match=r"the result of Photo \d+ is not loaded; call `await ctx.children.load"
        ):
            ctx.children.results(Photo)
        with pytest.raises(NotLoadedError, match="the state of Photo"):
            _ = ctx.children[0].state
        return Done([])

    @step
    async def loaded(self, ctx: Context[str]) -> Outcome[list[int]]:
        await ctx.children.load(Photo)
        assert [child.state for child in ctx.children] == [1, 2, 3, 4]
        return Done([len(result) for result in ctx.children.results(Photo)])

    @step
    async def streamed(self, ctx: Context[str]) -> Outcome[list[int]]:
        lengths = [len(child.result or "") async for child in ctx.children.stream(Photo)]
        assert not any(child.is_loaded for child in ctx.children), "what was streamed is kept"
        return Done(lengths)

    @step
    def loaded_in_a_thread(self, ctx: Context[str]) -> Outcome[list[int]]:
        ctx.children.load_sync()
        return Done([len(result) for result in ctx.children.results(Photo)])

    @step
    def streamed_in_a_thread(self, ctx: Context[str]) -> Outcome[list[int]]:
        return Done([len(child.result or "") for child in ctx.children.stream_sync(Photo)])

    @step(pool="process")
    def streamed_in_a_process(self, ctx: Context[str]) -> Outcome[list[int]]:
        return Done([len(child.result or "") for child in ctx.children.stream_sync(Photo)])

    @step(pool="process")
    def loaded_in_a_process(self, ctx: Context[str]) -> Outcome[list[int]]:
        ctx.children.load_sync(Photo)
        return Done([len(result) for result in ctx.children.results(Photo)])

    @step
    async def blocking(self, ctx: Context[str]) -> Outcome[list[int]]:
        ctx.children.load_sync()
        return Done([])


WAYS = [
    "loaded",
    "streamed",
    "loaded_in_a_thread",
    "streamed_in_a_thread",
    "loaded_in_a_process",
    "streamed_in_a_process",
]


@pytest.mark.clause("CHD-18")
@pytest.mark.parametrize("way", WAYS)
async def test_results_of_a_large_fan_in_are_loaded_on_demand(durable_dsn: str, way: str) -> None:
    async with Worker([Album, Photo], dsn=durable_dsn, settings=CALM) as worker:
        album = await worker.wait(await worker.insert(Album, way), timeout=PATIENCE)
    assert album.last_error is None
    assert album.result == [LARGE] * 4


@pytest.mark.clause("CHD-18")
@pytest.mark.parametrize("way", [way for way in WAYS if "process" not in way])
async def test_harness_steps_can_load_results(async_durable: AsyncHarness, way: str) -> None:
    album = await async_durable.insert(Album, way)
    await async_durable.drain()
    assert async_durable.assert_done(album) == [LARGE] * 4


@pytest.mark.clause("CHD-18")
async def test_reading_an_unloaded_result_names_the_method_to_call(async_durable: AsyncHarness) -> None:
    album = await async_durable.insert(Album, "unloaded")
    await async_durable.drain()
    async_durable.assert_done(album)


async def test_blocking_load_on_the_event_loop_is_rejected(async_durable: AsyncHarness) -> None:
    album = await async_durable.insert(Album, "blocking")
    await async_durable.drain()
    async_durable.assert_failed(
        album, match=r"ctx.children.load_sync would block the event loop; .* use ctx.children.load$"
    )


async def test_errors_of_failed_children_need_no_loading(async_durable: AsyncHarness) -> None:
    class Broken(Album, name="Broken"):
        photos = (1, 2, 3, -1)

        @step
        async def unloaded(self, ctx: Context[str]) -> Outcome[list[int]]:
            (failed,) = ctx.children.failed
            assert (failed.result, failed.last_error) == (None, "ValueError: broken")
            return Done([])

    album = await async_durable.insert(Broken, "unloaded")
    await async_durable.drain()
    async_durable.assert_done(album)


async def test_parent_waits_for_a_child_retried_during_the_load(
    async_durable: AsyncHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    retried: list[int] = []
    children = WorkerChannel.children

    async def retry_first(
        self: WorkerChannel, execution: Execution, ids: Sequence[int]
    ) -> Mapping[int, ChildContent]:
        if not retried:
            retried.append(ids[3])
            await async_durable.retry(ids[3], state=4)
        return await children(self, execution, ids)

    class Half(Album, name="Half"):
        photos = (1, 2, 3, -1)

    monkeypatch.setattr(WorkerChannel, "children", retry_first)
    album = await async_durable.insert(Half, "loaded")
    await async_durable.drain()
    assert async_durable.assert_done(album) == [LARGE] * 4
    outcomes = [one.outcome for one in await async_durable.executions(album)]
    assert outcomes == ["schedule_children", "rejoin", "done"]


class Clerk(Machine[str, list[Any]]):
    """Awaits `paid`; its inbox also holds notes of 400,000 bytes."""

    paid = Signal("paid", int)
    note = Signal("note", str)

    @step
    async def start(self, ctx: Context[str]) -> Outcome[list[Any]]:
        then: Any = getattr(self, ctx.state)
        return Await(self.paid, then=then)

    @step
    async def ignores(self, ctx: Context[str]) -> Outcome[list[Any]]:
        assert self.note in ctx.inbox
        assert [message.size for message in ctx.inbox if message.name == "note"] == [LARGE + 2] * 3
        with pytest.raises(
            NotLoadedError, match=r"the payload of signal 'note' \(\d+, 400002 bytes\) is not loaded"
        ):
            ctx.inbox.get(self.note)
        amount = ctx.awaited.get(self.paid)
        return Done([amount])

    @step
    async def loads(self, ctx: Context[str]) -> Outcome[list[Any]]:
        await ctx.inbox.load(self.note)
        return Done([len(note) for note in ctx.inbox.all(self.note)])

    @step
    def loads_in_a_thread(self, ctx: Context[str]) -> Outcome[list[Any]]:
        ctx.inbox.load_sync()
        return Done([len(note) for note in ctx.inbox.all(self.note)])

    @step(pool="process")
    def loads_in_a_process(self, ctx: Context[str]) -> Outcome[list[Any]]:
        ctx.inbox.load_sync("note")
        return Done([len(note) for note in ctx.inbox.all(self.note)])

    @step
    async def goes_on(self, ctx: Context[str]) -> Outcome[list[Any]]:
        return Next(self.loads)  # a chained step gets its inbox from the commit


@pytest.mark.clause("SIG-24")
@pytest.mark.parametrize(
    ("way", "result"),
    [
        ("ignores", [7]),
        ("loads", [LARGE] * 3),
        ("loads_in_a_thread", [LARGE] * 3),
        ("loads_in_a_process", [LARGE] * 3),
        ("goes_on", [LARGE] * 3),
    ],
)
async def test_awaited_payloads_are_present_and_others_load_on_demand(
    durable_dsn: str, way: str, result: list[Any]
) -> None:
    async with Worker([Clerk], dsn=durable_dsn, settings=CALM) as worker:
        clerk = await worker.insert(Clerk, way)
        for n in range(3):
            await worker.signal(clerk, Clerk.note, str(n) * LARGE)
        await worker.signal(clerk, Clerk.paid, 7)
        ended = await worker.wait(clerk, timeout=PATIENCE)
    assert ended.last_error is None
    assert ended.result == result


@pytest.mark.clause("SIG-24")
async def test_awaited_payloads_are_present_at_any_size(async_durable: AsyncHarness) -> None:
    class Files(Machine[None, int]):
        file = Signal("file", str)

        @step
        async def start(self, ctx: Context[None]) -> Outcome[int]:
            files = ctx.awaited.all(self.file)
            return Done(sum(map(len, files))) if len(files) == 4 else Await(self.file, then=self.start)

    files = await async_durable.insert(Files)
    for n in range(4):
        await async_durable.signal(files, Files.file, str(n) * LARGE)
    await async_durable.drain()
    assert async_durable.assert_done(files) == 4 * LARGE


async def test_load_transfers_no_more_than_its_budget(durable_dsn: str, db: Any) -> None:
    """200 results of 1 MiB, compressed to a few kilobytes: loads and stream chunks stay bounded."""
    async with await Database.open(durable_dsn, "gen_durable", size=1) as database:
        (parent,) = await inserted(database, new("A"))
        (spawn,) = await picked(database)
        await flushed(
            database, [entry(spawn, "schedule_children", children=tuple(new("B") for _ in range(200)))]
        )
        await flushed(database, [entry(one, "done", payload="1") for one in await picked(database)])
        await db.execute(
            "update gen_durable.gen_durable set result = to_jsonb(repeat('x', 1048574)) where parent_id = $1",
            parent,
        )
        (join,) = await picked(database)
        assert len(join.children) == 200
        assert sum(len(child.state or "") + len(child.result or "") for child in join.children) == 0
        sizes = []
        for chunk in chunks([Sized(child.id, child.size) for child in join.children]):
            found = await database.run(picks.child_content(join.id, [one.id for one in chunk]))
            sizes.append(sum(len(one.state) + len(one.result or "") for one in found.values()))
        assert sum(sizes) > 200 * 2**20
        assert max(sizes) < 40 * 2**20


async def test_small_compressed_results_are_measured_as_text(durable_dsn: str, db: Any) -> None:
    """The compressed size is below the budget, the decompressed size is above it."""
    async with await Database.open(durable_dsn, "gen_durable", size=1) as database:
        (parent,) = await inserted(database, new("A"))
        (spawn,) = await picked(database)
        await flushed(database, [entry(spawn, "schedule_children", children=(new("B"), new("B")))])
        await flushed(database, [entry(one, "done", payload="1") for one in await picked(database)])
        await db.execute(
            "update gen_durable.gen_durable set result = to_jsonb(repeat('x', 1000000)) where parent_id = $1",
            parent,
        )
        (join,) = await picked(database)
        assert sum(child.size for child in join.children) < picks.BUDGET
        assert [child.result for child in join.children] == [None, None]


@pytest.mark.parametrize("way", ["loaded", "loaded_in_a_thread", "loaded_in_a_process"])
async def test_failing_load_raises_in_the_step(
    durable_dsn: str, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    async def fail(
        self: WorkerChannel, execution: Execution, ids: Sequence[int]
    ) -> Mapping[int, ChildContent]:
        raise StatementError("57014", "canceling statement due to statement timeout")

    monkeypatch.setattr(WorkerChannel, "children", fail)
    async with Worker([Album, Photo], dsn=durable_dsn, settings=CALM) as worker:
        album = await worker.wait(await worker.insert(Album, way), timeout=PATIENCE)
    assert album.status is Status.FAILED
    assert "canceling statement due to statement timeout" in (album.last_error or "")


@pytest.mark.parametrize(
    ("sizes", "lengths"),
    [
        ([], []),
        ([10] * 2500, [1000, 1000, 500]),
        ([2**20] * 20, [8, 8, 4]),
        ([12_000] * 20, [13, 7]),
        ([64 * 2**20, 10], [1, 1]),
    ],
)
def test_chunks_are_bounded_by_rows_and_by_bytes(sizes: list[int], lengths: list[int]) -> None:
    items = [Sized(id, size) for id, size in enumerate(sizes)]
    cut = list(chunks(items))
    assert [len(chunk) for chunk in cut] == lengths
    assert [item for chunk in cut for item in chunk] == items
