"""examples/agent_app.py in a real browser: Chromium, driven by Playwright. Skipped if Chromium is not installed."""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
import sys
from collections.abc import AsyncIterator

import pytest
import uvicorn
from playwright.async_api import ConsoleMessage, Error, Page, async_playwright, expect

from gen_durable import Client

SECRET = "0123456789abcdef0123456789abcdef"


@pytest.fixture
async def site(durable_dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The address of the served example."""
    monkeypatch.setenv("GEN_DURABLE_DSN", durable_dsn)
    monkeypatch.setenv("LIVE_SECRET", SECRET)
    monkeypatch.delitem(sys.modules, "examples.agent_app", raising=False)
    module = importlib.import_module("examples.agent_app")
    server = uvicorn.Server(
        uvicorn.Config(module.app, port=0, log_level="warning", timeout_graceful_shutdown=1)
    )
    serving = asyncio.ensure_future(server.serve())
    async with asyncio.timeout(30):
        while not server.started:
            assert not serving.done()
            await asyncio.sleep(0.05)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    await serving


@pytest.fixture
async def page(site: str) -> AsyncIterator[Page]:
    browser_path = shutil.which("chromium")
    if browser_path is None:
        pytest.skip("there is no chromium on this machine")
    async with async_playwright() as playwright:
        # Chromium cannot use its sandbox as root, as in a container.
        browser = await playwright.chromium.launch(
            executable_path=browser_path, chromium_sandbox=os.geteuid() != 0
        )
        page = await browser.new_page(viewport={"width": 800, "height": 560})
        problems: list[str] = []

        def on_error(error: Error) -> None:
            problems.append(str(error))

        def on_message(message: ConsoleMessage) -> None:
            if message.type == "error":
                problems.append(message.text)

        page.on("pageerror", on_error)
        page.on("console", on_message)
        await page.goto(site)
        yield page
        await browser.close()
    assert not problems


async def ask(page: Page) -> None:
    await page.get_by_label("Question").fill("How is Rome?")
    await page.get_by_role("button", name="Start").click()


async def test_tokens_appear_and_an_approval_continues_the_agent(page: Page) -> None:
    await ask(page)
    answer, status = page.locator("#answer"), page.get_by_role("status")
    await expect(answer).to_contain_text("You ask: How is Rome?")
    # The step is still publishing.
    assert "summary" not in (await answer.text_content() or "")
    await expect(status).to_have_text("awaiting signal")
    await expect(answer).to_contain_text("write a summary.")
    await page.screenshot(path=os.environ.get("GEN_DURABLE_TEST_SCREENSHOT"))
    await page.get_by_role("button", name="Approve").click()
    await expect(page.locator("#message")).to_contain_text("source")
    await expect(status).to_have_text("done", timeout=30_000)
    await expect(answer.locator("p")).to_have_count(2)
    await expect(answer).to_contain_text("Source 3:")
    await expect(page.get_by_role("button", name="Cancel")).to_be_hidden()


async def test_cancel_button_interrupts_the_agent(page: Page, durable_dsn: str) -> None:
    await ask(page)
    await expect(page.locator("#answer")).to_contain_text("You")
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_role("status")).to_have_text("cancelled")
    with Client(durable_dsn) as client:
        (agent,) = client.list("Agent")
    assert agent.cancel_reason == "cancelled in the browser"


async def test_reload_shows_the_same_agent(page: Page) -> None:
    await ask(page)
    await expect(page.get_by_role("status")).to_have_text("awaiting signal")
    await page.reload()
    await expect(page.locator("#answer")).to_contain_text(
        "You ask: How is Rome? I look up the facts, compare them"
    )
    await page.get_by_role("button", name="Reject").click()
    await expect(page.get_by_role("status")).to_have_text("done")
