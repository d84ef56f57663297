"""The page of the audit log."""

from __future__ import annotations

from typing import Any

from playwright.async_api import expect

from gen_durable import AsyncClient
from tests.dashboard.conftest import LogIn, shot
from tests.dashboard.machines import XSS

EVENTS = """
insert into gen_durable.audit_events (instance_id, subject, event, actor, reason, data)
select case when n <= 200 then n end, case when n > 200 then 'queue:' || $1 end,
       case when n > 200 then 'paused' else 'failed' end, case when n > 200 then $1 end, case when n > 200 then $1 end,
       jsonb_build_object('step', 'ship', 'error', $1::text, 'password', 'hunter2-canary')
  from generate_series(1, 202) n"""


async def test_log_is_filtered_and_paged(log_in: LogIn, client: AsyncClient, db: Any) -> None:
    await db.execute(EVENTS, XSS)
    await client.pause_queue("mail", reason="smtp is down", actor="bob")
    async with log_in("admin", path="/audit") as page:
        rows = page.locator("tbody tr[tabindex]")
        await expect(rows).to_have_count(3)
        await expect(rows.first).to_contain_text("pausedbobqueue:mailsmtp is down")
        await expect(rows.first.get_by_role("link")).to_have_attribute("href", "/queues")
        await expect(rows.nth(1)).to_contain_text(XSS)
        await db.execute(
            "insert into gen_durable.audit_events (subject, event, actor) values ('batch:7', 'stopped', 'eve')"
        )
        batch = page.get_by_role("link", name="batch:7")
        await expect(batch).to_have_attribute("href", "/batches?id=7")
        await page.get_by_role("tab", name="What went wrong").click()
        await expect(rows).to_have_count(100)
        await expect(rows.first).to_contain_text(f"ship: {XSS}")
        await expect(rows.first.get_by_role("link", name="#200")).to_have_attribute("href", "/i/200")
        await rows.first.get_by_role("button").press("Enter")
        await expect(page.locator(".details")).to_contain_text("[hidden]")
        await shot(page, "audit")
        await page.get_by_role("button", name="Older").click()
        await expect(rows.first).to_contain_text("#100")
        await page.get_by_role("button", name="Newest").click()
        await expect(rows.first).to_contain_text("#200")

        await page.get_by_role("tab", name="All").click()
        await page.get_by_label("instance").fill("7")
        await page.get_by_label("instance").press("Enter")
        await expect(rows).to_have_count(1)
        await page.get_by_label("instance").fill("")
        await page.get_by_label("actor").fill("bob")
        await page.get_by_label("actor").press("Enter")
        await expect(rows).to_have_count(1)
        await expect(rows.first).to_contain_text("smtp is down")
        await page.get_by_label("event").fill("resumed")
        await page.get_by_label("event").press("Enter")
        await expect(page.get_by_role("heading", name="No events")).to_be_visible()

        await page.get_by_role("group", name="Level").get_by_role("button", name="all").click()
        await page.get_by_label("Reason").fill("review")
        await page.keyboard.press("Enter")
        level = page.get_by_role("group", name="Level").get_by_role("button", name="all")
        await expect(level).to_have_attribute("aria-pressed", "true")
    (event,) = await client.audit_log(limit=1)
    assert (event.subject, event.actor, event.reason) == ("audit", "ann", "review")


async def test_pages_say_that_changes_are_not_recorded(log_in: LogIn, client: AsyncClient) -> None:
    """The level off is a decision of an admin, and is recorded itself."""
    async with log_in("admin", path="/audit") as page:
        notice = page.get_by_text("Changes are not recorded")
        await expect(page.get_by_role("heading", level=1)).to_be_visible()
        await expect(notice).to_have_count(0)
        await page.get_by_role("group", name="Level").get_by_role("button", name="off").click()
        await expect(page.get_by_role("dialog")).to_contain_text("Later changes are not recorded")
        await page.get_by_label("Reason").fill("migration")
        await page.keyboard.press("Enter")
        await expect(notice).to_be_visible()
        await page.goto(page.url.replace("/audit", "/queues"))
        await expect(notice).to_be_visible()
        await shot(page, "audit-off")
    (event,) = await client.audit_log()
    assert (event.event, event.subject, event.actor, event.reason) == ("set", "audit", "ann", "migration")
    await client.set_audit("failures")


async def test_operator_cannot_change_the_level(log_in: LogIn, db: Any) -> None:
    await db.execute(EVENTS, XSS)
    async with log_in("operate", path="/audit", width=400, color_scheme="dark") as page:
        await expect(page.locator("tbody tr[tabindex]")).to_have_count(2)
        await expect(
            page.get_by_role("group", name="Level").get_by_role("button", name="off")
        ).to_be_disabled()
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await shot(page, "audit-400")
