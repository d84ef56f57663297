"""Which poll answers which wait."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from gen_durable._runtime.waiting import Waiting


class Looks:
    """A database whose replies the test releases."""

    def __init__(self) -> None:
        self.begun = asyncio.Queue[None]()
        self.answers = asyncio.Queue[Mapping[int, Any]]()
        self.names: list[str] = []

    async def run(self, plan: Any) -> Mapping[int, Any]:
        self.names.append(plan.__name__)
        plan.close()
        self.begun.put_nowait(None)
        return await self.answers.get()


async def test_poll_does_not_answer_waits_that_began_after_it() -> None:
    """The caller may have sent a signal first, so an earlier snapshot is stale."""
    looks: Any = Looks()
    waiting = Waiting(looks)
    before, after = {"finished_at": None, "step_seq": 1}, {"finished_at": None, "step_seq": 2}
    async with asyncio.TaskGroup() as group:
        early = group.create_task(waiting.until_ended_or_parked(7, parked=True))
        await looks.begun.get()
        late = group.create_task(waiting.until_ended_or_parked(7, parked=True))
        await asyncio.sleep(0)
        looks.answers.put_nowait({7: before})
        await looks.begun.get()
        looks.answers.put_nowait({7: after})
    assert (early.result(), late.result()) == (before, after)
    waiting.close()


async def test_row_that_is_not_kept_is_deleted_after_all_waits_for_it() -> None:
    """A poll that saw it parked, or began before another wait for it, does not delete it."""
    looks: Any = Looks()
    waiting = Waiting(looks)
    parked, done = {"finished_at": None}, {"finished_at": "now"}
    async with asyncio.TaskGroup() as group:
        group.create_task(waiting.until_ended_or_parked(7, parked=True))
        group.create_task(waiting.until_ended_or_parked(7, parked=False))
        await looks.begun.get()
        assert waiting.keep(7)
        looks.answers.put_nowait({7: parked})
        await looks.begun.get()
        late = group.create_task(waiting.until_ended_or_parked(7, parked=False))
        await asyncio.sleep(0)
        looks.answers.put_nowait({7: done})
        await looks.begun.get()
        looks.answers.put_nowait({7: done})
        await looks.begun.get()
        looks.answers.put_nowait({})
    assert late.result() == done
    assert looks.names == [*["finished_or_parked"] * 3, "collect_done"]
    waiting.close()
