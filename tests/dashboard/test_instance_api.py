"""The API of one instance: what the page shows, and every change with its role, actor and reason."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gen_durable import Worker
from gen_durable.dashboard import Dashboard
from tests.dashboard.conftest import http_as
from tests.dashboard.machines import MACHINES, XSS, Checkout, Order, Payment, fragile
from tests.support.settings import FAST


@pytest.fixture
async def worker(durable_dsn: str) -> AsyncIterator[Worker]:
    async with Worker(MACHINES, dsn=durable_dsn, settings=FAST) as running:
        yield running


async def page_of(http: httpx.AsyncClient, id: int) -> dict[str, Any]:
    answer = await http.get(f"/api/instances/{id}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def waiting(worker: Worker) -> int:
    order = await worker.insert(Checkout, Order(1), correlation_key="order:1")
    await worker.wait(order, until="parked")
    return order.id


async def test_page_says_why_the_instance_does_not_run(worker: Worker, http: httpx.AsyncClient) -> None:
    id = await waiting(worker)
    page = await page_of(http, id)
    assert page["instance"]["step"] == "ship"
    assert page["explanation"]["reasons"][0]["reason"] == "awaiting_signals"
    answer = page["answer"]
    assert 'waiting for signal "paid"' in answer["sentences"][0]["text"]
    assert (answer["kind"], answer["action"]["text"]) == ("wait", "Send paid")
    assert [one["text"] for one in page["actions"]] == ["Signal", "Edit", "Cancel", "Fork", "Delete"]
    assert page["machine"]["steps"] == ["reserve", "ship", "close"]
    assert "cents" in json.dumps(page["machine"]["signals"]["paid"])
    assert [one["step_seq"] for one in page["transitions"]] == [0, 1]


async def test_page_has_the_path_of_an_ended_instance(worker: Worker, http: httpx.AsyncClient) -> None:
    id = await waiting(worker)
    await worker.signal(id, Checkout.paid, Payment(100))
    await worker.wait(await worker.get(id) or id)
    page = await page_of(http, id)
    assert [one["to"] for one in page["transitions"]] == ["reserve", "ship", "close", None]
    assert page["transitions"][2]["state"]["amount"] == 101
    assert page["children_counts"] == {"done": 2}
    assert [one["machine"] for one in page["children"]] == ["shop.parcel", "shop.parcel"]
    assert [one["step"] for one in page["executions"]] == ["reserve", "ship", "close"]
    assert page["instance"]["stored_result"] == "parcel 0, parcel 1"


async def test_missing_instance_gets_404(http: httpx.AsyncClient) -> None:
    for path in ("/api/instances/99", "/api/instances/99/state", "/api/instances/x"):
        assert (await http.get(path)).status_code == 404
    assert (await http.post("/api/instances/99/cancel", json={})).status_code == 404


async def test_secrets_are_hidden_everywhere(worker: Worker, http: httpx.AsyncClient) -> None:
    id = await waiting(worker)
    await worker.signal(id, "other", {"token": "hunter2-canary"})
    for path in (f"/api/instances/{id}", f"/api/instances/{id}/state"):
        text = (await http.get(path)).text
        assert "hunter2-canary" not in text
        assert "[hidden]" in text


async def test_signal_is_validated_and_audited(worker: Worker, http: httpx.AsyncClient) -> None:
    id = await waiting(worker)
    url = f"/api/instances/{id}/signal"
    assert (await http.post(url, json={"name": "paid", "payload": "{"})).status_code == 422
    answer = await http.post(url, json={"name": "paid", "payload": '{"cents": "x"}'})
    assert answer.status_code == 422
    assert "cents" in answer.json()["detail"]
    body = {"name": "paid", "payload": '{"cents": 5}', "reason": "paid in cash"}
    assert (await http.post(url, json=body)).json()["outcome"] == "delivered"
    event = next(one for one in await worker.audit(id) if one.event == "signalled")
    assert (event.actor, event.reason) == ("ann", "paid in cash")


async def test_cancel_and_retry(worker: Worker, http: httpx.AsyncClient) -> None:
    id = await waiting(worker)
    answer = await http.post(f"/api/instances/{id}/cancel", json={"reason": "withdrawn"})
    assert answer.json()["outcome"] == "cancelled"
    found = await worker.get(id)
    assert found is not None
    assert (found.cancel_reason, found.cancelled_by) == ("withdrawn", "ann")
    assert (await http.post(f"/api/instances/{id}/cancel", json={})).json()["outcome"] == "finished"
    answer = await http.post(f"/api/instances/{id}/retry", json={"reason": "paid after all"})
    assert answer.json()["outcome"] == "retried"
    assert (await http.post(f"/api/instances/{id}/retry", json={})).status_code == 409


async def test_edit_keeps_hidden_values_and_exact_numbers(worker: Worker, http: httpx.AsyncClient) -> None:
    id = await waiting(worker)
    shown = (await http.get(f"/api/instances/{id}/state")).json()
    text = shown["text"].replace('"amount": 100', '"amount": 12345678901234567890')
    body = {"expected_step_seq": shown["step_seq"], "state": text, "reason": "typo"}
    answer = await http.post(f"/api/instances/{id}/edit", json=body)
    assert answer.status_code == 200, answer.text
    found = await worker.get(id)
    assert found is not None
    assert found.state["password"] == "hunter2-canary"
    assert found.state["amount"] == 12345678901234567890
    answer = await http.post(f"/api/instances/{id}/edit", json=body)
    assert answer.status_code == 409
    assert answer.json()["facts"] == {"why": "moved"}


async def test_edit_of_a_wrong_type_is_refused(worker: Worker, http: httpx.AsyncClient) -> None:
    id = await waiting(worker)
    body = {"expected_step_seq": 1, "state": '{"number": "x"}'}
    answer = await http.post(f"/api/instances/{id}/edit", json=body)
    assert answer.status_code == 422
    assert "number" in answer.json()["detail"]


async def test_fork_delete_and_restore(worker: Worker, http: httpx.AsyncClient) -> None:
    id = await waiting(worker)
    answer = await http.post(f"/api/instances/{id}/fork", json={"at": 0, "reason": "try again"})
    assert answer.status_code == 200, answer.text
    copy = await worker.get(answer.json()["id"])
    assert copy is not None
    assert copy.forked_from == id
    assert copy.state["password"] == "hunter2-canary"
    assert (await http.post(f"/api/instances/{id}/delete", json={})).json()["outcome"] == "deleted"
    assert (await page_of(http, id))["instance"]["deleted_at"]
    assert (await http.post(f"/api/instances/{id}/restore", json={})).json()["outcome"] == "restored"


@pytest.mark.parametrize(
    ("verb", "needed"),
    [
        *((verb, "operate") for verb in ("signal", "cancel", "retry", "edit")),
        *((verb, "admin") for verb in ("fork", "delete", "restore")),
    ],
)
async def test_each_change_needs_its_role(dashboard: Dashboard, verb: str, needed: str) -> None:
    lower = {"operate": "read", "admin": "operate"}[needed]
    async with http_as(dashboard, lower) as http:
        assert (await http.post(f"/api/instances/1/{verb}", json={})).status_code == 403
    async with http_as(dashboard, needed) as http:
        assert (await http.post(f"/api/instances/1/{verb}", json={})).status_code in (404, 422)


async def test_failed_instance_shows_its_error_as_text(worker: Worker, http: httpx.AsyncClient) -> None:
    ref = await worker.insert(fragile, XSS)
    await worker.wait(ref, until="failed")
    page = await page_of(http, ref.id)
    assert XSS in page["instance"]["last_error"]
    assert page["instance"]["error"]["type"] == "ValueError"


async def test_large_states_and_removed_records_are_left_out(
    worker: Worker, http: httpx.AsyncClient, db: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = await waiting(worker)
    [size, *_] = await db.fetchrow("select pg_column_size(state) from gen_durable.executions")
    assert [one["has_state"] for one in (await page_of(http, id))["transitions"]] == [True, True]
    monkeypatch.setattr("gen_durable.dashboard.api.instance._MOST_BYTES", size - 1)
    page = await page_of(http, id)
    assert [one["has_state"] for one in page["transitions"]] == [False, False]
    assert page["instance"]["state"]["number"] == 1
    await db.execute("delete from gen_durable.executions")
    await db.execute("update gen_durable.gen_durable set step_seq = 900")
    assert [one["step_seq"] for one in (await page_of(http, id))["transitions"]] == [0]


async def test_long_lists_are_bounded(http: httpx.AsyncClient, db: Any) -> None:
    id = await db.fetchval(
        "insert into gen_durable.gen_durable (fsm, step) values ('shop.big', 'run') returning id"
    )
    await db.execute(
        "insert into gen_durable.gen_durable (fsm, step, parent_id, parent_round) "
        "select 'shop.small', 'run', $1, 1 from generate_series(1, 500)",
        id,
    )
    page = await page_of(http, id)
    assert len(page["children"]) == page["limit"] == 200
    assert page["children_counts"] == {"runnable": 500}
