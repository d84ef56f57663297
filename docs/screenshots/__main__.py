"""Run the shop: `python -m docs.screenshots [--seconds N] [--keep] [DIRECTORY]`; writes docs/img by default.

It takes 13 minutes, and needs Chromium, as the tests of the dashboard do.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import uvicorn
from playwright.async_api import Page, async_playwright

from gen_durable import AsyncClient, ConcurrencyLimit, RateLimit, Status, Worker
from gen_durable.dashboard import Dashboard, User, create_app
from gen_durable.embedded import EmbeddedPostgres
from gen_durable.events import CloudEvent, Rejected

from .shop import MACHINES, SCHEDULES, Checkout, customers, sync_contact

TOKEN: Final = "token-of-the-screenshots"  # noqa: S105 - valid for this run
IMAGES: Final = Path(__file__).parents[1] / "img"
# Name and path of each page; {order} is an instance.
PAGES: Final = {
    "overview": "/",
    "machine": "/m/shop.checkout",
    "machines": "/machines",
    "instance": "/i/{order}",
    "instances": "/instances?q=machine:shop.checkout",
    "failures": "/failures",
    "queues": "/queues",
    "schedules": "/schedules",
    "workers": "/workers",
    "outbox": "/outbox",
    "audit": "/audit",
    "batches": "/batches",
    "system": "/system",
}


async def webhooks(event: CloudEvent) -> None:
    """Accept most events, and refuse the others for good."""
    if hash(event.subject) % 40 == 0:
        raise Rejected("410 Gone: https://hooks.partner.example/orders")


@asynccontextmanager
async def shop(dsn: str) -> AsyncIterator[None]:
    """Run two workers of the shop."""
    limits: list[RateLimit | ConcurrencyLimit] = [
        RateLimit("crm", 8, burst=16),
        ConcurrencyLimit("tenant", 2),
    ]
    orders = {"checkout": 20, "shipping": 20}
    others = {"crm": 4, "billing": 2, "imports": 2}
    sinks = {"webhooks": webhooks}
    async with (
        Worker(MACHINES, dsn=dsn, queues=orders, sinks=sinks),
        Worker(MACHINES, dsn=dsn, queues=others, limits=limits, schedules=SCHEDULES),
    ):
        yield


async def operators(client: AsyncClient) -> None:
    """Repair what has failed, as people do: it is in the audit log and in the list of batches."""
    await client.pause_queue("imports", reason="supplier sends wrong prices", actor="ann")
    await client.set_limit(
        RateLimit("crm", 6, burst=12), reason="the CRM answers 429 at 8 per second", actor="ben"
    )
    for waiting in await client.list(Checkout, status=Status.AWAITING_SIGNAL, limit=1):
        await client.cancel(waiting, reason="the customer called", actor="ben")
    await client.run_batch(
        await client.start_batch(
            "retry", sync_contact, status=Status.FAILED, reason="new API key of tenant 13", actor="ben"
        )
    )
    await client.run_batch(
        await client.start_replay(sink="webhooks", reason="the partner is back", actor="ann")
    )


async def photograph(app: Dashboard, folder: Path, places: dict[str, str]) -> None:
    """Write a picture of each page, light and dark."""
    config = uvicorn.Config(app, port=0, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.05)
        address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        try:
            async with async_playwright() as playwright:
                browser = await playwright.chromium.launch(
                    executable_path=shutil.which("chromium"), chromium_sandbox=os.geteuid() != 0
                )
                for theme in ("light", "dark"):
                    context = await browser.new_context(
                        viewport={"width": 1440, "height": 900}, color_scheme=theme
                    )
                    login = await context.request.post(f"{address}/api/login", data={"token": TOKEN})
                    if not login.ok:
                        raise RuntimeError(await login.text())
                    for name, path in PAGES.items():
                        page = await context.new_page()
                        await _photograph(
                            page, address + path.format(**places), folder / f"{name}-{theme}.png"
                        )
                        await page.close()
                    await context.close()
        finally:
            server.should_exit = True


async def _photograph(page: Page, url: str, file: Path) -> None:
    await page.goto(url)
    await page.locator("h1").wait_for()
    await page.wait_for_timeout(2500)  # live figures and moving dots
    await page.screenshot(path=file)


async def run(seconds: float, folder: Path | None, dsn: str | None) -> None:
    """Run the shop for a while, then photograph it; without a folder, run it until Ctrl-C."""
    with tempfile.TemporaryDirectory(prefix="gen_durable_shop_") as home:
        where = dsn or EmbeddedPostgres(Path(home)).ensure()
        async with shop(where), AsyncClient(where) as client:
            app = create_app(client, tokens={TOKEN: User("ann", "admin")}, environment="shop")
            async with app.opened():
                await customers(client, seconds=seconds * 0.8, per_second=4)
                await operators(client)
                await customers(client, seconds=seconds * 0.2, per_second=4)
                if folder is None:
                    print(f"shop is running: {where}", flush=True)
                    await customers(client, seconds=float("inf"), per_second=1)
                    return
                done = await client.list(Checkout, status=Status.DONE, limit=200)
                longest = max(done, key=lambda order: order.step_seq)
                async with asyncio.TaskGroup() as group:
                    shopping = group.create_task(customers(client, seconds=3600, per_second=4))
                    await photograph(app, folder, {"order": str(longest.id)})
                    shopping.cancel()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="./run screenshots", description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=IMAGES)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long customers order before")
    parser.add_argument("--keep", action="store_true", help="take no pictures; keep the shop running")
    parser.add_argument("--dsn", help="PostgreSQL server; default: an embedded one of its own")
    given = parser.parse_args()
    if shutil.which("chromium") is None and not given.keep:
        sys.exit("screenshots need Chromium: apt-get install chromium")
    given.folder.mkdir(parents=True, exist_ok=True)
    logging.getLogger("gen_durable").setLevel(logging.CRITICAL)  # failures are part of the picture
    asyncio.run(run(given.seconds, None if given.keep else given.folder, given.dsn))


if __name__ == "__main__":
    main()
