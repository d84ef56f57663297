"""A recipe: continue when k of n have answered. The barrier waits for all children; signals build a quorum.

Voters are independent instances, not children. Each signals the instance that asked;
its number is the dedup_key, because a step may run more than once. That instance collects signals until it has k.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

import msgspec
import pytest

from gen_durable import (
    AsyncClient,
    Await,
    Context,
    Done,
    Machine,
    Outcome,
    Signal,
    Spec,
    Status,
    Stop,
    Worker,
    step,
)
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE


class Vote(msgspec.Struct):
    number: int
    is_yes: bool


class Task(msgspec.Struct):
    number: int
    report_to: int


class Poll(msgspec.Struct):
    voters: int
    needed: int


vote = Signal("vote", Vote)


class Voter(Machine[Task, None]):
    def __init__(self, client: AsyncClient, slow: asyncio.Event) -> None:
        self.client = client
        self.slow = slow

    @step
    async def run(self, ctx: Context[Task]) -> Outcome[None]:
        if ctx.state.number >= 3:
            await self.slow.wait()
        for _ in range(2):  # sent twice, counted once
            await self.client.signal(
                ctx.state.report_to,
                vote,
                Vote(ctx.state.number, is_yes=True),
                dedup_key=f"voter {ctx.state.number}",
            )
        return Done()

    def handle(self, error: Exception, ctx: Context[Task]) -> Outcome[None]:
        # The instance that asked may already have ended.
        return Done() if isinstance(error, LookupError) else Stop(error)


class Quorum(Machine[Poll, list[int]]):
    vote = vote

    def __init__(self, client: AsyncClient) -> None:
        self.client = client
        self.runs = 0

    @step
    async def ask(self, ctx: Context[Poll]) -> Outcome[list[int]]:
        # Safe to repeat after a crash: each voter has a unique key.
        await self.client.insert_all(
            [Spec(Voter, Task(n, ctx.id), unique_key=f"{ctx.id} voter {n}") for n in range(ctx.state.voters)]
        )
        return self._wait()

    @step
    async def count(self, ctx: Context[Poll]) -> Outcome[list[int]]:
        self.runs += 1
        votes = ctx.awaited.all(self.vote)
        if len(votes) >= ctx.state.needed:
            return Done(sorted(each.number for each in votes))
        if ctx.timed_out:
            return Stop(f"only {len(votes)} of {ctx.state.needed} votes came")
        return self._wait()

    def _wait(self) -> Outcome[list[int]]:
        return Await(self.vote, then=self.count, timeout=timedelta(milliseconds=700))


@pytest.mark.clause("CHD-15")
async def test_quorum_continues_with_k_of_n_votes(durable_dsn: str) -> None:
    slow = asyncio.Event()
    async with AsyncClient(durable_dsn, settings=CALM) as client:
        quorum, voter = Quorum(client), Voter(client, slow)
        async with Worker([quorum, voter], dsn=durable_dsn, settings=CALM) as worker:
            ref = await worker.insert(quorum, Poll(voters=5, needed=3))
            # Two voters are still running.
            assert (await worker.wait(ref, timeout=PATIENCE)).result == [0, 1, 2]
            async with asyncio.timeout(PATIENCE.total_seconds()):
                while await worker.count(Voter, status=Status.EXECUTING) != 2:
                    await asyncio.sleep(0.01)  # the last counted voter may not have ended yet
            slow.set()
            voters = await worker.list(Voter)
            ended = [await worker.wait(each.id, timeout=PATIENCE) for each in voters]
    assert {each.status for each in ended} == {Status.DONE}
    assert quorum.runs <= 3 + 1


async def test_quorum_not_reached_in_time_fails(durable_dsn: str) -> None:
    slow = asyncio.Event()
    async with AsyncClient(durable_dsn, settings=CALM) as client:
        quorum, voter = Quorum(client), Voter(client, slow)
        settings = msgspec.structs.replace(CALM, drain_timeout=timedelta(0))
        async with Worker([quorum, voter], dsn=durable_dsn, settings=settings) as worker:
            failed = await worker.wait(
                await worker.insert(quorum, Poll(voters=5, needed=4)), timeout=PATIENCE
            )
    assert (failed.status, failed.last_error) == (Status.FAILED, "only 3 of 4 votes came")
