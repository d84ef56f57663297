"""Which poll answers which wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gen_durable._core.change_cursor import ChangeCursor, Condition
from gen_durable._db import changes
from gen_durable._db.changes import News
from gen_durable._db.failures import StatementError
from gen_durable._runtime.waiting import Waiting

END, PARKED = Condition(), Condition(parked=True)


def test_failed_read_forgets_the_row_versions_that_readers_have_seen() -> None:
    """After a failover that has lost commits, another row may have the same version."""
    cursor = ChangeCursor(7)
    cursor.row_version = "12"
    plan = changes.read([cursor], 1)
    next(plan)
    with pytest.raises(StatementError):
        plan.throw(StatementError("57P01", "terminated"))
    assert not cursor.row_version


class Looks:
    """A database whose replies the test releases."""

    def __init__(self) -> None:
        self.begun = asyncio.Queue[None]()
        self.answers = asyncio.Queue[list[News]]()
        self.names: list[str] = []

    async def run(self, plan: Any) -> list[News]:
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
        early = group.create_task(waiting.until(7, PARKED))
        await looks.begun.get()
        late = group.create_task(waiting.until(7, PARKED))
        await asyncio.sleep(0)
        looks.answers.put_nowait([News(0, before, ())])
        await looks.begun.get()
        looks.answers.put_nowait([News(0, after, ())])
    assert (early.result(), late.result()) == (before, after)
    waiting.close()


async def test_row_that_is_not_kept_is_deleted_after_all_waits_for_it() -> None:
    """A poll that saw it parked, or began before another wait for it, does not delete it."""
    looks: Any = Looks()
    waiting = Waiting(looks)
    parked, done = {"finished_at": None}, {"finished_at": "now"}
    async with asyncio.TaskGroup() as group:
        group.create_task(waiting.until(7, PARKED))
        group.create_task(waiting.until(7, END))
        await looks.begun.get()
        assert waiting.keep(7)
        looks.answers.put_nowait([News(0, parked, ())])
        await looks.begun.get()
        late = group.create_task(waiting.until(7, END))
        await asyncio.sleep(0)
        looks.answers.put_nowait([News(0, done, ())])
        await looks.begun.get()
        looks.answers.put_nowait([News(0, done, ())])
        await looks.begun.get()
        looks.answers.put_nowait([])
    assert late.result() == done
    assert looks.names == [*["read"] * 3, "collect_done"]
    waiting.close()
