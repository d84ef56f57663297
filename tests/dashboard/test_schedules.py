"""The page of schedules."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from playwright.async_api import Locator, Page, expect

from gen_durable import AsyncClient, Schedule, Spec, Worker
from tests.dashboard.conftest import LogIn, shot
from tests.dashboard.machines import MACHINES, XSS, Checkout, Order, parcel
from tests.support.settings import FAST

OFTEN = Schedule("often", Spec(parcel, 7), every=timedelta(minutes=10))


@pytest.fixture
async def worker(durable_dsn: str) -> AsyncIterator[Worker]:
    async with Worker(MACHINES, dsn=durable_dsn, settings=FAST) as running:
        yield running


def row_of(page: Page, name: str) -> Locator:
    return page.get_by_role("row").filter(has=page.get_by_text(name, exact=True))


async def act(page: Page, button: str, verb: str, reason: str = "", **values: str) -> None:
    """Open a dialog, fill it and confirm it."""
    await page.get_by_role("button", name=button, exact=True).click()
    dialog = page.get_by_role("dialog")
    for label, value in (values | {"Reason": reason}).items():
        await dialog.get_by_label(label.replace("_", " ")).fill(value)
    await dialog.get_by_role("button", name=verb, exact=True).click()
    await expect(dialog).to_be_hidden()


async def test_schedules_are_shown_and_changed(log_in: LogIn, client: AsyncClient, worker: Worker) -> None:
    order = Spec(Checkout, Order(7), queue="nightly")
    await client.put_schedule(Schedule("nightly", order, cron="0 2 * * *", tz="Europe/Berlin"))
    await client.put_schedule(OFTEN)
    async with log_in("admin", path="/schedules", fails=[422]) as page:
        nightly, often = row_of(page, "nightly"), row_of(page, "often")
        for text in ("shop.checkout", "daily at 02:00", "0 2 * * *", "Europe/Berlin"):
            await expect(nightly).to_contain_text(text)
        await expect(nightly.get_by_role("img", name="1 fire times")).to_be_visible()
        await expect(often.get_by_role("img", name="48 or more fire times")).to_be_visible()
        await expect(often).to_contain_text("every 10 minutes")

        await act(page, "Trigger often", "Trigger", "urgent")
        run = often.get_by_role("link", name="#1")
        await expect(run).to_have_attribute("href", "/i/1")
        toast = page.get_by_role("status").get_by_role("link", name="Inserted #1")
        await expect(toast).to_have_attribute("href", "/i/1")
        await act(page, "Pause often", "Pause", "month end")
        await expect(often).to_contain_text("paused by ann")
        await expect(often).to_contain_text("month end")
        await act(page, "Resume often", "Resume")
        await expect(often).not_to_contain_text("paused")

        # By keyboard: the details, with the state and the policies.
        details = nightly.get_by_role("button", name="Details of nightly")
        await details.press("Enter")
        await expect(details).to_have_attribute("aria-expanded", "true")
        shown = page.locator(".details")
        await expect(shown).to_contain_text("[hidden]")
        await expect(shown).to_contain_text('"nightly"')
        await shot(page, "schedules")

        await act(page, "Edit nightly", "Edit", "later", Cron="30 3 * * MON")
        await expect(nightly).to_contain_text("Mondays at 03:30")
        new = {"Name": "backup", "Machine": "shop.parcel", "Or_interval_in_seconds": "3600", "State": "5"}
        await act(page, "Add a schedule", "Add", **new)
        await expect(row_of(page, "backup")).to_contain_text("every hour")
        await act(page, "Delete backup", "Delete", "wrong")
        await expect(row_of(page, "backup")).to_have_count(0)

        await page.get_by_role("button", name="Edit nightly").click()
        await page.get_by_label("Cron").fill("99 * * * *")
        await page.get_by_role("button", name="Edit", exact=True).click()
        await expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("cron")

    found = await client.get_schedule("nightly")
    assert (found.cron, found.tz, found.spec["queue"]) == ("30 3 * * MON", "Europe/Berlin", "nightly")
    assert found.spec["state"]["password"] == "hunter2-canary"
    events = [one for one in await client.audit_log() if one.actor == "ann"]
    assert [(one.event, one.reason) for one in reversed(events) if one.subject] == [
        ("triggered", "urgent"),
        ("paused", "month end"),
        ("resumed", None),
        ("set", "later"),
        ("set", None),
        ("removed", "wrong"),
    ]


async def test_reader_sees_why_a_fire_time_inserted_nothing(
    log_in: LogIn, client: AsyncClient, worker: Worker, db: Any
) -> None:
    await client.put_schedule(Schedule(XSS, Spec(parcel, 7), every=timedelta(minutes=10)))
    await client.pause_schedule(XSS, reason=XSS, actor=XSS)
    await db.execute("update gen_durable.schedules set last_error = $1", f"no worker: {XSS}")
    async with log_in("read", path="/schedules", width=400, color_scheme="dark") as page:
        row = row_of(page, XSS)
        await expect(row).to_contain_text(f"paused by {XSS}")
        for verb in ("Trigger", "Resume", "Edit", "Delete"):
            await expect(page.get_by_role("button", name=f"{verb} {XSS}")).to_be_disabled()
        await expect(page.get_by_role("button", name="Add a schedule")).to_be_disabled()
        await page.get_by_role("button", name="Details").click()
        await expect(page.locator(".details")).to_contain_text(f"no worker: {XSS}")
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await shot(page, "schedules-400")


async def test_empty_page_says_how_to_add_a_schedule(log_in: LogIn) -> None:
    async with log_in("operate", path="/schedules") as page:
        await expect(page.get_by_role("heading", name="No schedules yet")).to_be_visible()
        await expect(page.get_by_role("button", name="Add a schedule")).to_be_enabled()
