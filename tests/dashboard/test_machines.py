"""Machines and one machine: the API, and the pages."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import psycopg
import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.async_api import expect

from gen_durable import AsyncClient, Duplicate, RateLimit, Worker
from gen_durable._graph.model import Edge, Graph, Node
from gen_durable._graph.picture import Tab
from gen_durable.dashboard.api.machine_now import placed
from gen_durable.dashboard.api.machine_rates import transitions, unread
from gen_durable.rates import EdgeRates
from gen_durable.stats import Awaited, CensusGroup, CensusState
from tests.dashboard.conftest import LogIn, http_as, shot
from tests.dashboard.machines import MACHINES, XSS, Checkout, Order, Payment, fragile, parcel
from tests.support.accessibility import VIOLATIONS
from tests.support.settings import FAST


@pytest.fixture
async def worker(durable_dsn: str) -> AsyncIterator[Worker]:
    async with Worker(MACHINES, dsn=durable_dsn, queues={"default": 4}) as running:
        yield running


@pytest.fixture
async def waiting(worker: Worker) -> int:
    """A checkout that waits for its payment."""
    order = await worker.insert(Checkout, Order(7))
    await worker.wait(order, until="parked")
    return order.id


async def test_machines_have_pictures(http: httpx.AsyncClient, worker: Worker) -> None:
    cards = (await http.get("/api/machines")).json()["machines"]
    assert [card["name"] for card in cards] == ["shop.checkout", "shop.fragile", "shop.parcel"]
    checkout = cards[0]
    assert (checkout["doc"], checkout["workers"], checkout["versions"]) == (
        "Take the money, then ship.",
        1,
        1,
    )
    steps = [node["id"] for node in checkout["picture"]["nodes"] if node["kind"] == "step"]
    assert steps == ["reserve", "ship", "close"]


async def test_machine_has_both_pictures_and_a_schema_without_defaults(
    http: httpx.AsyncClient, worker: Worker
) -> None:
    machine = (await http.get("/api/machines/shop.checkout")).json()
    assert machine["picture"]["down"]["height"] > machine["picture"]["right"]["height"]
    assert machine["file"] == "machines.py"
    assert "hunter2" not in str(machine)
    assert machine["state_schema"]
    ship = next(node for node in machine["picture"]["down"]["nodes"] if node["id"] == "ship")
    assert [(tab["kind"], tab["names"]) for tab in ship["tabs"]] == [("signal", ["paid"])]


@pytest.mark.parametrize("path", ["machines/shop.nothing", "machines/shop.checkout?version=9"])
async def test_unknown_machine_is_not_found(http: httpx.AsyncClient, worker: Worker, path: str) -> None:
    answer = await http.get(f"/api/{path}")
    assert (answer.status_code, answer.json()["title"]) == (404, "This machine is not registered")


async def test_census_and_population_count_instances(http: httpx.AsyncClient, waiting: int) -> None:
    now = (await http.get("/api/machines/shop.checkout/census")).json()
    ship = now["steps"].pop("ship")
    assert (now["steps"], now["live"]) == ({}, {"1": 1})
    assert (ship["counts"], ship["others"]) == ({"awaiting_signal": 1}, {})
    assert [wait["count"] for wait in ship["tabs"]] == [1]
    assert ship["waiting"] == ship["tabs"][0]["oldest"] is not None
    other = (await http.get("/api/machines/shop.checkout/census?version=2")).json()
    assert (other["steps"], other["live"]) == ({}, {"1": 1})
    population = (await http.get("/api/population")).json()["machines"]
    assert population == {"shop.checkout": {"ship": {"awaiting_signal": 1}}}


COUNTED = """
insert into gen_durable.step_stats (fsm, bucket, worker, incarnation, version, step, outcome, cause, to_step, n, started, run, wait)
select 'shop.checkout', date_bin('10 s', now(), 'epoch') - interval '60 s', 'w1', 1, row.*, array_fill(0, array[8]) || row.n, '{}'
  from (values (1, 'reserve', 'await', '', 'ship', 9, 4), (1, 'reserve', 'stop', 'stop', '', 1, 0), (1, 'ship', 'retry', 'error', '', 2, 0),
               (1, 'ship', 'schedule_children', '', 'close', 6, 0), (1, 'ship', 'next', '', 'reserve', 2, 0), (1, 'close', 'done', '', '', 5, 0),
               (2, 'close', 'next', '', 'ship', 7, 6), (2, 'ship', 'next', '', 'close', 8, 0)) as row (version, step, outcome, cause, to_step, n, started);
