"""What holds for every page of the dashboard: accessibility in both themes, widths, keyboard, headings, console."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final, Literal

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.async_api import ElementHandle, Page, Request, expect

from gen_durable import AsyncClient
from tests.dashboard.conftest import LogIn, shot
from tests.dashboard.shop import Shop, shop
from tests.support.accessibility import VIOLATIONS
from tests.support.dashboard_pages import PAGES, PageRoute

# Longer than most: one browser page walks all pages, and opens all their dialogs.
pytestmark = pytest.mark.timeout(180)

# A theme, and the rules of axe to check in it; null stands for all.
THEMES: Final[tuple[tuple[Literal["light", "dark"], list[str] | None], ...]] = (
    ("light", None),
    ("dark", ["color-contrast"]),
)
# What reacts to the mouse but not to the keyboard, by the cursor that it shows.
MOUSE_ONLY: Final = """() => [...document.querySelectorAll("main *")].filter(node => getComputedStyle(node).cursor === "pointer"
  && !node.closest("a[href], button, input, select, textarea, label, summary, [tabindex]")).map(node => node.outerHTML.slice(0, 200))"""
WATCH_FOCUS: Final = """() => {
  window.focused = new Set();
  addEventListener("focusin", event => window.focused.add(event.target));
  document.activeElement.blur();
}"""
# Elements that the keyboard has to reach: all, except those of a group that the arrow keys move within.
NOT_FOCUSED: Final = """() => [...document.querySelectorAll("main a[href], main button:enabled, main input:enabled, main select:enabled, main summary")]
  .filter(node => node.checkVisibility() && !window.focused.has(node) && !node.closest("[role=tablist], [role=menu]"))
  .map(node => node.outerHTML.slice(0, 200))"""
SEARCHES: Final = (
    """() => [...document.querySelectorAll("main a[href*='/instances?q=']")].map(node => node.search)"""
)
HARD_TO_READ: Final = "document.querySelector('h1').style.opacity = 0.2"
# One button of each kind: rows of a table have the same ones.
OPENERS: Final = """() => {
  const seen = new Set();
  return [...document.querySelectorAll("main button")].map((node, at) => {
    const key = node.textContent + node.innerHTML.replace(/<svg.*?d="(.*?)".*?svg>/gs, "$1") + node.className;
    const is_new = !seen.has(key) && !node.disabled && node.checkVisibility()
      && !node.matches("[role=tab], [aria-pressed], .copy, .more");
    seen.add(key);
    return is_new ? at : -1;
  }).filter(at => at >= 0);
}"""


@pytest.fixture
async def full(durable_dsn: str, client: AsyncClient) -> AsyncIterator[Shop]:
    async with shop(durable_dsn, client) as found:
        yield found


async def ready(page: Page) -> None:
    await expect(page.locator("h1")).to_have_count(1)
    await expect(page.locator(".skeleton")).to_have_count(0)


class Sweep:
    """Collects what is wrong, so that one run reports everything."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.found: list[str] = []
        self._asked: set[Request] = set()
        self._searched: set[str] = set()
        self._themes = [*THEMES]
        page.on("request", lambda one: self._asked.add(one) if "/api/events" not in one.url else None)
        for event in ("requestfinished", "requestfailed"):
            page.on(event, lambda one: self._asked.discard(one))

    async def axe(self, where: str, within: str | None = None) -> None:
        """Check all rules in the light theme and those of colours in the dark one: only colours differ."""
        if not await self.page.evaluate("!!window.axe"):
            await self.page.evaluate(AXE_SCRIPT)
        for theme, rules in self._themes:
            await self.page.emulate_media(color_scheme=theme)
            await shot(self.page, f"{theme}-{where}".replace("/", "_"))
            found = await self.page.evaluate(VIOLATIONS, [within, rules])
            self.found += [f"{theme} {where}: {one}" for one in found]
        self._themes.reverse()  # the page has the last theme: switching draws all of it again

    async def fits(self, where: str, width: int) -> None:
        await self.page.set_viewport_size({"width": width, "height": 900})
        await self.none(
            where,
            f"wider than {width}",
            "() => document.documentElement.scrollWidth > innerWidth ? [document.documentElement.scrollWidth] : []",
        )

    async def none(self, where: str, what: str, script: str) -> None:
        found: list[Any] = await self.page.evaluate(script)
        self.found += [f"{where}: {what}: {one}" for one in found]

    async def links_search(self, where: str, base: str) -> None:
        for query in set(await self.page.evaluate(SEARCHES)) - self._searched:
            self._searched.add(query)
            answer = await self.page.request.get(f"{base}/api/instances{query}")
            if not answer.ok:
                self.found.append(f"{where}: link to a refused search: {query}: {await answer.text()}")

    async def tabs_through(self, where: str) -> None:
        await self.page.evaluate(WATCH_FOCUS)
        count = await self.page.evaluate(
            "document.querySelectorAll('a, button, input, select, summary, [tabindex]').length"
        )
        for _ in range(count):
            await self.page.keyboard.press("Tab")
        await self.none(where, "not reached by Tab", NOT_FOCUSED)

    async def dialogs(self, where: str) -> int:
        """Open what the buttons of the page open, and close it by Escape."""
        opened = 0
        buttons = await self.page.locator("main button").element_handles()
        for button in [buttons[at] for at in await self.page.evaluate(OPENERS)]:
            # An earlier button may have changed or removed it.
            if not (await button.is_visible() and await button.is_enabled()):
                continue
            address = self.page.url
            await button.click()
            await self._settled()
            if await self.page.locator("dialog[open]").count():
                opened += 1
                await self._dialog(f"{where} dialog", button)
            elif await self.page.locator("[role=menu]").count():
                opened += await self._menu(where, button)
            if self.page.url != address:  # the other buttons have gone with the page
                await self.page.goto(address)
                await ready(self.page)
        return opened

    async def _menu(self, where: str, button: ElementHandle) -> int:
        await self.axe(f"{where} menu", "[role=menu]")
        items = self.page.locator("[role=menuitem]:not(:disabled)")
        opened = 0
        for number in range(await items.count()):
            if number:
                await button.click()
            await items.nth(number).click()
            await self._settled()
            if await self.page.locator("dialog[open]").count():
                opened += 1
                await self._dialog(f"{where} menu dialog", button)
        if await self.page.locator("[role=menu]").count():
            await self.page.keyboard.press("Escape")
        return opened

    async def _dialog(self, where: str, opener: ElementHandle) -> None:
        dialog = self.page.locator("dialog[open]")
        await expect(dialog.get_by_text("Counting …")).to_have_count(0)
        title = await dialog.get_attribute("aria-label")
        await self.axe(f"{where} {title!r}", "dialog[open]")
        await self.page.keyboard.press("Escape")
        await expect(dialog).to_have_count(0)
        if not await opener.evaluate("node => node === document.activeElement"):
            self.found.append(f"{where} {title!r}: the focus does not return")

    async def _settled(self) -> None:
        """Wait until the page has drawn what its requests have answered."""
        await self._drawn()
        while self._asked:
            await asyncio.sleep(0.02)
            await self._drawn()

    async def _drawn(self) -> None:
        await self.page.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )


