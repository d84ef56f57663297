"""The dashboard in FastAPI and Starlette applications that authenticate: over real connections, below a path.

tests/adapters/test_django_dashboard.py has the same for Django.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from playwright.async_api import Browser, expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route

from gen_durable import AsyncClient
from gen_durable.dashboard import Dashboard, User, create_app
from gen_durable.errors import UsageError
from tests.support.mounting import check_mounted_dashboard
from tests.support.serving import serving

USERS = {"rita": User("rita", "read"), "olga": User("olga", "operate"), "eve": None}


class Host:
    """An application with sessions of its own."""

    def __init__(self) -> None:
        self.sessions: dict[str, str] = {}

    async def log_in(self, request: Request) -> Response:
        key = secrets.token_hex(8)
        self.sessions[key] = request.query_params["name"]
        to = request.query_params.get("next")
        response = RedirectResponse(to, 303) if to else PlainTextResponse("welcome")
        response.set_cookie("shop_session", key, httponly=True, samesite="lax")
        return response

    async def user_of(self, request: Request) -> User | None:
        return USERS.get(self.sessions.get(request.cookies.get("shop_session", ""), ""))


def in_fastapi(host: Host, dashboard: Dashboard) -> Any:
    app = FastAPI(lifespan=dashboard.lifespan)
    app.add_route("/login", host.log_in)
    app.mount("/ops/durable", dashboard)
    return app


def in_starlette(host: Host, dashboard: Dashboard) -> Any:
    return Starlette(
        routes=[Route("/login", host.log_in), Mount("/ops/durable", dashboard)], lifespan=dashboard.lifespan
    )


@pytest.mark.parametrize("made", [in_fastapi, in_starlette])
async def test_application_authenticates_and_opens_a_mounted_dashboard(
    durable_dsn: str, made: Callable[[Host, Dashboard], Any]
) -> None:
    client, host = AsyncClient(durable_dsn), Host()
    app = made(host, create_app(client, authenticate=host.user_of))
    async with serving(app) as site:

        async def log_in(http: httpx.AsyncClient, name: str) -> None:
            assert (await http.get(f"{site}/login", params={"name": name})).text == "welcome"

        await check_mounted_dashboard(
            f"{site}/ops/durable", log_in, reader="rita", operator="olga", stranger="eve"
        )
        assert client._opened is not None
        audited = [(one.actor, one.reason) for one in await client.audit_log() if one.event == "paused"]
        assert audited == [("olga", "smtp is down")]
    assert client._opened is None


async def test_lifespan_leaves_an_open_client_open(durable_dsn: str) -> None:
    async with AsyncClient(durable_dsn) as client:
        dashboard = create_app(client, tokens={"0123456789abcdef": User("ann")})
        async with dashboard.lifespan(None) as state:
            assert state == {"durable": client}
        assert await client.count() == 0


async def test_path_of_a_proxy_is_part_of_all_addresses(client: AsyncClient) -> None:
    """As with `gen-durable dash --root-path /ops`: the proxy removes the path."""
    app = create_app(client, users={"ann": ("correct horse", "admin")})
    async with serving(app, root_path="/ops") as site, httpx.AsyncClient(base_url=site) as http:
        page = await http.get("/queues", headers={"x-forwarded-proto": "https"})
        assert '<meta name="root" content="/ops">' in page.text
        assert set(re.findall(r'(?:href|src)="([^"]+?)/static/', page.text)) == {"/ops"}
        (script,) = re.findall(r'src="/ops(/static/[^"]+)"', page.text)
        assert (await http.get(script)).headers["content-type"].startswith("text/javascript")
        login = await http.post(
            "/api/login",
            json={"name": "ann", "password": "correct horse"},
            headers={
                "x-forwarded-proto": "https",
                "host": "tools.example",
                "origin": "https://tools.example",
            },
        )
        assert login.status_code == 204
        assert "Path=/ops; SameSite=strict; Secure" in login.headers["set-cookie"]


@pytest.mark.parametrize("url", ["javascript:alert(1)", "//evil.example/", "login", "data:x"])
def test_login_url_is_a_path_or_a_url(durable_dsn: str, url: str) -> None:
    with pytest.raises(UsageError, match="login_url"):
        create_app(AsyncClient(durable_dsn), users={"ann": ("correct horse", "read")}, login_url=url)


async def test_people_without_a_login_find_that_of_the_application(
    browser: Browser, durable_dsn: str
) -> None:
    host = Host()
    app = in_starlette(
        host,
        create_app(
            AsyncClient(durable_dsn), authenticate=host.user_of, login_url="/login?name=olga&next={next}"
        ),
    )
    async with serving(app) as site:
        page = await browser.new_page()
        await page.goto(f"{site}/ops/durable/queues?q=a%26b")
        await expect(
            page.get_by_text("Log in to the application with an account that may use")
        ).to_be_visible()
        await expect(page.get_by_label("Token")).to_have_count(0)
        link = page.get_by_role("link", name="Log in")
        await expect(link).to_have_attribute(
            "href", "/login?name=olga&next=%2Fops%2Fdurable%2Fqueues%3Fq%3Da%2526b"
        )
        await link.click()
        await expect(page.get_by_role("heading", name="Queues & limits")).to_be_visible()
        await expect(page.get_by_text("Live", exact=True).first).to_be_visible()
        # The session is that of the application, which a logout of the dashboard would not end.
        await expect(page.get_by_role("button", name="Log out")).to_have_count(0)
        await page.get_by_role("link", name="Workers").first.click()
        await expect(page).to_have_url(f"{site}/ops/durable/workers")
        links = await page.eval_on_selector_all("a[href]", "all => all.map(each => each.pathname)")
        assert links
        assert [path for path in links if not path.startswith("/ops/durable")] == []
        await page.close()


async def test_one_time_dashboard_asks_for_no_token(browser: Browser, client: AsyncClient) -> None:
    app = create_app(client, one_time={"token-of-this-visit": User("local", "admin")})
    async with serving(app) as site:
        page = await browser.new_page()
        await page.goto(site)
        await expect(page.get_by_text("Open the link that was printed")).to_be_visible()
        await expect(page.get_by_role("button")).to_have_count(0)
        await page.goto(f"{site}?token=token-of-this-visit")
        # The token is used up, and its session still ends with a logout.
        await page.get_by_role("button", name="Log out").click()
        await expect(page.get_by_text("Open the link that was printed")).to_be_visible()
        await page.close()
