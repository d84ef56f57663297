"""Changes with an Idempotency-Key are made once, also after a crash."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Final

import httpx
import pytest
from playwright.async_api import expect

from gen_durable import AsyncClient, Settings, Spec, Worker
from gen_durable._db import requests
from gen_durable._db.failures import StatementError
from gen_durable._db.plan import Plan
from gen_durable._db.pool import Database
from gen_durable._db.sqlstates import DEADLOCK_DETECTED
from gen_durable.dashboard import Dashboard, create_app
from gen_durable.dashboard.endpoints import endpoints
from tests.dashboard.conftest import TOKENS, LogIn, http_as
from tests.dashboard.dying import KEY
from tests.dashboard.machines import MACHINES, Checkout, Order, parcel
from tests.dashboard.shop import Shop, shop
from tests.support.machines import Plain
from tests.support.worker_process import program

INSERT: Final = "/api/machines/shop.parcel/instances"
# What each change adds to; workers and the runner of batches write other rows meanwhile.
ROWS: Final = """
select array[(select count(*) from gen_durable.gen_durable), (select count(*) from gen_durable.signals),
  (select count(*) from gen_durable.batches),
  (select count(*) from gen_durable.audit_events a where actor is not null and event <> 'finished')]
"""


@pytest.fixture
async def registered(durable_dsn: str) -> None:
    """Machines that a worker has registered; none runs."""
    async with Worker(MACHINES, dsn=durable_dsn, queues={}):
        pass


async def post(http: httpx.AsyncClient, path: str, body: Any, key: str | None = KEY) -> httpx.Response:
    return await http.post(path, json=body, headers={} if key is None else {"idempotency-key": key})


# ---- Every endpoint -----------------------------------------------------------------------------------------------


@pytest.fixture
async def full(client: AsyncClient, durable_dsn: str) -> AsyncIterator[Shop]:
    async with shop(durable_dsn, client) as made:
        yield made


async def _requests(client: AsyncClient, made: Shop) -> dict[str, tuple[str, dict[str, Any]]]:
    """A request to each endpoint that changes something."""
    waiting, failed = made.waiting, (await client.list(Checkout, status="failed"))[0].id
    seq = (await client.get(waiting)).step_seq  # type: ignore[union-attr]
    dead = (await client.events(state="dead"))[0].number
    pending = (await client.start_batch("cancel", ids=[999_999])).id
    stopped = (await client.start_batch("cancel", ids=[999_998])).id
    return {
        "/audit/level": ("/audit/level", {"level": "all"}),
        "/batches": ("/batches", {"verb": "retry", "ids": [999_997]}),
        "/batches/{id}/run": (f"/batches/{pending}/run", {}),
        "/batches/{id}/stop": (f"/batches/{stopped}/stop", {}),
        "/instances/{id}/signal": (f"/instances/{waiting}/signal", {"name": "other"}),
        "/instances/{id}/edit": (f"/instances/{waiting}/edit", {"step": "ship", "expected_step_seq": seq}),
        "/instances/{id}/fork": (f"/instances/{waiting}/fork", {}),
        "/instances/{id}/cancel": (f"/instances/{waiting}/cancel", {}),
        "/instances/{id}/retry": (f"/instances/{failed}/retry", {"state": '{"number": 5}'}),
        "/instances/{id}/delete": (f"/instances/{failed}/delete", {}),
        "/instances/{id}/restore": (f"/instances/{failed}/restore", {}),
        "/limits/concurrency/{name}": ("/limits/concurrency/tenant", {"slots": 5}),
        "/limits/rate/{name}": ("/limits/rate/crm", {"allowed": 50}),
        "/limits/{kind}/{name}/remove": ("/limits/concurrency/tenant/remove", {}),
        "/machines/{name}/instances": ("/machines/shop.parcel/instances", {"state": 1, "delay": "PT9H"}),
        "/outbox/replay": ("/outbox/replay", {"numbers": [dead]}),
        "/outbox/replay-dead": ("/outbox/replay-dead", {"sink": "none"}),
        "/queues/{name}/pause": ("/queues/imports/pause", {}),
        "/queues/{name}/resume": ("/queues/imports/resume", {}),
        "/queues/{name}/concurrency": ("/queues/slow/concurrency", {"concurrency": 1}),
        "/schedules/{name}": ("/schedules/weekly", {"machine": "shop.parcel", "state": 1, "cron": "0 2 * * MON"}),
        "/schedules/{name}/pause": ("/schedules/weekly/pause", {}),
        "/schedules/{name}/resume": ("/schedules/weekly/resume", {}),
        "/schedules/{name}/trigger": ("/schedules/nightly/trigger", {}),
        "/schedules/{name}/delete": ("/schedules/weekly/delete", {}),
    }  # fmt: skip


async def test_every_change_is_made_once(
    client: AsyncClient, http: httpx.AsyncClient, full: Shop, db: Any, subtests: pytest.Subtests
) -> None:
    found = await _requests(client, full)
    assert {("POST", path) for path in found} == {one for one in endpoints if one[0] == "POST"}
    for name, (path, body) in found.items():
        with subtests.test(name):
            first = await post(http, f"/api{path}", {**body, "reason": name}, name)
            assert first.status_code == 200, first.text
            before = await db.fetchval(ROWS)
            second = await post(http, f"/api{path}", {**body, "reason": name}, name)
            assert (second.status_code, second.content) == (200, first.content)
            assert [one.headers.get("idempotency-replayed") for one in (first, second)] == [None, "true"]
            assert await db.fetchval(ROWS) == before
            assert (await post(http, f"/api{path}", body, name)).status_code == 422


# ---- Keys ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("registered")
async def test_key_belongs_to_one_request_of_one_user(
    client: AsyncClient, dashboard: Dashboard, http: httpx.AsyncClient
) -> None:
    made = await post(http, INSERT, {"state": 1})
    other = await post(http, INSERT, {"state": 2})
    assert other.status_code == 422
    assert other.headers["content-type"] == "application/problem+json"
    problem = other.json()
    assert problem["title"] == "The Idempotency-Key belongs to another request"
    assert problem["detail"].startswith("ann sent 'k' at 20")
    assert "new key" in problem["fix"]
    assert (await post(http, "/api/queues/a/pause", {})).status_code == 422
    assert (await post(http, "/api/queues/a/pause", {}, "k2")).status_code == 200
    assert (await post(http, "/api/queues/b/pause", {}, "k2")).status_code == 422
    async with http_as(dashboard, "operate") as olga:
        theirs = await post(olga, INSERT, {"state": 1})
    assert (theirs.status_code, theirs.json()["id"] != made.json()["id"]) == (200, True)
    assert await client.count(parcel) == 2
    assert [one.name for one in await client.queues() if one.is_paused] == ["a"]


async def test_replayed_answer_needs_the_role(dashboard: Dashboard, http: httpx.AsyncClient) -> None:
    await post(http, "/api/queues/a/pause", {})
    async with http_as(dashboard, "read") as reader:
        assert (await post(reader, "/api/queues/a/pause", {})).status_code == 403


@pytest.mark.parametrize("key", ["", "a b", "k" * 256, b"caf\xe9", "a\tb"])
async def test_invalid_key_is_refused(http: httpx.AsyncClient, db: Any, key: str | bytes) -> None:
    headers = {b"idempotency-key": key if isinstance(key, bytes) else key.encode()}
    answer = await http.post("/api/queues/a/pause", json={}, headers=headers)
    assert (answer.status_code, answer.json()["title"]) == (422, "The Idempotency-Key is not valid")
    assert await db.fetchval("select count(*) from gen_durable.queues") == 0


@pytest.mark.usefixtures("registered")
async def test_requests_without_a_key_store_nothing(
    client: AsyncClient, http: httpx.AsyncClient, db: Any
) -> None:
    for _ in range(2):
        await post(http, INSERT, {"state": 1}, None)
    assert (await http.get("/api/queues", headers={"idempotency-key": "a b"})).status_code == 200
    assert await client.count(parcel) == 2
    assert await db.fetchval("select count(*) from gen_durable.answered_requests") == 0


@pytest.mark.usefixtures("registered")
async def test_failed_request_leaves_its_key(client: AsyncClient, http: httpx.AsyncClient, db: Any) -> None:
    order = await client.insert(Checkout, Order(7))
    retry = f"/api/instances/{order.id}/retry"
    assert (await post(http, retry, {})).status_code == 409
    assert await db.fetchval("select count(*) from gen_durable.answered_requests") == 0
    await client.cancel(order)
    assert (await post(http, retry, {})).status_code == 200


# ---- Races --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("pooler", ["none", "transaction"])
async def test_concurrent_requests_make_one_change(
    client: AsyncClient, durable_dsn: str, pooler: Any
) -> None:
    """Two dashboards, as in two processes."""
    async with (
        AsyncClient(durable_dsn, settings=Settings(pooler=pooler)) as second,
        http_as(create_app(client, tokens=TOKENS), "admin") as http,
        http_as(create_app(second, tokens=TOKENS), "admin") as other,
    ):
        sent = [post(one, INSERT, {"state": 1}) for _ in range(6) for one in (http, other)]
        answers = await asyncio.gather(*sent)
    assert {one.status_code for one in answers} == {200}
    assert len({one.content for one in answers}) == 1
    assert await client.count(parcel) == 1


async def test_request_in_progress_is_refused_after_the_lock_timeout(
    durable_dsn: str, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Database.open.__func__.__kwdefaults__, "lock_timeout", "100ms")  # type: ignore[attr-defined]
    async with (
        AsyncClient(durable_dsn) as client,
        http_as(create_app(client, tokens=TOKENS), "admin") as http,
    ):
        transaction = db.transaction()
        await transaction.start()
        await db.execute(
            "insert into gen_durable.answered_requests (actor, key, digest) values ('ann', 'k', '')"
        )
        answer = await post(http, "/api/queues/a/pause", {})
        assert (answer.status_code, answer.json()["title"]) == (409, "The first request is in progress")
        assert (await post(http, "/api/queues/a/pause", {}, "k2")).status_code == 200
        await transaction.rollback()
        assert (await post(http, "/api/queues/a/pause", {})).status_code == 200


@pytest.mark.usefixtures("registered")
async def test_lost_race_is_tried_again(
    client: AsyncClient, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tries = requests.store, 0

    def deadlocked(*given: Any) -> Plan[None]:
        nonlocal tries
        tries += 1
        yield from store(*given)
        if tries < 3:
            raise StatementError(DEADLOCK_DETECTED, "deadlock detected")

    monkeypatch.setattr(requests, "store", deadlocked)
    assert (await post(http, INSERT, {"state": 1})).status_code == 200
    assert (tries, await client.count(parcel)) == (3, 1)


async def test_change_wakes_workers_of_its_process_after_the_commit(durable_dsn: str) -> None:
    slow = Settings(poll_interval=timedelta(seconds=60))
    async with Worker([*MACHINES, Plain], dsn=durable_dsn, settings=slow) as worker:
        failed = await worker.insert(Plain, 7, schedule_in=timedelta(days=1))
        await worker.cancel(failed)
        async with http_as(create_app(worker, tokens=TOKENS), "operate") as http:
            answer = await post(http, f"/api/instances/{failed.id}/retry", {"step": "run"})
        assert answer.status_code == 200, answer.text
        assert (await worker.wait(failed, timeout=timedelta(seconds=20))).result == 7


# ---- Crashes ------------------------------------------------------------------------------------------------------


async def _crash(dsn: str, moment: str, path: str, body: Any) -> None:
    async with program("tests.dashboard.dying", dsn, moment, path, json.dumps(body)) as process:
        assert await process.ends() == -signal.SIGKILL, process.log


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(("moment", "count"), [("stored", 0), ("committed", 1)])
async def test_change_is_made_once_if_the_process_is_killed(
    client: AsyncClient, http: httpx.AsyncClient, durable_dsn: str, moment: str, count: int
) -> None:
    await _crash(durable_dsn, moment, INSERT, {"state": 1})
    assert await client.count(parcel) == count
    answers = [await post(http, INSERT, {"state": 1}) for _ in range(2)]
    found = await client.list(parcel)
    assert [one.json()["id"] for one in answers] == [found[0].id] * 2
    assert len(found) == 1


async def test_batch_of_a_killed_process_is_run_by_the_second_request(
    client: AsyncClient, http: httpx.AsyncClient, durable_dsn: str
) -> None:
    await client.insert_all([Spec(parcel, n) for n in range(3)])
    body = {"verb": "cancel", "q": "machine:shop.parcel", "expected": 3}
    await _crash(durable_dsn, "committed", "/api/batches", body)
    (stored,) = await client.batches()
    assert (stored.status, await client.count(parcel, status="cancelled")) == ("pending", 0)
    assert (await post(http, "/api/batches", body)).json()["id"] == stored.id
    async with asyncio.timeout(20):
        while not (await client.get_batch(stored.id)).is_over:
            await asyncio.sleep(0.01)
    assert (len(await client.batches()), await client.count(parcel, status="cancelled")) == (1, 3)


async def test_cascade_of_a_killed_process_is_completed(
    client: AsyncClient, http: httpx.AsyncClient, worker_with_children: int, durable_dsn: str
) -> None:
    path = f"/api/instances/{worker_with_children}/cancel"
    await _crash(durable_dsn, "cascade", path, {"cascade": True})
    assert (await client.count(status="cancelled"), await client.count(parcel)) == (1, 2)
    first = await post(http, path, {"cascade": True})
    assert await client.count(status="cancelled") == 3
    assert (await post(http, path, {"cascade": True})).content == first.content


@pytest.fixture
async def worker_with_children(client: AsyncClient, durable_dsn: str) -> int:
    """A checkout that waits for two parcels, which no worker runs."""
    async with Worker([Checkout], dsn=durable_dsn) as worker:
        order = await worker.insert(Checkout, Order(7), step="ship")
        await worker.wait(order, until="parked")
    return order.id


# ---- Pages --------------------------------------------------------------------------------------------------------


# The connection breaks once, after the server has made the change.
LOSE_AN_ANSWER: Final = """() => {
  const { fetch } = window;
  window.fetch = async (url, options) => {
    const answer = await fetch(url, options);
    if (options.method !== "POST") return answer;
    window.fetch = fetch;
    throw new TypeError("lost");
  };
}"""


@pytest.mark.usefixtures("registered")
async def test_form_that_is_submitted_twice_inserts_once(log_in: LogIn, client: AsyncClient) -> None:
    async with log_in("operate", path="/m/shop.parcel") as page:
        machine = page.url
        for count in (1, 2):
            await page.get_by_role("button", name="Insert", exact=True).click()
            await page.get_by_label("State").fill("7")
            await page.locator("dialog form").evaluate("form => (form.requestSubmit(), form.requestSubmit())")
            await page.wait_for_url("**/i/*")
            await expect(page.locator("dialog")).to_have_count(0)
            assert await client.count(parcel) == count
            await page.goto(machine)


@pytest.mark.usefixtures("registered")
async def test_form_whose_answer_is_lost_is_sent_again(log_in: LogIn, client: AsyncClient) -> None:
    async with log_in("operate", path="/m/shop.parcel") as page:
        await page.get_by_role("button", name="Insert", exact=True).click()
        await page.get_by_label("State").fill("7")
        await page.evaluate(LOSE_AN_ANSWER)
        submit = page.locator("dialog").get_by_role("button", name="Insert")
        await submit.click()
        await expect(page.locator("dialog").get_by_role("alert")).to_contain_text("does not answer")
        assert await client.count(parcel) == 1
        await submit.click()
        await page.wait_for_url("**/i/1")
        assert await client.count(parcel) == 1
        await page.goto(page.url.replace("/i/1", "/instances"))
        await page.get_by_label("Select 1").click()
        await page.get_by_role("button", name="Cancel").click()
        await page.evaluate(LOSE_AN_ANSWER)
        submit = page.locator("dialog").get_by_role("button", name="Cancel instances")
        await submit.click()
        await expect(page.locator("dialog").get_by_role("alert")).to_contain_text("does not answer")
        await submit.click()
        await expect(page.locator(".toasts")).to_contain_text("Cancel: 1 cancelled")
    assert [one.total for one in await client.batches()] == [1]
