"""Cancel, delete, retry, edit and fork of instances that run undo steps, or have run them."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from gen_durable import (
    Await,
    Cancelled,
    CancelRequested,
    Compensating,
    Context,
    Done,
    Edited,
    Machine,
    Next,
    NotEdited,
    Outcome,
    Retried,
    ScheduleChildren,
    Spec,
    Status,
    Stop,
    UsageError,
    step,
)
from gen_durable.testing import Harness
from tests.engine.undo.sagas import Order, Parcel, Polite, Saga


def steps_of(durable: Harness, id: int) -> list[str]:
    return [one.step for one in durable._stepper.outcomes if one.kind != "retry" and one.instance_id == id]


class Repaired(Machine[Order, str], history="all"):
    """charge (refund) → ship, which stops; the refund waits for an approval, then reports."""

    @step(undo="refund")
    async def charge(self, ctx: Context[Order]) -> Outcome[str]:
        return Next(self.ship)

    @step
    async def ship(self, ctx: Context[Order]) -> Outcome[str]:
        return Stop("no truck") if ctx.state.ending == "stop" else Done("shipped")

    @step
    async def refund(self, ctx: Context[Order]) -> Outcome[str]:
        return Await("approved", then=self.report)

    @step
    async def report(self, ctx: Context[Order]) -> Outcome[str]:
        return Done("reported")

    @step
    async def other(self, ctx: Context[Order]) -> Outcome[str]:
        return Done("other")


def _parked(durable: Harness) -> Any:
    """An instance whose undo step waits for a signal."""
    ref = durable.insert(Repaired, Order("stop"))
    durable.drain()
    durable.assert_awaiting(ref, "approved")
    return ref


@pytest.mark.clause("UNDO-3", "UNDO-5")
def test_cancel_reason_survives_a_failed_undo_and_a_retry(durable: Harness) -> None:
    ref = durable.insert(Saga, Order("wait", bad_undo="release"))
    durable.drain()
    durable.cancel(ref, reason="second thoughts", actor="ada")
    durable.drain()
    assert durable.assert_failed(ref).step == "release"
    assert durable.retry(ref, state={"ending": "wait"}, reason="mended", actor="eve") == Retried(ref.id)
    durable.drain()
    ended = durable.assert_cancelled(ref)
    assert (ended.cancel_reason, ended.cancelled_by) == ("second thoughts", "ada")


@pytest.mark.clause("UNDO-3", "UNDO-10")
@pytest.mark.parametrize("how", ["cancel", "force", "delete"])
def test_retry_of_a_stopped_undo_ends_with_the_first_reason(durable: Harness, how: str) -> None:
    ref = durable.insert(Saga, Order("wait"))
    durable.drain()
    durable.cancel(ref, reason="first", actor="ada")
    if how == "delete":
        durable.soft_delete(ref, reason="stop it", actor="eve")
        durable.restore(ref)
    else:
        stopped = durable.cancel(
            ref, reason="stop it", actor="eve", undo=how != "cancel", force=how == "force"
        )
        assert stopped == Cancelled(ref.id)
    assert durable.retry(ref) == Retried(ref.id)
    durable.drain()
    ended = durable.assert_cancelled(ref)
    assert (ended.cancel_reason, ended.cancelled_by) == ("first", "ada")


@pytest.mark.clause("UNDO-10")
@pytest.mark.parametrize("reaction", [None, "farewell"])
@pytest.mark.parametrize("plain", [False, True])
def test_deleted_execution_with_a_cancel_request_runs_no_further_step(
    durable: Harness, durable_dsn: str, reaction: str | None, plain: bool
) -> None:
    class Own(Machine[Order, str]):
        @step(undo="clean")
        def begin(self, ctx: Context[Order]) -> Outcome[str]:
            return Next(self.work)

        @step(on_cancel=reaction)
        def work(self, ctx: Context[Order]) -> Outcome[str]:
            assert durable.cancel(ctx.id) == CancelRequested(ctx.id)
            if plain:
                delete = "update gen_durable.gen_durable set deleted_at = now() where id = %s"
                with psycopg.connect(durable_dsn) as conn:
                    conn.execute(delete, [ctx.id])
            else:
                durable.soft_delete(ctx.id)
            return Done("discarded")

        @step
        def farewell(self, ctx: Context[Order]) -> Outcome[str]:
            return Done("left politely")

        @step
        def clean(self, ctx: Context[Order]) -> Outcome[str]:
            return Done("clean")

    ref = durable.insert(Own, Order())
    durable.drain()
    deleted = durable.get(ref, with_deleted=True)
    assert deleted is not None
    assert (deleted.status, deleted.step) == (Status.CANCELLED, "work")
    # Restored and retried, it continues at the step, and can be undone again.
    durable.restore(ref)
    durable.retry(ref)
    assert durable.cancel(ref) == CancelRequested(ref.id)
    durable.drain()
    assert steps_of(durable, ref.id)[-1] == (reaction or "clean")


@pytest.mark.clause("UNDO-9")
def test_cancelled_step_that_raises_leaves_no_failure_at_its_on_cancel_step(durable: Harness) -> None:
    seen: list[object] = []

    class Own(Machine[Order, str]):
        @step(on_cancel="farewell")
        def work(self, ctx: Context[Order]) -> Outcome[str]:
            durable.cancel(ctx.id)
            raise RuntimeError("broken")

        @step
        def farewell(self, ctx: Context[Order]) -> Outcome[str]:
            seen.append(ctx.failure)
            return Await("go", then=self.work)

    ref = durable.insert(Own, Order())
    durable.drain()
    now = durable.get(ref)
    assert now is not None
    assert seen == [None]
    assert (now.last_error, now.error) == (None, None)


@pytest.mark.clause("UNDO-8")
def test_retried_parent_runs_its_undo_step_after_its_live_children(durable: Harness) -> None:
    ref = durable.insert(Saga, Order("children"))
    durable.drain()
    (child,) = durable.children(ref)
    durable.cancel(ref)
    assert durable.cancel(ref, undo=False) == Cancelled(ref.id)
    assert durable.retry(ref) == Retried(ref.id)
    durable.drain()
    assert steps_of(durable, ref.id)[-1] == "ship"
    waiting = durable.get(ref)
    assert waiting is not None
    assert (waiting.status, waiting.children_pending) == (Status.AWAITING_CHILDREN, 1)
    durable.signal(child.id, "deliver")
    durable.drain()
    assert steps_of(durable, ref.id)[-2:] == ["refund", "release"]
    durable.assert_cancelled(ref)


@pytest.mark.clause("UNDO-11")
def test_retry_of_an_undone_instance_does_not_join_the_children_of_its_undo(durable: Harness) -> None:
    joined: list[int] = []

    class Own(Machine[Order, str]):
        @step(undo="refund")
        async def charge(self, ctx: Context[Order]) -> Outcome[str]:
            joined.append(len(ctx.children))
            return Next(self.ship)

        @step
        async def ship(self, ctx: Context[Order]) -> Outcome[str]:
            return Stop("no truck")

        @step
        async def refund(self, ctx: Context[Order]) -> Outcome[str]:
            return ScheduleChildren([Spec(Parcel, Order())], then=self.refunded)

        @step
        async def refunded(self, ctx: Context[Order]) -> Outcome[str]:
            return Done("refunded")

    ref = durable.insert(Own, Order())
    durable.drain()
    (child,) = durable.children(ref)
    durable.signal(child.id, "deliver")
    durable.drain()
    durable.assert_failed(ref)
    durable.retry(ref)
    durable.drain()
    assert joined == [0, 0]


@pytest.mark.clause("UNDO-7")
def test_second_cancel_leaves_the_children_of_a_compensating_parent(durable: Harness) -> None:
    ref = durable.insert(Saga, Order("children"))
    durable.drain()
    (child,) = durable.children(ref)
    durable.cancel(ref)
    assert durable.cancel(ref, cascade=True) == Compensating(ref.id)
    durable.assert_awaiting(child.id, "deliver")
    durable.cancel(child.id)
    durable.drain()
    assert steps_of(durable, child.id)[-1] == "unload"
    assert steps_of(durable, ref.id)[-2:] == ["refund", "release"]


@pytest.mark.clause("UNDO-16")
@pytest.mark.parametrize("wake", [False, True])
def test_state_of_a_compensating_instance_is_edited(durable: Harness, wake: bool) -> None:
    ref = _parked(durable)
    assert isinstance(durable.edit(ref, state=Order("stop", log=["edited"]), wake=wake), Edited)
    if not wake:
        durable.signal(ref, "approved")
    durable.drain()
    ended = durable.assert_failed(ref, match="no truck")
    assert ended.state == Order("stop", log=["edited"])
    assert ended.compensation is not None
    assert ended.compensation.undone == ("charge",)


@pytest.mark.clause("UNDO-16")
def test_step_of_a_compensating_instance_is_not_edited(durable: Harness) -> None:
    ref = _parked(durable)
    parked = NotEdited(ref.id, "compensating", Status.AWAITING_SIGNAL, 3)
    assert durable.edit(ref, step=Repaired.other) == parked
    assert durable.edit(ref, state=Order(), step=Repaired.other, wake=True) == parked
    durable.signal(ref, "approved")
    durable.drain()
    assert durable.assert_failed(ref, match="no truck").state == Order("stop")
    # A retry starts at the first undone step, whatever an edit says.
    assert durable.edit(ref, step=Repaired.other) == NotEdited(ref.id, "compensating", Status.FAILED, 4)
    durable.edit(ref, state=Order())
    durable.retry(ref)
    assert isinstance(durable.edit(ref, step=Repaired.other), Edited)


@pytest.mark.clause("UNDO-16")
def test_failed_undo_step_is_left_by_a_retry_at_another_step(durable: Harness) -> None:
    ref = durable.insert(Saga, Order("stop", bad_undo="refund"))
    durable.drain()
    durable.assert_failed(ref, match="refund is impossible")
    assert durable.edit(ref, step=Saga.ship) == NotEdited(ref.id, "compensating", Status.FAILED, 4)
    assert isinstance(durable.edit(ref, state=Order(bad_undo="refund")), Edited)
    durable.retry(ref, step=Saga.ship)
    durable.drain()
    assert durable.assert_done(ref) == "shipped"


@pytest.mark.clause("UNDO-17")
def test_fork_of_an_undone_instance_undoes_nothing_of_it(durable: Harness) -> None:
    ref = _parked(durable)
    for at in (None, 2, 3):
        with pytest.raises(UsageError, match="it runs undo steps, or has run them; fork at an earlier"):
            durable.fork(ref, at=at)
    before = durable.fork(ref, at=1)
    again = durable.fork(ref, at=2, step=Repaired.ship, state=Order())
    durable.drain()
    durable.assert_failed(before.id, match="no truck")
    durable.assert_done(again.id)
    assert (steps_of(durable, before.id), steps_of(durable, again.id)) == (["ship"], ["ship"])
    durable.signal(ref, "approved")
    durable.drain()
    durable.assert_failed(ref, match="no truck")
    for at in (None, 3, 4):
        with pytest.raises(UsageError, match="it runs undo steps, or has run them"):
            durable.fork(ref, at=at)
    # A retry forgets the undo: the instance starts again.
    durable.retry(ref, state=Order())
    now = durable.fork(ref)
    durable.drain()
    durable.assert_done(now.id)
    assert steps_of(durable, now.id) == ["charge", "ship"]


@pytest.mark.clause("UNDO-17")
def test_fork_does_not_start_at_an_undo_step_without_the_record_of_its_begin(
    durable: Harness, durable_dsn: str
) -> None:
    ref = _parked(durable)
    durable.signal(ref, "approved")
    durable.drain()
    with psycopg.connect(durable_dsn) as conn:
        conn.execute("delete from gen_durable.executions where outcome = 'undo'")
    with pytest.raises(UsageError, match="it runs undo steps, or has run them"):
        durable.fork(ref, at=3)


@pytest.mark.clause("UNDO-17")
def test_fork_at_an_on_cancel_step_starts_there(durable: Harness) -> None:
    ref = durable.insert(Polite, Order())
    durable.drain()
    durable.cancel(ref)
    now = durable.fork(ref)
    durable.drain()
    assert durable.assert_done(now.id) == "left politely"
    assert steps_of(durable, now.id) == ["farewell"]


@pytest.mark.clause("UNDO-9")
def test_renamed_step_reacts_to_a_cancel(durable: Harness) -> None:
    class Sale(Machine[Order, str]):
        @step(on_cancel="farewell", was="offered")
        async def offer(self, ctx: Context[Order]) -> Outcome[str]:
            return Await("go", then=self.offer)

        @step
        async def farewell(self, ctx: Context[Order]) -> Outcome[str]:
            return Done("left politely")

    ref = durable.load(Sale, step="offered", state={}, awaits=["go"])
    durable.drain()
    assert isinstance(durable.cancel(ref), CancelRequested)
    durable.drain()
    assert durable.assert_done(ref) == "left politely"


@pytest.mark.clause("UNDO-6", "UNDO-9")
def test_cancel_without_undo_runs_no_on_cancel_step(durable: Harness) -> None:
    ref = durable.insert(Polite, Order())
    durable.drain()
    assert durable.cancel(ref, undo=False) == Cancelled(ref.id)
    durable.drain()
    assert steps_of(durable, ref.id) == ["prepare"]
    # A retry forgets it.
    durable.retry(ref)
    durable.cancel(ref)
    durable.drain()
    assert steps_of(durable, ref.id) == ["prepare", "farewell"]


@pytest.mark.clause("UNDO-6")
@pytest.mark.parametrize("orders", [(False,), (True, False), (False, True)])
def test_executing_step_is_cancelled_without_undo(durable: Harness, orders: tuple[bool, ...]) -> None:
    class Own(Machine[Order, str]):
        @step(undo="clean")
        def begin(self, ctx: Context[Order]) -> Outcome[str]:
            return Next(self.work)

        @step(on_cancel="farewell")
        def work(self, ctx: Context[Order]) -> Outcome[str]:
            for undo in orders:
                assert durable.cancel(ctx.id, undo=undo) == CancelRequested(ctx.id)
            return Done("discarded")

        @step
        def farewell(self, ctx: Context[Order]) -> Outcome[str]:
            return Done("left politely")

        @step
        def clean(self, ctx: Context[Order]) -> Outcome[str]:
            return Done("clean")

    ref = durable.insert(Own, Order())
    durable.drain()
    durable.assert_cancelled(ref)
    assert steps_of(durable, ref.id) == ["begin", "work"]


@pytest.mark.clause("UNDO-9")
def test_on_cancel_step_of_a_parent_waits_for_its_children(durable: Harness) -> None:
    class Host(Machine[Order, str]):
        @step
        async def invite(self, ctx: Context[Order]) -> Outcome[str]:
            return ScheduleChildren([Spec(Parcel, Order())], then=self.serve)

        @step(on_cancel="apologize")
        async def serve(self, ctx: Context[Order]) -> Outcome[str]:
            return Done("served")

        @step
        async def apologize(self, ctx: Context[Order]) -> Outcome[str]:
            return Done("sorry")

    ref = durable.insert(Host, Order())
    durable.drain()
    (child,) = durable.children(ref)
    assert durable.cancel(ref) == CancelRequested(ref.id)
    durable.drain()
    now = durable.get(ref)
    assert now is not None
    assert (now.status, now.step) == (Status.AWAITING_CHILDREN, "apologize")
    durable.signal(child.id, "deliver")
    durable.drain()
    assert durable.assert_done(ref) == "sorry"
