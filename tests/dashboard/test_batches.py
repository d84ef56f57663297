"""The page of batches. Their start is tested with the page of instances."""

from __future__ import annotations

from playwright.async_api import expect

from gen_durable import AsyncClient, Spec
from tests.dashboard.conftest import LogIn, shot
from tests.dashboard.machines import XSS, parcel


async def test_batches_are_shown_continued_and_stopped(log_in: LogIn, client: AsyncClient) -> None:
    await client.insert_all([Spec(parcel, n) for n in range(3)])
    await client.cancel(1)
    first = await client.start_batch(
        "cancel", ids=[1, 2, 3, 99], actor="cron", reason="nightly", cascade=True
    )
    second = await client.start_batch("cancel", where="machine:shop.parcel")
    async with log_in("operate", path="/batches") as page:
        rows = page.locator("tbody tr")
        await expect(rows).to_have_count(2)
        row = rows.filter(has_text="#1")
        await expect(row).to_contain_text("4 selected instances")
        await expect(row).to_contain_text("cron")
        await expect(row).to_contain_text("0 of 4")
        await row.get_by_role("button", name="Continue").click()
        await expect(row).to_contain_text("finished")
        await expect(row).to_contain_text("2 cancelled, 1 unchanged, 1 missing")
        await expect(row.get_by_role("button", name="Stop")).to_have_count(0)
        await page.get_by_role("button", name="Details of 1").press("Enter")
        details = page.locator("tr.details")
        for text in ("nightly", "cascadeyes", "they had ended before", "do not exist"):
            await expect(details).to_contain_text(text)
        await shot(page, "batches")
        await rows.filter(has_text="#2").get_by_role("button", name="Stop").click()
        await page.get_by_label("Reason").press("Enter")
        await expect(rows.filter(has_text="#2")).to_contain_text("stopped")
        await rows.filter(has_text="#2").focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_label("Search instances")).to_have_value("machine:shop.parcel")
    assert [(one.id, one.status) for one in await client.batches()] == [
        (second.id, "stopped"), (first.id, "finished"),
    ]  # fmt: skip


async def test_reader_sees_texts_of_others_and_changes_nothing(log_in: LogIn, client: AsyncClient) -> None:
    await client.start_batch("delete", where=f'key:"{XSS}"', actor=XSS, reason=XSS * 4)
    async with log_in("read", path="/batches?id=1", width=400, color_scheme="dark") as page:
        await expect(page.locator("tr.details")).to_contain_text(XSS * 4)
        await expect(page.get_by_role("link", name=f"instances with key {XSS}")).to_be_visible()
        for name in ("Continue", "Stop"):
            await expect(page.get_by_role("button", name=name).first).to_be_disabled()
        await shot(page, "batches-400")
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_page_without_batches(log_in: LogIn) -> None:
    async with log_in("operate", path="/batches?id=9") as page:
        await expect(page.get_by_role("heading", name="No batches yet")).to_be_visible()
