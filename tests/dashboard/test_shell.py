"""The shell of the dashboard: navigation, keyboard, palette, live updates, login, narrow screens."""

from __future__ import annotations

import httpx
import pytest
from playwright.async_api import Browser, Page, expect

from gen_durable import AsyncClient, Context, Done, Machine, Outcome, step
from gen_durable.dashboard import create_app
from tests.dashboard.conftest import TOKEN_OF, LogIn, served, shot
from tests.dashboard.shop import shop


class Parcel(Machine[None, None], name="shop.parcel"):
    @step(initial=True)
    async def pack(self, ctx: Context[None]) -> Outcome[None]:
        return Done()


async def test_jump_finds_instances_by_id_and_key(http: httpx.AsyncClient, client: AsyncClient) -> None:
    inserted = await client.insert(Parcel, None, correlation_key="order:42")
    for text in (str(inserted.id), f"#{inserted.id}", " order:42 "):
        [found] = (await http.get("/api/jump", params={"q": text})).json()["items"]
        assert (found["text"], found["path"]) == ("order:42", f"/i/{inserted.id}")
    for text in ("", "order:4", "99999999999999999999", "²"):
        assert (await http.get("/api/jump", params={"q": text})).json() == {"items": []}


async def test_palette_jumps_by_keyboard(log_in: LogIn, client: AsyncClient) -> None:
    await client.insert(Parcel, None, correlation_key="order:42")
    async with log_in("read", path="/queues") as page:
        await expect(page.get_by_role("heading", name="Queues & limits")).to_be_visible()
        await page.keyboard.press("Control+k")
        await page.keyboard.type("order:42")
        await expect(page.get_by_role("option", name="shop.parcel")).to_be_visible()
        await shot(page, "palette")
        await page.get_by_label("Search or jump to").last.fill("theme: dark")
        await page.keyboard.press("Enter")
        await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
        await page.keyboard.press("Control+k")
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_keys_show_help_and_pause_updates(log_in: LogIn) -> None:
    async with log_in("read", path="/queues") as page:
        await expect(page.get_by_role("button", name="Live; pause")).to_be_visible()
        await page.keyboard.press("?")
        await expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
        await page.keyboard.press("Escape")
        await page.keyboard.press("p")
        await expect(page.get_by_role("button", name="Paused; resume")).to_be_visible()
        await page.keyboard.press("p")
        await expect(page.get_by_role("button", name="Live; pause")).to_be_visible()


@pytest.mark.parametrize("path", ["/nothing/here?q=1", "/toString", "/m", "/i/1/2", "/%E0%A4%A"])
async def test_unknown_address_is_a_page_not_found(log_in: LogIn, path: str) -> None:
    async with log_in("read", path=path) as page:
        await expect(page.get_by_role("heading", name="Page not found")).to_be_visible()
        await page.keyboard.press("g")
        await page.keyboard.press("q")
        await expect(page.get_by_role("heading", name="Queues & limits")).to_be_visible()
        await expect(page).to_have_title("Queues & limits · gen_durable")
        await page.go_back()
        await expect(page.get_by_role("heading", name="Page not found")).to_be_visible()


async def test_menu_opens_on_a_narrow_screen(log_in: LogIn) -> None:
    async with log_in("read", path="/queues", width=400) as page:
        await expect(page.get_by_role("navigation")).not_to_be_visible()
        await page.get_by_role("button", name="Menu").click()
        await expect(page.get_by_role("link", name="Queues & limits").first).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("navigation")).not_to_be_visible()


@pytest.mark.parametrize("width", [800, 1040])
async def test_actions_of_lists_are_visible_on_a_tablet(
    log_in: LogIn, durable_dsn: str, client: AsyncClient, width: int
) -> None:
    hidden = """() => [...document.querySelectorAll("td .button")].filter(
      node => node.getBoundingClientRect().right > node.closest(".panel").getBoundingClientRect().right).length"""
    async with shop(durable_dsn, client), log_in(path="/queues", width=width) as page:
        for path in ("queues", "schedules", "outbox"):
            await page.goto(page.url.rpartition("/")[0] + f"/{path}")
            await expect(page.locator("td .button").first).to_be_visible()
            assert await page.evaluate(hidden) == 0, path


@pytest.fixture
async def anonymous(browser: Browser, site: str) -> Page:
    page = await browser.new_page()
    await page.goto(f"{site}/queues")
    return page


async def test_login_by_token_returns_to_the_page(anonymous: Page) -> None:
    token = anonymous.get_by_label("Token")
    await expect(token).to_be_focused()
    await token.fill("a token that is wrong")
    await anonymous.keyboard.press("Enter")
    await expect(anonymous.get_by_role("alert")).to_contain_text("not valid")
    await token.fill(TOKEN_OF["read"])
    await anonymous.keyboard.press("Enter")
    await expect(anonymous.get_by_role("heading", name="Queues & limits")).to_be_visible()
    await anonymous.get_by_role("button", name="Log out").click()
    await expect(token).to_be_visible()


async def test_dashboard_works_below_a_mount_point(browser: Browser, client: AsyncClient) -> None:
    app = create_app(client, users={"ann": ("correct horse", "admin")})

    async def mounted(scope: dict[str, object], receive: object, send: object) -> None:
        await app({**scope, "root_path": "/ops"}, receive, send)  # type: ignore[arg-type]

    async with app.opened(), served(mounted) as address:  # type: ignore[arg-type]
        page = await browser.new_page()
        await page.goto(f"{address}/ops/queues")
        await page.get_by_label("Name").fill("ann")
        await page.get_by_label("Password").fill("correct horse")
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("heading", name="Queues & limits")).to_be_visible()
        await page.get_by_role("link", name="Schedules").click()
        await expect(page).to_have_url(f"{address}/ops/schedules")


async def test_durations_have_two_units_below_ten(log_in: LogIn) -> None:
    """ "2 d" for 71 hours would be a day too little."""
    shown = """async times => {
      const { dur } = await import(document.querySelector("link[href$='/lib.js']").href);
      return times.map(dur);
    }"""
    times = [59, 60, 119, 600, 3600, 2 * 3600 - 1, 36_000, 47 * 3600 + 1, 172_800, 3 * 86_400 - 1, 864_000]
    async with log_in("read") as page:
        assert await page.evaluate(shown, times) == [
            *("59 s", "1 m", "1 m 59 s", "10 m", "1 h", "1 h 59 m", "10 h", "47 h", "2 d", "2 d 23 h", "10 d")
        ]
