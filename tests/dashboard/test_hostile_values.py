"""Every endpoint answers hostile values with a problem, never as a bug."""

from __future__ import annotations

import itertools
import json
from typing import Any, Final

import httpx
import msgspec

from gen_durable import AsyncClient
from gen_durable.dashboard import Dashboard, create_app
from gen_durable.dashboard.endpoints import Endpoint, endpoints
from tests.dashboard.conftest import TOKEN_OF, TOKENS, http_as, plain

IDS: Final = ("0", "-1", str(2**63), "1e3", "%00", "%D9%A3", "9" * 5000)
NAMES: Final = ("%00", "%ED%A0%80", "..%2f", "x" * 3000, "%F0%9F%92%A9", "%0A", "x@999999999999")
TEXTS: Final = (
    *IDS,
    *NAMES,
    "",
    "null",
    "1,2",
    "cancel",
    "state.a:1e999",
    f"id:{2**63}",
    "age:>9999999999999d",
)
VALUES: Final[tuple[Any, ...]] = (
    *(None, "", 0, -1, 1.5, True, [], {}, 2**31, 2**63, 10**40, [2**63], ["a"], "[" * 100_000),
    *("\0", "\ud800", "x" * 5000, '{"a":' * 3000, '"\\u0000"', "1e400", "9" * 5000, "PT0.0000001S", "-PT1S"),
    *("P99999999999999D", {"password": "[hidden]"}, "../../etc/passwd"),
)
BODIES: Final = (b"", b"[", b"[]", b"null", b"\xff", b'{"reason": "\xed\xa0\x80"}', b'{"x":' * 50_000)
VALID: Final = {
    "name": "x",
    "expected_step_seq": 0,
    "level": "all",
    "verb": "cancel",
    "numbers": [1],
    "concurrency": 1,
    "slots": 1,
    "allowed": 1,
    "machine": "m",
    "cron": "* * * * *",
}


def paths(endpoint: Endpoint) -> list[str]:
    """Paths with hostile values; the last one has valid values."""
    values = [(*(IDS if kind is int else NAMES), "1") for kind in endpoint.in_path.values()]
    found = []
    for combination in itertools.product(*values):
        path = endpoint.path
        for name, value in zip(endpoint.in_path, combination, strict=True):
            path = path.replace(f"{{{name}}}", "rate" if name == "kind" else value)
        found.append(f"/api{path}")
    return found


async def test_no_query_is_a_bug(http: httpx.AsyncClient) -> None:
    for (method, _), endpoint in endpoints.items():
        if method == "GET":
            *hostile, valid = paths(endpoint)
            queries = [f"{name}={text}" for name in endpoint.in_query for text in TEXTS]
            for url in (*hostile, valid, *(f"{valid}?{query}" for query in queries)):
                assert (await http.get(url)).status_code < 500, url


async def test_no_body_is_a_bug(http: httpx.AsyncClient) -> None:
    http.headers["content-type"] = "application/json"
    for (method, _), endpoint in endpoints.items():
        if method == "POST":
            assert endpoint.body is not None
            *hostile, path = paths(endpoint)
            fields = [field.name for field in msgspec.structs.fields(endpoint.body)]
            valid = {name: VALID[name] for name in fields if name in VALID}
            bodies = [json.dumps({**valid, name: value}).encode() for name in fields for value in VALUES]
            sent = [(url, json.dumps(valid).encode()) for url in hostile]
            for url, body in (*sent, *((path, body) for body in (*bodies, *BODIES))):
                answer = await http.post(url, content=body)
                assert answer.status_code < 500, (url, body[:200])
    for body in (*BODIES, b"{}"):
        assert (await http.post("/api/login", content=body)).status_code in (401, 413, 422, 429)


async def test_every_endpoint_checks_login_role_and_csrf(dashboard: Dashboard, client: AsyncClient) -> None:
    read_only = create_app(client, tokens=TOKENS, read_only=True)
    async with (
        plain(dashboard) as anonymous,
        http_as(dashboard, "read") as reader,
        http_as(dashboard, "operate") as operator,
        http_as(read_only, "admin") as looking,
        plain(dashboard) as browser,
    ):
        await browser.post("/api/login", json={"token": TOKEN_OF["admin"]})
        for (method, _), endpoint in endpoints.items():
            *_, path = paths(endpoint)
            assert (await anonymous.request(method, path)).status_code == 401, path
            if method == "POST":
                assert (await reader.post(path)).status_code == 403, path
                assert (await looking.post(path)).status_code == 403, path
                assert (await browser.post(path, json={})).json()["title"].startswith("The CSRF token"), path
                is_allowed = endpoint.role == "operate"
                assert ((await operator.post(path)).status_code == 403) is not is_allowed, path
        assert [one.name for one in await client.queues()] == []