def path_of(route: PageRoute, full: Shop) -> list[str]:
    if route.name == "instance":
        return [route.at(instance=str(id)) for id in full]
    return [route.at(machine="shop.checkout")]


async def test_pages_are_accessible_and_fit(log_in: LogIn, full: Shop) -> None:
    opened = 0
    async with log_in("admin") as page:
        sweep = Sweep(page)
        base = page.url.rstrip("/")
        for path in [path for route in PAGES if route.exists for path in path_of(route, full)]:
            await page.set_viewport_size({"width": 1440, "height": 900})
            await page.goto(base + path)
            await ready(page)
            await sweep.axe(path)
            await sweep.none(path, "mouse only", MOUSE_ONLY)
            await sweep.tabs_through(path)
            await sweep.links_search(path, base)
            opened += await sweep.dialogs(path)
            for width in (1440, 400):
                await sweep.fits(path, width)
            await shot(page, f"400{path}".replace("/", "_"))
        for keys, name in (("Control+k", "palette"), ("?", "help")):
            await page.keyboard.press(keys)
            await expect(page.locator("dialog[open]")).to_be_visible()
            await sweep.axe(name, "dialog[open]")
            await page.keyboard.press("Escape")
        assert not sweep.found, "\n".join(sweep.found)
        await page.evaluate(HARD_TO_READ)
        await sweep.axe("a text that is hard to read")
        for theme, _ in THEMES:
            assert [one for one in sweep.found if "color-contrast" in one and one.startswith(theme)]
        colours = []
        for theme, _ in THEMES:
            await page.emulate_media(color_scheme=theme)
            colours.append(await page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
        assert colours[0] != colours[1]
    assert opened > 5
