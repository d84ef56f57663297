"""The overview: figures, what needs attention, and the page."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import httpx
import psycopg
import pytest
from playwright.async_api import expect

from gen_durable import AsyncClient, Worker, job
from tests.dashboard.conftest import LogIn, shot
from tests.dashboard.machines import MACHINES, XSS, Checkout, Order, fragile, parcel
from tests.support.settings import FAST

# Two full intervals of 10 s a minute ago, and the backlog beside the first one.
COUNTED = """
insert into gen_durable.machine_stats (fsm, bucket, worker, incarnation, n, started, done, failed, cancelled, retried, raised, stopped, run, wait)
select fsm, date_bin('10 s', now(), 'epoch') - age, 'w1', 1, 9, 6, 4, 2, 0, 0, 2, 0, '{0,0,0,9}', '{0,0,0,0,0,0,9}'
  from unnest('{"",shop.parcel}'::text[]) as fsm cross join unnest('{60 s,50 s}'::interval[]) as age;
insert into gen_durable.backlog (fsm, bucket, due, executing, waiting, is_kept)
select '', date_bin('10 s', now(), 'epoch') - interval '60 s', 7, 1, 3, true;
"""


async def get(http: httpx.AsyncClient, path: str) -> Any:
    answer = await http.get(f"/api/{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_figures_are_per_minute_and_without_gaps(http: httpx.AsyncClient, durable_dsn: str) -> None:
    with psycopg.connect(durable_dsn, autocommit=True) as conn:
        conn.execute(COUNTED)
    page = await get(http, "overview")
    assert (page["width"], page["total"]["done"], page["total"]["failed"]) == ("PT10S", 8, 4)
    assert page["machines"] == {"shop.parcel": {"started": 12, "done": 8, "failed": 4}}
    counted = [place for place, started in enumerate(page["started"]) if started]
    first, second = counted
    assert second == first + 1
    assert (page["started"][first], page["done"][first], page["failed"][first]) == (36, 24, 12)
    assert page["wait"]["p95"][first] is not None
    assert page["run"]["p50"][first - 1] is None
    # The backlog counts until it is stored again, at most 30 s.
    assert page["due"][first - 1 : first + 4] == [0, 7, 7, 7, 0]
    assert page["waiting"][first] == 3
    lists = ("started", "done", "failed", "due", "waiting")
    assert len({len(page[name]) for name in lists} | {len(page["run"]["p99"])}) == 1
    since, at = (datetime.fromisoformat(page[name]) for name in ("since", "at"))
    assert timedelta(minutes=14) < at - since < timedelta(minutes=16)


@pytest.mark.parametrize(("range", "intervals"), [("1h", 60), ("24h", 96), ("7d", 84)])
async def test_ranges_have_a_bounded_number_of_intervals(
    http: httpx.AsyncClient, durable_dsn: str, range: str, intervals: int
) -> None:
    with psycopg.connect(durable_dsn, autocommit=True) as conn:
        conn.execute(COUNTED)
    page = await get(http, f"overview?range={range}")
    assert page["total"]["started"] == 12
    assert intervals - 1 <= len(page["started"]) <= intervals + 1


async def test_unknown_range_is_refused(http: httpx.AsyncClient) -> None:
    assert (await http.get("/api/overview?range=2y")).status_code == 422


async def test_attention_lists_problems_first(
    http: httpx.AsyncClient, client: AsyncClient, durable_dsn: str
) -> None:
    await client.pause_queue("slow", actor="ann")
    async with Worker(MACHINES, dsn=durable_dsn, settings=FAST) as worker:
        for _ in range(2):
            await worker.wait(await worker.insert(fragile, "out of paper"))
        await worker.wait(await worker.insert(Checkout, Order(-1)))
        await worker.insert(parcel, 7, queue="unserved")
    items = (await get(http, "attention"))["items"]
    assert [(one["code"], one["severity"], one["what"], one["page"]) for one in items] == [
        (
            "failures",
            "problem",
            "2 of shop.fragile failed at run",
            "/instances?q=machine%3Ashop.fragile%20step%3Arun%20status%3Afailed%20fingerprint%3A2a8fadd35769",
        ),
        ("queue.unserved", "problem", "no live worker serves queue unserved; 1 due instance", "/queues"),
        # A Stop in the code is an end that its author has planned.
        (
            "failures",
            "notice",
            "1 of shop.checkout failed at reserve",
            "/instances?q=machine%3Ashop.checkout%20step%3Areserve%20status%3Afailed%20fingerprint%3A03ae53f74cad",
        ),
        ("queue.paused", "notice", "queue slow is paused by ann; nothing due", "/queues"),
    ]
    assert items[0]["detail"] == "ValueError: out of paper"
    assert items[1]["names"] == ["unserved"]
    assert items[3]["action"]["path"] == "/queues/slow/resume"


async def test_page_of_a_new_installation_says_how_to_start(log_in: LogIn) -> None:
    async with log_in("read") as page:
        await expect(page.get_by_role("heading", name="No machines yet")).to_be_visible()
        await expect(page.get_by_text("gen-durable worker app.py")).to_be_visible()
        await expect(page.get_by_role("heading", name="Needs attention")).to_be_hidden()


async def test_page_shows_figures_and_follows_them(
    log_in: LogIn, client: AsyncClient, durable_dsn: str
) -> None:
    with psycopg.connect(durable_dsn, autocommit=True) as conn:
        conn.execute(COUNTED)
    async with Worker(MACHINES, dsn=durable_dsn, settings=FAST) as worker, log_in("read") as page:
        await expect(page.get_by_text("All checks passed")).to_be_visible()
        for name, path in {
            "Started": "age%3A%3C15m", "Done 8": "status%3Adone%20ended%3A%3C15m", "Failed 33 % 4": "status%3Afailed%20ended%3A%3C15m",
            "Due now": "status%3Adue", "Waiting": "status%3Awaiting",
        }.items():  # fmt: skip
            link = page.locator("main").get_by_role("link", name=re.compile(name.replace(" ", ".*")))
            await expect(link.first).to_have_attribute("href", f"/instances?q={path}")
        chart = page.get_by_role("group", name="Throughput per minute")
        await expect(chart.get_by_role("img")).to_have_attribute(
            "aria-label", re.compile("Done: from 0 to 24")
        )
        first = page.get_by_role("article").first
        await expect(first.get_by_role("link", name="shop.parcel")).to_be_visible()
        await page.get_by_role("button", name="1 h", exact=True).click()
        await expect(page).to_have_url(re.compile("range=1h"))
        await expect(page.get_by_role("button", name="1 h", exact=True)).to_have_attribute(
            "aria-pressed", "true"
        )
        await page.get_by_role("button", name="Step run").click()
        await expect(page).to_have_url(re.compile("latency=run"))
        await shot(page, "overview")
        waiting = page.get_by_role("link", name=re.compile("^Waiting"))
        await expect(waiting).to_contain_text("0")
        await worker.wait(await worker.insert(Checkout, Order(7)), until="parked")
        await expect(waiting).to_contain_text("1")


async def test_paused_queue_is_resumed_on_the_page(
    log_in: LogIn, client: AsyncClient, durable_dsn: str
) -> None:
    await client.pause_queue("slow", actor="ann")
    async with Worker(MACHINES, dsn=durable_dsn, settings=FAST):
        async with log_in("read") as page:
            await expect(page.get_by_role("button", name="Resume the queue")).to_be_disabled()
            await expect(page.locator(".attention")).to_contain_text(re.compile(r"nothing due.*for \d"))
        async with log_in("operate") as page:
            await page.get_by_role("button", name="Resume the queue").press("Enter")
            await page.get_by_label("Reason").fill("repaired")
            await page.keyboard.press("Enter")
            await expect(page.get_by_text("All checks passed")).to_be_visible()
    [event] = await client.audit_log(limit=1)
    assert (event.actor, event.reason) == ("olga", "repaired")


@job(XSS, max_attempts=1)
async def hostile(text: str) -> None:
    raise ValueError(text)


async def test_names_and_errors_are_text_on_a_phone(
    log_in: LogIn, client: AsyncClient, durable_dsn: str
) -> None:
    await client.pause_queue(XSS, actor=XSS)
    async with Worker([hostile], dsn=durable_dsn, settings=FAST) as worker:
        await worker.wait(await worker.insert(hostile, XSS))
        async with log_in("read", width=400, color_scheme="dark") as page:
            await expect(page.get_by_text(f"1 of {XSS} failed at run")).to_be_visible()
            await expect(page.get_by_text(f"ValueError: {XSS}")).to_be_visible()
            await expect(page.get_by_text(f"Queue {XSS} is paused by {XSS}", exact=False)).to_be_attached()
            await expect(page.get_by_role("article").get_by_role("link", name=XSS)).to_be_visible()
            await shot(page, "overview-400")
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
