"""Assertions return what they checked, and describe the difference when they fail."""

from __future__ import annotations

import pytest

from gen_durable import CancelRequested, Context, Done, Machine, Outcome, Ref, step
from gen_durable.errors import UsageError
from gen_durable.testing import AsyncHarness, CommittedOutcome, DrainCounts, Harness
from tests.testing.machines import Checkout, Flaky, Order, Parcel, Payment, Receipt, Shipment


def test_assert_done_returns_the_typed_result(durable: Harness) -> None:
    order = durable.insert(Checkout, Order(42), correlation_key="order:42")
    durable.signal(order, Checkout.payment, Payment(100))
    durable.drain()
    assert durable.assert_done(order, Receipt(42, 100)).amount == 100
    assert durable.assert_done(order.id) == Receipt(42, 100)
    assert durable.assert_done("order:42") == Receipt(42, 100)
    assert durable.assert_done(Ref(Checkout, "order:42")) == Receipt(42, 100)


def test_assert_done_fails_for_another_result(durable: Harness) -> None:
    parcel = durable.insert(Parcel, 1)
    durable.drain()
    with pytest.raises(AssertionError, match=r"^Parcel 1 is done with 'parcel 1', not with None$"):
        durable.assert_done(parcel, None)


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("nothing", "Checkout 1 is not done; it has status runnable at step 'start', drain() runs it"),
        (
            "drain",
            "Checkout 1 is not done; it has status awaiting_signal at step 'ship', "
            "waiting for 'payment_confirmed', 'withdrawn'",
        ),
        (
            "withdraw",
            "Checkout 1 is not done; it has status failed at step 'ship', last error: the customer withdrew",
        ),
    ],
)
def test_assert_done_describes_an_unfinished_instance(durable: Harness, before: str, message: str) -> None:
    order = durable.insert(Checkout, Order(42))
    if before == "withdraw":
        durable.signal(order, Checkout.withdrawn)
    if before != "nothing":
        durable.drain()
    with pytest.raises(AssertionError) as raised:
        durable.assert_done(order)
    assert str(raised.value) == message


def test_assert_done_names_the_children_a_parent_waits_for(durable: Harness) -> None:
    shipment = durable.insert(Shipment, [1, 2])
    with pytest.raises(AssertionError, match="still runs"):
        durable.drain(max_steps=1)
    with pytest.raises(
        AssertionError, match=r"it has status awaiting_children at step 'join', waiting for 2 children$"
    ):
        durable.assert_done(shipment)


def test_assert_done_shows_attempt_and_error(durable: Harness) -> None:
    flaky = durable.insert(Flaky, 1)
    durable.drain(collapse=False)
    with pytest.raises(
        AssertionError, match=r"attempt 2 is next, last error: ConnectionError: the bank does not answer"
    ):
        durable.assert_done(flaky)


def test_assert_done_names_an_unregistered_machine(durable: Harness) -> None:
    with Harness(str(durable.dsn)) as other:
        parcel = other.insert(Parcel, 1)
    durable.drain()
    with pytest.raises(AssertionError, match=r"its machine is not registered: call durable\.use\(Parcel\)"):
        durable.assert_done(parcel)


def test_assert_failed_matches_the_reason(durable: Harness) -> None:
    lost, found = durable.insert(Parcel, 3), durable.insert(Parcel, 1)
    durable.drain()
    assert durable.assert_failed(lost).last_error == "lost in the post"
    assert durable.assert_failed(lost, match="^lost").id == lost.id
    with pytest.raises(AssertionError, match="failed with 'lost in the post', which does not match 'burnt'"):
        durable.assert_failed(lost, match="burnt")
    with pytest.raises(AssertionError, match="Parcel 2 is not failed; it has status done"):
        durable.assert_failed(found)


