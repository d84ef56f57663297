"""Who is answered by which look."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from gen_durable._runtime.waiting import Waiting


class Looks:
    """A database whose answers come when the test says so."""

    def __init__(self) -> None:
        self.begun = asyncio.Queue[None]()
        self.answers = asyncio.Queue[Mapping[int, Any]]()

    async def run(self, plan: Any) -> Mapping[int, Any]:
        plan.close()
        self.begun.put_nowait(None)
        return await self.answers.get()


async def test_a_look_answers_nobody_who_came_after_it_began() -> None:
    """He may have sent a signal before: what was there earlier is not what he waits for."""
    looks: Any = Looks()
    waiting = Waiting(looks)
    before, after = {"finished_at": None, "step_seq": 1}, {"finished_at": None, "step_seq": 2}
    async with asyncio.TaskGroup() as group:
        early = group.create_task(waiting.until_at_rest(7, parked=True))
        await looks.begun.get()
        late = group.create_task(waiting.until_at_rest(7, parked=True))
        await asyncio.sleep(0)
        looks.answers.put_nowait({7: before})
        await looks.begun.get()
        looks.answers.put_nowait({7: after})
    assert (early.result(), late.result()) == (before, after)
    waiting.close()
