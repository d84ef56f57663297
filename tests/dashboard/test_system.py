"""The page of the system."""

from __future__ import annotations

from typing import Any

from playwright.async_api import expect

from gen_durable import AsyncClient
from tests.dashboard.conftest import LogIn, shot
from tests.dashboard.machines import XSS, parcel


async def test_findings_have_a_fix_to_copy(log_in: LogIn, client: AsyncClient) -> None:
    await client.pause_queue("mail", actor=XSS, reason=XSS)
    await client.insert(parcel, 1, queue="mail")
    await client.insert(parcel, 2, queue=XSS)
    async with log_in("read", path="/system") as page:
        await expect(page.get_by_text("queue mail is paused")).to_be_visible()
        async with page.expect_response("**/api/system"):
            await page.get_by_role("button", name="Check again").press("Enter")
        await expect(page.get_by_text("gen-durable queues resume mail", exact=True)).to_be_visible()
        await expect(page.get_by_text("queue.paused", exact=True)).to_have_count(0)
        await expect(page.get_by_text("index.missing", exact=True)).to_be_visible()
        await expect(page.locator(".findings")).to_contain_text(XSS)
        await page.get_by_role("button", name="Copy").first.click()
        await expect(page.get_by_text("Copied")).to_be_visible()
        for text in ("shared_buffers", "done 24 h", "Postgresql", "Max connections"):
            await expect(page.locator("main")).to_contain_text(text, ignore_case=True)
        await expect(page.get_by_text("PostgreSQL", exact=True)).to_be_visible()
        marks = page.locator(".findings > div > .glyph[aria-label]")
        severities = [str(await one.get_attribute("aria-label")) for one in await marks.all()]
        assert severities == sorted(severities, key=lambda one: ["problem", "notice", "passed"].index(one))
        await expect(page.locator("nav footer")).to_contain_text("Times in ")
        await expect(page.get_by_role("row", name="gen_durable")).to_be_visible()
        await shot(page, "system")
        await page.set_viewport_size({"width": 400, "height": 900})
        await page.emulate_media(color_scheme="dark")
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await shot(page, "system-400")


async def test_times_are_in_the_zone_of_the_browser(log_in: LogIn, client: AsyncClient, db: Any) -> None:
    await db.execute(
        "insert into gen_durable.outbox (instance_id, step_seq, n, sink, type, subject, data, created_at, dead_at, last_error)"
        " values (1, 1, 1, 'mail', 't', 's', '{}', '2026-01-02 03:04:05Z', '2026-01-02 03:04:05Z', '410')"
    )
    async with log_in("read", path="/system", timezone_id="Europe/Berlin") as page:
        await expect(page.locator(".findings")).to_contain_text("since 2026-01-02 04:04:05; last error")
        await expect(page.locator("nav footer")).to_contain_text("Times in Europe/Berlin")
