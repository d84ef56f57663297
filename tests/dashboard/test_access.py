"""Who may use the dashboard: tokens, passwords, sessions, roles, and requests of other sites."""

from __future__ import annotations

import base64

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from gen_durable import AsyncClient
from gen_durable.dashboard import Dashboard, User, create_app
from gen_durable.errors import UsageError
from tests.dashboard.conftest import TOKEN_OF, TOKENS, http_as, plain

JSON = {"content-type": "application/json"}


def test_dashboard_without_authentication_is_refused(durable_dsn: str) -> None:
    with pytest.raises(UsageError, match="no authentication"):
        create_app(AsyncClient(durable_dsn))


@pytest.mark.parametrize("token", ["a\udcff0123456789abcdef", "pässword-of-ann-1234", " " * 20])
def test_token_that_no_header_can_have_is_refused(durable_dsn: str, token: str) -> None:
    with pytest.raises(UsageError, match="ASCII"):
        create_app(AsyncClient(durable_dsn), tokens={token: User("ann")})


def test_short_token_is_refused(durable_dsn: str) -> None:
    with pytest.raises(UsageError, match="too short"):
        create_app(AsyncClient(durable_dsn), tokens={"short": User("ann")})


def test_unknown_role_is_refused(durable_dsn: str) -> None:
    with pytest.raises(UsageError, match="root"):
        create_app(AsyncClient(durable_dsn), users={"ann": ("secret", "root")})  # type: ignore[dict-item]


async def test_request_without_login_gets_401(dashboard: Dashboard) -> None:
    async with http_as(dashboard, None) as http:
        for path in ("/api/session", "/api/queues", "/api/events?topics=queues", "/api/openapi.json"):
            answer = await http.get(path)
            assert answer.status_code == 401, path
            assert answer.headers["content-type"] == "application/problem+json"


async def test_bearer_token_names_user_and_role(dashboard: Dashboard) -> None:
    for token, user in TOKENS.items():
        async with plain(dashboard, authorization=f"Bearer {token}") as http:
            session = (await http.get("/api/session")).json()
            assert (session["user"], session["role"]) == (user.name, user.role)


async def test_wrong_bearer_token_gets_401(dashboard: Dashboard) -> None:
    async with plain(dashboard, authorization="Bearer nonsense") as http:
        assert (await http.get("/api/session")).status_code == 401


async def test_basic_authentication(client: AsyncClient) -> None:
    app = create_app(client, users={"ann": ("correct horse", "operate")})
    async with app.opened():
        for password, status in (("correct horse", 200), ("wrong", 401), ("", 401)):
            value = base64.b64encode(f"ann:{password}".encode()).decode()
            async with plain(app, authorization=f"Basic {value}") as http:
                assert (await http.get("/api/session")).status_code == status
        async with plain(app, authorization="Basic %%%") as http:
            assert (await http.get("/api/session")).status_code == 401


async def test_function_of_the_application_names_the_user(client: AsyncClient) -> None:
    async def user_of(request: Request) -> User | None:
        name = request.headers.get("x-user")
        return User(name, "operate") if name else None

    app = create_app(client, authenticate=user_of)
    async with app.opened():
        async with plain(app, **{"x-user": "zoe"}) as http:
            assert (await http.get("/api/session")).json()["user"] == "zoe"
        async with plain(app) as http:
            assert (await http.get("/api/session")).status_code == 401


async def test_refusal_of_the_application_is_its_answer(client: AsyncClient) -> None:
    async def user_of(_: Request) -> User | None:
        raise HTTPException(403, "Only for the platform team")

    app = create_app(client, authenticate=user_of)
    async with app.opened(), plain(app) as http:
        for path in ("/api/session", "/api/events?topics=queues"):
            answer = await http.get(path)
            assert (answer.status_code, answer.json()["title"]) == (403, "Only for the platform team")


