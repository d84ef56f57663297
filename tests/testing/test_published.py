"""What a test reads of the items that a step publishes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gen_durable import Context, Done, Machine, Outcome, Stream, step
from gen_durable.errors import EncodeError, NoTargetError, UsageError
from gen_durable.testing import AsyncHarness, Crash, Harness, context, published_items, run_step


class Speaker(Machine[list[str], None]):
    words = Stream("words", str)
    numbers = Stream("numbers", int)

    @step
    async def speak(self, ctx: Context[list[str]]) -> Outcome[None]:
        for word in ctx.state:
            await ctx.publish(self.words, word)
        await ctx.publish("log", {"said": len(ctx.state)})
        await ctx.close_stream(self.words)
        return Done()

    @step
    def write(self, ctx: Context[list[str]]) -> Outcome[None]:
        for word in ctx.state:
            ctx.publish_sync(self.words, word)
        ctx.publish_sync(self.numbers, len(ctx.state))
        ctx.close_stream_sync(self.words)
        return Done()

    @step
    def misfit(self, ctx: Context[list[str]]) -> Outcome[None]:
        number: Any = "one"
        ctx.publish_sync(self.numbers, number)
        return Done()

    @step
    def misfit_by_name(self, ctx: Context[list[str]]) -> Outcome[None]:
        ctx.publish_sync("numbers", "one")
        return Done()


async def test_items_of_a_step_without_a_database() -> None:
    ctx = context(["Hel", "lo"])
    await Speaker().speak(ctx)
    assert published_items(ctx, Speaker.words) == ["Hel", "lo"]
    assert published_items(ctx, "log") == [{"said": 2}]
    assert published_items(ctx, Speaker.numbers) == []


def test_items_of_a_plain_step_without_a_database() -> None:
    ctx = context(["a"])
    Speaker().write(ctx)
    assert (published_items(ctx, Speaker.words), published_items(ctx, Speaker.numbers)) == (["a"], [1])


@pytest.mark.parametrize("misfit", [Speaker().misfit, Speaker().misfit_by_name])
def test_item_that_does_not_fit_its_type_raises_in_a_test(misfit: Any) -> None:
    with pytest.raises(EncodeError, match="an item of stream 'numbers' cannot be stored as int"):
        run_step(misfit, [])


@pytest.mark.parametrize("start", ["speak", "write"])
def test_items_of_an_instance(durable: Harness, start: str) -> None:
    ref = durable.insert(Speaker, ["Hel", "lo"], step=start)
    assert durable.published(ref, Speaker.words) == []
    durable.drain()
    items = durable.published(ref, Speaker.words)
    assert [(item.position, item.value, item.step, item.attempt) for item in items] == [
        (1, "Hel", start, 0),
        (2, "lo", start, 0),
    ]
    assert [item.value for item in durable.stream(ref, Speaker.words, after=1)] == ["lo"]
    with pytest.raises(NoTargetError):
        durable.published(99, Speaker.words)


def test_crashed_attempt_leaves_its_items(durable: Harness) -> None:
    ref = durable.insert(Speaker, ["a"])
    with durable.crash_at(Speaker.speak), pytest.raises(Crash):
        durable.drain()
    durable.drain()
    items = durable.published(ref, Speaker.words)
    assert [(item.value, item.attempt, item.execution) for item in items] == [("a", 0, 1), ("a", 1, 2)]


async def test_async_harness_streams(async_durable: AsyncHarness) -> None:
    ref = await async_durable.insert(Speaker, ["a", "b"])
    await async_durable.drain()
    async with asyncio.timeout(20):
        assert [item.value async for item in async_durable.stream(ref, Speaker.words)] == ["a", "b"]
    assert [item.value for item in async_durable.published(ref, Stream("log"))] == [{"said": 2}]


def test_published_items_are_read_only_of_contexts_of_tests(durable: Harness) -> None:
    class Reads(Machine[None, None]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[None]:
            with pytest.raises(UsageError, match=r"belongs to a worker; use `client\.stream`"):
                published_items(ctx, "x")
            return Done()

    ref = durable.insert(Reads)
    durable.drain()
    durable.assert_done(ref)


class Logger(Machine[int, None]):
    """Publishes items and stores a checkpoint after them."""

    lines = Stream("lines", int)

    @step(checkpoint=int)
    async def log(self, ctx: Context[int]) -> Outcome[None]:
        for number in range(ctx.state):
            await ctx.publish(self.lines, number)
        await ctx.checkpoint(ctx.state)
        return Done()

    @step(checkpoint=int)
    def log_in_a_thread(self, ctx: Context[int]) -> Outcome[None]:
        for number in range(ctx.state):
            ctx.publish_sync(self.lines, number)
        ctx.checkpoint_sync(ctx.state)
        return Done()


# A step may be 2,000 items ahead of the database.
@pytest.mark.parametrize("count", [1, 2001])
@pytest.mark.parametrize("first", ["log", "log_in_a_thread"])
def test_checkpoint_after_items_does_not_wait_forever(durable: Harness, first: str, count: int) -> None:
    ref = durable.insert(Logger, count, step=first)
    durable.drain()
    durable.assert_done(ref)
    assert [item.value for item in durable.published(ref, Logger.lines)] == list(range(count))


async def test_checkpoint_after_items_on_the_loop_of_the_test(async_durable: AsyncHarness) -> None:
    ref = await async_durable.insert(Logger, 3)
    await async_durable.drain()
    async_durable.assert_done(ref)
