"""Random operations on instances with undo steps: the list of what is to be undone always fits the state."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec
import psycopg
import pytest

from gen_durable import (
    Await,
    Backoff,
    Cancel,
    Context,
    Discard,
    Done,
    Machine,
    Next,
    NoTargetError,
    Outcome,
    ScheduleChildren,
    Spec,
    Stop,
    UsageError,
    step,
)
from gen_durable.testing import Crash, Harness

_OPERATIONS = 80
_ROWS = """
select g.id, g.status::text, g.state, g.step_seq, g.children_pending, g.last_error,
       (select coalesce(jsonb_agg(entry -> 0), '[]') from jsonb_array_elements(g.undo_steps) as entry) as to_undo,
       (select count(*) from gen_durable.gen_durable child
         where child.parent_id = g.id and child.parent_round = g.spawn_round
           and child.status not in ('done', 'failed', 'cancelled')) as live_children,
       (select count(*) from gen_durable.executions e
         where e.instance_id = g.id and e.status in ('COMMITTED', 'DONE') and e.state is not null) as transitions
  from gen_durable.gen_durable g order by g.id"""
_DUE = (
    "select id from gen_durable.gen_durable where status in ('runnable', 'executing') and deleted_at is null"
)
_PARKED = "select id from gen_durable.gen_durable where status = 'awaiting_signal' and deleted_at is null"


class Stack(msgspec.Struct):
    steps: list[str] = []
    """The steps with undo that are committed and not undone."""
    depth: int = 0


class Walk(Machine[Stack, str], retry=Backoff(max_attempts=2, base=timedelta(0)), history="all"):
    """Each step goes anywhere, or ends in some way. An undo step expects its step on top of the stack."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    @step(undo="undo_one", on_failure="repair")
    def one(self, ctx: Context[Stack]) -> Outcome[str]:
        ctx.state.steps.append("one")
        return self._go_on(ctx)

    @step(undo="undo_two", on_cancel="react")
    def two(self, ctx: Context[Stack]) -> Outcome[str]:
        ctx.state.steps.append("two")
        return self._go_on(ctx)

    @step
    def plain(self, ctx: Context[Stack]) -> Outcome[str]:
        return self._go_on(ctx)

    @step
    def react(self, ctx: Context[Stack]) -> Outcome[str]:
        return self._go_on(ctx)

    @step
    def repair(self, ctx: Context[Stack]) -> Outcome[str]:
        return self._go_on(ctx)

    @step
    def undo_one(self, ctx: Context[Stack]) -> Outcome[str]:
        return self._undo(ctx, "one")

    @step
    def undo_two(self, ctx: Context[Stack]) -> Outcome[str]:
        return self._undo(ctx, "two")

    def _go_on(self, ctx: Context[Stack]) -> Outcome[str]:
        then = self.rng.choice(["one", "two", "plain", "react"])
        match self.rng.choices(["end", "next", "await", "children"], [25, 40, 25, 10])[0]:
            case "end":
                return self._end(ctx)
            case "await":
                return Await("go", then=then)
            case "children" if ctx.state.depth < 2:
                return ScheduleChildren([Spec(Walk, Stack(depth=ctx.state.depth + 1))], then=then)
            case _:
                return Next(then, requeue=self.rng.random() < 0.3)

    def _end(self, ctx: Context[Stack]) -> Outcome[str]:
        if ctx.step in ("one", "two"):
            ctx.state.steps.pop()  # an end commits the state, but no step
        match self.rng.choice(["stop", "stop without undo", "raise", "cancel", "discard", "done"]):
            case "raise":
                raise RuntimeError("broken")
            case "cancel":
                raise Cancel("not wanted")
            case "discard":
                raise Discard("impossible")
            case "done":
                return Done("done")
            case how:
                return Stop("no", undo=how == "stop")

    def _undo(self, ctx: Context[Stack], name: str) -> Outcome[str]:
        match self.rng.choices(
            ["undone", "raise", "cancel", "await", "next", "children"], [55, 15, 5, 10, 10, 5]
        )[0]:
            case "raise":
                raise RuntimeError("the bank is down")
            case "cancel":
                raise Cancel("not wanted")
            case "await":
                return Await("go", then=ctx.step)
            case "next":
                return Next(ctx.step)
            case "children" if ctx.state.depth < 2:
                return ScheduleChildren([Spec(Walk, Stack(depth=ctx.state.depth + 1))], then=ctx.step)
        assert ctx.state.steps.pop() == name, "undone in another order"
        return Done("")


