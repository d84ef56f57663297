"""The page of workers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest
from playwright.async_api import Locator, Page, expect

from gen_durable import Worker, job
from tests.dashboard.conftest import LogIn, shot
from tests.dashboard.machines import XSS

_may_end = asyncio.Event()


@job("ops.slow")
async def slow(number: int) -> None:
    await _may_end.wait()


@pytest.fixture
async def worker(durable_dsn: str) -> AsyncIterator[Worker]:
    async with Worker([slow], dsn=durable_dsn, queues={"default": 4, "mail": 2}) as running:
        yield running
        _may_end.set()


OTHERS = """
insert into gen_durable.workers (name, host, pid, version, started_at, seen_at, expires_at, is_draining, queues, capacities, in_flight,
                                 prefixes, prefix_capacities, leaves_unknown, fsms, fsm_versions, fsm_steps, paused_queues,
                                 paused_since, schema_version, blocked)
select row.name, $1, 7, '1.0', now() - interval '2 h', now() - row.age, now() + interval '1 h' - row.age * 1000, row.is_draining,
       array[$1], '{3}', 0, array['billing.'], '{5}', false, array[$1], '{1}', '{}', '{}', '{}', 1, row.blocked::jsonb
  from (values ('w-silent', interval '5 min', false, null),
               ('w-blocked', interval '0', false,
                jsonb_build_object('machine', $1::text, 'step', $1::text, 'id', 1, 'since', now() - interval '1 min')),
               ('w-draining', interval '0', true, null)) as row (name, age, is_draining, blocked)"""


EXECUTED = """
insert into gen_durable.machine_stats (fsm, bucket, worker, incarnation, n, started, done, failed, cancelled, retried, raised, stopped, run, wait)
select '', now() + n * interval '10 s', $1, n, 1, 0, 0, 0, 0, 0, 0, 0, '{}', '{}' from generate_series(-30, 30) n"""


def card_of(page: Page, name: str) -> Locator:
    return page.locator(".panel").filter(has=page.get_by_role("heading", name=name, exact=True))


async def test_workers_show_what_they_run(log_in: LogIn, worker: Worker, db: Any) -> None:
    _may_end.clear()
    await worker.set_queue("mail", concurrency=1)
    for number in range(3):
        await worker.insert(slow, number, correlation_key=f"order:{number}")
    await worker.insert(slow, 9, queue="mail", correlation_key=XSS)
    async with log_in("read", path="/workers") as page:
        card = card_of(page, worker.name)
        await db.execute(EXECUTED, worker.name)
        await expect(card).to_contain_text("of 6 running, 6.0/min")
        await expect(card.get_by_role("img", name="Executions per 20 s: from 0 to 2, last 2")).to_be_visible()
        await expect(card.get_by_role("link", name="4 of 6")).to_have_attribute(
            "href", f"/instances?q={quote(f'worker:{worker.name} status:executing', safe='')}"
        )
        await expect(card).to_contain_text("3 / 4")
        await expect(card).to_contain_text("1 / 1")
        await expect(card.get_by_role("link", name="#1", exact=True)).to_have_attribute("href", "/i/1")
        await expect(card).to_contain_text("order:2 · run")
        await expect(card).to_contain_text(f"{XSS} · run")
        await expect(card.get_by_role("link", name="ops.slow")).to_have_attribute("href", "/m/ops.slow")

        await db.execute(OTHERS, XSS)
        silent, blocked = card_of(page, "w-silent"), card_of(page, "w-blocked")
        await expect(silent.locator(".chip.c-fail")).to_have_text("silent")
        await expect(silent).to_contain_text(re.compile(r"heartbeat 5 m (\d+ s )?ago, up 2 h"))
        await expect(silent).to_contain_text(XSS)
        await expect(silent.get_by_role("link", name="billing.*")).to_be_visible()
        await expect(blocked).to_contain_text(f"#1 {XSS}, step {XSS}, blocks the event loop")
        await expect(card_of(page, "w-draining").locator(".chip.c-retry")).to_have_text("draining")
        names = await page.locator(".panel h2").all_inner_texts()
        assert [name.strip() for name in names] == [
            *sorted(["w-blocked", "w-draining", worker.name]),
            "w-silent",
        ]
        await shot(page, "workers")
        await page.set_viewport_size({"width": 400, "height": 900})
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await page.emulate_media(color_scheme="dark")
        await shot(page, "workers-400")

        await page.goto(page.url + "?queue=mail")
        await expect(card).to_be_visible()
        await expect(silent).to_have_count(0)
        await page.get_by_role("button", name="queue mail").click()
        await expect(silent).to_be_visible()


async def test_page_without_workers_says_how_to_start_one(log_in: LogIn) -> None:
    async with log_in("read", path="/workers") as page:
        await expect(page.get_by_role("heading", name="No worker runs")).to_be_visible()
        await expect(page.get_by_text("gen-durable worker app.py")).to_be_visible()
