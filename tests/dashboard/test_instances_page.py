"""The page of instances: search, views, pages, and changes of many."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from playwright.async_api import Page, expect

from gen_durable import AsyncClient, Spec, Status, Worker
from tests.dashboard.conftest import LogIn, shot
from tests.dashboard.machines import MACHINES, XSS, Checkout, Order, fragile, parcel


@pytest.fixture
async def various(client: AsyncClient, durable_dsn: str) -> None:
    """Four failed instances, two done, two that wait, three runnable."""
    specs: list[Spec[Any, Any]] = [
        Spec(fragile, text, correlation_key=f"f:{n}") for n, text in enumerate(["a 1", "a 2", "b", "c"])
    ]
    ended = [*specs, Spec(parcel, 1), Spec(parcel, 2)]
    found = await client.insert_all([*ended, Spec(Checkout, Order(7)), Spec(Checkout, Order(8))])
    async with Worker(MACHINES, dsn=durable_dsn):
        for one in found:
            await client.wait(one, until="parked")
    await client.insert_all([Spec(parcel, n, schedule_in=timedelta(hours=1), queue="mail") for n in range(3)])


async def overflows(page: Page) -> bool:
    return bool(await page.evaluate("document.documentElement.scrollWidth > innerWidth"))


async def test_list_says_what_instances_wait_for_and_follows_the_search(log_in: LogIn, various: None) -> None:
    async with log_in("read", path="/instances") as page:
        rows = page.locator("tbody tr")
        await expect(rows).to_have_count(11)
        await expect(rows.filter(has_text="#7")).to_contain_text("waits for paid, deadline in 23 h")
        await expect(rows.filter(has_text="f:2")).to_contain_text("ValueError: b")
        await expect(rows.filter(has_text="#10")).to_contain_text("Later")
        await expect(rows.filter(has_text="#10")).to_contain_text("mail")
        tabs = page.get_by_role("tab")
        await expect(tabs).to_have_text(
            [
                "All 11",
                "Running 0",
                "Runnable 3",
                "Waiting 2",
                "Children 0",
                "Failed 4",
                "Done 2",
                "Cancelled 0",
            ]
        )
        await shot(page, "instances")
        await page.get_by_role("tab", name="Failed").press("Enter")
        await expect(rows).to_have_count(4)
        await expect(page).to_have_url(re.compile(r"q=status%3Afailed$"))
        await expect(page.get_by_text("Failed instances", exact=True)).to_be_visible()

        # Completion: a term, then one of its values.
        search = page.get_by_label("Search instances")
        await search.fill("status:failed mach")
        await page.get_by_role("option", name="machine:").click()
        await expect(page.get_by_role("option")).to_have_count(3)
        await shot(page, "instances-completion")
        await search.press("ArrowDown")
        await expect(page.get_by_role("option", selected=True)).to_contain_text("shop.checkout")
        await search.press("Enter")
        await expect(search).to_have_value("status:failed machine:shop.checkout")
        await expect(page.get_by_role("heading", name="Nothing matches")).to_be_visible()
        # Tab takes the first suggestion for a word that has begun.
        await search.fill("status:failed machine:shop.ch")
        await expect(page.get_by_role("option", name="shop.checkout")).to_be_visible()
        await search.press("Tab")
        await expect(search).to_have_value("status:failed machine:shop.checkout")
        await page.get_by_role("link", name="all instances").click()
        await expect(rows).to_have_count(11)
        await page.go_back()
        await expect(search).to_have_value("status:failed machine:shop.checkout")

        # A view of one's own, and the keyboard: / ↵ j x X Enter.
        await page.get_by_role("heading", level=1).click()
        await page.keyboard.press("/")
        await search.fill("error:~ValueError")
        await search.press("Enter")
        await expect(rows).to_have_count(4)
        await page.get_by_role("button", name="Save view").click()
        await page.get_by_label("Name").fill("Value errors")
        await page.get_by_label("Name").press("Enter")
        await page.reload()
        view = page.get_by_role("link", name="Value errors")
        await expect(view).to_have_attribute("aria-current", "true")
        await page.get_by_role("link", name="Stuck").click()
        await expect(search).to_have_value("status:executing,due stuck:>10m")
        await view.click()
        await expect(rows).to_have_count(4)
        await page.keyboard.press("j")
        await page.keyboard.press("x")
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        await page.keyboard.press("Shift+X")
        bulk = page.get_by_role("region", name="Selection")
        await expect(bulk).to_contain_text("3 selected")
        for name in ("Retry", "Cancel", "Delete"):
            await expect(bulk.get_by_role("button", name=name)).to_be_disabled()
        await page.keyboard.press("k")
        await page.keyboard.press("Enter")
        await expect(page).to_have_url(re.compile("/i/3$"))
        await page.go_back()
        await page.get_by_role("button", name="Remove view Value errors").click()
        await expect(view).to_have_count(0)


@pytest.mark.parametrize(
    ("q", "wrong", "words"),
    [
        ("machine:shop.checkout staus:failed", "staus:failed", "did you mean 'status'"),
        ("state.password:x", "state.password:x", "hides this value"),
    ],
)
async def test_wrong_term_is_marked(log_in: LogIn, various: None, q: str, wrong: str, words: str) -> None:
    async with log_in("read", path=f"/instances?q={q}", fails=[422], width=400) as page:
        await expect(page.locator(".search pre u")).to_have_text(wrong)
        await expect(page.get_by_role("alert")).to_contain_text(words)
        await expect(page.locator("table")).to_have_count(0)
        assert not await overflows(page)
        await page.get_by_role("button", name="Clear the search").click()
        await expect(page.locator("tbody tr")).to_have_count(11)


async def test_selected_instances_are_changed_as_a_batch(
    log_in: LogIn, various: None, client: AsyncClient
) -> None:
    async with log_in("operate", path="/instances?q=status:failed", fails=[422]) as page:
        rows = page.locator("tbody tr")
        await page.get_by_label("Select 4").check()
        await page.get_by_label("Select 2").click(modifiers=["Shift"])
        bulk = page.get_by_role("region", name="Selection")
        await expect(bulk).to_contain_text("3 selected")
        await expect(bulk.get_by_role("button", name="Delete")).to_be_disabled()
        await shot(page, "instances-bulk")
        await bulk.get_by_role("button", name="Retry").click()
        dialog = page.get_by_role("dialog", name="Retry 3 instances?")
        await expect(dialog).to_contain_text(
            "3 instances to retry: 3 failed. Each continues at the step where it ended"
        )
        await dialog.get_by_label("State").fill("7")
        await dialog.get_by_label("Reason").fill("fixed")
        await page.keyboard.press("Enter")
        await expect(dialog.get_by_label("State")).to_be_focused()
        await expect(dialog.locator(".field .c-fail")).to_contain_text("expected string, got integer")
        await dialog.get_by_label("State").fill('"again"')
        await dialog.get_by_label("Reason").focus()
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("link", name="Retry: 3 retried")).to_have_attribute(
            "href", "/batches?id=1"
        )
        await expect(rows).to_have_count(1)
        await expect(bulk).to_have_count(0)
        await page.get_by_label("Select 1").check()
        await bulk.get_by_role("button", name="Clear the selection").click()
        await expect(bulk).to_have_count(0)
    [batch] = await client.batches()
    assert (batch.actor, batch.reason, batch.done) == ("olga", "fixed", 3)


async def test_all_that_match_are_cancelled_deleted_and_restored(
    log_in: LogIn, various: None, client: AsyncClient
) -> None:
    async with log_in("admin", path="/instances?q=machine:shop.parcel") as page:
        bulk, dialog = page.get_by_role("region", name="Selection"), page.get_by_role("dialog")
        rows = page.locator("tbody tr")

        async def change_all(verb: str) -> None:
            await expect(bulk).to_have_count(0)
            await page.get_by_label("Select 9").check()
            await bulk.get_by_role("button", name="Select all 5 that match").click()
            await expect(bulk).to_contain_text("All 5 selected")
            await bulk.get_by_role("button", name=verb).click()

        await change_all("Cancel")
        await expect(dialog).to_contain_text("3 instances to cancel: 3 runnable. Running steps")
        await dialog.get_by_label("Also cancel all descendants").check()
        await dialog.get_by_label("Run undo steps first").uncheck()
        await expect(dialog).to_contain_text("No undo steps run.")
        await shot(page, "instances-cancel")
        await dialog.get_by_role("button", name="Cancel instances").click()
        await expect(rows.filter(has_text="Cancelled")).to_have_count(3)
        await change_all("Delete")
        await dialog.get_by_role("button", name="Delete instances").click()
        await expect(page.get_by_role("heading", name="Nothing matches")).to_be_visible()
        await page.get_by_role("tab", name="Deleted").click()
        await change_all("Restore")
        await dialog.get_by_role("button", name="Restore instances").click()
        await expect(page.get_by_role("heading", name="Nothing matches")).to_be_visible()
    assert await client.count(parcel, status=Status.CANCELLED) == 3
    (cancel,) = [batch for batch in await client.batches() if batch.verb == "cancel"]
    assert (cancel.options["cascade"], cancel.options["undo"]) == (True, False)


async def test_moved_count_is_confirmed_again(log_in: LogIn, client: AsyncClient) -> None:
    await client.insert_all([Spec(parcel, n) for n in range(3)])
    async with log_in("operate", path="/instances", fails=[409]) as page:
        await page.get_by_label("Select 1").check()
        await page.get_by_role("button", name="Select all 3 that match").click()
        await page.get_by_role("region", name="Selection").get_by_role("button", name="Cancel").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_contain_text("3 instances to cancel")
        await client.insert_all([Spec(parcel, n) for n in range(30)])
        await dialog.get_by_label("Reason").press("Enter")
        await expect(dialog.get_by_role("alert")).to_contain_text("would change 33 instances now")
        await expect(dialog).to_contain_text("33 instances to cancel")
        await dialog.get_by_label("Reason").press("Enter")
        await expect(page.get_by_text("Cancel: 33 cancelled")).to_be_visible()


async def test_running_batch_is_followed_left_and_stopped(
    log_in: LogIn, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gen_durable._db.batches.PAGE", 1)
    monkeypatch.setattr("gen_durable._verbs.batches._SHORTEST_PAUSE", 0.5)
    await client.insert_all([Spec(parcel, n) for n in range(200)])
    async with log_in("operate", path="/instances?q=machine:shop.parcel") as page:
        await page.get_by_label("Select all rows").check()
        await page.get_by_role("button", name="Select all 200 that match").click()
        await page.get_by_role("region", name="Selection").get_by_role("button", name="Cancel").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_contain_text("200 instances to cancel")
        await dialog.get_by_label("Reason").press("Enter")
        await expect(dialog).to_contain_text(re.compile(r"[1-9]\d* of 200"))
        await shot(page, "instances-progress")
        await dialog.get_by_role("link", name="Batch 1").click()
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await page.get_by_role("button", name="Stop").click()
        await dialog.get_by_label("Reason").fill("enough")
        await dialog.get_by_role("button", name="Stop").click()
        await expect(page.get_by_role("row", name="Cancel #1")).to_contain_text("stopped")
        await expect(page.locator("tr.details")).to_contain_text("stopped byolga")
        await shot(page, "batches-stopped")
    [batch] = await client.batches()
    assert (batch.status, batch.stopped_by) == ("stopped", "olga")
    assert 0 < batch.done < 200


@pytest.mark.parametrize("statement_timeout", [timedelta(seconds=1)])
async def test_slow_query_is_not_an_outage(log_in: LogIn, client: AsyncClient, db: Any) -> None:
    await client.insert(parcel, 1)
    async with log_in("read", path="/batches", fails=[504]) as page:
        await expect(page.get_by_role("heading", name="No batches yet")).to_be_visible()
        async with db.transaction():
            await db.execute("lock table gen_durable.gen_durable")
            await page.get_by_role("link", name="Instances", exact=True).click()
            await expect(page.get_by_role("alert").first).to_contain_text("The query took too long")
            await expect(page.locator(".banner")).to_have_count(0)
        await page.get_by_role("button", name="Try again").click()
        await expect(page.locator("tbody tr")).to_have_count(1)


async def test_pages_and_bounds_are_shown(
    log_in: LogIn, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gen_durable._db.search.BOUND", 60)
    await client.insert_all([Spec(parcel, n) for n in range(70)])
    async with log_in("read", path="/instances") as page:
        rows = page.locator("tbody tr")
        await expect(rows).to_have_count(50)
        await page.get_by_role("button", name="Older").click()
        await expect(rows).to_have_count(20)
        await page.get_by_role("button", name="Newest").click()
        await expect(rows).to_have_count(50)
        search = page.get_by_label("Search instances")
        await search.fill("state:3")
        await search.press("Enter")
        await expect(page.get_by_text("60 instances were checked")).to_be_visible()
        await page.get_by_role("button", name="Look further").click()
        await expect(rows).to_have_count(1)
        await expect(rows).to_contain_text("#4")


async def test_texts_of_users_are_shown_as_text(
    log_in: LogIn, client: AsyncClient, db: Any, durable_dsn: str
) -> None:
    await client.insert(fragile, XSS, correlation_key=XSS, queue=XSS)
    async with Worker(MACHINES, dsn=durable_dsn, queues={XSS: 1}):
        await client.wait(1)
    other = await client.insert(parcel, 1, queue=XSS * 4, correlation_key="k" * 200)
    await db.execute("update gen_durable.gen_durable set fsm = $1, step = $1 where id = $2", XSS, other.id)
    async with log_in("operate", path="/instances", width=400, color_scheme="dark") as page:
        rows = page.locator("tbody tr")
        await expect(rows).to_have_count(2)
        await expect(rows.last).to_contain_text(XSS)
        await expect(rows.first).to_contain_text(XSS)
        await shot(page, "instances-400")
        assert not await overflows(page)
        await page.set_viewport_size({"width": 1440, "height": 900})
        await expect(rows.last).to_contain_text(f"ValueError: {XSS}")
        await shot(page, "instances-xss")
        await page.goto(page.url + "?q=" + "error:~%3Cimg")
        await page.get_by_role("button", name="Save view").click()
        await page.get_by_label("Name").fill(XSS)
        await page.get_by_label("Name").press("Enter")
        await expect(page.get_by_role("link", name=XSS).first).to_be_visible()
        await page.evaluate("localStorage.views = '{'")
        await page.reload()
        await expect(rows).to_have_count(1)


async def test_empty_installation_says_how_to_insert(log_in: LogIn) -> None:
    async with log_in("read", path="/instances") as page:
        await expect(page.get_by_role("heading", name="No instances yet")).to_be_visible()
        await expect(page.get_by_text("gen-durable insert MACHINE STATE")).to_be_visible()