async def test_one_time_token_logs_in_once(client: AsyncClient) -> None:
    app = create_app(client, one_time={"token-of-this-visit": User("local", "admin")})
    async with app.opened():
        async with plain(app) as http:
            answer = await http.get("/i/42?token=token-of-this-visit")
            assert answer.status_code == 303
            assert answer.headers["location"] == "/i/42"
            cookie = answer.headers["set-cookie"].lower()
            assert "httponly" in cookie
            assert "samesite=strict" in cookie
            assert (await http.get("/api/session")).json()["user"] == "local"
        async with plain(app) as http:
            answer = await http.get("/?token=token-of-this-visit")
            assert answer.headers["location"].endswith("?login=used")
            assert not answer.cookies
            assert (await http.get("/?token=other")).headers["location"].endswith("?login=invalid")


async def test_used_link_leads_to_another_one_where_the_dashboard_was_started(client: AsyncClient) -> None:
    app = create_app(client, one_time={"token-of-this-visit": User("local", "operate")})
    printed: list[str] = []
    async with app.opened():
        async with plain(app) as http:
            await http.get("/?token=token-of-this-visit")
            app.on_new_token = printed.append
            answer = await http.get("/i/42?token=token-of-this-visit")
            assert answer.headers["location"] == "/i/42", "this browser is logged in"
            assert printed == []
        async with plain(app) as http:
            for _ in range(2):
                answer = await http.get("/?token=token-of-this-visit")
                assert answer.headers["location"] == "/?login=renewed"
                assert not answer.cookies
                assert "A new one has been printed" in (await http.get(answer.headers["location"])).text
            (token,) = printed
            assert token not in answer.text
            await http.get(f"/?token={token}")
            assert (await http.get("/api/session")).json()["role"] == "operate"
            assert (await http.get("/?token=other")).headers["location"] == "/"
        assert len(printed) == 1


async def test_login_sets_a_session_and_logout_ends_it(dashboard: Dashboard) -> None:
    async with plain(dashboard) as http:
        assert (await http.post("/api/login", json={"token": "wrong"})).status_code == 401
        assert (await http.post("/api/login", json={"token": TOKEN_OF["operate"]})).status_code == 204
        assert (await http.get("/api/session")).json()["role"] == "operate"
        copied = dict(http.cookies)
        assert (await http.post("/api/logout")).status_code == 204
        assert (await http.get("/api/session")).status_code == 401
        assert (await http.post("/api/login", json={"token": TOKEN_OF["operate"]})).status_code == 204
        assert (await http.get("/api/session")).status_code == 200
    async with plain(dashboard) as http:
        http.cookies.update(copied)
        assert (await http.get("/api/session")).status_code == 401, "a copy of the cookie"


async def test_forged_session_is_refused(dashboard: Dashboard, client: AsyncClient) -> None:
    async with plain(dashboard) as http:
        await http.post("/api/login", json={"token": TOKEN_OF["read"]})
        (name,) = http.cookies
        content, _, signature = http.cookies[name].partition(".")
        forged = base64.urlsafe_b64encode(
            base64.urlsafe_b64decode(content).replace(b'"read"', b'"admin"')
        ).decode()
        http.cookies.clear()
        http.cookies.set(name, f"{forged}.{signature}")
        assert (await http.get("/api/session")).status_code == 401
    other = create_app(client, tokens=TOKENS)
    async with other.opened(), plain(other) as http:
        http.cookies.set(name, f"{content}.{signature}")
        assert (await http.get("/api/session")).status_code == 401, "signed with the key of another dashboard"


async def test_sessions_are_shared_by_dashboards_with_the_same_secret(client: AsyncClient) -> None:
    secret = "0123456789abcdef0123456789abcdef"
    apps = [create_app(client, tokens=TOKENS, secret=secret) for _ in range(2)]
    async with apps[0].opened(), apps[1].opened():
        async with plain(apps[0]) as http:
            await http.post("/api/login", json={"token": TOKEN_OF["read"]})
            ((name, cookie),) = http.cookies.items()
        async with plain(apps[1]) as http:
            http.cookies.set(name, cookie)
            assert (await http.get("/api/session")).status_code == 200


