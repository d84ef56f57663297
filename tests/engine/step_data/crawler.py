"""Machines whose steps store checkpoints, in all three places where a step can run.

The steps write the pages that they crawl to a file, one `attempt page` per line.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from gen_durable import Context, Done, Machine, Outcome, job, step

__all__ = ["MACHINES", "PAGES", "Crawl", "Position", "count_up", "crawled"]

PAGES: Final = 20


class Crawl(msgspec.Struct):
    file: str
    waits_at: int = 0
    """The page at which the first attempt waits until it is killed."""


class Position(msgspec.Struct):
    page: int


def crawled(file: Path) -> list[tuple[int, int]]:
    """The attempt and the number of each crawled page."""
    if not file.exists():
        return []
    return [(int(attempt), int(page)) for attempt, page in map(str.split, file.read_text().splitlines())]


def _first_page(ctx: Context[Crawl]) -> int:
    last: Position | None = ctx.last_checkpoint
    return 1 if last is None else last.page + 1


def _crawl(ctx: Context[Crawl], page: int) -> bool:
    """Crawl a page. Returns whether to wait to be killed."""
    with Path(ctx.state.file).open("a") as file:
        file.write(f"{ctx.attempt} {page}\n")
    ctx.progress(page - 1, PAGES, f"page {page - 1}")
    return ctx.attempt == 0 and page == ctx.state.waits_at


class OnLoop(Machine[Crawl, int]):
    @step(checkpoint=Position)
    async def crawl(self, ctx: Context[Crawl]) -> Outcome[int]:
        for page in range(_first_page(ctx), PAGES + 1):
            if _crawl(ctx, page):
                await asyncio.sleep(3600)
            await ctx.checkpoint(Position(page))
        return Done(PAGES)


def _crawl_all(ctx: Context[Crawl]) -> Outcome[int]:
    for page in range(_first_page(ctx), PAGES + 1):
        if _crawl(ctx, page):
            time.sleep(3600)
        ctx.checkpoint_sync(Position(page))
    return Done(PAGES)


class InThread(Machine[Crawl, int]):
    @step(checkpoint=Position)
    def crawl(self, ctx: Context[Crawl]) -> Outcome[int]:
        return _crawl_all(ctx)


class InProcess(Machine[Crawl, int]):
    @step(checkpoint=Position, pool="process")
    def crawl(self, ctx: Context[Crawl]) -> Outcome[int]:
        return _crawl_all(ctx)


@job("count_up", max_attempts=3, checkpoint=Position)
async def count_up(target: int, ctx: Context[int]) -> int:
    """Count one per attempt."""
    last: Position | None = ctx.last_checkpoint
    number = 0 if last is None else last.page
    await ctx.checkpoint(Position(number + 1))
    if number + 1 < target:
        raise RuntimeError(f"only {number + 1}")
    return number + 1


MACHINES: Final[list[Any]] = [OnLoop, InThread, InProcess, count_up]
