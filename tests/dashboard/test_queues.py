"""Queues and limits: the API, and the page."""

from __future__ import annotations

import httpx
import pytest
from playwright.async_api import expect

from gen_durable import AsyncClient, ConcurrencyLimit
from tests.dashboard.conftest import LogIn, shot


async def test_concurrency_is_set_and_removed(http: httpx.AsyncClient, client: AsyncClient) -> None:
    answer = await http.post("/api/queues/mail/concurrency", json={"concurrency": 3, "reason": "slow smtp"})
    assert answer.json()["concurrency"] == 3
    await http.post("/api/queues/mail/concurrency", json={"concurrency": None})
    [queue] = await client.queues()
    assert queue.concurrency is None
    [_, first] = await client.audit_log(limit=2)
    assert (first.actor, first.reason) == ("ann", "slow smtp")


async def test_change_is_visible_at_once(http: httpx.AsyncClient) -> None:
    assert (await http.get("/api/queues")).json()["queues"] == []
    await http.post("/api/queues/mail/pause", json={})
    [queue] = (await http.get("/api/queues")).json()["queues"]
    assert queue["is_paused"]


async def test_limits_are_set(http: httpx.AsyncClient, client: AsyncClient) -> None:
    slots = await http.post("/api/limits/concurrency/tenant", json={"slots": 2})
    assert slots.json() == {
        "kind": "concurrency", "name": "tenant", "slots": 2, "allowed": None, "per": None, "burst": None,
    }  # fmt: skip
    rate = await http.post("/api/limits/rate/crm", json={"allowed": 10, "per": "PT60S", "burst": 20})
    assert (rate.json()["allowed"], rate.json()["burst"]) == (10, 20)
    assert {str(limit) for limit in await client.limits()} == {"tenant=2", "crm=10/60s/20"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("queues/mail/concurrency", {"concurrency": 0}),
        ("limits/concurrency/tenant", {"slots": 0}),
        ("limits/rate/crm", {"allowed": 0}),
        ("limits/rate/a:b", {"allowed": 1}),
    ],
)
async def test_invalid_values_are_refused(http: httpx.AsyncClient, path: str, body: object) -> None:
    answer = await http.post(f"/api/{path}", json=body)
    assert (answer.status_code, bool(answer.json()["title"])) == (422, True)


async def test_queue_is_paused_and_resumed_on_the_page(log_in: LogIn, client: AsyncClient) -> None:
    await client.set_queue("mail", concurrency=4)
    async with log_in("operate", path="/queues") as page:
        await page.get_by_role("button", name="Pause queue mail").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_contain_text("Running steps finish")
        await dialog.get_by_label("Reason").fill("smtp is down")
        await shot(page, "queues-dialog")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("status").get_by_text("Pause queue mail: done")).to_be_visible()
        paused = page.get_by_role("row", name="mail").get_by_role("link", name="paused by olga")
        await expect(paused).to_have_attribute("href", "/audit?who=all&subject=queue:mail")
        [event] = await client.audit_log(limit=1)
        assert (event.actor, event.reason) == ("olga", "smtp is down")
        resume = page.get_by_role("button", name="Resume queue mail")
        await expect(resume).to_be_focused()
        await resume.press("Enter")
        await dialog.get_by_role("button", name="Resume").click()
        await expect(page.get_by_role("button", name="Pause queue mail")).to_be_visible()
        await page.get_by_role("button", name="Limit queue mail").click()
        await dialog.get_by_label("Per worker").fill("")
        await dialog.get_by_role("button", name="Limit").click()
        await expect(page.get_by_text("4 per worker")).to_be_hidden()
    [queue] = await client.queues()
    assert not queue.is_paused
    assert queue.concurrency is None


async def test_page_follows_changes_of_others(log_in: LogIn, client: AsyncClient) -> None:
    await client.set_queue("mail", concurrency=4)
    async with log_in("read", path="/queues") as page:
        await expect(page.get_by_role("row", name="mail")).to_contain_text("4 per worker")
        await client.pause_queue("mail", actor="cron")
        await expect(page.get_by_role("row", name="mail")).to_contain_text("paused by cron")
        await expect(page.get_by_role("button", name="Resume queue mail")).to_be_disabled()
        await expect(page.get_by_role("navigation")).to_contain_text("Queues & limits 1")


async def test_limits_are_changed_on_the_page(log_in: LogIn, client: AsyncClient) -> None:
    await client.set_limit(ConcurrencyLimit("tenant", 2))
    async with log_in("operate", path="/queues") as page:
        await page.get_by_role("button", name="Set limit tenant").click()
        await page.get_by_label("Slots of each key").fill("5")
        changes = page.get_by_role("region", name="Changes")
        await expect(changes.locator(".removed")).to_contain_text("slots:2")
        await expect(changes.locator(".added")).to_contain_text("slots:5")
        await page.get_by_role("button", name="Set", exact=True).click()
        await expect(page.get_by_text("5 slots for each key")).to_be_visible()
        await page.get_by_role("button", name="Set rate limit").click()
        for label, value in {
            "Name": "crm",
            "Starts per period": "8",
            "Period in seconds": "60",
            "Reason": "new",
        }.items():
            await page.get_by_role("dialog").get_by_label(label).fill(value)
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("8 per 1 m, burst 8")).to_be_visible()
        await page.get_by_role("button", name="Remove limit tenant").click()
        await page.get_by_role("button", name="Remove", exact=True).click()
        await expect(page.get_by_text("5 slots for each key")).to_be_hidden()
    assert [str(limit) for limit in await client.limits()] == ["crm=8/60s"]
    [removed, added, _] = await client.audit_log(limit=3)
    assert (added.subject, added.actor, added.reason) == ("limit:crm", "olga", "new")
    assert (removed.subject, removed.event) == ("limit:tenant", "removed")


async def test_empty_page_says_when_a_queue_appears(log_in: LogIn) -> None:
    async with log_in("read", path="/queues") as page:
        await expect(page.get_by_role("heading", name="No queues yet")).to_be_visible()


@pytest.mark.parametrize(
    "name", ["<img src=x onerror=alert(1)>", "${alert(1)}", '"><script>alert(1)</script>']
)
async def test_names_are_shown_as_text(log_in: LogIn, client: AsyncClient, name: str) -> None:
    await client.pause_queue(name, actor=name)
    async with log_in("operate", path="/queues", width=400, color_scheme="dark") as page:
        await expect(page.get_by_text(name, exact=True)).to_be_visible()
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
