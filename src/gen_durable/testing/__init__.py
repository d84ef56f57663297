"""For tests of machines: one step as a value, or whole instances on a real database and a clock of the test's.

A step alone needs no database:

    outcome = run_step(Checkout().ship, Order(42), awaited=[(Checkout.payment, Payment(100))])
    assert outcome == Done(Receipt(42, 100))

`context` makes the `ctx` alone, for whoever calls a job or a `handle` himself:

    assert Checkout().handle(TimeoutError(), context(Order(42), attempt=5)) == Stop(TimeoutError())

Whole instances run through the statements of a worker. With this package installed, pytest has the fixtures `durable`
and `async_durable` (for async tests, which need a plugin that runs them: pytest-asyncio or anyio); each test gets a
database of its own:

    def test_an_unpaid_order_is_given_up(durable: Harness) -> None:
        order = durable.insert(Checkout, Order(42))
        durable.drain()
        durable.assert_awaiting(order, Checkout.payment)
        durable.advance(hours=24)
        durable.drain()
        durable.assert_failed(order, match="payment never came")
"""

from ._harness import AsyncHarness, Harness, crash_everywhere
from ._stepper import Crash, DrainCounts, Transition
from ._steps import context, run_step, run_step_async

__all__ = [
    "AsyncHarness",
    "Crash",
    "DrainCounts",
    "Harness",
    "Transition",
    "context",
    "crash_everywhere",
    "run_step",
    "run_step_async",
]
