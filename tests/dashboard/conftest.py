"""Fixtures for tests of the dashboard: an application on a test database, an HTTP client, and a page in Chromium."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias

import httpx
import pytest
import pytest_asyncio
import uvicorn
from playwright.async_api import Browser, ConsoleMessage, Error, Page, async_playwright, expect

from gen_durable import AsyncClient
from gen_durable.dashboard import Dashboard, User, create_app

TOKENS: Final = {
    "token-of-a-reader-0": User("rita", "read"),
    "token-of-an-operator": User("olga", "operate"),
    "token-of-an-admin-00": User("ann", "admin"),
}
TOKEN_OF: Final[Mapping[str, str]] = {user.role: token for token, user in TOKENS.items()}

LogIn: TypeAlias = Callable[..., AbstractAsyncContextManager[Page]]


@pytest.fixture
async def client(durable_dsn: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(durable_dsn) as opened:
        yield opened


@pytest.fixture
def statement_timeout() -> timedelta:
    """Longer than in production: on a loaded machine, statements of tests take over a second at times."""
    return timedelta(seconds=20)


@pytest.fixture
async def dashboard(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch, statement_timeout: timedelta
) -> AsyncIterator[Dashboard]:
    monkeypatch.setattr("gen_durable.dashboard.board._STATEMENT_TIMEOUT", statement_timeout)
    # Tests change data behind the dashboard, and read at once.
    monkeypatch.setattr("gen_durable.dashboard.board._SHARED", 0.0)
    app = create_app(client, tokens=TOKENS)
    async with app.opened():
        yield app


def plain(app: Any, **headers: str) -> httpx.AsyncClient:
    """A client that sends these headers."""
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1", headers=headers
    )


def http_as(dashboard: Dashboard, role: str | None) -> httpx.AsyncClient:
    """A client of the API that sends the token of a role."""
    return plain(dashboard, **({} if role is None else {"authorization": f"Bearer {TOKEN_OF[role]}"}))


@pytest.fixture
async def http(dashboard: Dashboard) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the API with the role admin."""
    async with http_as(dashboard, "admin") as opened:
        yield opened


@asynccontextmanager
async def served(app: Dashboard) -> AsyncIterator[str]:
    """Serve an application on a free port of loopback; yields its address."""
    # Playwright keeps connections open, and fails if the server closes one that it is about to use.
    config = uvicorn.Config(
        app,
        port=0,
        log_level="warning",
        timeout_graceful_shutdown=1,
        timeout_keep_alive=600,
        lifespan="off",
    )
    server = uvicorn.Server(config)
    serving = asyncio.ensure_future(server.serve())
    async with asyncio.timeout(30):
        while not server.started:
            assert not serving.done()
            await asyncio.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await serving


@pytest.fixture
async def site(dashboard: Dashboard) -> AsyncIterator[str]:
    """The address of the served dashboard."""
    async with served(dashboard) as address:
        yield address


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Browser]:
    """One Chromium and its driver for all tests of this process: starting them takes longer than most tests."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("there is no chromium on this machine; .ci/run installs it")
    expect.set_options(timeout=15_000)  # machines of CI are slow at times
    async with async_playwright() as playwright:
        # Chromium cannot use its sandbox as root, as in a container.
        started = await playwright.chromium.launch(
            executable_path=path, args=["--disable-gpu"], chromium_sandbox=os.geteuid() != 0, timeout=60_000
        )
        yield started
        await started.close()


@pytest.fixture
def _function_scoped_runner(_session_scoped_runner: asyncio.Runner) -> asyncio.Runner:
    """Run the tests of this folder on the event loop of `chromium`, which all of them share."""
    return _session_scoped_runner


@pytest.fixture
async def browser(chromium: Browser) -> AsyncIterator[Browser]:
    yield chromium
    for context in chromium.contexts:
        await context.close()


@pytest.fixture
async def log_in(browser: Browser, site: str) -> LogIn:
    """Opens a page of the dashboard as a user: `async with log_in("operate", path="/queues") as page`.

    An error in the console of the page, or an exception in its code, fails the test. `fails`: the statuses of answers
    that the test expects, which the browser reports as errors.
    """

    @asynccontextmanager
    async def opened(
        role: str = "admin",
        *,
        path: str = "/",
        width: int = 1440,
        height: int = 900,
        fails: Iterable[int] = (),
        **options: Any,
    ) -> AsyncIterator[Page]:
        # Animations cost most of the processor time of Chromium.
        options.setdefault("reduced_motion", "reduce")
        context = await browser.new_context(viewport={"width": width, "height": height}, **options)
        page = await context.new_page()
        problems: list[str] = []

        def on_error(error: Error) -> None:
            problems.append(str(error))

        def on_message(message: ConsoleMessage) -> None:
            if message.type == "error" and not any(f"status of {status}" in message.text for status in fails):
                problems.append(f"{message.text} {message.location}")

        page.on("pageerror", on_error)
        page.on("console", on_message)
        login = await context.request.post(f"{site}/api/login", data={"token": TOKEN_OF[role]})
        assert login.status == 204, await login.text()
        await page.goto(f"{site}{path}")
        try:
            yield page
        finally:
            await context.close()
        assert not problems, problems

    return opened


@pytest.fixture
async def page(log_in: LogIn) -> AsyncIterator[Page]:
    """The overview, as an admin."""
    async with log_in() as opened:
        yield opened


async def shot(page: Page, name: str) -> None:
    """Store a screenshot if GEN_DURABLE_TEST_SCREENSHOTS names a directory."""
    folder = os.environ.get("GEN_DURABLE_TEST_SCREENSHOTS")
    if folder:
        await page.screenshot(path=Path(folder) / f"{name}.png")
