"""Test kit: run one step without a database, or whole instances on a real database with a clock that the test controls.

`run_step` calls one step, without a database:

    outcome = run_step(Checkout().ship, Order(42), awaited=[(Checkout.payment, Payment(100))])
    assert outcome == Done(Receipt(42, 100))

`context` makes a `ctx`, for calling a job or `handle` directly:

    assert Checkout().handle(TimeoutError(), context(Order(42), attempt=5)) == Stop(TimeoutError())

A harness runs whole instances with the SQL statements of a worker. The pytest fixtures `durable` and `async_durable`
(for async tests with pytest-asyncio or anyio) are available wherever this package is installed. Each test gets its own
database:

    def test_an_unpaid_order_is_given_up(durable: Harness) -> None:
        order = durable.insert(Checkout, Order(42))
        durable.drain()
        durable.assert_awaiting(order, Checkout.payment)
        durable.advance(hours=24)
        durable.drain()
        durable.assert_failed(order, match="payment never came")
"""

from ._harness import AsyncHarness, Harness, crash_everywhere
from ._stepper import CommittedOutcome, Crash, DrainCounts
from ._steps import context, published_items, reported_progress, run_step, run_step_async

__all__ = [
    "AsyncHarness",
    "CommittedOutcome",
    "Crash",
    "DrainCounts",
    "Harness",
    "context",
    "crash_everywhere",
    "published_items",
    "reported_progress",
    "run_step",
    "run_step_async",
]
