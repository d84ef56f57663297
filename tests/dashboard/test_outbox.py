"""The page of the outbox."""

from __future__ import annotations

from typing import Any

from playwright.async_api import Page, expect

from gen_durable import AsyncClient
from tests.dashboard.conftest import LogIn, shot
from tests.dashboard.machines import XSS

EVENTS = """
insert into gen_durable.outbox (instance_id, step_seq, n, sink, type, subject, data, attempts, last_error, created_at, published_at, dead_at)
select n, 1, 1, case when n % 2 = 0 then 'crm' else 'mail' end, case when n = 61 then $1 else 'order.paid' end,
       case when n = 61 then $1 else 'order:' || n end, jsonb_build_object('order', n, 'note', $1::text, 'token', 'hunter2-canary'),
       case when n > 56 then 2 else 0 end, case when n > 56 then '410 Gone: ' || $1 end, now() - interval '2 s',
       case when n <= 50 then now() end, case when n > 56 then now() end
  from generate_series(1, 61) n"""


async def listed(page: Page) -> list[str]:
    return await page.locator("tbody tr[tabindex] td:nth-child(2) small").all_inner_texts()


async def test_events_are_listed_filtered_and_replayed(log_in: LogIn, client: AsyncClient, db: Any) -> None:
    await db.execute(EVENTS, XSS)
    async with log_in("operate", path="/outbox") as page:
        crm = page.locator(".panel").filter(has=page.get_by_role("heading", name="crm", exact=True))
        for text in ("Published1.7/min2.0 s after commit, p95 2.0 s", "Pending3oldest", "Dead letters2last"):
            await expect(crm.locator(".figures")).to_contain_text(text)
        await expect(crm).to_contain_text(f"410 Gone: {XSS}")
        await expect(page.locator("tbody tr[tabindex]")).to_have_count(50)
        await shot(page, "outbox")
        await page.get_by_role("button", name="Older").click()
        await expect(page.locator("tbody tr[tabindex]")).to_have_count(11)
        assert await listed(page) == [f"{n}:1:1" for n in range(11, 0, -1)]
        await page.go_back()
        await expect(page.locator("tbody tr[tabindex]")).to_have_count(50)

        await crm.get_by_role("link", name="Dead letters").click()
        await expect(page.get_by_role("tab", name="Dead")).to_have_attribute("aria-selected", "true")
        await expect(page.locator("tbody tr[tabindex]")).to_have_count(2)
        await page.get_by_label("sink").fill("")
        await page.get_by_label("sink").press("Enter")
        await expect(page.locator("tbody tr[tabindex]")).to_have_count(5)
        await page.get_by_label("type").fill(XSS)
        await page.get_by_label("type").press("Enter")
        await expect(page.locator("tbody tr[tabindex]")).to_have_count(1)
        await page.get_by_role("button", name="Details").press("Enter")
        for text in (XSS, "[hidden]", f"410 Gone: {XSS}", "61:1:1"):
            await expect(page.locator(".details")).to_contain_text(text)

        await page.get_by_role("button", name="Replay event 61:1:1").click()
        await page.get_by_label("Reason").fill("fixed")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="No events")).to_be_visible()
        await page.get_by_role("button", name="Replay dead letters of crm").click()
        await expect(page.get_by_role("dialog")).to_contain_text("2 dead letters")
        await page.get_by_role("button", name="Replay", exact=True).click()
        await expect(page.get_by_role("link", name="Replay: 2 replayed")).to_have_attribute(
            "href", "/batches?id=1"
        )
        await expect(crm).to_contain_text("Pending5")
        await page.get_by_role("link", name="Replay: 2 replayed").click()
        await expect(page.get_by_role("row", name="Replay #1")).to_contain_text("dead letters of crm")
        await expect(page.locator("tr.details")).to_contain_text("are published again")
    events = [one for one in await client.audit_log() if one.event == "replayed"]
    assert [(one.instance_id, one.actor, one.reason) for one in events][-1] == (61, "olga", "fixed")
    assert len(events) == 3


async def test_reader_cannot_replay(log_in: LogIn, db: Any) -> None:
    await db.execute(EVENTS, XSS)
    async with log_in("read", path="/outbox?state=dead", width=400, color_scheme="dark") as page:
        await expect(page.get_by_role("button", name="Replay event 61:1:1")).to_be_disabled()
        await expect(page.get_by_role("button", name="Replay dead letters of crm")).to_be_disabled()
        await expect(page.get_by_role("row").get_by_text(XSS, exact=True).first).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await shot(page, "outbox-400")


async def test_empty_outbox(log_in: LogIn) -> None:
    async with log_in("read", path="/outbox") as page:
        await expect(page.get_by_role("heading", name="No events")).to_be_visible()