@pytest.mark.parametrize(("role", "status"), [("read", 403), ("operate", 200), ("admin", 200)])
async def test_changes_need_a_role(dashboard: Dashboard, role: str, status: int) -> None:
    async with http_as(dashboard, role) as http:
        answer = await http.post("/api/queues/mail/pause", json={"reason": "smtp is down"})
        assert answer.status_code == status


async def test_read_only_dashboard_refuses_changes_of_admins(client: AsyncClient) -> None:
    app = create_app(client, tokens=TOKENS, read_only=True)
    async with app.opened(), http_as(app, "admin") as http:
        assert (await http.get("/api/session")).json()["role"] == "read"
        assert (await http.post("/api/queues/mail/pause", json={})).status_code == 403


async def test_change_is_audited_with_the_user_and_the_reason(
    dashboard: Dashboard, client: AsyncClient
) -> None:
    async with http_as(dashboard, "operate") as http:
        await http.post("/api/queues/mail/pause", json={"reason": "smtp is down"})
    event = next(one for one in await client.audit_log() if one.event == "paused")
    assert (event.actor, event.reason, event.subject) == ("olga", "smtp is down", "queue:mail")


async def test_change_with_a_session_needs_the_csrf_token(dashboard: Dashboard) -> None:
    async with plain(dashboard) as http:
        await http.post("/api/login", json={"token": TOKEN_OF["admin"]})
        csrf = (await http.get("/api/session")).json()["csrf"]
        for given, status in ((None, 403), ("wrong", 403), (csrf, 200)):
            headers = {} if given is None else {"x-csrf-token": given}
            answer = await http.post("/api/queues/mail/pause", json={}, headers=headers)
            assert answer.status_code == status, given


async def test_change_that_is_not_json_is_refused(http: httpx.AsyncClient) -> None:
    answer = await http.post("/api/queues/mail/pause", data={"reason": "x"})
    assert answer.status_code == 415


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://127.0.0.1"}, 200),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
    ],
)
async def test_changes_of_other_sites_are_refused(
    http: httpx.AsyncClient, headers: dict[str, str], status: int
) -> None:
    assert (await http.post("/api/queues/mail/pause", json={}, headers=headers)).status_code == status


async def test_requests_for_other_hosts_are_refused(client: AsyncClient) -> None:
    app = create_app(client, tokens=TOKENS, allowed_hosts=["127.0.0.1", "localhost", "::1"])
    async with app.opened(), http_as(app, "read") as http:
        for host, status in (
            ("127.0.0.1:8420", 200),
            ("localhost", 200),
            ("[::1]:8420", 200),
            ("LOCALHOST", 200),
            ("evil.example", 421),
            ("127.0.0.1.evil.example", 421),
            ("[", 421),
        ):
            assert (await http.get("/api/session", headers={"host": host})).status_code == status, host


async def test_every_answer_has_security_headers(http: httpx.AsyncClient) -> None:
    for path in ("/", "/api/session", "/api/nothing", "/static/x/nothing.js"):
        headers = (await http.get(path)).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
    assert (await http.get("/api/session")).headers["cache-control"] == "no-store"


async def test_problems_say_what_is_wrong(http: httpx.AsyncClient) -> None:
    for path, status in (("/api/nothing", 404), ("/api/queues?colour=red", 422)):
        answer = await http.get(path)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["title"]
    assert "colour" in (await http.get("/api/queues?colour=red")).json()["detail"]
    answer = await http.post("/api/queues/mail/pause", content=b'{"reason": 1}', headers=JSON)
    assert answer.status_code == 422
    assert "reason" in answer.json()["detail"]


async def test_path_cannot_leave_the_static_files(http: httpx.AsyncClient) -> None:
    for path in ("../app.py", "..%2fapp.py", "%2e%2e/app.py", "js/../../app.py"):
        answer = await http.get(f"/static/x/{path}")
        assert b"create_app" not in answer.content
