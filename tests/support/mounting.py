"""What every application gives a dashboard that it mounts."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

import httpx

__all__ = ["check_mounted_dashboard"]


async def check_mounted_dashboard(
    address: str,
    log_in: Callable[[httpx.AsyncClient, str], Awaitable[None]],
    *,
    reader: str,
    operator: str,
    stranger: str,
) -> None:
    """Check pages, files, roles, changes and events at this address, over real connections.

    `log_in` logs a user of the application in. A stranger is a user who may not use the dashboard.
    """
    parts = urlsplit(address)
    site, root = f"{parts.scheme}://{parts.netloc}", parts.path
    async with httpx.AsyncClient() as http:
        await _check_files(http, site, root)
        assert (await http.get(f"{address}/api/session")).status_code == 401
        await log_in(http, stranger)
        assert (await http.get(f"{address}/api/session")).status_code == 401
        assert (await http.get(f"{address}/api/events?topics=queues")).status_code == 401
    pause = f"{address}/api/queues/mail/pause"
    body = {"reason": "smtp is down"}
    async with httpx.AsyncClient() as http:
        await log_in(http, reader)
        session = (await http.get(f"{address}/api/session")).json()
        assert (session["user"], session["role"]) == (reader, "read")
        headers = {"x-csrf-token": session["csrf"], "origin": site}
        assert (await http.post(pause, json=body, headers=headers)).status_code == 403
    async with httpx.AsyncClient() as http:
        await log_in(http, operator)
        session = (await http.get(f"{address}/api/session")).json()
        assert (session["user"], session["role"]) == (operator, "operate")
        headers = {"x-csrf-token": session["csrf"], "origin": site}
        for wrong in (
            {**headers, "x-csrf-token": ""},
            {**headers, "origin": "https://evil.example"},
            {**headers, "origin": site.replace("http:", "https:").replace("127.0.0.1", "127.0.0.2")},
            {**headers, "sec-fetch-site": "cross-site"},
        ):
            assert (await http.post(pause, json=body, headers=wrong)).status_code == 403, wrong
        assert (await http.post(pause, json=body, headers=headers)).status_code == 200
        async with http.stream("GET", f"{address}/api/events?topics=queues") as events:
            assert events.headers["content-type"].startswith("text/event-stream")
            async for line in events.aiter_lines():
                if line.startswith("data:"):
                    assert "mail" in line
                    break
        assert (await http.get(f"{address}/api/nothing")).headers[
            "content-type"
        ] == "application/problem+json"


async def _check_files(http: httpx.AsyncClient, site: str, root: str) -> None:
    page = await http.get(f"{site}{root}/queues")
    assert page.status_code == 200
    assert f'<meta name="root" content="{root}">' in page.text
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    files = re.findall(r'(?:href|src)="([^"]+)"', page.text)
    assert len(files) > 5
    for file in files:
        assert file.startswith(f"{root}/static/")
        assert (await http.get(site + file)).status_code == 200, file
