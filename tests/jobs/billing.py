"""Jobs of every shape, as a user's module has them."""

from __future__ import annotations

import threading
from datetime import timedelta

import msgspec

from gen_durable import Backoff, Context, Discard, Done, RetryAfter, Sql, job
from tests.jobs.elsewhere import notify

__all__ = [
    "Charge",
    "Invoice",
    "alias",
    "charge",
    "charge_in_words",
    "flaky",
    "notify",
    "record",
    "sweep",
    "where",
]


class Invoice(msgspec.Struct):
    number: int
    cents: int = 0


class Charge(msgspec.Struct):
    id: str


@job("billing.charge.v1", queue="billing")
async def charge(invoice: Invoice, ctx: Context[Invoice]) -> Charge:
    """Charges a card."""
    if invoice.cents < 0:
        raise Discard("card declined")
    return Charge(f"{invoice.number}/{ctx.idempotency_key}")


@job("billing.charge_in_words.v1", queue="billing")
def charge_in_words(invoice: Invoice) -> str:
    return f"{invoice.cents} cents for {invoice.number}"


@job("billing.sweep.v1")
async def sweep() -> int:
    return 7


@job("billing.where.v1")
def where() -> tuple[str, bool]:
    """Returns the thread it runs on."""
    return threading.current_thread().name, threading.current_thread() is threading.main_thread()


@job("billing.record.v1")
async def record(number: int, ctx: Context[int]) -> Done[str]:
    """Commits a row together with its result."""
    return Done(f"recorded {number}", effect=Sql("insert into ledger (entry) values ($1)", number))


@job("billing.flaky.v1", retry=Backoff(base=timedelta(milliseconds=1), jitter=0))
def flaky(failures: int, ctx: Context[int]) -> int:
    """Fails this many times, then returns its attempt."""
    if ctx.attempt == 0 and failures > 10:
        raise RetryAfter(timedelta(milliseconds=1), "not now")
    if ctx.attempt < failures:
        raise ConnectionError(f"refusal {ctx.attempt}")
    return ctx.attempt


alias = sweep
