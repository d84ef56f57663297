"""Attacks on the dashboard: redirects, guessing, large and slow bodies, many streams, other methods, errors."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import pytest
from starlette.requests import Request
from starlette.types import Message, Receive

from gen_durable import AsyncClient
from gen_durable.dashboard import Dashboard, User, create_app, endpoints, live
from gen_durable.dashboard.assets import version
from gen_durable.dashboard.serve import Server, bind, url_of
from tests.dashboard.conftest import TOKEN_OF, TOKENS, http_as, plain, served


@pytest.fixture
async def login(client: AsyncClient) -> AsyncIterator[Dashboard]:
    """A dashboard with passwords."""
    app = create_app(client, users={"ann": ("correct horse", "admin")})
    async with app.opened():
        yield app


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("//evil.example/", "/evil.example/"),
        ("///evil.example", "/evil.example"),
        ("/%2f%2fevil.example", "/evil.example"),
        ("/%5cevil.example", "/%5Cevil.example"),
        ("/i/1%0dset-cookie:%20a=b", "/i/1%0Dset-cookie%3A%20a%3Db"),
        ("/i/1%3fq=x", "/i/1%3Fq%3Dx"),
        ("/i/1%23x", "/i/1%23x"),
    ],
)
@pytest.mark.parametrize("is_valid", [True, False])
async def test_redirect_stays_on_the_site(
    client: AsyncClient, path: str, location: str, is_valid: bool
) -> None:
    app = create_app(client, one_time={"token-of-this-visit": User("local", "admin")})
    token = "token-of-this-visit" if is_valid else "other"
    async with app.opened(), plain(app) as http:
        url = httpx.URL("http://127.0.0.1").copy_with(raw_path=f"{path}?token={token}".encode())
        answer = await http.get(url)
    assert answer.status_code == 303
    assert answer.headers["location"] == location + ("" if is_valid else "?login=invalid")
    assert "a" not in answer.cookies


async def test_path_with_a_line_break_is_refused(http: httpx.AsyncClient) -> None:
    answer = await http.get("/i/1%0d%0aset-cookie:%20a=b?token=x")
    assert (answer.status_code, answer.headers.get("location")) == (404, None)


async def test_redirect_keeps_the_other_parameters(client: AsyncClient) -> None:
    app = create_app(client, one_time={"token-of-this-visit": User("local", "admin")})
    async with app.opened(), plain(app) as http:
        answer = await http.get("/instances?q=status%3Afailed&token=token-of-this-visit&login=used")
    assert answer.headers["location"] == "/instances?q=status%3Afailed"


async def test_head_request_does_not_use_up_a_one_time_token(client: AsyncClient) -> None:
    app = create_app(client, one_time={"token-of-this-visit": User("local", "admin")})
    async with app.opened(), plain(app) as http:
        assert (await http.head("/?token=token-of-this-visit")).status_code == 200
        assert not http.cookies
        assert (await http.get("/?token=token-of-this-visit")).headers["location"] == "/"


async def test_dashboards_on_two_ports_have_two_sessions(client: AsyncClient) -> None:
    apps = [create_app(client, tokens=TOKENS) for _ in range(2)]
    jar: dict[str, str] = {}
    for port, app in enumerate(apps, 8420):
        async with app.opened(), plain(app, host=f"127.0.0.1:{port}") as http:
            await http.post("/api/login", json={"token": TOKEN_OF["read"]})
            jar |= dict(http.cookies)
    assert sorted(jar) == ["gen_durable_session_8420", "gen_durable_session_8421"]
    for port, app in enumerate(apps, 8420):
        async with app.opened(), plain(app, host=f"127.0.0.1:{port}") as http:
            http.cookies.update(jar)
            assert (await http.get("/api/session")).status_code == 200


async def test_changed_password_ends_sessions(client: AsyncClient) -> None:
    secret = "0123456789abcdef0123456789abcdef"
    before = create_app(client, users={"ann": ("correct horse", "admin")}, secret=secret)
    async with plain(before) as http:
        assert (
            await http.post("/api/login", json={"name": "ann", "password": "correct horse"})
        ).status_code == 204
        cookies = dict(http.cookies)
    for password, role, status in (
        ("correct horse", "read", 200),
        ("other horse", "admin", 401),
        (None, "", 401),
    ):
        users: dict[str, tuple[str, str]] = {} if password is None else {"ann": (password, role)}
        after = create_app(client, users=users, tokens=TOKENS, secret=secret)  # type: ignore[arg-type]
        async with after.opened(), plain(after) as http:
            http.cookies.update(cookies)
            answer = await http.get("/api/session")
            assert answer.status_code == status
            assert status != 200 or answer.json()["role"] == role


async def test_removed_token_ends_sessions(client: AsyncClient) -> None:
    secret = "0123456789abcdef0123456789abcdef"
    before = create_app(client, tokens=TOKENS, secret=secret)
    async with plain(before) as http:
        await http.post("/api/login", json={"token": TOKEN_OF["admin"]})
        cookies = dict(http.cookies)
    after = create_app(client, tokens={TOKEN_OF["read"]: User("rita")}, secret=secret)
    async with after.opened(), plain(after) as http:
        http.cookies.update(cookies)
        assert (await http.get("/api/session")).status_code == 401


async def test_wrong_passwords_are_throttled_by_address(
    login: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gen_durable.dashboard.app._SLOWED", 0)
    body = {"name": "ann", "password": "wrong"}
    async with plain(login) as http:
        for _ in range(10):
            assert (await http.post("/api/login", json=body)).status_code == 401
        answer = await http.post("/api/login", json={"name": "ann", "password": "correct horse"})
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "60")
    basic = base64.b64encode(b"ann:correct horse").decode()
    async with plain(login, authorization=f"Basic {basic}") as http:
        assert (await http.get("/api/session")).status_code == 429
        assert (await http.get("/api/events?topics=queues")).status_code == 429
    other = httpx.ASGITransport(app=login, client=("192.0.2.7", 1))
    async with httpx.AsyncClient(transport=other, base_url="http://127.0.0.1") as http:
        right = {"name": "ann", "password": "correct horse"}
        assert (await http.post("/api/login", json=right)).status_code == 204


async def test_wrong_basic_passwords_are_throttled(login: Dashboard) -> None:
    basic = base64.b64encode(b"ann:wrong").decode()
    async with plain(login, authorization=f"Basic {basic}") as http:
        found = [(await http.get("/api/session")).status_code for _ in range(12)]
    assert found == [401] * 10 + [429] * 2


async def test_wrong_logins_of_one_user_do_not_lock_out_others(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All requests come from one address: that of a proxy."""
    monkeypatch.setattr("gen_durable.dashboard.app._SLOWED", 0)
    app = create_app(
        client, users={"ann": ("correct horse", "admin"), "bob": ("battery staple", "read")}, tokens=TOKENS
    )
    async with app.opened(), plain(app) as http:
        wrong = {"name": "ann", "password": "wrong"}
        found = [(await http.post("/api/login", json=wrong)).status_code for _ in range(11)]
        assert found[-1] == 429
        for right in ({"name": "bob", "password": "battery staple"}, {"token": TOKEN_OF["read"]}):
            assert (await http.post("/api/login", json=right)).status_code == 204


