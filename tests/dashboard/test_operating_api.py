"""The API of schedules, workers, outbox, audit and system."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from gen_durable import AsyncClient, ConcurrencyLimit, RateLimit, Schedule, Spec, Worker
from gen_durable._db import doctor
from gen_durable.dashboard import Dashboard
from tests.dashboard.conftest import http_as
from tests.dashboard.machines import MACHINES, Checkout, Order, parcel
from tests.support.settings import FAST


@pytest.fixture
async def worker(durable_dsn: str) -> AsyncIterator[Worker]:
    async with Worker(MACHINES, dsn=durable_dsn, settings=FAST) as running:
        yield running


async def get(http: httpx.AsyncClient, path: str) -> Any:
    answer = await http.get(f"/api{path}")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_schedules_have_runs_and_next_fire_times(client: AsyncClient, http: httpx.AsyncClient) -> None:
    order = Spec(Checkout, Order(7))
    await client.put_schedule(Schedule("nightly", order, cron="0 2 * * *", tz="Europe/Berlin"))
    await client.put_schedule(Schedule("often", Spec(parcel, 7), every=timedelta(minutes=10)))
    made = (await http.post("/api/schedules/often/trigger", json={"reason": "now"})).json()
    page = await get(http, "/schedules")
    assert [one["when"] for one in page["schedules"]] == ["daily at 02:00", "every 10 minutes"]
    nightly, often = page["schedules"]
    assert (nightly["name"], nightly["cron"], nightly["tz"]) == ("nightly", "0 2 * * *", "Europe/Berlin")
    assert len(nightly["upcoming"]) == 1
    assert "hunter2-canary" not in str(page)
    assert len(often["upcoming"]) == 48
    assert [one["id"] for one in often["runs"]] == [made["id"]]


async def test_schedules_are_paused_resumed_and_deleted(client: AsyncClient, http: httpx.AsyncClient) -> None:
    await client.put_schedule(Schedule("often", Spec(parcel, 7), every=timedelta(minutes=10)))
    await http.post("/api/schedules/often/pause", json={"reason": "month end"})
    found = await client.get_schedule("often")
    assert (found.is_paused, found.paused_by, found.pause_reason) == (True, "ann", "month end")
    await http.post("/api/schedules/often/resume", json={})
    assert not (await client.get_schedule("often")).is_paused
    assert (await http.post("/api/schedules/often/delete", json={})).status_code == 200
    assert (await http.post("/api/schedules/often/pause", json={})).status_code == 404


async def test_schedules_are_stored_and_edited(
    worker: Worker, client: AsyncClient, http: httpx.AsyncClient
) -> None:
    body = {
        "machine": "shop.checkout",
        "state": {"number": 7, "password": "hunter2-canary"},
        "cron": "0 2 * * MON",
        "options": {"queue": "nightly", "concurrency_key": ""},
        "reason": "new",
    }
    assert (await http.post("/api/schedules/weekly", json=body)).status_code == 200
    (row,) = (await get(http, "/schedules"))["schedules"]
    assert (row["when"], row["options"]) == ("Mondays at 02:00", {"queue": "nightly", "concurrency_key": ""})
    edited = {
        **body,
        "state": row["state"] | {"number": 8},
        "every": "PT90S",
        "cron": None,
        "overlap": "skip",
    }
    assert (await http.post("/api/schedules/weekly", json=edited)).status_code == 200
    found = await client.get_schedule("weekly")
    assert found.spec["state"] == {"number": 8, "password": "hunter2-canary"}
    assert (found.every, found.cron, found.overlap) == (timedelta(seconds=90), None, "skip")
    for wrong in (
        {"cron": "61 * * * *", "every": None},
        {"cron": "* * * * *"},
        {"machine": "shop.nothing"},
        {"options": {"colour": 1}},
        {"options": {"weight": 0}},
        {"tz": "Europe/Nowhere", "cron": "* * * * *", "every": None},
    ):
        answer = await http.post("/api/schedules/weekly", json=edited | wrong)
        assert (answer.status_code, bool(answer.json()["title"])) == (422, True), wrong
    events = await client.audit_log()
    assert [(one.subject, one.event, one.actor) for one in events] == [("schedule:weekly", "set", "ann")] * 2


async def test_limits_are_removed(client: AsyncClient, http: httpx.AsyncClient) -> None:
    await client.set_limit(ConcurrencyLimit("crm", 2))
    await client.set_limit(RateLimit("crm", 5))
    answer = await http.post("/api/limits/rate/crm/remove", json={"reason": "not needed"})
    assert answer.json() == {"is_removed": True}
    assert [str(limit) for limit in await client.limits()] == ["crm=2"]
    assert (await http.post("/api/limits/rate/crm/remove", json={})).json() == {"is_removed": False}
    (event,) = (await get(http, "/audit?event=removed"))["items"]
    assert (event["actor"], event["reason"]) == ("ann", "not needed")


async def test_workers_show_capacity_and_what_runs(worker: Worker, http: httpx.AsyncClient) -> None:
    page = await get(http, "/workers")
    (found,) = page["workers"]
    assert (found["name"], found["state"], found["capacity"]) == (worker.name, "live", 10)
    assert [(one["name"], one["capacity"]) for one in found["serves"]] == [("default", 10)]
    assert (found["executing"], found["running"]) == (0, [])
    (queue,) = (await get(http, "/queues"))["queues"]
    assert queue["capacity"] == 10


async def test_outbox_counts_by_sink_and_replays(
    client: AsyncClient, http: httpx.AsyncClient, db: Any
) -> None:
    await db.execute(
        "insert into gen_durable.outbox (instance_id, step_seq, n, sink, type, subject, data, dead_at, last_error) "
        "select 1, n, 1, case when n < 4 then 'crm' else 'mail' end, 'order.paid.v1', 'order:1', "
        "'{\"token\": \"hunter2-canary\"}', case when n = 5 then now() end, case when n = 5 then '410 Gone' end "
        "from generate_series(1, 5) n"
    )
    page = await get(http, "/outbox")
    assert [(one["sink"], one["pending"], one["dead"]) for one in page["sinks"]] == [
        ("crm", 3, 0),
        ("mail", 1, 1),
    ]
    listed = await get(http, "/outbox/events?state=dead")
    (dead,) = listed["items"]
    assert dead["data"] == {"token": "[hidden]"}
    answer = await http.post("/api/outbox/replay", json={"numbers": [dead["number"]], "reason": "fixed"})
    assert answer.json() == {"count": 1}
    assert (await get(http, "/outbox/events?state=dead"))["items"] == []
    await db.execute("update gen_durable.outbox set dead_at = now()")
    answer = await http.post("/api/outbox/replay-dead", json={"sink": "crm"})
    batch = answer.json()
    assert (batch["verb"], batch["total"], batch["words"]) == ("replay", 3, "dead letters of crm")
    async with asyncio.timeout(20):
        while not batch["finished_at"]:
            await asyncio.sleep(0.02)
            batch = await get(http, f"/batches/{batch['id']}")
    assert (batch["result"], batch["done"]) == ("3 replayed", 3)
    by_type = await get(http, "/outbox/events?type=order.paid.v1&sink=mail")
    assert [one["state"] for one in by_type["items"]] == ["dead", "dead"]
    assert (await get(http, "/outbox/events?type=order.lost.v1")) == {"items": [], "next": None}
    pages = await get(http, "/outbox/events?limit=2")
    assert pages["next"] == pages["items"][-1]["number"]


async def test_old_events_are_found_by_their_state_and_on_later_pages(
    http: httpx.AsyncClient, db: Any
) -> None:
    await db.execute(
        "insert into gen_durable.outbox (id, instance_id, step_seq, n, sink, type, subject, data, dead_at, published_at) "
        "overriding system value values (5, 1, 1, 1, 'crm', 'a', 's', '{}', now(), null), "
        "(6, 2, 1, 1, 'crm', 'a', 's', '{}', null, null), (500000, 3, 1, 1, 'crm', 'b', 's', '{}', null, now())"
    )

    async def numbers(query: str) -> list[int]:
        return [one["number"] for one in (await get(http, f"/outbox/events?{query}"))["items"]]

    assert await numbers("state=dead") == [5]
    assert await numbers("state=pending") == [6]
    assert await numbers("instance=2") == [6]
    assert await numbers("type=a") == []
    page = await get(http, "/outbox/events")
    assert ([one["number"] for one in page["items"]], page["next"]) == ([500000], 400001)
    assert await numbers("type=a&before=400001") == []
    assert await numbers("type=a&before=50000") == [6, 5]


async def test_audit_shows_people_or_everything(client: AsyncClient, http: httpx.AsyncClient) -> None:
    assert (await http.post("/api/audit/level", json={"level": "all", "reason": "review"})).status_code == 200
    await client.insert(parcel, 1)
    await client.pause_queue("mail", actor="bob", reason="smtp is down")
    everything = await get(http, "/audit")
    people = await get(http, "/audit?who=people")
    assert everything["level"] == "all"
    assert "created" in {one["event"] for one in everything["items"]}
    assert {one["actor"] for one in people["items"]} == {"ann", "bob"}
    (paused,) = (await get(http, "/audit?actor=bob&event=paused&subject=queue:mail"))["items"]
    assert paused["reason"] == "smtp is down"
    (created,) = (await get(http, "/audit?instance=1"))["items"]
    assert created["event"] == "created"
    assert (await get(http, "/audit?who=trouble"))["items"] == []
    first = await get(http, "/audit?limit=1")
    assert first["next"] == first["items"][0]["number"]
    assert (await get(http, f"/audit?before={first['next']}"))["items"] == everything["items"][1:]


async def test_system_shows_findings_and_tables(worker: Worker, http: httpx.AsyncClient) -> None:
    await worker.pause_queue("mail")
    await worker.insert(parcel, 1, queue="mail")
    page = await get(http, "/system")
    assert page["schema"] == "gen_durable"
    assert {"gen_durable", "executions", "outbox"} <= {one["name"] for one in page["tables"]}
    assert page["postgresql"]
    assert page["retention"]["retention_done"]
    assert page["settings"]["shared_buffers"]
    codes = {one["code"] for one in page["findings"]}
    assert "queue.paused" in codes
    assert set(page["passed"]) == set(doctor.CODES) - codes


def test_every_code_of_the_doctor_is_listed() -> None:
    source = Path(doctor.__file__).read_text(encoding="utf-8")
    assert set(re.findall(r'code="([a-z_.]+)"', source)) == set(doctor.CODES)


@pytest.mark.parametrize(
    ("path", "needed"),
    [
        *((f"/schedules/x/{verb}", "operate") for verb in ("pause", "resume", "trigger")),
        ("/schedules/x/delete", "admin"),
        ("/schedules/x", "operate"),
        ("/outbox/replay", "operate"),
        ("/audit/level", "admin"),
    ],
)
async def test_each_change_needs_its_role(dashboard: Dashboard, path: str, needed: str) -> None:
    lower = {"operate": "read", "admin": "operate"}[needed]
    async with http_as(dashboard, lower) as http:
        assert (await http.post(f"/api{path}", json={})).status_code == 403
    async with http_as(dashboard, needed) as http:
        assert (await http.post(f"/api{path}", json={})).status_code in (404, 422)


@pytest.mark.parametrize("name", ["a/b", "a/b/pause", "/", "a%2Fb", "a?b#c", "a,b"])
async def test_names_may_contain_slashes(client: AsyncClient, http: httpx.AsyncClient, name: str) -> None:
    part = quote(name, safe="")
    for path, body in (
        (f"/queues/{part}/pause", {}),
        (f"/limits/rate/{part}", {"allowed": 5}),
        (f"/limits/concurrency/{part}", {"slots": 5}),
        (f"/limits/concurrency/{part}/remove", {}),
        (f"/schedules/{part}", {"machine": "shop.parcel", "every": "PT1H"}),
        (f"/schedules/{part}/trigger", {}),
    ):
        answer = await http.post(f"/api{path}", json=body)
        # There is neither this schedule nor a worker with the machine.
        expected = (404, 422) if "/schedules/" in path else (200,)
        assert answer.status_code in expected, (path, answer.text)
    assert [one.name for one in await client.queues()] == [name]
    assert [(one.name, type(one)) for one in await client.limits()] == [(name, RateLimit)]
    for path in (f"/machines/{part}", f"/machines/{part}/rates"):
        answer = await http.get(f"/api{path}")
        assert (answer.status_code, repr(name) in answer.text) == (404, True)
