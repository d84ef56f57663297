"""The API of lists: search, counts, completion, failures by message, batches."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from gen_durable import AsyncClient, Spec, Status, Worker
from gen_durable.dashboard import Dashboard, create_app
from gen_durable.dashboard.endpoints import endpoints
from gen_durable.dashboard.redaction import hide_secrets
from gen_durable.dashboard.searching import checked
from tests.dashboard.conftest import TOKENS, http_as
from tests.dashboard.machines import MACHINES, Checkout, Order, Payment, fragile, parcel


async def ended(http: httpx.AsyncClient, id: int) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while True:
            batch: dict[str, Any] = (await http.get(f"/api/batches/{id}")).json()
            if batch["finished_at"]:
                return batch
            await asyncio.sleep(0.02)


@pytest.fixture
async def failed(client: AsyncClient, durable_dsn: str) -> list[int]:
    """Three failed instances of two groups, and one that is done."""
    texts = ("page 1: no 'a'", "page 22: no 'b'", "connection lost")
    inserted = [await client.insert(fragile, text, correlation_key=f"f:{text[:6]}") for text in texts]
    done = await client.insert(parcel, 1)
    async with Worker(MACHINES, dsn=durable_dsn):
        for one in (*inserted, done):
            await client.wait(one)
    return [one.id for one in inserted]


async def get(http: httpx.AsyncClient, path: str, **params: Any) -> Any:
    answer = await http.get(f"/api{path}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_search_returns_rows_without_states(http: httpx.AsyncClient, failed: list[int]) -> None:
    page = await get(http, "/instances", q="status:failed")
    assert [row["id"] for row in page["items"]] == failed[::-1]
    assert (page["next"], page["bounded"], page["words"]) == (None, None, "Failed instances")
    assert (page["items"][0]["about"], page["items"][0]["is_error"]) == ("ValueError: connection lost", True)
    assert page["items"][0]["key"] == "f:connec"
    assert "state" not in page["items"][0]


async def test_pages_continue_before_the_last_id(http: httpx.AsyncClient, client: AsyncClient) -> None:
    await client.insert_all([Spec(parcel, n) for n in range(5)])
    first = await get(http, "/instances", limit=3)
    assert [row["id"] for row in first["items"]] == [5, 4, 3]
    second = await get(http, "/instances", limit=3, before=first["next"])
    assert ([row["id"] for row in second["items"]], second["next"]) == ([2, 1], None)


async def test_condition_without_an_index_says_how_far_it_looked(
    http: httpx.AsyncClient, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gen_durable._db.search.BOUND", 3)
    await client.insert_all([Spec(Checkout, Order(n)) for n in range(5)])
    page = await get(http, "/instances", q="state.number:0")
    assert (page["items"], page["next"], page["bounded"]) == ([], 3, 3)
    page = await get(http, "/instances", q="state.number:0", before=page["next"])
    assert [row["id"] for row in page["items"]] == [1]


@pytest.mark.parametrize(
    ("q", "words"),
    [("staus:failed", "staus:failed (position 1)"), ("a:b:", "a:b"), ('error:~"x', "not closed")],
)
async def test_wrong_search_names_the_term(http: httpx.AsyncClient, q: str, words: str) -> None:
    for path in ("/instances", "/instances/counts"):
        answer = await http.get(f"/api{path}", params={"q": q})
        assert answer.status_code == 422
        assert words in answer.json()["detail"]
    answer = await http.get("/api/batches/preview", params={"verb": "retry", "q": q})
    assert answer.status_code == 422
    assert (await http.post("/api/batches", json={"verb": "retry", "q": q})).status_code == 422


@pytest.mark.parametrize(("name", "value"), [("limit", 0), ("limit", 501), ("before", 0), ("before", 2**63)])
async def test_page_parameters_are_checked(http: httpx.AsyncClient, name: str, value: int) -> None:
    assert (await http.get("/api/instances", params={name: value})).status_code == 422


@pytest.mark.parametrize(
    "q", ["state.password:x", "state.card.api_key:7", "-state.password:x", "state.a.Token:1,2"]
)
async def test_hidden_values_cannot_be_searched(http: httpx.AsyncClient, client: AsyncClient, q: str) -> None:
    for path in ("/instances", "/instances/counts", "/batches/preview?verb=cancel"):
        answer = await http.get(f"/api{path}", params={"q": q, **({"verb": "cancel"} if "?" in path else {})})
        assert (answer.status_code, answer.json()["title"]) == (422, "Hidden values cannot be searched")
    answer = await http.post("/api/batches", json={"verb": "cancel", "q": q})
    assert answer.status_code == 422
    assert await client.batches() == []


def test_function_of_the_application_decides_what_is_hidden() -> None:
    def redact(value: Any) -> Any:
        return {key: "***" if key == "city" else inner for key, inner in hide_secrets(value).items()}

    assert str(checked("state.street:x", redact)) == "state.street:x"
    with pytest.raises(Exception, match="hides this value"):
        checked("state.city:Rome", redact)


async def test_counts_replace_the_status_of_the_search(http: httpx.AsyncClient, failed: list[int]) -> None:
    page = await get(http, "/instances/counts", q="failed machine:shop.fragile")
    counts = {one["status"]: one["count"] for one in page["items"]}
    assert (counts[""], counts["failed"], counts["done"]) == (3, 3, 0)
    assert "deleted" not in counts
    assert (page["selected"], page["count"]) == ("failed", 3)
    assert page["items"][0]["q"] == "machine:shop.fragile"
    page = await get(http, "/instances/counts", q="status:failed,done")
    assert (page["selected"], page["count"]) == (None, 4)
    page = await get(http, "/instances/counts", q="error:~connection")
    assert {one["status"]: one["count"] for one in page["items"]}["failed"] == 1


async def test_counts_are_bounded(
    http: httpx.AsyncClient, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gen_durable.dashboard.api.instances._MOST_COUNTED", 3)
    await client.insert_all([Spec(parcel, n) for n in range(5)])
    page = await get(http, "/instances/counts")
    runnable = next(one for one in page["items"] if one["status"] == "runnable")
    assert (runnable["count"], runnable["is_exact"]) == (3, False)
    assert not page["items"][0]["is_exact"]


async def test_completion_has_names_and_values(http: httpx.AsyncClient, failed: list[int]) -> None:
    page = await get(http, "/complete", q="machine:shop.fr", at=15)
    assert (page["start"], page["end"]) == (8, 15)
    assert [one["text"] for one in page["items"]] == ["shop.fragile"]
    assert "status:" in [one["text"] for one in (await get(http, "/complete", q="sta"))["items"]]


async def test_failures_are_grouped_without_numbers_and_quotes(
    http: httpx.AsyncClient, failed: list[int]
) -> None:
    page = await get(http, "/failures")
    assert (page["total"], page["grouped"]) == (3, 3)
    first, second = page["groups"]
    assert (first["message"], first["count"]) == ("ValueError: page #: no '…'", 2)
    assert (first["machine"], first["step"], first["versions"]) == ("shop.fragile", "run", [1])
    assert first["samples"] == failed[1::-1]
    assert sum(first["counts"]) == 2
    for group in (first, second):
        found = await get(http, "/instances", q=group["q"])
        assert len(found["items"]) == group["count"]


async def test_attempts_that_were_repeated_are_grouped(
    http: httpx.AsyncClient, client: AsyncClient, db: Any
) -> None:
    inserted = await client.insert(parcel, 1)
    await db.execute(
        "insert into gen_durable.executions"
        " (instance_id, step_seq, execution, attempt, status, outcome, step, error, finished_at)"
        " select $1, 1, n, n, 'ABORTED', o, 'run', e, now() from (values (1, 'retry', 'no answer in 3 s'),"
        " (2, 'retry', 'no answer in 5 s'), (3, 'lease', null), (4, 'shutdown', null)) as v (n, o, e)",
        inserted.id,
    )
    page = await get(http, "/failures/raised")
    assert {(one["message"], one["count"]) for one in page["groups"]} == {
        ("no answer in # s", 2), ("The worker died or lost its lease", 1),
    }  # fmt: skip


GROUPS = """
update gen_durable.gen_durable g set last_error = case
    when g.id <= 3 then 'timeout' when g.id <= 5 then 'timeout of the carrier' else g.id::text end"""


@pytest.fixture
async def many(client: AsyncClient, db: Any) -> None:
    """Failures of three groups: the messages of one are parts of those of another, and one has only numbers."""
    await client.insert_all([Spec(parcel, n) for n in range(1, 701)])
    await db.execute(
        "update gen_durable.gen_durable set status = 'failed', finished_at = now(), updated_at = now(), eligible_at = now()"
    )
    await db.execute(GROUPS)


@pytest.mark.usefixtures("many")
async def test_groups_of_failures_are_listed_and_retried_exactly(http: httpx.AsyncClient) -> None:
    groups = {one["message"]: one for one in (await get(http, "/failures"))["groups"]}
    assert {text: (one["count"], one["instances"]) for text, one in groups.items()} == {
        "#": (695, 695), "timeout": (3, 3), "timeout of the carrier": (2, 2),
    }  # fmt: skip
    for one in groups.values():
        assert f"fingerprint:{one['fingerprint']}" in one["q"]
        assert (await get(http, "/batches/preview", verb="retry", q=one["q"]))["count"] == one["count"]
        assert (await get(http, "/instances/counts", q=one["q"]))["count"] == one["count"]
    page = await get(http, "/instances", q=groups["timeout"]["q"])
    assert [row["id"] for row in page["items"]] == [3, 2, 1]
    body = {"verb": "retry", "q": groups["#"]["q"], "expected": 695}
    batch = await ended(http, (await http.post("/api/batches", json=body)).json()["id"])
    assert batch["result"] == "695 retried"
    assert (await get(http, "/failures"))["total"] == 5


@pytest.mark.usefixtures("many")
async def test_fingerprint_is_a_term_of_every_search(client: AsyncClient, http: httpx.AsyncClient) -> None:
    one = next(one for one in (await get(http, "/failures"))["groups"] if one["message"] == "timeout")
    name = f"fingerprint:{one['fingerprint']}"
    assert await client.count(where=name) == 3
    assert await client.count(where=f"status:failed -{name}") == 697
    assert await client.count(where="fingerprint:000000000000") == 0
    assert await client.count(where=f"{name} status:done") == 0
    assert await client.count(where=f"status:done,failed {name}") == 3


async def test_nothing_failed(http: httpx.AsyncClient) -> None:
    for path in ("/failures", "/failures/raised"):
        page = await get(http, path)
        assert (page["total"], page["groups"]) == (0, [])


async def test_shell_counts_failures_and_findings(http: httpx.AsyncClient, failed: list[int]) -> None:
    shell = await get(http, "/shell")
    assert (shell["failures"], shell["dead_events"]) == (3, 0)
    assert (await get(http, "/findings"))["findings"] >= 0


async def test_batch_of_a_search_is_previewed_and_run(
    http: httpx.AsyncClient, client: AsyncClient, failed: list[int]
) -> None:
    q = "machine:shop.fragile error:~page"
    shown = await get(http, "/batches/preview", verb="retry", q=q)
    assert (shown["count"], shown["total"], shown["text"]) == (2, 2, "to retry: 2 failed")
    started = await http.post(
        "/api/batches", json={"verb": "retry", "q": q, "expected": 2, "reason": "fixed"}
    )
    batch = await ended(http, started.json()["id"])
    assert (batch["status"], batch["done"], batch["result"]) == ("finished", 2, "2 retried")
    assert (batch["actor"], batch["reason"], batch["q"]) == ("ann", "fixed", q)
    assert batch["words"] == "instances of shop.fragile whose error contains page"
    assert await client.count(status=Status.FAILED) == 1
    events = await client.audit_log(limit=20)
    assert [one.data["where"] for one in events if one.event == "started" and one.subject] == [q]


async def test_batch_of_ids_counts_those_that_it_leaves(http: httpx.AsyncClient, failed: list[int]) -> None:
    ids = [failed[0], 4]
    shown = await get(http, "/batches/preview", verb="retry", ids=",".join(map(str, ids)))
    assert (shown["count"], shown["text"]) == (1, "to retry: 1 failed. Unchanged: 1 done")
    started = await http.post("/api/batches", json={"verb": "retry", "ids": ids})
    batch = await ended(http, started.json()["id"])
    assert (batch["result"], batch["words"], batch["q"]) == (
        "1 retried, 1 unchanged",
        "2 selected instances",
        None,
    )


@pytest.mark.parametrize("chosen", ["q", "ids"])
async def test_many_are_retried_with_a_new_state(
    http: httpx.AsyncClient, client: AsyncClient, failed: list[int], chosen: str
) -> None:
    wanted = {"q": "machine:shop.fragile"} if chosen == "q" else {"ids": failed[:2]}
    number = 3 if chosen == "q" else 2
    body = {"verb": "retry", "state": '"page 3"', "reason": "typo", **wanted}
    batch = await ended(http, (await http.post("/api/batches", json=body)).json()["id"])
    assert (batch["result"], batch["options"]) == (f"{number} retried", {}), "its state is not shown"
    found = await client.list(fragile, status=Status.RUNNABLE)
    assert [one.state for one in found] == ["page 3"] * number


@pytest.mark.parametrize("chosen", [{"q": "status:failed"}, {"ids": [1, 2]}], ids=["q", "ids"])
@pytest.mark.parametrize(
    ("change", "field", "text"),
    [
        ({"state": "{page}"}, "state", "the state"),
        ({"state": "7"}, "state", "expected string, got integer"),
        ({"state": '"[hidden]"'}, None, "stands where no value is stored"),
        ({"state": f'"{"x" * 2_000_000}"'}, "state", "bytes of JSON"),
        ({"step": "nowhere"}, "step", "has no step 'nowhere'"),
    ],
    ids=["text", "type", "hidden", "size", "step"],
)
async def test_state_or_step_that_does_not_fit_starts_no_batch(
    http: httpx.AsyncClient,
    client: AsyncClient,
    failed: list[int],
    chosen: dict[str, Any],
    change: dict[str, str],
    field: str | None,
    text: str,
) -> None:
    answer = await http.post("/api/batches", json={"verb": "retry", **chosen, **change})
    assert answer.status_code in (409, 422), answer.text
    problem = answer.json()
    assert (problem.get("facts", {}).get("field"), text in problem["detail"]) == (field, True), problem
    assert await client.batches() == []


async def test_only_a_retry_takes_a_state(http: httpx.AsyncClient, failed: list[int]) -> None:
    answer = await http.post("/api/batches", json={"verb": "cancel", "q": "", "state": "1"})
    assert (answer.status_code, answer.json()["detail"]) == (422, "state= does not apply to cancel")


async def test_deleted_instances_are_restored(
    http: httpx.AsyncClient, client: AsyncClient, failed: list[int]
) -> None:
    started = await http.post("/api/batches", json={"verb": "delete", "q": "status:failed"})
    await ended(http, started.json()["id"])
    assert [row["id"] for row in (await get(http, "/instances", q="status:deleted"))["items"]] == failed[::-1]
    shown = await get(http, "/batches/preview", verb="restore", q="status:deleted")
    assert (shown["count"], shown["text"]) == (3, "to restore: 3 failed")
    ids = ",".join(map(str, failed))
    assert (await get(http, "/batches/preview", verb="restore", ids=ids))["count"] == 3
    started = await http.post("/api/batches", json={"verb": "restore", "q": "status:deleted"})
    assert (await ended(http, started.json()["id"]))["result"] == "3 restored"
    assert await client.count(status=Status.FAILED) == 3


async def test_moved_count_is_a_conflict(http: httpx.AsyncClient, client: AsyncClient) -> None:
    await client.insert_all([Spec(parcel, n) for n in range(40)])
    answer = await http.post("/api/batches", json={"verb": "cancel", "q": "runnable", "expected": 20})
    assert answer.status_code == 409
    problem = answer.json()
    assert problem["title"] == "The number of instances has changed"
    assert problem["detail"] == "cancel would change 40 instances now; the preview counted 20."
    assert problem["facts"] == {"expected": 20, "found": 40}
    assert await client.batches() == []
    answer = await http.post("/api/batches", json={"verb": "cancel", "q": "runnable", "expected": 38})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("role", "verb", "status"),
    [
        ("read", "retry", 403),
        ("operate", "retry", 200),
        ("operate", "cancel", 200),
        ("operate", "delete", 403),
        ("operate", "restore", 403),
        ("admin", "delete", 200),
        ("admin", "restore", 200),
    ],
)
async def test_batches_need_the_role_of_their_verb(
    dashboard: Dashboard, role: str, verb: str, status: int
) -> None:
    async with http_as(dashboard, role) as http:
        answer = await http.post("/api/batches", json={"verb": verb, "q": ""})
        assert answer.status_code == status


@pytest.mark.parametrize(
    "body",
    [
        {"verb": "retry"},
        {"verb": "retry", "q": "", "ids": [1]},
        {"verb": "explode", "q": ""},
        {"verb": "retry", "q": "", "cascade": True},
        {"verb": "retry", "ids": [0]},
    ],
)
async def test_invalid_batches_are_refused(
    http: httpx.AsyncClient, client: AsyncClient, body: dict[str, Any]
) -> None:
    assert (await http.post("/api/batches", json=body)).status_code == 422
    assert await client.batches() == []


@pytest.mark.parametrize("ids", ["1,", "x", "1,-2", "9" * 30])
async def test_invalid_ids_of_a_preview_are_refused(http: httpx.AsyncClient, ids: str) -> None:
    answer = await http.get("/api/batches/preview", params={"verb": "retry", "ids": ids})
    assert answer.status_code == 422


async def test_batch_is_stopped_and_a_pending_one_is_run(
    http: httpx.AsyncClient, client: AsyncClient
) -> None:
    await client.insert_all([Spec(parcel, n) for n in range(3)])
    first, second = [await client.start_batch("cancel", parcel) for _ in range(2)]
    stopped = await http.post(f"/api/batches/{first.id}/stop", json={"reason": "wrong"})
    assert (stopped.json()["status"], stopped.json()["stopped_by"]) == ("stopped", "ann")
    assert stopped.json()["words"] == "instances of shop.parcel"
    await http.post(f"/api/batches/{second.id}/run", json={})
    assert (await ended(http, second.id))["result"] == "3 cancelled"
    assert [one["id"] for one in (await get(http, "/batches"))["items"]] == [second.id, first.id]
    assert (await http.get("/api/batches/99")).status_code == 404
    assert (await http.post("/api/batches/99/stop", json={})).status_code == 404


async def test_runner_exists_only_while_batches_are_unfinished(
    client: AsyncClient, http: httpx.AsyncClient, dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gen_durable.dashboard.batch_runner._EVERY", 0.02)
    runner = dashboard._board.batches

    async def is_idle() -> None:
        async with asyncio.timeout(20):
            while not runner.is_idle:
                await asyncio.sleep(0.01)

    await is_idle()
    batch = await client.start_batch("cancel")
    await get(http, "/batches")
    assert not runner.is_idle
    await http.post(f"/api/batches/{batch.id}/run", json={})
    await ended(http, batch.id)
    await is_idle()


async def test_read_only_dashboard_shows_batches_and_runs_none(client: AsyncClient) -> None:
    batch = await client.start_batch("cancel")
    app = create_app(client, tokens=TOKENS, read_only=True)
    async with app.opened(), http_as(app, "admin") as http:
        [row] = (await get(http, "/batches"))["items"]
        assert (row["id"], row["status"], row["words"]) == (batch.id, "pending", "all instances")
        assert app._board.batches.is_idle
        assert (await http.post("/api/batches", json={"verb": "retry", "q": ""})).status_code == 403


async def test_cancel_of_a_batch_can_skip_undo_steps(http: httpx.AsyncClient, client: AsyncClient) -> None:
    await client.insert(parcel, 1)
    body = {"verb": "cancel", "q": "machine:shop.parcel", "undo": False}
    started = (await http.post("/api/batches", json=body)).json()
    assert started["options"] == {"undo": "no"}
    assert (await client.get_batch(started["id"])).options["undo"] is False
    shown = await get(http, "/batches/preview", verb="cancel", q="machine:shop.parcel", undo=False)
    assert shown["effect"].endswith("No undo steps run.")


async def test_retry_of_a_batch_continues_at_another_step(
    http: httpx.AsyncClient, client: AsyncClient, durable_dsn: str
) -> None:
    async with Worker(MACHINES, dsn=durable_dsn):
        order = await client.insert(Checkout, Order(-1))
        await client.wait(order)
    body = {"verb": "retry", "q": "status:failed", "step": "nowhere"}
    assert (await http.post("/api/batches", json=body)).status_code == 409
    started = (await http.post("/api/batches", json=body | {"step": "ship"})).json()
    assert (await ended(http, started["id"]))["result"] == "1 retried"
    found = await client.get(order)
    assert found is not None
    assert (found.step, found.status) == ("ship", "runnable")
    cancel = await http.post("/api/batches", json={"verb": "cancel", "q": "", "step": "ship"})
    assert cancel.status_code == 422


@pytest.mark.parametrize(
    ("path", "body", "detail"),
    [
        (
            "/batches",
            {"verb": "cancel", "q": "", "undoo": True},
            "unknown field 'undoo'; did you mean 'undo'?",
        ),
        ("/instances/1/cancel", {"cascde": True}, "unknown field 'cascde'; did you mean 'cascade'?"),
        ("/login", {"tokn": "x"}, "unknown field 'tokn'; did you mean 'token'?"),
        ("/queues/mail/pause", {"xyz": 1}, "unknown field 'xyz'. Fields: reason"),
        (
            "/schedules/s",
            {"machine": "m", "cron": "* * * * *", "options": {"x": 1}},
            "unknown field 'x', at options",
        ),
    ],
)
async def test_unknown_fields_are_refused(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], detail: str
) -> None:
    answer = await http.post(f"/api{path}", json=body)
    assert (answer.status_code, answer.json()["title"]) == (422, "The body is not valid")
    assert answer.json()["detail"].startswith(detail)


def test_every_body_refuses_unknown_fields() -> None:
    bodies = {one.body for one in endpoints.values() if one.body is not None}
    assert [body for body in bodies if not body.__struct_config__.forbid_unknown_fields] == []


async def test_preview_of_a_cascade_counts_descendants(
    http: httpx.AsyncClient, client: AsyncClient, durable_dsn: str
) -> None:
    async with Worker([Checkout], dsn=durable_dsn):
        order = await client.insert(Checkout, Order(1))
        await client.signal(order, Checkout.paid, Payment(1))
        await client.wait(order, until="awaiting_children")
    for chosen in ({"q": "machine:shop.checkout"}, {"ids": str(order.id)}):
        shown = await get(http, "/batches/preview", verb="cancel", **chosen)
        assert (shown["count"], shown["descendants"]) == (1, 0)
        shown = await get(http, "/batches/preview", verb="cancel", cascade=True, force=True, **chosen)
        assert (shown["count"], shown["descendants"]) == (1, 2)
        assert shown["text"] == "to cancel: 1 awaiting children, and 2 descendants"
        assert shown["effect"].startswith("The outcomes of running steps are discarded.")
    shown = await get(http, "/batches/preview", verb="cancel", cascade=True)
    assert (shown["count"], shown["descendants"]) == (3, 0)  # the children match themselves
    body = {"verb": "cancel", "q": "machine:shop.checkout", "cascade": True, "expected": 1}
    started = await http.post("/api/batches", json=body)
    assert (await ended(http, started.json()["id"]))["done"] == 3


async def test_continued_batch_is_audited(http: httpx.AsyncClient, client: AsyncClient) -> None:
    batch = await client.start_batch("cancel", parcel)
    await http.post(f"/api/batches/{batch.id}/run", json={"reason": "the night is over"})
    await ended(http, batch.id)
    assert (await http.post(f"/api/batches/{batch.id}/run", json={})).status_code == 200
    events = [one for one in await client.audit_log() if one.event == "resumed"]
    assert [(one.subject, one.actor, one.reason) for one in events] == [
        (f"batch:{batch.id}", "ann", "the night is over")
    ]