insert into gen_durable.machine_stats (fsm, bucket, worker, incarnation, version, n, started, done, failed, cancelled, retried, raised, stopped, run, wait)
select fsm, date_bin('10 s', now(), 'epoch') - interval '60 s', 'w1', 1, version, n, started, 5, 1, 0, 2, 2, 1, '{0,9}', '{0,0,9}'
  from (values ('', 0, 40, 10), ('shop.checkout', 1, 25, 4), ('shop.checkout', 2, 15, 6)) as row (fsm, version, n, started);
"""


@pytest.fixture
def counted(worker: Worker, durable_dsn: str) -> None:
    """Counts of a minute ago, among them a transition that the code does not have, and those of another version."""
    with psycopg.connect(durable_dsn, autocommit=True) as conn:
        conn.execute(COUNTED)


@pytest.mark.usefixtures("counted")
async def test_rates_are_those_of_the_version(http: httpx.AsyncClient) -> None:
    rates = (await http.get("/api/machines/shop.checkout/rates?range=15m&step=ship")).json()
    assert {key: flow["count"] for key, flow in rates["flow"].items()} == {
        "(start)>reserve": 4,
        "reserve>ship": 9,
        "reserve>(failed)": 1,
        "ship>ship": 2,
        "ship>close": 6,
        "ship>reserve": 2,
        "close>(done)": 5,
    }
    figures = {
        step: (one["executions"], one["raised"], one["stopped"]) for step, one in rates["steps"].items()
    }
    assert figures == {"reserve": (10, 0, 1), "ship": (10, 2, 0), "close": (5, 0, 0)}
    assert rates["steps"]["ship"]["p95"] is not None
    assert (rates["total"]["executions"], rates["total"]["started"]) == (25, 4)
    assert (max(rates["series"]["started"]), max(rates["series"]["done"])) == (24, 30)
    assert max(rates["history"]) == 60  # without the 8 of version 2
    assert sum(rates["steps"]["close"]["run"]) == 5
    unknown = await http.get("/api/machines/shop.checkout/rates?version=9")
    assert (unknown.status_code, unknown.json()["title"]) == (404, "This machine is not registered")


@pytest.mark.usefixtures("counted")
async def test_picture_has_committed_transitions_that_the_code_lacks(http: httpx.AsyncClient) -> None:
    picture = (await http.get("/api/machines/shop.checkout")).json()["picture"]["down"]
    assert [edge["key"] for edge in picture["edges"] if edge["kind"] == "observed"] == ["ship>reserve"]


def test_instances_are_placed_in_the_waits_above_a_step() -> None:
    def group(state: CensusState, count: int, seconds: int, *awaits: Awaited) -> CensusGroup:
        return CensusGroup(
            machine="shop",
            version=1,
            step="ship",
            state=state,
            count=count,
            at_least=False,
            oldest=timedelta(seconds=seconds),
            awaits=awaits,
        )

    tabs = [
        Tab(kind="signal", lines=(), width=1, names=("paid", "cancelled")),
        Tab(kind="children", lines=(), width=1),
    ]
    awaits = (Awaited(("cancelled", "paid"), 3), Awaited(("other",), 1))
    now = placed(
        [
            group("awaiting_signal", 40, 90, *awaits),
            group("awaiting_children", 5, 20),
            group("later", 2, 300),
            group("failed", 1, 900),
        ],
        tabs,
    )
    assert [(wait.count, wait.oldest) for wait in now.tabs] == [
        (30, timedelta(seconds=90)),
        (5, timedelta(seconds=20)),
    ]
    assert now.others == {"awaiting_signal": 10, "later": 2, "failed": 1}
    assert (now.oldest, now.waiting) == (timedelta(seconds=300), timedelta(seconds=90))


def test_transitions_of_handle_begin_at_its_node() -> None:
    nodes = (Node(id="pay"), Node(id="ship"), Node(id="handle", kind="handle"))
    edges = (
        Edge(source="pay", target="ship", kind="next"),
        Edge(source="handle", target="ship", kind="next"),
        Edge(source="handle", target="(failed)", kind="stop"),
    )
    graph = Graph(machine="shop", version=1, initial="pay", nodes=nodes, edges=edges)
    counted = [
        EdgeRates(step=step, version=1, outcome=outcome, cause=cause, to_step=to_step, executions=1)
        for step, outcome, cause, to_step in [
            ("pay", "next", None, "ship"),
            ("ship", "next", "error", "ship"),
            ("pay", "stop", "error", None),
            ("pay", "lease", "crash", None),
            ("pay", "stale", None, None),
            ("ship", "next", None, "pay"),
        ]
    ]
    assert transitions(counted, graph) == {
        "pay>ship": 1, "handle>ship": 1, "handle>(failed)": 1, "pay>pay": 1, "ship>pay": 1,
    }  # fmt: skip
    assert unread(graph, 1, counted) == (("ship", "pay"),)
    assert unread(graph, 2, counted) == ()


def test_executions_of_an_undo_step_are_at_its_edge() -> None:
    edges = (
        Edge(source="fly", target="refund", kind="undo"),
        Edge(source="a", target="shared", kind="undo"),
        Edge(source="b", target="shared", kind="undo"),
    )
    graph = Graph(machine="trip", version=1, initial="fly", nodes=(Node(id="fly"),), edges=edges)
    counted = [
        EdgeRates(step=step, version=1, outcome=outcome, cause=None, to_step=None, executions=n)
        for step, outcome, n in [
            ("refund", "undo", 2), ("refund", "undone", 3), ("refund", "retry", 7), ("shared", "undone", 5),
        ]
    ]  # fmt: skip
    assert transitions(counted, graph) == {"fly>refund": 5, "refund>refund": 7}


async def test_errors_are_those_of_the_machine(http: httpx.AsyncClient, worker: Worker) -> None:
    await worker.wait(await worker.insert(fragile, XSS))
    [error] = (await http.get("/api/machines/shop.fragile/errors?version=1")).json()["groups"]
    assert (error["count"], error["q"].endswith(f"fingerprint:{error['fingerprint']} version:1")) == (1, True)
    for path in ("shop.fragile/errors?version=2", "shop.checkout/errors?version=1"):
        assert (await http.get(f"/api/machines/{path}")).json()["groups"] == []


async def test_insert_checks_the_state(http: httpx.AsyncClient, worker: Worker, client: AsyncClient) -> None:
    options = {"queue": "slow", "priority": 7, "delay": "PT1H", "step": "ship", "max_attempts": 3}
    body = {"state": {"number": 5}, "correlation_key": "order:5", "reason": "by hand", **options}
    made = (await http.post("/api/machines/shop.checkout/instances", json=body)).json()
    assert made["is_new"]
    found = await client.get(made["id"])
    assert found is not None
    assert (found.correlation_key, found.queue, found.priority, found.step) == ("order:5", "slow", 7, "ship")
    assert found.eligible_at > datetime.now(UTC) + timedelta(minutes=55)
    assert ("ann", "by hand") in [(event.actor, event.reason) for event in await client.audit_log(limit=5)]
    wrong = await http.post("/api/machines/shop.checkout/instances", json={"state": {"number": "x"}})
    assert wrong.status_code == 422
    assert "number" in wrong.json()["detail"]
    unknown = await http.post("/api/machines/shop.nothing/instances", json={"state": {}})
    assert (unknown.status_code, unknown.json()["title"]) == (422, "The request is not valid")


LONG = "k" * 1025


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"state": {"number": "x"}}, "state"),
        ({"step": "nowhere"}, "step"),
        ({"queue": "q" * 256}, "queue"),
        ({"priority": 2**15}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"weight": 0}, "weight"),
        ({"weight": 2}, "weight"),
        ({"rate_limit": "crm", "weight": 99}, "weight"),
        ({"rate_limit": "unknown"}, "rate_limit"),
        ({"delay": "PT-1S"}, "delay"),
        ({"delay": "-PT1S"}, "delay"),
        ({"eligible_at": "2026-01-01T09:00"}, "eligible_at"),
        ({"eligible_at": "tomorrow"}, "eligible_at"),
        ({"delay": "PT1S", "eligible_at": "2030-01-01T09:00:00Z"}, "delay"),
        ({"correlation_key": LONG}, "correlation_key"),
        ({"unique_key": LONG}, "unique_key"),
        ({"unique_key": "a", "idempotency_key": "b"}, "unique_key"),
        ({"idempotency_key": LONG}, "idempotency_key"),
        ({"correlation_key": "of parcel"}, "correlation_key"),
        ({"unique_key": "of parcel"}, "unique_key"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_refused_insert_names_its_field(
    http: httpx.AsyncClient, worker: Worker, options: dict[str, Any], field: str
) -> None:
    await worker.insert(
        parcel, 1, correlation_key="of parcel", unique_key="of parcel", schedule_in=timedelta(days=1)
    )
    await worker.set_limit(RateLimit("crm", 2, burst=2))
    answer = await http.post("/api/machines/shop.checkout/instances", json={"state": {"number": 1}} | options)
    assert (answer.status_code in (409, 422), answer.json().get("facts", {}).get("field")) == (True, field), (
        answer.text
    )
    assert answer.json()["detail"]
    assert await worker.count(Checkout) == 0


async def test_reader_cannot_insert(dashboard: object, worker: Worker) -> None:
    async with http_as(dashboard, "read") as http:  # type: ignore[arg-type]
        answer = await http.post("/api/machines/shop.checkout/instances", json={"state": {"number": 1}})
        assert answer.status_code == 403


async def test_cards_link_to_the_machine_and_to_lists(log_in: LogIn, waiting: int) -> None:
    async with log_in("read", path="/machines") as page:
        card = page.get_by_role("article").filter(has_text="shop.checkout")
        await expect(card.get_by_role("link", name="awaiting signal")).to_have_attribute(
            "href", "/instances?q=machine%3Ashop.checkout%20status%3Aawaiting_signal"
        )
        await shot(page, "machines")
        await page.get_by_label("Filter machines").fill("nothing")
        await expect(page.get_by_text("No machine has this name")).to_be_visible()
        await page.get_by_role("button", name="Show all 3").click()
        await card.get_by_role("link", name="shop.checkout").press("Enter")
        await expect(page.get_by_role("heading", level=1)).to_have_text("shop.checkout")


async def test_page_of_an_installation_without_machines(log_in: LogIn) -> None:
    async with log_in("read", path="/machines") as page:
        await expect(page.get_by_text("gen-durable worker app.py")).to_be_visible()


async def test_picture_says_where_instances_are_and_follows_them(
    log_in: LogIn, worker: Worker, waiting: int
) -> None:
    async with log_in("read", path="/m/shop.checkout") as page:
        ship = page.get_by_role("button", name="ship: 1 waiting for paid")
        await expect(ship).to_be_visible()
        await ship.press("Enter")
        await expect(page).to_have_url(re.compile("step=ship"))
        await expect(ship).to_have_attribute("aria-pressed", "true")
        panel = page.locator("section", has=page.get_by_role("heading", name="ship", exact=True))
        await expect(panel.get_by_role("link", name="paid")).to_have_attribute(
            "href", "/instances?q=machine%3Ashop.checkout%20version%3A1%20step%3Aship%20awaits%3Apaid"
        )
        await shot(page, "machine-step")
        await worker.signal(waiting, Checkout.paid, Payment(5))
        await expect(page.get_by_role("button", name="done: 1 in 15 m; list them")).to_be_visible()
        await panel.get_by_role("button", name="Close").click()
        await expect(page.get_by_role("heading", name="Hot spots")).to_be_visible()
        await expect(page.get_by_role("button", name="Insert")).to_be_disabled()


@pytest.mark.usefixtures("counted")
async def test_picture_shows_rates_and_shares(log_in: LogIn) -> None:
    async with log_in("read", path="/m/shop.checkout?by=failures") as page:
        ship = page.get_by_role("button", name=re.compile("^ship: no instances; .*, 20 % failed"))
        await expect(ship).to_contain_text("20 % fail")
        table = page.get_by_role("table", name="Picture of shop.checkout as a table")
        await expect(table).to_contain_text("Failed 10 %, ship 90 %")
        titles = page.locator("path.edge title")
        await expect(titles.filter(has_text="ship → reserve: 2 in 15 m; not in the code")).to_have_count(1)
        await page.get_by_role("button", name="ship 20 %").click()  # the hot spot
        panel = page.locator("section", has=page.get_by_role("heading", name="ship", exact=True))
        await expect(panel.get_by_role("img", name="Run times up to")).to_be_visible()
        for text in ("close60 % 6", "reserve20 % 2", "again20 % 2"):
            await expect(panel).to_contain_text(text)
        await expect(panel.get_by_role("img", name=re.compile("Executions of ship .* to 60"))).to_be_visible()
        await expect(page.get_by_role("link", name="Failed 17 % 1")).to_have_attribute(
            "href", "/instances?q=machine%3Ashop.checkout%20version%3A1%20status%3Afailed%20ended%3A%3C15m"
        )
        await expect(page.get_by_role("link", name="v1 0 live")).to_have_attribute(
            "href", "/instances?q=machine%3Ashop.checkout%20version%3A1%20status%3Alive"
        )
        await shot(page, "machine-rates")
        await page.get_by_role("button", name="24 h").click()
        await expect(page).to_have_url(re.compile("range=24h"))


async def test_page_of_a_version_concerns_that_version(
    log_in: LogIn, http: httpx.AsyncClient, worker: Worker, client: AsyncClient, db: Any
) -> None:
    """An older version has failed instances, and executes now."""
    await worker.wait(await worker.insert(fragile, "page 1"))
    await worker.wait(await worker.insert(fragile, "page 2"))
    columns = [
        row["column_name"]
        for row in await db.fetch(
            "select column_name from information_schema.columns where table_schema = 'gen_durable'"
            " and table_name = 'machines' and column_name <> 'fsm_version'"
        )
    ]
    names = ", ".join(columns)
    await db.execute(
        f"insert into gen_durable.machines (fsm_version, {names})"
        f" select 7, {names} from gen_durable.machines where fsm = 'shop.fragile'"
    )
    await db.execute("update gen_durable.gen_durable set fsm_version = 7 where id = 2")
    await db.execute(
        "insert into gen_durable.step_stats (fsm, bucket, worker, incarnation, version, step, outcome, cause, to_step, n, started, run, wait)"
        " values ('shop.fragile', now(), 'w', 1, 7, 'run', 'done', '', '', 5, 5, '{}', '{}')"
    )
    now = (await http.get("/api/machines/shop.fragile/census?version=1")).json()
    assert now["flow"].get("run>(done)") is None
    newest = (await http.get("/api/machines/shop.fragile/census?version=7")).json()
    assert newest["flow"]["run>(done)"] == 5
    async with log_in("operate", path="/m/shop.fragile?version=1&step=run") as page:
        for name in ("Running, due", "Waiting", "Instances here", "ValueError: page #"):
            link = page.get_by_role("link", name=name).first
            await expect(link).to_have_attribute("href", re.compile("version%3A1"))
        await page.get_by_role("button", name="Retry failed").first.click()
        await expect(page.get_by_role("dialog")).to_contain_text("1 instance to retry: 1 failed")
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name=re.compile("v1 ·")).press("Enter")
        await expect(page.get_by_role("menuitem", name="v7")).to_be_visible()
        assert await page.evaluate(MISSING_ICONS) == []


MISSING_ICONS = """
[...document.querySelectorAll("svg.icon use")].map(one => one.getAttribute("href")).filter(name => !document.querySelector(name))
"""


COUNT_DOTS = """
let dots = 0;
new MutationObserver(found => found.forEach(one => one.addedNodes.forEach(node => {
  if (node.matches?.("circle.dot")) document.documentElement.dataset.dots = ++dots;
}))).observe(document, { subtree: true, childList: true });
"""


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
async def test_dots_are_committed_transitions(log_in: LogIn, durable_dsn: str, motion: str) -> None:
    async with (
        Worker(MACHINES, dsn=durable_dsn, settings=FAST) as worker,
        log_in("read", path="/machines", reduced_motion=motion) as page,
    ):
        await page.add_init_script(COUNT_DOTS)
        await page.goto(page.url.replace("/machines", "/m/shop.checkout"))
        await expect(page.get_by_role("button", name="reserve: no instances")).to_be_visible()
        order = await worker.insert(Checkout, Order(7))
        await worker.wait(order, until="parked")
        if motion == "reduce":
            await worker.signal(order, Checkout.paid, Payment(5))
            await expect(page.get_by_role("button", name=re.compile("done: 1 in"))).to_be_visible()
            await expect(page.locator("html[data-dots]")).to_have_count(0)
        else:
            await expect(page.locator("html[data-dots]")).to_have_count(1)


async def test_steps_are_reached_by_tab_in_the_order_of_the_code(log_in: LogIn, waiting: int) -> None:
    async with log_in("read", path="/m/shop.checkout") as page:
        first = page.get_by_role("button", name="reserve: no instances")
        await first.focus()
        names = []
        for _ in range(4):
            names.append(await page.evaluate("document.activeElement.getAttribute('aria-label')"))
            await page.keyboard.press("Tab")
        assert [name.partition(":")[0] for name in names] == ["reserve", "ship", "close", "failed"]


async def test_instance_is_inserted_on_the_page(log_in: LogIn, client: AsyncClient, worker: Worker) -> None:
    async with log_in("operate", path="/m/shop.checkout", fails=(404, 422)) as page:
        await page.get_by_role("button", name="Insert").click()
        dialog = page.get_by_role("dialog")
        state = dialog.get_by_label("State")
        assert '"number": 0' in await state.input_value()
        await state.fill("{number: 3}")
        await dialog.get_by_role("button", name="Insert").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("in JSON")
        await state.fill('{"number": "three"}')
        await dialog.get_by_role("button", name="Insert").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("number")
        await state.fill('{"number": 3}')
        await dialog.get_by_label("Reason").fill("a test")
        await dialog.get_by_role("button", name="Insert").click()
        await expect(page).to_have_url(re.compile("/i/"))
    [found] = await client.list(Checkout)
    assert found.state.number == 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_insert_has_all_options(
    log_in: LogIn, client: AsyncClient, worker: Worker, scheme: str
) -> None:
    async with log_in(
        "operate",
        path="/m/shop.checkout",
        fails=(422,),
        width=400,
        color_scheme=scheme,
        timezone_id="Asia/Tokyo",
    ) as page:
        await page.get_by_role("button", name="Insert").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog.locator("[name=step]")).to_be_hidden()
        options = dialog.get_by_text("More options")
        await options.focus()
        await page.keyboard.press("Enter")
        await dialog.locator("[name=step]").select_option("ship")
        await dialog.get_by_label("Attempts").fill("0")
        await options.click()
        await dialog.get_by_role("button", name="Insert").click()
        # The browser refuses it, and shows where.
        await expect(dialog.get_by_label("Attempts")).to_be_focused()
        await dialog.get_by_label("Attempts").fill("5")
        await dialog.get_by_label("Weight").fill("2")
        await options.click()
        await dialog.get_by_role("button", name="Insert").click()
        weight = dialog.get_by_label("Weight")
        await expect(weight).to_have_attribute("aria-invalid", "true")
        await expect(weight).to_be_focused()
        await expect(dialog.locator("label", has=page.locator("[name=weight]"))).to_contain_text(
            "weight is given without rate_limit"
        )
        await shot(page, f"insert-{scheme}")
        await page.evaluate(AXE_SCRIPT)
        assert await page.evaluate(VIOLATIONS, ["dialog[open]", None]) == []
        assert await dialog.locator("[aria-invalid]").count() == 1
        assert await dialog.evaluate("one => one.scrollWidth <= one.clientWidth")
        await weight.fill("")
        await dialog.get_by_label("Queue").fill("slow")
        await dialog.get_by_label("Priority").fill("-7")
        await dialog.get_by_label("Or not before").fill("2030-02-03T09:30")
        await dialog.get_by_label("Idempotency key").fill("import 7")
        await dialog.get_by_role("button", name="Insert").click()
        await expect(page).to_have_url(re.compile("/i/"))
    [found] = await client.list(Checkout)
    assert (found.step, found.queue, found.priority) == ("ship", "slow", -7)
    assert found.eligible_at == datetime(2030, 2, 3, 0, 30, tzinfo=UTC)
    assert isinstance(await client.insert(Checkout, Order(1), idempotency_key="import 7"), Duplicate)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_machine_fits_on_a_phone(log_in: LogIn, waiting: int, scheme: str) -> None:
    async with log_in("read", path="/m/shop.checkout", width=400, color_scheme=scheme) as page:
        await expect(page.get_by_role("button", name="ship: 1 waiting")).to_be_visible()
        await shot(page, f"machine-400-{scheme}")
        for path in ("/m/shop.checkout?step=ship", "/machines"):
            await page.goto(page.url.split("/m/")[0] + path)
            await expect(page.get_by_role("heading", level=1)).to_be_visible()
            wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, path


async def test_unregistered_machine_links_to_its_instances(log_in: LogIn) -> None:
    path = "/m/%3Cimg%20src=x%20onerror=alert(1)%3E"
    async with log_in("read", path=path, fails=(404,)) as page:
        await expect(page.get_by_text("This machine is not registered")).to_be_visible()
        await expect(page.get_by_role("heading", level=1)).to_have_text(XSS)


async def test_failed_instances_of_a_step_are_retried(log_in: LogIn, worker: Worker) -> None:
    await worker.wait(await worker.insert(fragile, XSS))
    path = "/m/shop.fragile?step=run"
    async with log_in("read", path=path) as page:
        await expect(page.get_by_text(f"ValueError: {XSS.replace('1', '#')}")).to_be_visible()
        for button in await page.get_by_role("button", name="Retry failed").all():
            await expect(button).to_be_disabled()
    async with log_in("operate", path=path) as page:
        await page.get_by_role("button", name="Retry failed").last.press("Enter")
        dialog = page.get_by_role("dialog", name="Retry 1 failed of shop.fragile v1 at run?")
        await expect(dialog).to_contain_text("1 instance")
        await dialog.get_by_label("Reason").fill("paper is back")
        await dialog.get_by_role("button", name="Retry instances").click()
        await expect(page.locator(".toasts").get_by_text("Retry: 1")).to_be_visible()
    events = await worker.audit_log(limit=20)
    assert ("olga", "paper is back") in [(event.actor, event.reason) for event in events]
