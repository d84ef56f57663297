"""`Discard`, `Cancel` and `RetryAfter` apply at once, without `handle` or a retry policy."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any, NoReturn

import pytest

from gen_durable import (
    Cancel,
    Context,
    Discard,
    Done,
    ExecutionStatus,
    InstanceCancelledError,
    JobState,
    Machine,
    Outcome,
    RetryAfter,
    ScheduleChildren,
    Spec,
    Status,
    Transaction,
    Worker,
    job,
    job_state,
    step,
)
from gen_durable.testing import DrainCounts, Harness
from tests.support.rows import SqlConnection
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE


def deep(what: Exception, depth: int = 5) -> NoReturn:
    if depth:
        deep(what, depth - 1)
    raise what


DECISIONS: dict[str, Exception] = {
    "discard": Discard("card declined"),
    "cancel": Cancel("not needed any more"),
    "later": RetryAfter(timedelta(hours=1), "the bank rests"),
}


@job("decisions.on_the_loop.v1")
async def on_the_loop(which: str) -> None:
    deep(DECISIONS[which])


@job("decisions.in_a_thread.v1")
def in_a_thread(which: str) -> None:
    deep(DECISIONS[which])


class Decided(Machine[str, None]):
    """Its `handle` must not be called."""

    def __init__(self) -> None:
        self.asked: list[Exception] = []

    @step
    async def run(self, ctx: Context[str]) -> Outcome[None]:
        deep(DECISIONS[ctx.state])

    @step
    def handled(self, ctx: Context[str]) -> Outcome[None]:
        raise ValueError("let the handler decide")

    @step
    async def affected(self, ctx: Context[str]) -> Outcome[None]:
        async def effect(transaction: Transaction) -> None:
            await transaction.execute("insert into ledger values (1)")
            deep(DECISIONS[ctx.state])

        return Done(effect=effect)

    def handle(self, error: Exception, ctx: Context[str]) -> Outcome[None]:
        self.asked.append(error)
        deep(DECISIONS[ctx.state])


KINDS = ["job on the loop", "job in a thread", "step", "handler", "effect"]


def raised(durable: Harness, sql: SqlConnection, which: str) -> dict[str, int]:
    """One instance per place that can raise the decision, after its first execution."""
    machine = Decided()
    durable.use(machine)
    sql("create table ledger (entry int)")
    steps = {"step": "run", "handler": "handled", "effect": "affected"}
    counts = {
        "discard": DrainCounts(stopped=1),
        "cancel": DrainCounts(cancelled=1),
        "later": DrainCounts(retry=1),
    }[which]
    ids: dict[str, int] = {}
    for kind in KINDS:
        machine.asked.clear()
        if kind in steps:
            ids[kind] = durable.insert(machine, which, step=steps[kind]).id
        else:
            ids[kind] = durable.insert(on_the_loop if kind == "job on the loop" else in_a_thread, which).id
        assert durable.drain(collapse=False) == counts, kind
        assert len(machine.asked) == (kind == "handler"), kind
        assert sql.value("select count(*) from ledger") == 0, kind
    return ids


@pytest.mark.clause("JOB-13")
def test_discard_fails_the_instance_at_once(
    durable: Harness, sql: SqlConnection, subtests: pytest.Subtests
) -> None:
    for kind, id in raised(durable, sql, "discard").items():
        with subtests.test(kind=kind):
            assert durable.assert_failed(id).last_error == "card declined"
            found = sql.row(id)
            assert (found["execution"], found["step_seq"], found["error"]["type"]) == (1, 1, "Discard")
            (record,) = durable.executions(id)
            assert (record.status, record.outcome) == (ExecutionStatus.DONE, "stop")
            assert record.error == "card declined"
            assert job_state(durable.executions(id)) is JobState.FAILED


@pytest.mark.clause("JOB-14")
def test_cancel_ends_as_cancelled_without_a_transition(
    durable: Harness, sql: SqlConnection, subtests: pytest.Subtests
) -> None:
    for kind, id in raised(durable, sql, "cancel").items():
        with subtests.test(kind=kind):
            found = sql.row(id)
            assert (found["status"], found["last_error"]) == ("cancelled", "not needed any more")
            assert (found["execution"], found["step_seq"], found["result"]) == (1, 0, None)
            assert found["finished_at"] is not None
            (record,) = durable.executions(id)
            assert (record.status, record.outcome, record.step_seq) == (
                ExecutionStatus.ABORTED,
                "cancelled",
                1,
            )
            assert job_state(durable.executions(id)) is JobState.CANCELLED
            with pytest.raises(InstanceCancelledError, match="not needed any more"):
                durable.wait(id).result  # noqa: B018 - raises


@pytest.mark.clause("JOB-12")
def test_retry_after_sets_the_delay(durable: Harness, sql: SqlConnection, subtests: pytest.Subtests) -> None:
    for kind, id in raised(durable, sql, "later").items():
        with subtests.test(kind=kind):
            assert sql.delay(id) == timedelta(hours=1)
            found = sql.row(id)
            assert (found["attempt"], found["step_seq"], found["last_error"]) == (1, 0, "the bank rests")
            (record,) = durable.executions(id)
            assert (record.status, record.outcome) == (ExecutionStatus.ABORTED, "retry")


def test_decision_without_a_message_shows_its_name(durable: Harness) -> None:
    @job("decisions.silent.v1")
    def silent(which: str) -> None:
        raise Discard if which == "discard" else Cancel

    discarded, cancelled = durable.insert(silent, "discard"), durable.insert(silent, "cancel")
    durable.drain()
    durable.assert_failed(discarded, match="^Discard$")
    ended = durable.get(cancelled)
    assert ended is not None
    assert (ended.status, ended.last_error) == (Status.CANCELLED, "Cancel")


def test_child_that_raises_cancel_releases_its_parent(durable: Harness) -> None:
    class Parent(Machine[None, list[str]]):
        @step
        async def split(self, ctx: Context[None]) -> Outcome[list[str]]:
            return ScheduleChildren(
                [Spec(on_the_loop, "cancel"), Spec(in_a_thread, "discard")], then=self.join
            )

        @step
        async def join(self, ctx: Context[None]) -> Outcome[list[str]]:
            return Done([f"{child.status}: {child.last_error}" for child in ctx.children])

    parent = durable.insert(Parent)
    durable.drain()
    assert durable.assert_done(parent) == ["cancelled: not needed any more", "failed: card declined"]


def test_decision_releases_the_concurrency_key(durable: Harness) -> None:
    @job("decisions.keyed.v1")
    def keyed(which: str) -> str:
        if which in DECISIONS:
            raise DECISIONS[which]
        return which

    refs = [durable.insert(keyed, which, concurrency_key="one") for which in ("cancel", "discard", "go on")]
    durable.drain()
    assert durable.assert_done(refs[-1]) == "go on"


class Mute(Discard):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class MuteCancel(Cancel, Mute):
    pass


class MuteFailureError(ValueError):
    def __str__(self) -> str:
        raise RuntimeError("no words")


async def test_exceptions_whose_str_raises_do_not_stop_the_worker(durable_dsn: str, db: Any) -> None:
    @job("decisions.mute.v1", max_attempts=1)
    async def mute(which: str) -> str:
        if which == "fine":
            return which
        raise {"discard": Mute, "cancel": MuteCancel, "failure": MuteFailureError}[which]

    async with Worker([mute], dsn=durable_dsn, settings=CALM) as worker:
        refs = [await worker.insert(mute, which) for which in ("discard", "cancel", "failure", "fine")]
        ended = [await worker.wait(ref, timeout=PATIENCE) for ref in refs]
    assert [each.status.value for each in ended] == ["failed", "cancelled", "failed", "done"]
    assert [each.last_error for each in ended] == [
        "(str() of this exception raised)",
        "(str() of this exception raised)",
        "MuteFailureError: (str() of this exception raised)",
        None,
    ]
    assert [kind["type"] for kind in await _errors(db)] == ["Mute", "MuteFailureError"]


async def _errors(db: Any) -> list[dict[str, Any]]:
    rows = await db.fetch("select error from gen_durable.gen_durable where error is not null order by id")
    return [json.loads(row["error"]) for row in rows]


# In a group, as a TaskGroup raises it


@job("decisions.grouped.v1", max_attempts=1)
async def grouped(which: list[str]) -> None:
    async def one(name: str) -> None:
        await asyncio.sleep(0)
        raise DECISIONS.get(name) or ValueError(name)

    async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
        for n, name in enumerate(which):
            (inner if n % 2 else outer).create_task(one(name))


@pytest.mark.clause("JOB-22")
def test_single_decision_in_an_exception_group_applies(durable: Harness, subtests: pytest.Subtests) -> None:
    for which, status, last_error in (
        (["discard"], Status.FAILED, "card declined"),
        (["cancel"], Status.CANCELLED, "not needed any more"),
        (["no", "cancel", "neither"], Status.CANCELLED, "not needed any more"),
        (["cancel", "discard"], Status.FAILED, None),
        (["discard", "discard"], Status.FAILED, None),
        (["no", "neither"], Status.FAILED, None),
    ):
        with subtests.test(which=which):
            ref = durable.insert(grouped, which)
            durable.drain()
            found = durable.get(ref)
            assert found is not None
            assert found.status is status
            if last_error is None:
                assert str(found.last_error).startswith("ExceptionGroup: ")
            else:
                assert found.last_error == last_error


@pytest.mark.clause("JOB-22")
def test_retry_after_in_an_exception_group_applies(durable: Harness, sql: SqlConnection) -> None:
    ref = durable.insert(grouped, ["no", "later"], max_attempts=2)
    assert durable.drain(collapse=False) == DrainCounts(retry=1)
    assert sql.delay(ref.id) == timedelta(hours=1)
