"""Mutants of batches."""

from __future__ import annotations

from tests.interleavings.mutants import Mutant
from tests.interleavings.product import SCHEMA, Change
from tests.interleavings.scenarios import batches

_GUARD = "b.lease_token = token and b.pages = page and b.finished_at is null for update;"

MUTANTS = [
    Mutant(
        name="a page of a batch does not ask for the lease",
        scenario=batches.page_and_takeover(),
        reason="a runner without the lease has changed instances",
        changes=[Change(SCHEMA, "b.lease_token = token and b.pages", "token is not null and b.pages")],
    ),
    Mutant(
        name="a page of a batch does not ask for the committed pages",
        scenario=batches.page_and_the_same_page(),
        reason="a page was committed twice",
        changes=[Change(SCHEMA, "and b.pages = page and", "and page is not null and")],
    ),
    Mutant(
        name="a page of a batch does not lock the batch",
        scenario=batches.page_and_the_same_page(),
        reason="a page was committed twice",
        changes=[Change(SCHEMA, _GUARD, _GUARD.replace(" for update", ""))],
    ),
    Mutant(
        name="a page of a batch overlooks a stop",
        scenario=batches.page_and_stop(),
        reason="a page after the stop",
        changes=[Change(SCHEMA, "b.pages = page and b.finished_at is null", "b.pages = page")],
    ),
    Mutant(
        name="a stop does not wait for the page that runs",
        scenario=batches.page_and_stop(),
        reason="error: new row for relation",
        changes=[Change(SCHEMA, _GUARD, _GUARD.replace(" for update", ""))],
    ),
    Mutant(
        name="a page waits for locked instances",
        scenario=batches.run_and_cancel("cancel"),
        reason="waited for a lock",
        changes=[
            Change(
                SCHEMA,
                "where g.id = any (ids) order by g.id desc for no key update skip locked) one",
                "where g.id = any (ids) order by g.id desc for no key update) one",
            )
        ],
    ),
    Mutant(
        name="a page forgets locked instances",
        scenario=batches.run_and_cancel("cancel"),
        reason="an instance was",
        changes=[Change(SCHEMA, "order by one.number) || locked;", "order by one.number);")],
    ),
    Mutant(
        name="a page names the batch in earlier events",
        scenario=batches.run_and_cancel("cancel"),
        reason="an event of another caller names the batch",
        changes=[Change(SCHEMA, "and a.id > last_event;", "and a.id > 0;")],
    ),
]
