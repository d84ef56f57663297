"""Undo steps: an instance that fails or is cancelled undoes its committed steps before it ends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from gen_durable import (
    AlreadyFinished,
    Await,
    Cancelled,
    CancelRequested,
    Client,
    Compensating,
    Context,
    DefinitionError,
    Done,
    Machine,
    Next,
    Outcome,
    Retried,
    ScheduleChildren,
    Spec,
    Status,
    Stop,
    step,
)
from gen_durable.reasons import CompensationRuns
from gen_durable.testing import Crash, DrainCounts, Harness
from gen_durable.testing._stepper import CrashPoint
from tests.engine.undo.sagas import Order, Parcel, Polite, Saga


def steps_of(durable: Harness) -> list[str]:
    return [transition.step for transition in durable._stepper.outcomes if transition.kind != "retry"]


@pytest.mark.clause("UNDO-1")
@pytest.mark.clause("UNDO-2")
@pytest.mark.clause("UNDO-3")
@pytest.mark.parametrize(
    ("ending", "status", "reason"),
    [
        ("stop", Status.FAILED, "no truck"),
        ("raise", Status.FAILED, "RuntimeError: truck broke"),
        ("discard", Status.FAILED, "no truck at all"),
        ("cancel", Status.CANCELLED, "not wanted"),
    ],
)
def test_undo_steps_run_in_reverse_order(durable: Harness, ending: str, status: Status, reason: str) -> None:
    ref = durable.insert(Saga, Order(ending, loops=2))
    durable.drain()
    assert steps_of(durable) == ["begin", "charge", "charge", "ship", "refund", "refund", "release"]
    ended = durable.get(ref)
    assert ended is not None
    assert (ended.status, ended.step, ended.is_compensating) == (status, "ship", False)
    assert (ended.cancel_reason if status is Status.CANCELLED else ended.last_error) == reason
    assert ended.compensation is not None
    assert (ended.compensation.undone, ended.compensation.pending) == (("charge", "charge", "begin"), ())
    assert (ended.compensation.status, ended.compensation.reason) == (status, reason)
    if ending == "raise":
        assert ended.error is not None
        assert (ended.error.type, ended.error.message) == ("RuntimeError", "truck broke")


@pytest.mark.clause("UNDO-1")
def test_done_instance_undoes_nothing(durable: Harness, durable_dsn: str) -> None:
    ref = durable.insert(Saga, Order())
    durable.drain()
    assert steps_of(durable) == ["begin", "charge", "ship"]
    with psycopg.connect(durable_dsn) as conn:
        row = conn.execute("select status, undo_steps, compensation from gen_durable.gen_durable").fetchone()
    assert row == ("done", None, None)
    assert durable.get(ref) is not None


@pytest.mark.clause("UNDO-2")
def test_parked_instance_is_undone_when_it_is_cancelled(durable: Harness) -> None:
    ref = durable.insert(Saga, Order("wait"))
    durable.drain()
    assert durable.cancel(ref, reason="second thoughts", actor="ada") == CancelRequested(ref.id)
    now = durable.get(ref)
    assert now is not None
    assert (now.status, now.step, now.is_compensating) == (Status.RUNNABLE, "refund", True)
    assert now.compensation is not None
    assert (now.compensation.step, now.compensation.pending) == ("ship", ("refund", "release"))
    durable.drain()
    ended = durable.get(ref)
    assert ended is not None
    assert (ended.status, ended.cancel_reason, ended.cancelled_by) == (
        Status.CANCELLED,
        "second thoughts",
        "ada",
    )
    assert ended.step == "ship"
    assert durable.cancel(ref) == AlreadyFinished(ref.id, Status.CANCELLED)


@pytest.mark.clause("UNDO-2")
def test_executing_instance_is_undone_when_it_is_cancelled(durable: Harness) -> None:
    class Own(Machine[Order, str]):
        @step(undo="refund")
        def charge(self, ctx: Context[Order]) -> Outcome[str]:
            return Next(self.ship)

        @step
        def ship(self, ctx: Context[Order]) -> Outcome[str]:
            assert durable.cancel(ctx.id, reason="while it runs") == CancelRequested(ctx.id)
            return Done("discarded")

        @step
        def refund(self, ctx: Context[Order]) -> Outcome[str]:
            return Done("refunded")

    ref = durable.insert(Own, Order())
    assert durable.drain() == DrainCounts(next=1, redirected=1, cancelled=1)
    ended = durable.get(ref)
    assert ended is not None
    assert (ended.status, ended.cancel_reason, ended.stored_result) == (
        Status.CANCELLED,
        "while it runs",
        None,
    )
    assert steps_of(durable) == ["charge", "ship", "refund"]


@pytest.mark.clause("UNDO-1")
def test_outcome_of_handle_adds_no_undo_step(durable: Harness) -> None:
    class Handled(Machine[Order, str]):
        @step(undo="refund")
        async def charge(self, ctx: Context[Order]) -> Outcome[str]:
            raise RuntimeError("declined")

        @step
        async def ask(self, ctx: Context[Order]) -> Outcome[str]:
            return Stop("no other card")

        @step
        async def refund(self, ctx: Context[Order]) -> Outcome[str]:
            return Done("refunded")

        def handle(self, error: Exception, ctx: Context[Order]) -> Outcome[str]:
            return Next(self.ask)

    ref = durable.insert(Handled, Order())
    durable.drain()
    ended = durable.get(ref)
    assert ended is not None
    assert (ended.status, ended.compensation) == (Status.FAILED, None)


@pytest.mark.clause("UNDO-5")
def test_failed_undo_step_ends_with_both_reasons(durable: Harness) -> None:
    ref = durable.insert(Saga, Order("stop", bad_undo="release"))
    durable.drain()
    failed = durable.get(ref)
    assert failed is not None
    assert (failed.status, failed.step) == (Status.FAILED, "release")
    assert failed.last_error == "no truck; then undo step release failed: RuntimeError: release is impossible"
    assert failed.compensation is not None
    assert (failed.compensation.undone, failed.compensation.pending) == (("charge",), ("release",))
    # A retry continues with the undo step, with another state.
    state = {"ending": "stop", "bad_undo": ""}
    assert durable.retry(ref, state=state) == Retried(ref.id)
    again = durable.get(ref)
    assert again is not None
    assert again.is_compensating
    durable.drain()
    ended = durable.get(ref)
    assert ended is not None
    assert (ended.status, ended.step, ended.last_error) == (Status.FAILED, "ship", "no truck")
    assert steps_of(durable)[-3:] == ["refund", "release", "release"]


@pytest.mark.clause("UNDO-5")
def test_failed_undo_of_a_cancel_ends_as_failed(durable: Harness) -> None:
    ref = durable.insert(Saga, Order("cancel", bad_undo="refund"))
    durable.drain()
    failed = durable.get(ref)
    assert failed is not None
    assert failed.status is Status.FAILED
    assert failed.last_error == "not wanted; then undo step refund failed: RuntimeError: refund is impossible"


@pytest.mark.clause("UNDO-6")
def test_stop_without_undo_keeps_the_undo_steps_for_a_retry(durable: Harness) -> None:
    ref = durable.insert(Saga, Order("stop without undo"))
    durable.drain()
    failed = durable.get(ref)
    assert failed is not None
    assert (failed.status, failed.compensation) == (Status.FAILED, None)
    assert steps_of(durable) == ["begin", "charge", "ship"]
    durable.retry(ref, state={"ending": "stop"})
    durable.drain()
    assert steps_of(durable)[3:] == ["ship", "refund", "release"]


@pytest.mark.clause("UNDO-6")
def test_cancel_without_undo_ends_at_once(durable: Harness) -> None:
    ref = durable.insert(Saga, Order("wait"))
    durable.drain()
    assert durable.cancel(ref, undo=False) == Cancelled(ref.id)
    durable.drain()
    assert steps_of(durable) == ["begin", "charge"]


@pytest.mark.clause("UNDO-7")
def test_cancel_of_a_compensating_instance_changes_nothing(durable: Harness) -> None:
    ref = durable.insert(Saga, Order("wait"))
    durable.drain()
    durable.cancel(ref, reason="first")
    assert durable.cancel(ref, reason="second", cascade=True) == Compensating(ref.id)
    assert durable.cancel_all(Saga) == 0
    durable.drain()
    ended = durable.get(ref)
    assert ended is not None
    assert (ended.status, ended.cancel_reason) == (Status.CANCELLED, "first")


@pytest.mark.clause("UNDO-7")
@pytest.mark.parametrize("how", [{"undo": False}, {"force": True}])
def test_compensation_is_stopped_without_undo_and_by_force(durable: Harness, how: dict[str, bool]) -> None:
    ref = durable.insert(Saga, Order("wait"))
    durable.drain()
    durable.cancel(ref, reason="first")
    assert durable.cancel(
        ref, reason="stop it", undo=how.get("undo", True), force=how.get("force", False)
    ) == (Cancelled(ref.id))
    durable.drain()
    ended = durable.get(ref)
    assert ended is not None
    assert (ended.status, ended.cancel_reason) == (Status.CANCELLED, "stop it")
    assert ended.compensation is not None
    assert ended.compensation.pending == ("refund", "release")
    assert "refund" not in steps_of(durable)


@pytest.mark.clause("UNDO-8")
@pytest.mark.parametrize("cascade", [True, False])
def test_parent_is_undone_after_its_children(durable: Harness, *, cascade: bool) -> None:
    ref = durable.insert(Saga, Order("children"))
    durable.drain()
    (child,) = durable.children(ref)
    durable.cancel(ref, cascade=cascade)
    waiting = durable.get(ref)
    assert waiting is not None
    assert (waiting.status, waiting.step, waiting.children_pending) == (
        Status.AWAITING_CHILDREN,
        "refund",
        1,
    )
    durable.drain()
    if not cascade:
        assert steps_of(durable)[-1] == "load"
        durable.signal(child.id, "deliver")
        durable.drain()
    expected = ["unload" if cascade else "deliver", "refund", "release"]
    assert steps_of(durable)[-3:] == expected
    ended = durable.get(ref)
    assert ended is not None
    assert ended.status is Status.CANCELLED


@pytest.mark.clause("UNDO-8")
def test_parent_waits_for_the_undo_steps_of_a_child(durable: Harness) -> None:
    ref = durable.insert(Saga, Order("children"))
    durable.drain()
    (child,) = durable.children(ref)
    durable.cancel(child.id)
    waiting = durable.get(ref)
    assert waiting is not None
    assert (waiting.status, waiting.children_pending) == (Status.AWAITING_CHILDREN, 1)
    durable.drain()
    assert steps_of(durable)[-2:] == ["unload", "shipped"]
    ended = durable.get(ref)
    assert ended is not None
    assert ended.status is Status.DONE


@pytest.mark.clause("UNDO-9")
@pytest.mark.parametrize(
    ("ending", "status", "last"),
    [
        ("done", Status.DONE, "farewell"),
        ("stop", Status.FAILED, "clean"),
        ("cancel", Status.CANCELLED, "clean"),
        ("back", Status.AWAITING_SIGNAL, "farewell"),
    ],
)
def test_cancel_leads_to_the_on_cancel_step(durable: Harness, ending: str, status: Status, last: str) -> None:
    ref = durable.insert(Polite, Order(ending))
    durable.drain()
    assert durable.cancel(ref, reason="please") == CancelRequested(ref.id)
    moved = durable.get(ref)
    assert moved is not None
    assert (moved.status, moved.step, moved.is_compensating) == (Status.RUNNABLE, "farewell", False)
    durable.drain()
    now = durable.get(ref)
    assert now is not None
    assert (now.status, steps_of(durable)[-1]) == (status, last)


@pytest.mark.clause("UNDO-9")
def test_second_cancel_ends_an_instance_at_its_on_cancel_step(durable: Harness) -> None:
    ref = durable.insert(Polite, Order())
    durable.drain()
    durable.cancel(ref, reason="please")
    assert durable.cancel(ref, reason="now") == CancelRequested(ref.id)
    durable.drain()
    ended = durable.get(ref)
    assert ended is not None
    assert (ended.status, ended.cancel_reason) == (Status.CANCELLED, "now")
    assert steps_of(durable) == ["prepare", "clean"]


@pytest.mark.clause("UNDO-9")
def test_cancel_of_an_executing_step_leads_to_its_on_cancel_step(durable: Harness) -> None:
    class Own(Machine[Order, str]):
        @step(on_cancel="farewell")
        def work(self, ctx: Context[Order]) -> Outcome[str]:
            durable.cancel(ctx.id)
            return Done("discarded")

        @step
        def farewell(self, ctx: Context[Order]) -> Outcome[str]:
            return Done("left politely")

    ref = durable.insert(Own, Order())
    assert durable.drain() == DrainCounts(redirected=1, done=1)
    ended = durable.get(ref)
    assert ended is not None
    assert (ended.status, ended.result, ended.compensation) == (Status.DONE, "left politely", None)


@pytest.mark.clause("UNDO-10")
@pytest.mark.parametrize("machine", [Saga, Polite])
def test_force_skips_undo_and_on_cancel(durable: Harness, machine: type[Saga] | type[Polite]) -> None:
    ref = durable.insert(machine, Order("wait"))
    durable.drain()
    before = len(durable._stepper.outcomes)
    assert durable.cancel(ref, force=True) == Cancelled(ref.id)
    durable.drain()
    assert len(durable._stepper.outcomes) == before


@pytest.mark.clause("UNDO-10")
@pytest.mark.parametrize("machine", [Saga, Polite])
def test_soft_delete_skips_undo_and_on_cancel(durable: Harness, machine: type[Saga] | type[Polite]) -> None:
    ref = durable.insert(machine, Order("wait"))
    durable.drain()
    before = len(durable._stepper.outcomes)
    durable.soft_delete(ref)
    durable.drain()
    deleted = durable.get(ref, with_deleted=True)
    assert deleted is not None
    assert deleted.status is Status.CANCELLED
    assert len(durable._stepper.outcomes) == before


@pytest.mark.clause("UNDO-10")
def test_soft_delete_ends_a_compensation(durable: Harness, durable_dsn: str) -> None:
    ref = durable.insert(Saga, Order("wait"))
    durable.drain()
    durable.cancel(ref)
    with psycopg.connect(durable_dsn) as conn:
        conn.execute("update gen_durable.gen_durable set deleted_at = now() where id = %s", [ref.id])
    deleted = durable.get(ref, with_deleted=True)
    assert deleted is not None
    assert (deleted.status, deleted.is_compensating) == (Status.CANCELLED, False)


@pytest.mark.clause("UNDO-11")
def test_retry_of_an_undone_instance_starts_at_the_first_undone_step(durable: Harness) -> None:
    ref = durable.insert(Saga, Order("stop"))
    durable.drain()
    durable.retry(ref, state={"ending": "done"})
    retried = durable.get(ref)
    assert retried is not None
    assert (retried.step, retried.status, retried.compensation) == ("begin", Status.RUNNABLE, None)
    durable.drain()
    assert steps_of(durable)[-3:] == ["begin", "charge", "ship"]
    ended = durable.get(ref)
    assert ended is not None
    assert ended.status is Status.DONE


@pytest.mark.clause("UNDO-12")
def test_compensation_is_visible(durable: Harness) -> None:
    ref, other = durable.insert(Saga, Order("wait")), durable.insert(Saga, Order("wait"))
    durable.drain()
    durable.cancel(ref, reason="second thoughts", actor="ada")
    assert [found.id for found in durable.list(compensating=True)] == [ref.id]
    assert durable.count(compensating=True) == 1
    assert {found.id for found in durable.list()} == {ref.id, other.id}
    (reason,) = [r for r in durable.explain(ref).reasons if isinstance(r, CompensationRuns)]
    assert (reason.ends_as, reason.step, reason.pending) == (Status.CANCELLED, "ship", ("refund", "release"))
    assert "second thoughts; compensating, undo steps left: refund, release" in str(reason)
    (event,) = [event for event in durable.audit(ref) if event.event == "compensating"]
    assert (event.actor, event.reason) == ("ada", "second thoughts")
    assert {**event.data}["to"] == "refund"
    durable.drain()
    assert durable.list(compensating=True) == []
    assert [event.event for event in durable.audit(ref)][-1] == "cancelled"


@pytest.mark.clause("UNDO-13")
@pytest.mark.parametrize("undo", ["refund", "release"])
@pytest.mark.parametrize("point", ["before_step", "before_commit"])
def test_crash_in_an_undo_step_repeats_only_that_step(durable: Harness, undo: str, point: CrashPoint) -> None:
    ref = durable.insert(Saga, Order("stop"))
    with durable.crash_at(undo, point), pytest.raises(Crash):
        durable.drain()
    durable.drain()
    ended = durable.get(ref)
    assert ended is not None
    assert (ended.status, ended.last_error) == (Status.FAILED, "no truck")
    assert steps_of(durable) == ["begin", "charge", "ship", "refund", "release"]


@pytest.mark.clause("UNDO-13")
def test_undo_steps_have_idempotency_keys_of_their_own(durable: Harness) -> None:
    keys: list[str] = []

    class Keys(Machine[Order, str]):
        @step(undo="refund")
        def charge(self, ctx: Context[Order]) -> Outcome[str]:
            keys.append(ctx.idempotency_key)
            return Next(self.ship)

        @step
        def ship(self, ctx: Context[Order]) -> Outcome[str]:
            keys.append(ctx.idempotency_key)
            durable.cancel(ctx.id)
            return Done("discarded")

        @step
        def refund(self, ctx: Context[Order]) -> Outcome[str]:
            keys.append(ctx.idempotency_key)
            return Done("refunded")

    ref = durable.insert(Keys, Order())
    durable.drain()
    assert keys == [f"{ref.id}:1", f"{ref.id}:2", f"{ref.id}:3"]


@pytest.mark.clause("UNDO-15")
@pytest.mark.parametrize("option", ["undo", "on_cancel"])
def test_invalid_undo_and_on_cancel_steps_are_rejected(option: str) -> None:
    def define(target: object) -> None:
        given: Any = {option: target}

        class Invalid(Machine[Order, str]):
            @step(**given)
            async def charge(self, ctx: Context[Order]) -> Outcome[str]:
                return Done("")

    with pytest.raises(DefinitionError, match=f"{option}= of step 'charge'"):
        define("nowhere")
    with pytest.raises(DefinitionError, match="the step itself"):
        define("charge")
    with pytest.raises(DefinitionError, match="of type function"):
        define(lambda ctx: None)


@pytest.mark.clause("UNDO-15")
def test_undo_step_is_given_by_reference_or_by_name() -> None:
    class Both(Machine[Order, str]):
        @step
        async def release(self, ctx: Context[Order]) -> Outcome[str]:
            return Done("")

        @step(initial=True, undo=release)
        async def reserve(self, ctx: Context[Order]) -> Outcome[str]:
            return Next(self.charge)

        @step(undo="release", on_cancel=release)
        async def charge(self, ctx: Context[Order]) -> Outcome[str]:
            return Done("")

    steps = Both.__definition__.steps
    assert (steps["reserve"].undo, steps["charge"].undo, steps["charge"].on_cancel) == ("release",) * 3


@pytest.mark.clause("UNDO-14")
def test_rows_of_machines_without_undo_have_no_undo_columns(durable: Harness, durable_dsn: str) -> None:
    class Plain(Machine[Order, str]):
        @step
        async def first(self, ctx: Context[Order]) -> Outcome[str]:
            return Next(self.second)

        @step
        async def second(self, ctx: Context[Order]) -> Outcome[str]:
            return Stop("no")

    ref = durable.insert(Plain, Order())
    durable.drain()
    columns = "select undo_steps, compensation from gen_durable.gen_durable where id = %s"
    with psycopg.connect(durable_dsn) as conn:
        assert conn.execute(columns, [ref.id]).fetchone() == (None, None)


@pytest.mark.clause("UNDO-4")
def test_keys_are_held_until_the_undo_steps_have_run(durable: Harness) -> None:
    ref = durable.insert(Saga, Order("wait"), correlation_key="order:1")
    durable.drain()
    durable.cancel("order:1")
    assert durable.insert(Saga, Order(), correlation_key="order:1").id == ref.id
    durable.drain()
    assert durable.insert(Saga, Order(), correlation_key="order:1").id != ref.id


@pytest.mark.clause("UNDO-2")
def test_signals_and_children_of_undo_steps(durable: Harness) -> None:
    class Slow(Machine[Order, str]):
        @step(undo="refund")
        async def charge(self, ctx: Context[Order]) -> Outcome[str]:
            return Stop("no truck") if ctx.state.log else Next(self.charge, Order(log=["charge"]))

        @step
        async def refund(self, ctx: Context[Order]) -> Outcome[str]:
            return Await("refunded", then=self.report)

        @step
        async def report(self, ctx: Context[Order]) -> Outcome[str]:
            return ScheduleChildren([Spec(Parcel, Order())], then=self.reported)

        @step
        async def reported(self, ctx: Context[Order]) -> Outcome[str]:
            return Done("reported")

    ref = durable.insert(Slow, Order())
    durable.drain()
    parked = durable.get(ref)
    assert parked is not None
    assert (parked.status, parked.is_compensating) == (Status.AWAITING_SIGNAL, True)
    durable.signal(ref, "refunded")
    durable.drain()
    (child,) = durable.children(ref)
    durable.signal(child.id, "deliver")
    durable.advance(timedelta(seconds=1))
    durable.drain()
    ended = durable.get(ref)
    assert ended is not None
    assert (ended.status, ended.step, ended.last_error) == (Status.FAILED, "charge", "no truck")


@pytest.mark.clause("UNDO-12")
def test_history_has_the_states_of_undo_steps(durable: Harness, durable_dsn: str) -> None:
    class Kept(Machine[list[str], str], history="all"):
        @step(undo="refund")
        async def charge(self, ctx: Context[list[str]]) -> Outcome[str]:
            ctx.state.append("charged")
            return Next(self.ship)

        @step
        async def ship(self, ctx: Context[list[str]]) -> Outcome[str]:
            ctx.state.append("no truck")
            return Stop("no truck")

        @step
        async def refund(self, ctx: Context[list[str]]) -> Outcome:
            ctx.state.append("refunded")
            return Done()

    ref = durable.insert(Kept, [])
    durable.drain()
    with Client(durable_dsn) as client:
        transitions = client.history(ref)
    assert [(each.step, each.outcome, each.state) for each in transitions[1:]] == [
        ("charge", "next", ["charged"]),
        ("ship", "undo", ["charged", "no truck"]),
        ("refund", "undone", ["charged", "no truck", "refunded"]),
    ]


@pytest.mark.clause("UNDO-2")
@pytest.mark.parametrize(
    ("ending", "expected"),
    [
        ("stop", ("Stop", "no truck", "ship")),
        ("raise", ("RuntimeError", "truck broke", "ship")),
        ("cancel", ("Cancel", "not wanted", "ship")),
        ("wait", ("Cancel", "changed my mind", "ship")),
    ],
)
def test_undo_steps_see_why_they_run(durable: Harness, ending: str, expected: tuple[str, str, str]) -> None:
    seen: list[tuple[str, str, str]] = []

    class Seeing(Saga):
        @step
        async def refund(self, ctx: Context[Order]) -> Outcome[str]:
            return Next(self.release)

        @step
        async def release(self, ctx: Context[Order]) -> Outcome[str]:
            if ctx.failure is not None:
                seen.append((ctx.failure.type, ctx.failure.message, ctx.failure.step))
            return Done("released")

    ref = durable.insert(Seeing, Order(ending))
    durable.drain()
    if ending == "wait":
        durable.cancel(ref, reason="changed my mind")
        durable.drain()
    # Once after `refund` as an ordinary step, where it is None, and once as the undo step of `begin`.
    assert seen == [expected]
