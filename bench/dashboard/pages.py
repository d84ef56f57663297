"""What each page of the dashboard asks for, recorded in Chromium."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections import defaultdict
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from playwright.async_api import Browser, BrowserContext, Request, async_playwright

from tests.support.dashboard_pages import PAGES, PageRoute

__all__ = ["Visit", "logged_in", "record"]

# Seconds after which a page has asked for all that it shows at first.
_OPENING: Final = 2.5


class Visit(NamedTuple):
    """What one page asks for."""

    path: str
    gets: list[str]
    """When it opens: paths with their queries."""
    reloads: dict[str, float]
    """Requests per second afterwards."""
    events: str
    """The address of its live topics."""


async def record(address: str, token: str, names: dict[str, str], seconds: float) -> list[Visit]:
    """Open all pages at once for this time; `names` has the parameters of inner pages."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"), chromium_sandbox=os.geteuid() != 0
        )
        async with asyncio.TaskGroup() as group:
            visits = [
                group.create_task(_visit(browser, address, token, one, names, seconds))
                for one in PAGES
                if one.exists
            ]
        await browser.close()
    return [each.result() for each in visits]


async def logged_in(context: BrowserContext, address: str, token: str) -> None:
    """Log a browser in."""
    answer = await context.request.post(f"{address}/api/login", data={"token": token})
    if not answer.ok:
        raise RuntimeError(await answer.text())


async def _visit(
    browser: Browser, address: str, token: str, route: PageRoute, names: dict[str, str], seconds: float
) -> Visit:
    # A browser opens at most six connections to a server per context, and each page keeps one for events.
    context = await browser.new_context()
    await logged_in(context, address, token)
    page = await context.new_page()
    asked: defaultdict[str, list[float]] = defaultdict(list)
    events = ""
    page_path = route.at(**names)

    def on_request(request: Request) -> None:
        nonlocal events
        url = urlsplit(request.url)
        path = url.path + (f"?{url.query}" if url.query else "")
        if url.path == "/api/events":
            events = path  # the last one has all topics of the page
        elif url.path.startswith("/api/"):
            asked[path].append(time.monotonic())

    page.on("request", on_request)
    await page.goto(address + page_path)
    await page.locator("h1").wait_for()
    opened = time.monotonic() + min(_OPENING, seconds)
    await asyncio.sleep(seconds)
    await context.close()
    later = {url: sum(at > opened for at in times) for url, times in asked.items()}
    span = max(seconds - _OPENING, 1e-9)
    return Visit(
        page_path,
        [url for url, times in asked.items() if times[0] <= opened],
        {url: count / span for url, count in later.items() if count},
        events,
    )
