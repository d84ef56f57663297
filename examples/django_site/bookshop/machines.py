from datetime import timedelta

from gen_durable import Await, Context, Done, Machine, Outcome, Signal, Stop, step
from gen_durable.contrib.django import fresh_connections

from .models import Order


class Checkout(Machine[int, str]):
    """The state is the number of the order."""

    paid = Signal("paid")

    @step
    async def wait(self, ctx: Context[int]) -> Outcome:
        return Await(self.paid, then=self.ship, timeout=timedelta(days=1))

    @step
    def ship(self, ctx: Context[int]) -> Outcome[str]:  # a plain def runs in a thread, where the ORM works
        status = "expired" if ctx.timed_out else "shipped"
        with fresh_connections():
            Order.objects.filter(pk=ctx.state).update(status=status)
        return Stop("not paid in time") if ctx.timed_out else Done(status)
