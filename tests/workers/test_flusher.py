"""How many batches the flusher commits at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from gen_durable._core.model import CommitEntry, Committed, Execution
from gen_durable._db.commit import CommitReport, Recorder
from gen_durable._runtime.database_status import DatabaseStatus
from gen_durable._runtime.flusher import SECOND_BATCH, Flusher
from gen_durable._runtime.wake import Wakes


def entry(id: int) -> CommitEntry:
    execution = Execution(
        id=id, lease_token=1, fsm="M", version=1, step="s", step_seq=0, attempt=0, state="1", queue="default"
    )
    return CommitEntry(execution=execution, kind="next", step="s", payload="1")


async def test_second_batch_is_sent_only_when_many_outcomes_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    may_commit = asyncio.Event()

    async def send(_: Flusher, entries: Sequence[CommitEntry]) -> CommitReport:
        sent.append(len(entries))
        await may_commit.wait()
        return CommitReport([Committed("runnable")] * len(entries), set())

    monkeypatch.setattr(Flusher, "_send", send)
    no_database: Any = None
    flusher = Flusher(
        no_database, no_database, no_database, Recorder("worker", "all"), Wakes(), DatabaseStatus()
    )
    running = [asyncio.create_task(flusher.run()), asyncio.create_task(flusher.run_second())]
    commits = [asyncio.create_task(flusher.commit(entry(1)))]
    await settled()
    assert sent == [1]
    commits += [asyncio.create_task(flusher.commit(entry(id))) for id in range(2, SECOND_BATCH + 1)]
    await settled()
    assert sent == [1]
    commits.append(asyncio.create_task(flusher.commit(entry(SECOND_BATCH + 1))))
    await settled()
    assert sent == [1, SECOND_BATCH]
    # Both commit; a third batch waits for one of them.
    commits += [
        asyncio.create_task(flusher.commit(entry(id))) for id in range(SECOND_BATCH + 2, 2 * SECOND_BATCH + 2)
    ]
    await settled()
    assert sent == [1, SECOND_BATCH]
    may_commit.set()
    assert len(await asyncio.gather(*commits)) == 2 * SECOND_BATCH + 1
    for task in running:
        task.cancel()


async def settled() -> None:
    """Run everything that is ready."""
    for _ in range(5):
        await asyncio.sleep(0)
