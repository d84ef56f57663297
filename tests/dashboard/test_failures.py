"""The page of failures."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.async_api import expect

from gen_durable import AsyncClient, Spec, Worker
from tests.dashboard.conftest import LogIn, shot
from tests.dashboard.machines import MACHINES, XSS, fragile, parcel


@pytest.fixture
async def failed(client: AsyncClient, durable_dsn: str) -> None:
    """Two failures with the same message, apart from its number, and two others: one is HTML, one has only numbers."""
    found = await client.insert_all([Spec(fragile, text) for text in ("page 1", "page 22", XSS, "7")])
    async with Worker(MACHINES, dsn=durable_dsn):
        for one in found:
            await client.wait(one)


async def test_group_is_listed_and_retried(log_in: LogIn, failed: None, client: AsyncClient, db: Any) -> None:
    await db.execute("update gen_durable.gen_durable set last_error = '7' where id = 4")
    async with log_in("operate", path="/failures") as page:
        groups = page.locator("[data-row]")
        await expect(groups).to_have_count(3)
        numbered = groups.filter(has_text="ValueError: page #")
        await expect(numbered).to_contain_text("shop.fragile · run")
        await expect(numbered).to_contain_text("#2 #1")
        await expect(page.get_by_text(XSS.replace("1", "#"))).to_be_visible()
        pages = page.get_by_role("navigation", name="Pages")
        await expect(pages).to_contain_text("Failures 4")
        findings = len(await client.doctor())
        await expect(pages.get_by_role("link", name="System")).to_have_text(
            f"System {findings or ''}".strip()
        )
        await shot(page, "failures")
        # Also a group whose message is a number only.
        number = groups.filter(has_text=re.compile("^#"))
        await number.get_by_role("link", name="1", exact=True).click()
        await expect(page.locator("tbody tr")).to_have_count(1)
        await expect(page.locator("tbody tr")).to_contain_text("#4")
        await page.go_back()
        await numbered.get_by_role("link", name="2", exact=True).click()
        await expect(page.locator("tbody tr")).to_have_count(2)
        await page.go_back()
        await numbered.get_by_role("button", name="Retry").click()
        dialog = page.get_by_role("dialog", name="Retry failures of shop.fragile · run?")
        await expect(dialog).to_contain_text("2 instances to retry: 2 failed")
        await dialog.get_by_label("Reason").fill("fixed")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("Retry: 2 retried")).to_be_visible()
        await expect(groups).to_have_count(2)
        # By keyboard: j, then Enter opens the list of the group.
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(re.compile(r"/instances\?q="))
        await page.go_back()
        await page.get_by_role("button", name="Retry all").click()
        await expect(page.get_by_role("dialog")).to_contain_text("2 instances to retry")
        await page.get_by_label("Reason").press("Enter")
        await expect(page.get_by_role("heading", name="Nothing has failed")).to_be_visible()
    assert [(batch.actor, batch.reason, batch.done) for batch in await client.batches()] == [
        ("olga", None, 2), ("olga", "fixed", 2),
    ]  # fmt: skip


async def test_attempts_that_were_repeated_have_a_tab(
    log_in: LogIn, failed: None, client: AsyncClient, db: Any
) -> None:
    one = await client.insert(parcel, 1)
    await db.execute(
        "insert into gen_durable.executions"
        " (instance_id, step_seq, execution, attempt, status, outcome, step, error, finished_at)"
        " select $1, 1, n, n, 'ABORTED', 'retry', 'run', 'no answer in ' || n || ' s', now() from generate_series(1, 3) n",
        one.id,
    )
    async with log_in("read", path="/failures", width=400, color_scheme="dark") as page:
        groups = page.locator("[data-row]")
        await expect(groups).to_have_count(3)
        await expect(groups.first.get_by_role("button", name="Retry")).to_be_disabled()
        await expect(page.get_by_role("button", name="Retry all")).to_be_disabled()
        await shot(page, "failures-400")
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await page.get_by_role("tab", name="Tried again 3").click()
        await expect(groups).to_have_count(1)
        await expect(groups).to_contain_text("no answer in # s")
        # It counts attempts, and lists their instances.
        await expect(groups.locator(".n")).to_have_text("3")
        await expect(groups.get_by_role("link", name="1 instance")).to_have_attribute(
            "href", f"/instances?q=id%3A{one.id}"
        )


async def test_page_without_failures(log_in: LogIn) -> None:
    async with log_in("operate", path="/failures") as page:
        await expect(page.get_by_role("heading", name="Nothing has failed")).to_be_visible()
        await expect(page.get_by_role("button", name="Retry all")).to_have_count(0)
        await page.get_by_role("tab", name="Tried again").click()
        await expect(page.get_by_role("tab", selected=True)).to_have_text("Tried again 0")