async def test_one_user_is_throttled_from_many_addresses(
    login: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gen_durable.dashboard.throttle._MOST_OF_USER", 15)
    basic = {"authorization": f"Basic {base64.b64encode(b'ann:wrong').decode()}"}
    found = []
    for number in range(20):
        transport = httpx.ASGITransport(app=login, client=(f"192.0.2.{number}", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=basic) as http:
            found.append((await http.get("/api/session")).status_code)
    assert found == [401] * 15 + [429] * 5


async def test_wrong_bearer_tokens_are_throttled(dashboard: Dashboard) -> None:
    async with plain(dashboard, authorization="Bearer wrong") as http:
        found = [(await http.get("/api/session")).status_code for _ in range(12)]
    assert found == [401] * 10 + [429] * 2
    async with http_as(dashboard, "admin") as http:
        assert (await http.get("/api/session")).status_code == 429


async def test_bearer_tokens_of_the_host_application_are_not_throttled(client: AsyncClient) -> None:
    async def user_of(request: Request) -> User | None:
        return User("zoe") if request.headers["authorization"] == "Bearer of the host" else None

    app = create_app(client, authenticate=user_of, tokens=TOKENS)
    async with app.opened():
        async with plain(app, authorization="Bearer wrong") as http:
            found = [(await http.get("/api/session")).status_code for _ in range(12)]
            assert found == [401] * 10 + [429] * 2
        async with plain(app, authorization="Bearer of the host") as http:
            assert {(await http.get("/api/session")).status_code for _ in range(20)} == {200}


@pytest.mark.parametrize(("proxies", "last"), [((), 429), (("127.0.0.1",), 401)])
async def test_forwarded_addresses_are_believed_of_named_proxies_only(
    login: Dashboard, proxies: tuple[str, ...], last: int
) -> None:
    ready = asyncio.Event()
    server = Server(login, ready.set, proxies=proxies)
    with bind("127.0.0.1", 0) as listening:
        serving = asyncio.ensure_future(server.serve(sockets=[listening]))
        await asyncio.wait_for(ready.wait(), 30)
        basic = f"Basic {base64.b64encode(b'ann:wrong').decode()}"
        async with httpx.AsyncClient(base_url=url_of(listening), headers={"authorization": basic}) as http:
            found = [
                (await http.get("/api/session", headers={"x-forwarded-for": f"192.0.2.{number}"})).status_code
                for number in range(12)
            ]
        server.stop()
        await serving
    assert found[-1] == last


async def test_throttle_ends_after_a_minute(login: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gen_durable.dashboard.throttle._SECONDS", 0.0)
    basic = base64.b64encode(b"ann:wrong").decode()
    async with plain(login, authorization=f"Basic {basic}") as http:
        assert {(await http.get("/api/session")).status_code for _ in range(12)} == {401}


async def test_bearer_token_of_a_proxy_needs_the_csrf_token(client: AsyncClient) -> None:
    async def user_of(_: object) -> User | None:
        return User("zoe", "admin")

    app = create_app(client, authenticate=user_of, tokens=TOKENS)
    async with app.opened():
        async with plain(app, authorization="Bearer token-of-another-system") as http:
            assert (await http.post("/api/queues/mail/pause", json={})).status_code == 403
        async with plain(app, authorization=f"Bearer {TOKEN_OF['operate']}") as http:
            assert (await http.post("/api/queues/mail/pause", json={})).status_code == 200


async def test_login_of_another_content_type_is_refused(login: Dashboard) -> None:
    """Forms of other sites can send text."""
    async with plain(login, **{"content-type": "text/plain"}) as http:
        body = b'{"name": "ann", "password": "correct horse"}'
        assert (await http.post("/api/login", content=body)).status_code == 415
        assert not http.cookies


async def test_large_bodies_are_refused(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "_MAX_BODY", 10_000)
    async with http_as(dashboard, "admin") as http:
        for path in ("/api/login", "/api/queues/mail/pause"):
            answer = await http.post(path, json={"reason": "x" * 11_000})
            assert answer.status_code == 413, path


async def ask(app: Dashboard, path: str, receive: Receive) -> int:
    """The status of the answer to a POST whose body comes from `receive`."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    await app(scope, receive, send)
    status: int = sent[0]["status"]
    return status


async def test_body_that_does_not_arrive_is_refused(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "_BODY_SECONDS", 0.1)

    async def receive() -> Message:
        await asyncio.sleep(30)
        raise AssertionError

    async with asyncio.timeout(10):
        assert await ask(dashboard, "/api/login", receive) == 408


async def test_body_without_a_login_is_not_read(dashboard: Dashboard) -> None:
    async def receive() -> Message:
        raise AssertionError

    assert await ask(dashboard, "/api/queues/mail/pause", receive) == 401


async def test_user_has_at_most_half_of_all_streams(client: AsyncClient) -> None:
    app = create_app(client, tokens=TOKENS, max_streams=4)
    async with app.opened(), served(app) as address:
        async with AsyncExitStack() as stack:
            found = []
            for role in ["read"] * 3 + ["admin"] * 3:
                http = await stack.enter_async_context(httpx.AsyncClient(base_url=address))
                http.headers["authorization"] = f"Bearer {TOKEN_OF[role]}"
                answer = await stack.enter_async_context(http.stream("GET", "/api/events?topics=queues"))
                found.append(answer.status_code)
        assert found == [200, 200, 503] * 2


async def test_streams_end_after_a_while(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the page opens another one, and its login is checked again."""
    monkeypatch.setattr(live, "_MAX_SECONDS", 0.0)
    async with http_as(dashboard, "read") as http, asyncio.timeout(10):
        assert (await http.get("/api/events?topics=queues")).text.startswith("retry:")


async def test_stream_ends_after_the_logout(client: AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the cookie, or a user whom the application has removed, gets no further data."""
    monkeypatch.setattr("gen_durable.dashboard.app._RECHECKED", 0.0)
    monkeypatch.setattr(live, "_HEARTBEAT", 0.05)
    app = create_app(client, tokens=TOKENS)
    async with app.opened(), served(app) as address, httpx.AsyncClient(base_url=address) as http:
        assert (await http.post("/api/login", json={"token": TOKEN_OF["read"]})).status_code == 204
        async with asyncio.timeout(10), http.stream("GET", "/api/events?topics=queues") as answer:
            lines = answer.aiter_lines()
            assert (await anext(lines)).startswith("retry")
            assert (await http.post("/api/logout")).status_code == 204
            async for _ in lines:
                pass


async def test_topics_are_bounded(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_MAX_FEEDS", 0)
    async with http_as(dashboard, "read") as http:
        assert (await http.get("/api/events?topics=queues")).status_code == 503


async def test_head_of_events_ends(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(10):
        assert (await http.head("/api/events?topics=queues")).status_code == 200


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "TRACE", "BREW"])
async def test_other_methods_are_refused_without_cors_headers(http: httpx.AsyncClient, method: str) -> None:
    headers = {"access-control-request-method": "POST"}
    for path in ("/api/queues", "/api/queues/mail/pause", "/", "/static/x/js/app.js"):
        answer = await http.request(method, path, headers=headers)
        assert answer.status_code == 405
        assert answer.headers["content-type"] == "application/problem+json"
        assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_get_cannot_change_anything(http: httpx.AsyncClient) -> None:
    assert (await http.get("/api/queues/mail/pause")).status_code in (404, 405)


async def test_only_files_of_this_version_are_kept_by_browsers(http: httpx.AsyncClient) -> None:
    ours = await http.get(f"/static/{version()}/js/app.js")
    assert "immutable" in ours.headers["cache-control"]
    other = await http.get("/static/other/js/app.js")
    assert other.headers["cache-control"] == "no-store"
    assert other.content == ours.content


async def test_page_and_answers_are_not_kept(http: httpx.AsyncClient) -> None:
    assert (await http.get("/")).headers["cache-control"] == "no-cache"
    for path in ("/api/session", "/api/queues", "/api/nothing", "/?token=x"):
        assert (await http.get(path)).headers["cache-control"] == "no-store", path


async def test_text_of_a_bug_is_not_sent(client: AsyncClient) -> None:
    async def user_of(_: Request) -> User | None:
        raise RuntimeError("password=hunter2")

    app = create_app(client, authenticate=user_of)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with app.opened(), httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        for path in ("/api/session", "/api/events?topics=queues"):
            answer = await http.get(path)
            assert answer.status_code == 500
            assert answer.headers["content-type"] == "application/problem+json"
            assert "content-security-policy" in answer.headers
            assert "hunter2" not in answer.text


async def test_unreachable_database_is_named_without_its_password() -> None:
    client = AsyncClient("postgresql://ann:hunter2@127.0.0.1:1/nothing")
    app = create_app(client, tokens=TOKENS)
    async with app.opened(), http_as(app, "read") as http:
        answer = await http.get("/api/queues")
    assert answer.status_code == 503
    assert "hunter2" not in answer.text


@pytest.mark.parametrize("path", ["/api/session", "/api/queues", "/i/1"])
async def test_tokens_in_the_address_of_the_api_do_not_log_in(dashboard: Dashboard, path: str) -> None:
    async with http_as(dashboard, None) as http:
        answer = await http.get(path, params={"token": TOKEN_OF["admin"]})
        assert answer.status_code in (303, 401)
        assert not http.cookies