class Operations:
    """What users and crashes do to the instances."""

    def __init__(self, durable: Harness, conn: psycopg.Connection[Any], rng: random.Random) -> None:
        self.durable, self.conn, self.rng = durable, conn, rng
        self.all: list[Callable[[int], object]] = [
            *(self.insert, self.drain, self.drain, self.drain, self.drain, self.crash, self.crash),
            *(self.cancel, self.edit, self.retry, self.fork, self.signal, self.signal),
            *(durable.soft_delete, durable.restore),
        ]

    def insert(self, _: int = 0) -> None:
        if self.conn.execute("select count(*) < 25 from gen_durable.gen_durable").fetchone() == (True,):
            key: dict[str, Any] = self.rng.choice([{}, {"concurrency_key": "k"}])
            self.durable.insert(Walk, Stack(), step=self.rng.choice(["one", "two"]), **key)

    def drain(self, _: int) -> None:
        self.is_drained(self.rng.randrange(1, 30))

    def is_drained(self, max_steps: int) -> bool:
        try:
            self.durable.drain(max_steps=max_steps)
        except AssertionError as error:
            if "still runs after" not in str(error):
                raise
            return False
        return True

    def crash(self, _: int) -> None:
        point = self.rng.choice(["one", "two", "undo_one", "undo_two"])
        with suppress(Crash), self.durable.crash_at(point, self.rng.choice(["before_step", "before_commit"])):
            self.is_drained(20)

    def cancel(self, target: int) -> None:
        undo, force, cascade = (self.rng.random() < share for share in (0.7, 0.2, 0.3))
        self.durable.cancel(target, undo=undo, force=force, cascade=cascade)

    def edit(self, target: int) -> None:
        self.durable.edit(target, step=self.rng.choice([None, "plain"]), wake=True)

    def retry(self, target: int) -> None:
        self.durable.retry(target, step=self.rng.choice([None, None, "plain"]))

    def fork(self, target: int) -> None:
        # Its stack is that of its origin, which it does not undo.
        empty = "update gen_durable.gen_durable set state = state || '{\"steps\": []}' where id = %s"
        with suppress(UsageError):
            made = self.durable.fork(target, at=self.rng.choice([None, None, 1, 2, 3]))
            self.conn.execute(empty, [made.id])

    def signal(self, target: int) -> None:
        with suppress(NoTargetError):
            self.durable.signal(target, "go")

    def ids(self, query: str = "select id from gen_durable.gen_durable") -> list[int]:
        return sorted(id for (id,) in self.conn.execute(query))


@pytest.mark.clause("UNDO-1", "UNDO-2", "UNDO-3", "UNDO-8", "UNDO-16", "UNDO-17", "HIS-1")
@pytest.mark.parametrize("seed", range(4))
def test_undo_list_fits_the_state_after_any_operation(durable: Harness, durable_dsn: str, seed: int) -> None:
    rng = random.Random(seed)
    durable.use(Walk(rng))
    with psycopg.connect(durable_dsn, autocommit=True) as conn:
        operations = Operations(durable, conn, rng)
        operations.insert()
        for _ in range(_OPERATIONS):
            rng.choice(operations.all)(rng.choice(operations.ids()))
            _check(conn)
        # Everything that is not deleted comes to an end.
        for _ in range(200):
            if operations.is_drained(300):
                assert operations.ids(_DUE) == []
                for id in (parked := operations.ids(_PARKED)):
                    durable.signal(id, "go")
                if not parked:
                    break
        else:
            pytest.fail("it does not come to an end")
        _check(conn)


def _check(conn: psycopg.Connection[Any]) -> None:
    for id, status, state, step_seq, pending, error, to_undo, live_children, transitions in conn.execute(
        _ROWS
    ):
        assert "AssertionError" not in (error or ""), f"{id}: {error}"
        assert status == "done" or state["steps"] == to_undo, f"{id} does not undo what it did"
        assert pending == (live_children if status == "awaiting_children" else 0), f"{id}: another barrier"
        assert status != "awaiting_children" or pending > 0, f"{id} waits for nothing"
        assert transitions == step_seq, f"{id}: a transition without a record of its state"
