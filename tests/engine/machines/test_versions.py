"""Several versions of a machine; each row runs in its own version."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable import (
    AsyncClient,
    Context,
    DefinitionError,
    Done,
    Machine,
    Next,
    Outcome,
    Spec,
    Worker,
    step,
)
from gen_durable.telemetry import StepStop
from tests.support.rows import row_of
from tests.support.settings import CALM
from tests.support.waiting import PATIENCE, Events


class OldGreeter(Machine[str, str], name="greeter"):
    @step
    async def start(self, ctx: Context[str]) -> Outcome[str]:
        return Next(self.greet, requeue=True)

    @step
    async def greet(self, ctx: Context[str]) -> Outcome[str]:
        assert ctx.version == 1
        return Done(f"good day, {ctx.state}")


class NewGreeter(Machine[str, str], name="greeter", version=2):
    @step
    async def greet(self, ctx: Context[str]) -> Outcome[str]:
        assert ctx.version == 2
        return Done(f"hi {ctx.state}")


@pytest.mark.clause("VER-1", "VER-2")
async def test_one_worker_runs_several_versions(durable_dsn: str) -> None:
    async with Worker([OldGreeter, NewGreeter], dsn=durable_dsn, settings=CALM) as worker:
        refs = [await worker.insert(machine, "you") for machine in (OldGreeter, NewGreeter, OldGreeter)]
        ended = await worker.wait_all(refs, timeout=PATIENCE)
    assert [(one.machine, one.version, one.result) for one in ended] == [
        ("greeter", 1, "good day, you"),
        ("greeter", 2, "hi you"),
        ("greeter", 1, "good day, you"),
    ]


@pytest.mark.clause("VER-1", "VER-2")
async def test_rows_of_unregistered_versions_are_not_leased(durable_dsn: str, db: Any) -> None:
    class Stranger(Machine[str, str]):
        @step
        async def run(self, ctx: Context[str]) -> Outcome[str]:
            return Done("stranger")

    async with AsyncClient(durable_dsn, settings=CALM) as client:
        # They are at the head of the queue, enough to fill every pick.
        strange = await client.insert_all(
            [Spec(OldGreeter, "old", priority=-1) for _ in range(30)] + [Spec(Stranger, "x", priority=-1)]
        )
        async with Worker([NewGreeter], dsn=durable_dsn, settings=CALM) as worker:
            assert (
                await worker.wait(await worker.insert(NewGreeter, "new"), timeout=PATIENCE)
            ).result == "hi new"
        rows = [await row_of(db, ref.id) for ref in strange]
        assert {(row["status"], row["execution"], row["attempt"]) for row in rows} == {("runnable", 0, 0)}
        async with Worker([OldGreeter, Stranger], dsn=durable_dsn, settings=CALM):
            ended = await client.wait_all(strange, timeout=PATIENCE)
    assert [one.result for one in ended] == ["good day, old"] * 30 + ["stranger"]


async def test_rolling_deploy_runs_each_row_on_a_worker_with_its_version(durable_dsn: str) -> None:
    async with (
        AsyncClient(durable_dsn, settings=CALM) as client,
        Worker([OldGreeter], dsn=durable_dsn, settings=CALM) as before,
        Worker([OldGreeter, NewGreeter], dsn=durable_dsn, settings=CALM),
    ):
        events = Events(before)
        refs = await client.insert_all([Spec(OldGreeter if n % 2 else NewGreeter, str(n)) for n in range(40)])
        ended = await client.wait_all(refs, timeout=PATIENCE)
        by_id = {one.id: one for one in ended}
        assert {by_id[event.id].version for event in events.of(StepStop)} <= {1}
    assert [one.result for one in ended] == [f"good day, {n}" if n % 2 else f"hi {n}" for n in range(40)]


class Mailer(Machine[str, int]):
    def __init__(self, outbox: list[str], *, sender: str) -> None:
        self.outbox = outbox
        self.sender = sender

    @step
    async def send(self, ctx: Context[str]) -> Outcome[int]:
        self.outbox.append(f"{self.sender}: {ctx.state}")
        return Done(len(self.outbox))


async def test_machine_object_passes_dependencies_to_steps(durable_dsn: str) -> None:
    outbox: list[str] = []
    mailer = Mailer(outbox, sender="me")
    async with Worker([mailer], dsn=durable_dsn, settings=CALM) as worker:
        # Producers may use the class.
        for machine in (mailer, Mailer):
            await worker.wait(await worker.insert(machine, "hello"), timeout=PATIENCE)
    assert outbox == ["me: hello", "me: hello"]


def test_machine_class_that_needs_arguments_is_rejected_with_advice() -> None:
    with pytest.raises(DefinitionError, match=r"pass an object to the worker: Worker\(\[Mailer\(…\)\]\)"):
        Worker([Mailer])
