"""What every page of the dashboard shows without a database, with a slow one, after a failure, and without a login."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta

import asyncpg
import pytest
from playwright.async_api import Page, Route, expect

from gen_durable import AsyncClient
from gen_durable.dashboard import Dashboard
from tests.dashboard.conftest import TOKEN_OF, LogIn
from tests.dashboard.shop import Shop, shop
from tests.support.dashboard_pages import PAGES
from tests.support.tcp_proxy import Proxy, Verdict

# Longer than most: each walks all pages.
pytestmark = pytest.mark.timeout(180)


@pytest.fixture
async def proxy(durable_dsn: str) -> AsyncIterator[Proxy]:
    async with Proxy.open(durable_dsn) as opened:
        yield opened


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[AsyncClient]:
    """The client of the dashboard, whose connections the proxy can cut."""
    async with AsyncClient(proxy.dsn) as opened:
        yield opened


@pytest.fixture
async def full(durable_dsn: str) -> AsyncIterator[Shop]:
    async with AsyncClient(durable_dsn) as direct, shop(durable_dsn, direct) as found:
        yield found


def paths(full: Shop) -> list[str]:
    return [one.at(machine="shop.checkout", instance=str(full.order)) for one in PAGES if one.exists]


async def ready(page: Page) -> None:
    await expect(page.locator("h1")).to_have_count(1)
    await expect(page.locator(".skeleton, .trouble, .banner")).to_have_count(0)


async def test_outage_keeps_the_data_of_every_page(log_in: LogIn, full: Shop, proxy: Proxy) -> None:
    async with AsyncExitStack() as stack:
        pages = [
            await stack.enter_async_context(log_in("admin", path=path, fails=(503,))) for path in paths(full)
        ]
        shown = []
        for page in pages:
            await ready(page)
            shown.append(
                (await page.locator("h1").text_content(), await page.locator("main tbody tr").count())
            )
        proxy.on(lambda _: True, "asked", lambda: Verdict.CUT, times=None)
        for page, (title, rows) in zip(pages, shown, strict=True):
            await expect(page.get_by_role("alert")).to_contain_text("The database does not answer")
            await expect(page.get_by_role("alert")).to_contain_text("database unreachable: ")
            await expect(page.locator("main.stale h1")).to_have_text(title or "")
            await expect(page.locator("main tbody tr")).to_have_count(rows)
            await expect(page.locator(".trouble, .skeleton")).to_have_count(0)
        await pages[0].get_by_role("button", name="Try now").click()
        await expect(pages[0].get_by_role("alert")).to_contain_text("Data as of")
        proxy._rules.clear()
        for page in pages:
            await ready(page)
            await expect(page.locator("main.stale")).to_have_count(0)


@asynccontextmanager
async def locked(dsn: str) -> AsyncIterator[None]:
    """Lock all tables, so that every query takes too long."""
    conn = await asyncpg.connect(dsn)
    tables = await conn.fetchval(
        "select string_agg(format('gen_durable.%I', relname), ', ') from pg_stat_user_tables where schemaname = 'gen_durable'"
    )
    try:
        while True:
            try:
                await conn.execute(f"begin; lock table {tables} in access exclusive mode")
                break
            except asyncpg.DeadlockDetectedError:  # with the worker, which locks tables in another order
                await conn.execute("rollback")
        yield
    finally:
        await conn.close()


@pytest.mark.parametrize("statement_timeout", [timedelta(milliseconds=500)])
async def test_every_page_says_what_is_wrong_and_recovers(
    log_in: LogIn, full: Shop, durable_dsn: str, dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(route: Route) -> None:
        problem = {
            "status": 500,
            "title": "The dashboard failed",
            "fix": "The log of its process has the error.",
        }
        await route.fulfill(status=500, json=problem, content_type="application/problem+json")

    async with log_in("admin", fails=(401, 500, 504)) as page:
        base = page.url.rstrip("/")
        for path in paths(full):
            await page.route(lambda url: "/api/" in url and "/api/session" not in url, fail)
            await page.goto(base + path)
            await expect(page.locator(".trouble").first).to_contain_text("The dashboard failed")
            await expect(page.locator(".skeleton")).to_have_count(0)
            await page.unroute_all()
            await try_again(page)

            async with locked(durable_dsn):
                dashboard._board.forget()
                await page.goto(base + path)
                await expect(page.locator(".trouble").first).to_contain_text("The query took too long")
                await expect(page.locator(".skeleton")).to_have_count(0)
            await try_again(page)

            if path == "/queues":
                rows = await page.locator("main tbody tr").count()
                async with locked(durable_dsn):
                    await expect(page.locator(".trouble")).to_contain_text("The query took too long")
                    await expect(page.locator("main tbody tr")).to_have_count(rows)
                await ready(page)

            title = await page.locator("h1").text_content()
            monkeypatch.setattr(dashboard._board.access, "_key", path.encode())
            await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
            await page.get_by_label("Token").fill(TOKEN_OF["admin"])
            await page.keyboard.press("Enter")
            await expect(page.locator("h1")).to_have_text(title or "")
            await ready(page)


async def try_again(page: Page) -> None:
    # All at once: a panel that is live recovers by itself meanwhile.
    await page.evaluate("document.querySelectorAll('.trouble button').forEach(button => button.click())")
    await ready(page)
