"""Search, counts and completion in both clients."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable import SearchError, Spec, Status, UsageError
from gen_durable._db import search
from tests.support.machines import Order, Plain

# As workers and operators store them.
NAMES = """
insert into gen_durable.machines (fsm, fsm_version, initial_step, queue, steps, signals)
values ('Plain', 1, 'run', 'quick', '["run", "rest"]', '{"paid": null}'), ('Order', 1, 'start', 'slow', '["start"]', null);
insert into gen_durable.limits (kind, name, slots) values ('concurrency', 'tenant', 1);
insert into gen_durable.limits (kind, name, allowed, period, burst) values ('rate', 'crm', 1, '1 s', 1);
insert into gen_durable.queues (name) values ('mail');
insert into gen_durable.schedules (name, every, tz, missed, overlap, spec, anchor_at, next_at)
values ('nightly', '1 day', 'UTC', 'skip', 'allow', '{}', now(), now())
"""


async def test_page_says_what_it_shows_and_where_to_continue(client: Any) -> None:
    refs = await client.insert_all([Spec(Plain, n) for n in range(5)])
    await client.insert(Order, 1, correlation_key="order:42")
    page = await client.search("machine:Plain status:live", limit=2)
    assert [one.id for one in page.items] == [refs[4].id, refs[3].id]
    assert (page.next, page.bounded, page.words) == (refs[3].id, None, "live instances of Plain")
    rest = await client.search("machine:Plain status:live", limit=3, before=page.next)
    assert [one.id for one in rest.items] == [ref.id for ref in refs[2::-1]]
    last = await client.search("machine:Plain", limit=10, before=rest.next)
    assert (last.items, last.next) == ((), None)
    (found,) = (await client.search("key:order:42")).items
    assert (found.machine, found.state) == ("Order", 1)
    assert len((await client.search("")).items) == 6


async def test_bounded_page_continues_where_it_stopped(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "BOUND", 10)
    refs = await client.insert_all([Spec(Plain, n) for n in range(25)])
    page = await client.search("machine:Plain state:3")
    assert (page.items, page.bounded, page.next) == ((), 10, refs[15].id)
    assert [(term.name, term.is_indexed) for term in page.terms] == [("machine", True), ("state", False)]
    page = await client.search("machine:Plain state:3", before=page.next)
    page = await client.search("machine:Plain state:3", before=page.next)
    assert ([one.state for one in page.items], page.bounded, page.next) == ([3], None, None)
    assert [one.state for one in await client.list(where="machine:Plain state:3")] == [3]
    assert await client.count(Plain, where="state:3,4,5") == 3
    count = await client.search_count("machine:Plain state:20,3")
    assert (count.count, count.is_exact, count.by_status) == (1, False, {Status.RUNNABLE: 1})
    count = await client.search_count("machine:Plain id:1,2")
    assert (count.count, count.is_exact) == (2, True)


async def test_verbs_for_many_act_on_every_match(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "BOUND", 10)
    await client.insert_all([Spec(Plain, n % 5, queue="a" if n % 2 else "b") for n in range(50)])
    assert await client.cancel_all(where="state:1", queue="a") == 5
    assert await client.cancel_all(Plain, where="state:1 -queue:x") == 5
    assert await client.retry_all(where="cancelled queue:b") == 5
    assert await client.retry_all(where="status:live") == 0
    assert await client.delete_all(where="status:cancelled state:1,2") == 5
    assert await client.count(where="status:deleted") == 5
    assert await client.count() == 45
    for verb in (client.cancel_all, client.retry_all, client.delete_all):
        with pytest.raises(UsageError, match="the search is empty"):
            await verb(where=" ")


async def test_values_without_a_name_are_machines_steps_or_keys(client: Any, db: Any) -> None:
    await db.execute(NAMES)
    plain = await client.insert(Plain, 1)
    order = await client.insert(Order, 2, correlation_key="late")
    for text, id, name in (
        ("Plain", plain.id, "machine"),
        ("start", order.id, "step"),
        ("late", order.id, "key"),
        (str(plain.id), plain.id, "id"),
    ):
        page = await client.search(text)
        assert [one.id for one in page.items] == [id], text
        assert [term.name for term in page.terms] == [name]


async def test_errors_of_searches(client: Any) -> None:
    with pytest.raises(SearchError) as raised:
        await client.search("machine:Plain staus:failed")
    assert (raised.value.start, raised.value.end) == (14, 26)
    with pytest.raises(UsageError, match="the search is of type int"):
        await client.list(where=3)
    with pytest.raises(UsageError, match="limit is 0"):
        await client.search("", limit=0)


@pytest.mark.parametrize(
    ("text", "suggested"),
    [
        ("mach", ["machine:"]),
        ("machine:", ["Order", "Plain"]),
        ("machine:Plain step:", ["rest", "run"]),
        ("machine:Order step:", ["start"]),
        ("step:r", ["rest", "run", "start"]),
        ("awaits:", ["paid"]),
        ("queue:", ["mail", "quick", "slow"]),
        ("schedule:n", ["nightly"]),
        ("concurrency:", ["tenant"]),
        ("limit:", ["crm"]),
        ("worker:", ["host-1"]),
        ("status:ret", ["retrying"]),
        ("-status:awaiting_s", ["awaiting_signal"]),
        ("nothing:", []),
    ],
)
async def test_completion(client: Any, db: Any, text: str, suggested: list[str]) -> None:
    await db.execute(NAMES)
    completion = await client.complete(text)
    assert [one.text for one in completion.suggestions] == suggested
    assert (await client.complete(f"{text} x", len(text))) == completion