def test_assert_cancelled_matches_the_reason(durable: Harness) -> None:
    lost, found = durable.insert(Parcel, 3), durable.insert(Parcel, 1)
    durable.cancel(lost, reason="sent twice", actor="ann")
    durable.drain()
    assert durable.assert_cancelled(lost).cancelled_by == "ann"
    assert durable.assert_cancelled(lost, match="twice$").cancel_reason == "sent twice"
    with pytest.raises(AssertionError, match="was cancelled for 'sent twice', which does not match 'burnt'"):
        durable.assert_cancelled(lost, match="burnt")
    with pytest.raises(AssertionError, match="Parcel 2 is not cancelled; it has status done"):
        durable.assert_cancelled(found)
    with pytest.raises(
        AssertionError, match=r"Parcel 1 is not done; it has status cancelled .*, cancel reason: sent twice"
    ):
        durable.assert_done(lost)


async def test_outcome_overtaken_by_a_cancel_counts_as_cancelled(
    async_durable: AsyncHarness,
) -> None:
    class Regrets(Machine[None, str]):
        @step
        async def run(self, ctx: Context[None]) -> Outcome[str]:
            assert await async_durable.cancel(ctx.id, reason="second thoughts") == CancelRequested(ctx.id)
            return Done("too late")

    ref = await async_durable.insert(Regrets)
    assert await async_durable.drain() == DrainCounts(cancelled=1)
    async_durable.assert_cancelled(ref, match="second thoughts")
    assert [transition.kind for transition in async_durable.outcomes(ref)] == ["cancel"]


def test_assert_awaiting_takes_signals_or_names(durable: Harness) -> None:
    order = durable.insert(Checkout, Order(42))
    durable.drain()
    assert durable.assert_awaiting(order, Checkout.payment, "withdrawn").state == Order(42)
    durable.assert_awaiting(order)
    with pytest.raises(AssertionError, match="waits for 'payment_confirmed', 'withdrawn', not for 'refund'"):
        durable.assert_awaiting(order, Checkout.payment, "refund")


def test_assert_at_checks_the_step(durable: Harness) -> None:
    order = durable.insert(Checkout, Order(42))
    durable.assert_at(order, Checkout.start)
    durable.drain()
    assert durable.assert_at(order, "ship").is_parked
    with pytest.raises(AssertionError, match="is at step 'ship', not 'start'; it has status awaiting_signal"):
        durable.assert_at(order, Checkout.start)


def test_assertions_fail_for_an_unknown_instance(durable: Harness) -> None:
    with pytest.raises(AssertionError, match="there is no instance 7"):
        durable.assert_done(7)
    with pytest.raises(AssertionError, match="there is no instance 'order:7'"):
        durable.assert_at("order:7", "start")


def test_ref_of_another_machine_is_rejected(durable: Harness) -> None:
    parcel = durable.insert(Parcel, 1)
    with pytest.raises(UsageError, match="is a Parcel, not a Checkout"):
        durable.assert_done(Ref(Checkout, parcel.id))


def test_instances_are_typed_and_oldest_first(durable: Harness) -> None:
    durable.insert(Parcel, 1)
    durable.insert(Checkout, Order(42))
    durable.insert(Parcel, 2)
    assert [parcel.state for parcel in durable.instances(Parcel)] == [1, 2]
    assert [instance.state for instance in durable.instances()] == [1, Order(42), 2]


def test_history_lists_every_commit(durable: Harness) -> None:
    flaky = durable.insert(Flaky, 1, correlation_key="flaky")
    durable.insert(Parcel, 1)
    durable.drain()
    expected = [
        CommittedOutcome(
            instance_id=flaky.id,
            machine="Flaky",
            step="attempt",
            kind=kind,
            step_seq=1,
            correlation_key="flaky",
        )
        for kind in ("retry", "done")
    ]
    assert durable.outcomes(flaky) == durable.outcomes(flaky.id) == durable.outcomes("flaky") == expected


def test_history_of_a_key_is_of_its_last_instance(durable: Harness) -> None:
    durable.insert(Parcel, 1, correlation_key="parcel")
    durable.drain()
    second = durable.insert(Parcel, 1, correlation_key="parcel")
    durable.drain()
    assert [t.instance_id for t in durable.outcomes("parcel")] == [second.id]
    assert durable.outcomes("unknown") == []
