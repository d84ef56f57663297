"""Undo steps do not receive the signals that woke the step that failed."""

from __future__ import annotations

import psycopg
import pytest

from gen_durable import (
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    Signal,
    Status,
    Stop,
    step,
)
from gen_durable.testing import Harness
from tests.engine.undo.sagas import Asking, Order


def refuse(dsn: str, ending: str) -> None:
    """Make the database refuse every state with this ending."""
    check = f"alter table gen_durable.gen_durable add constraint odd check (state ->> 'ending' <> '{ending}')"
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(check)


@pytest.mark.clause("UNDO-18")
@pytest.mark.parametrize("ending", ["stop", "raise", "handle", "discard", "cancel", "unstorable", "refused"])
def test_undo_step_does_not_receive_the_signal_of_the_failed_step(
    durable: Harness, durable_dsn: str, ending: str
) -> None:
    refuse(durable_dsn, "refused next")
    ref = durable.insert(Asking, Order(ending))
    durable.drain()
    durable.signal(ref, Asking.ok, "charge confirmed")
    durable.drain()
    now = durable.get(ref)
    assert now is not None
    assert (now.status, now.step, now.is_compensating) == (Status.AWAITING_SIGNAL, "refunded", True)
    durable.signal(ref, Asking.ok, "refund confirmed")
    durable.drain()
    ended = durable.get(ref)
    assert ended is not None
    assert ended.status is (Status.CANCELLED if ending == "cancel" else Status.FAILED)
    assert ended.state.log == ["refund confirmed"]


@pytest.mark.clause("UNDO-18")
def test_history_names_the_signals_that_a_redirected_end_consumed(durable: Harness) -> None:
    class Recorded(Asking, history="all"):
        pass

    ref = durable.insert(Recorded, Order("stop"))
    durable.drain()
    durable.signal(ref, Asking.ok, "charge confirmed")
    durable.drain()
    (undo,) = [transition for transition in durable.history(ref) if transition.outcome == "undo"]
    assert undo.signals == ("ok",)


@pytest.mark.clause("UNDO-18")
def test_cancelled_outcome_leaves_its_signals_for_undo_steps(durable: Harness) -> None:
    class Cancelled(Asking):
        @step
        def ship(self, ctx: Context[Order]) -> Outcome[str]:  # type: ignore[override]
            durable.cancel(ctx.id)
            return Stop("discarded")

    ref = durable.insert(Cancelled, Order())
    durable.drain()
    durable.signal(ref, Asking.ok, "charge confirmed")
    durable.drain()
    ended = durable.get(ref)
    assert ended is not None
    assert (ended.status, ended.state.log) == (Status.CANCELLED, ["charge confirmed"])


@pytest.mark.clause("UNDO-18")
@pytest.mark.parametrize("is_refused", [False, True])
def test_taken_signal_is_consumed_by_a_redirected_end(
    durable: Harness, durable_dsn: str, is_refused: bool
) -> None:
    refuse(durable_dsn, "read")

    class Taking(Machine[Order, str]):
        note = Signal("note", str)

        @step(undo="forget")
        async def begin(self, ctx: Context[Order]) -> Outcome[str]:
            return Next(self.read)

        @step
        async def read(self, ctx: Context[Order]) -> Outcome[str]:
            assert ctx.inbox.take(self.note) == "first"
            return Next(self.forget, Order("read")) if is_refused else Stop("no")

        @step
        async def forget(self, ctx: Context[Order]) -> Outcome[str]:
            ctx.state.log = [message.payload for message in ctx.inbox]
            return Done("forgotten")

    ref = durable.insert(Taking, Order())
    for text in ("first", "second"):
        durable.signal(ref, Taking.note, text)
    durable.drain()
    ended = durable.get(ref)
    assert ended is not None
    assert (ended.status, ended.state.log) == (Status.FAILED, ["second"])
