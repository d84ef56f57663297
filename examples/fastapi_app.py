"""A web application that places orders, runs them in its process, and gets their payments by webhook.

GEN_DURABLE_DSN=postgresql://… WEBHOOK_SECRET=whsec_… uvicorn fastapi_app:app
"""

import os
from datetime import timedelta
from typing import Any

import msgspec
from fastapi import FastAPI, HTTPException

from gen_durable import (
    Await,
    Context,
    Done,
    Machine,
    NoTargetError,
    NotDoneError,
    Outcome,
    Signal,
    Stop,
    Worker,
    step,
)
from gen_durable.contrib.fastapi import DurableClient
from gen_durable.inbound import Inbound


class Payment(msgspec.Struct):
    amount: int


class Checkout(Machine[int, str]):
    paid = Signal("payment", Payment)

    @step
    async def reserve(self, ctx: Context[int]) -> Outcome:
        return Await(self.paid, then=self.ship, timeout=timedelta(hours=24))

    @step
    async def ship(self, ctx: Context[int]) -> Outcome[str]:
        payment = ctx.awaited.get(self.paid)
        return (
            Stop("not paid in time") if payment is None else Done(f"order {ctx.state}: {payment.amount} paid")
        )


durable = Worker([Checkout])  # or AsyncClient(), with workers in other processes
app = FastAPI(lifespan=durable.lifespan)
# POST /hooks/order:42/payment, signed with bound_secret(WEBHOOK_SECRET, "order:42", "payment"); or a CloudEvent to
# /hooks/ (with the slash: HttpSink does not follow redirects)
app.mount("/hooks", Inbound(durable, secret=os.environ["WEBHOOK_SECRET"]))


@app.post("/orders/{number}")
async def place(number: int, durable: DurableClient) -> dict[str, int]:
    order = await durable.insert(Checkout, number, correlation_key=f"order:{number}")
    return {"id": order.id}


@app.get("/orders/{number}")
async def show(number: int, durable: DurableClient) -> dict[str, Any]:
    try:
        order = await durable.wait(f"order:{number}", until="parked", timeout=timedelta(seconds=5))
    except NoTargetError:
        raise HTTPException(404, f"there is no order {number}") from None
    if not order.is_finished:
        return {"status": order.status}
    try:
        return {"status": order.status, "result": order.result}
    except NotDoneError as error:  # failed or cancelled
        return {"status": order.status, "why": error.error}
