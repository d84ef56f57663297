"""The page of one instance: answer, path, timeline, records, and every change."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest
from playwright.async_api import Page, expect

from gen_durable import (
    AsyncClient,
    Await,
    Context,
    Done,
    Machine,
    Next,
    Outcome,
    Signal,
    Status,
    Stop,
    Worker,
    step,
)
from tests.dashboard.conftest import LogIn, shot
from tests.dashboard.machines import MACHINES, XSS, Checkout, Order, Payment, fragile
from tests.support.settings import FAST


class Talk(Machine[int, int], name="shop.talk"):
    number = Signal("number", int)
    word = Signal("word", str)

    @step(initial=True)
    async def ask(self, ctx: Context[int]) -> Outcome[int]:
        return Await(self.number, then=self.end)

    @step
    async def end(self, ctx: Context[int]) -> Outcome[int]:
        return Done(1)


class Trip(Machine[int, str], name="shop.trip", history="all"):
    booked = Signal("booked")

    @step(initial=True, undo="cancel_flight")
    async def book_flight(self, ctx: Context[int]) -> Outcome[str]:
        return Next(self.book_hotel)

    @step
    async def book_hotel(self, ctx: Context[int]) -> Outcome[str]:
        return Stop("the hotel is full:\n  rooms: 0") if ctx.state else Await(self.booked, then=self.end)

    @step
    async def end(self, ctx: Context[int]) -> Outcome[str]:
        return Done("booked")

    @step
    async def cancel_flight(self, ctx: Context[int]) -> Outcome:
        return Done()


class Agent(Machine[int, None], name="shop.agent"):
    @step(initial=True)
    async def think(self, ctx: Context[int]) -> Outcome[None]:
        return Next(self.act) if ctx.state else Done()

    @step
    async def act(self, ctx: Context[int]) -> Outcome[None]:
        return Next(self.think, ctx.state - 1)


@pytest.fixture
async def worker(durable_dsn: str) -> AsyncIterator[Worker]:
    async with Worker([*MACHINES, Agent, Trip], dsn=durable_dsn, settings=FAST) as running:
        yield running


async def waiting(worker: Worker, **options: Any) -> int:
    """A checkout that waits for its payment."""
    order = await worker.insert(Checkout, Order(1), correlation_key="order 1", **options)
    await worker.wait(order, until="parked")
    return order.id


async def ended(worker: Worker) -> int:
    """A checkout that is done, with two children."""
    id = await waiting(worker)
    await worker.signal(id, Checkout.paid, Payment(100))
    await worker.wait(id, until="done")
    return id


def button(page: Page, name: str) -> Any:
    return page.get_by_role("button", name=name, exact=True)


async def test_reader_sees_why_an_instance_waits(log_in: LogIn, worker: Worker) -> None:
    id = await waiting(worker)
    await worker.signal(id, "payd", {"token": "hunter2-canary"})
    async with log_in("read", path=f"/i/{id}") as page:
        await expect(page.get_by_role("heading", level=1)).to_have_text(f"shop.checkout #{id}")
        answer = page.get_by_role("region", name="Why it does not run")
        await expect(answer).to_contain_text('waiting for signal "paid"')
        await expect(answer).to_contain_text('did you mean "paid"?')
        await expect(page.get_by_role("link", name="order 1")).to_have_attribute(
            "href", "/instances?q=key%3A%22order%201%22"
        )
        for name in ("Send paid", "Signal", "Edit", "Cancel"):
            await expect(button(page, name)).to_be_disabled()
        await button(page, "More").click()
        await expect(page.get_by_role("menuitem", name="Fork")).to_be_disabled()
        await page.keyboard.press("Escape")
        timeline = page.get_by_role("table", name="Timeline")
        await expect(timeline.get_by_role("row")).to_have_count(2)
        await expect(timeline.get_by_role("row", name="ship")).to_contain_text("waits for paid")
        await expect(page.get_by_role("button", name="ship: reached by transition 1")).to_be_visible()
        await expect(page.get_by_role("button", name="close: not reached")).to_be_visible()
        await shot(page, "instance-waiting")
        await page.get_by_role("tab", name="Inbox 1").click()
        await expect(page.get_by_role("row", name="payd")).to_contain_text('{"token":"[hidden]"}')
        await expect(page).to_have_url(re.compile("tab=inbox"))
        assert "hunter2" not in await page.content()


async def test_signal_is_sent_and_the_page_follows(log_in: LogIn, worker: Worker) -> None:
    id = await waiting(worker)
    async with log_in("operate", path=f"/i/{id}", fails=(422,)) as page:
        await button(page, "Send paid").press("Enter")
        dialog = page.get_by_role("dialog")
        payload = dialog.get_by_label("Payload")
        assert '"cents": 0' in await payload.input_value()
        await payload.fill('{"cents": "x"}')
        await dialog.get_by_label("Reason").fill("paid in cash")
        await button(page, "Send").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("cents")
        await payload.fill('{"cents": 5}')
        await button(page, "Send").click()
        await expect(page.get_by_text("The instance continues.")).to_be_visible()
        await expect(page.get_by_role("region", name="How it ended")).to_contain_text("done at")
        await expect(page.get_by_text("parcel 0, parcel 1")).to_be_visible()
        await page.get_by_role("tab", name="Children 2").click()
        await expect(page.get_by_role("link", name="2 done")).to_have_attribute(
            "href", f"/instances?q=parent%3A{id}%20status%3Adone"
        )
        await expect(page.get_by_role("table", name="Children").get_by_role("row")).to_have_count(3)
        await page.get_by_role("tab", name="Executions 3").click()
        await expect(page.get_by_role("row", name="3 close done")).to_be_visible()
        await page.get_by_role("tab", name="Audit").click()
        await expect(page.get_by_role("row", name="signalled")).to_contain_text("paid in cash")


async def test_edit_is_refused_after_the_instance_has_moved(log_in: LogIn, worker: Worker, db: Any) -> None:
    id = await waiting(worker)
    await db.execute("update gen_durable.executions set started_at = '2026-01-02', leased_at = '2026-01-02'")
    async with log_in("operate", path=f"/i/{id}", fails=(409,)) as page:
        await button(page, "Edit").click()
        dialog = page.get_by_role("dialog")
        state = dialog.get_by_label("State")
        await state.fill((await state.input_value()).replace("100", "12345678901234567890"))
        await worker.edit(id, state=Order(1, card="amex"))
        await button(page, "Save").click()
        await expect(dialog.get_by_role("alert")).to_contain_text("It has moved on since you read it")
        await dialog.get_by_text("Close", exact=True).click()
        await button(page, "Edit").click()
        await state.fill((await state.input_value()).replace("100", "12345678901234567890"))
        await dialog.get_by_label("Reason").fill("typo")
        await button(page, "Save").click()
        await expect(page.get_by_text("Edited: transition 3.")).to_be_visible()
        await expect(page.locator(".diff .added")).to_contain_text("12345678901234567890")
        # An edit has the time of its commit. Other days have their date.
        executions = page.get_by_role("table", name="Executions")
        await expect(executions.get_by_role("row", name="edit").first).to_contain_text(
            re.compile(r"\d\d:\d\d:\d\d")
        )
        await expect(executions.get_by_role("row", name="await")).to_contain_text(
            re.compile(r"2026-01-0[123] ")  # in the time zone of the browser
        )
        # Only the step: the state is not sent, so that it stays exactly as it is.
        await button(page, "Edit").click()
        await dialog.get_by_label("Step").select_option("close")
        await dialog.get_by_label("Stop waiting").check()
        await button(page, "Save").click()
        await expect(page.get_by_role("region", name="How it ended")).to_be_visible()
    found = await worker.get(id)
    assert found is not None
    state_of = found.state
    assert (state_of["amount"], state_of["card"], state_of["password"]) == (
        12345678901234567890,
        "amex",
        "hunter2-canary",
    )


async def test_instance_is_cancelled_and_retried(log_in: LogIn, worker: Worker) -> None:
    id = await waiting(worker)
    async with log_in("operate", path=f"/i/{id}") as page:
        await button(page, "Cancel").click()
        dialog = page.get_by_role("dialog")
        for label in ("Also cancel all descendants", "Also while a step runs", "Run undo steps first"):
            await expect(dialog.get_by_label(label)).to_be_visible()
        await dialog.get_by_label("Reason").fill("withdrawn")
        await button(page, "Cancel the instance").click()
        answer = page.get_by_role("region", name="Why it was cancelled")
        await expect(answer).to_contain_text("withdrawn")
        await expect(button(page, "Signal")).to_have_count(0)
        await answer.get_by_role("button", name="Retry ship").click()
        await dialog.get_by_label("Step").select_option("reserve")
        state = dialog.get_by_label("State")
        await state.fill((await state.input_value()).replace('"number": 1', '"number": -1'))
        await button(page, "Retry").last.click()
        await expect(page.get_by_role("region", name="Why it failed")).to_contain_text("out of stock")


async def test_admin_forks_deletes_and_restores(log_in: LogIn, worker: Worker) -> None:
    id = await ended(worker)
    async with log_in("admin", path=f"/i/{id}?t=0") as page:
        await button(page, "More").click()
        await page.get_by_role("menuitem", name="Delete").click()
        await page.get_by_label("Reason").fill("a test")
        await button(page, "Delete").click()
        answer = page.get_by_role("region", name="Why it does not run")
        await expect(answer).to_contain_text("deleted at")
        await expect(answer).to_contain_text("a test")
        await button(page, "Restore it").click()
        await button(page, "Restore").click()
        await expect(page.get_by_role("region", name="How it ended")).to_be_visible()
        await button(page, "More").click()
        await page.get_by_role("menuitem", name="Fork").click()
        transition = page.get_by_role("dialog").get_by_label("Transition", exact=True)
        await expect(transition).to_have_value("0")
        await page.get_by_label("Correlation key").fill("copy")
        await button(page, "Fork").click()
        await expect(page).to_have_url(re.compile(rf"/i/(?!{id}\b)\d+$"))
        await expect(page.get_by_role("link", name=f"#{id}")).to_be_visible()
        await expect(page.get_by_role("link", name="copy")).to_be_visible()


async def test_arrow_keys_move_along_the_path(log_in: LogIn, worker: Worker) -> None:
    id = await ended(worker)
    async with log_in("read", path=f"/i/{id}?t=1") as page:
        path = page.locator("section", has=page.get_by_role("heading", name="Path"))
        slider = page.get_by_role("slider", name="Transition")
        await expect(path).to_contain_text("1 of 3 transitions")
        await expect(slider).to_have_attribute("aria-valuetext", "1: ship")
        await page.keyboard.press("ArrowRight")
        await expect(page).to_have_url(re.compile(r"t=2\b"))
        await expect(page.locator(".diff")).to_contain_text("−amount:100+amount:101")
        await expect(
            page.get_by_role("listitem").filter(has_text="3close").get_by_role("button")
        ).to_have_attribute("aria-current", "true")
        await shot(page, "instance-path")
        await slider.press("ArrowRight")
        await expect(page).not_to_have_url(re.compile(r"t="))
        await expect(page.get_by_text("at the end, unchanged")).to_be_visible()
        await page.get_by_role("button", name="reserve: reached by transition 0").press("Enter")
        await expect(page).to_have_url(re.compile(r"t=0\b"))
        await button(page, "Play").click()
        await expect(page).not_to_have_url(re.compile(r"t="))
        await expect(button(page, "Play")).to_be_visible()
        await button(page, "True to time").click()
        await expect(button(page, "True to time")).to_have_attribute("aria-pressed", "true")
        assert "NaN" not in await page.content()


@pytest.mark.parametrize(("state", "end"), [(1, "Failed"), (0, "Cancelled")])
async def test_undone_instance_ends_as_it_began_to_be_undone(
    log_in: LogIn, worker: Worker, state: int, end: str
) -> None:
    trip = await worker.insert(Trip, state)
    if not state:
        await worker.wait(trip, until="parked")
        await worker.cancel(trip)
    await worker.wait(trip)
    async with log_in("read", path=f"/i/{trip.id}") as page:
        steps = page.locator("section", has=page.get_by_role("heading", name="Steps")).get_by_role("listitem")
        await expect(steps.last).to_have_text(end)
        path = page.locator("section", has=page.get_by_role("heading", name="Path"))
        await expect(path.locator("path[data-key='book_flight>cancel_flight']")).to_have_class(
            re.compile(r"\bpath$")
        )


async def test_long_lists_show_the_selected_transition(log_in: LogIn, worker: Worker) -> None:
    agent = await worker.insert(Agent, 30)
    await worker.wait(agent)
    async with log_in("read", path=f"/i/{agent.id}") as page:
        await expect(page.locator(".hops li")).to_have_count(62)
        shown = """([box, row]) => {
          const [a, b] = [box, row].map(css => document.querySelector(css).getBoundingClientRect());
          return a.top <= b.top && b.bottom <= a.bottom;
        }"""
        assert await page.evaluate(shown, [".hops", ".hops [aria-current=true]"])
        assert await page.evaluate(shown, [".gantt", ".gantt .on"])
        assert await page.evaluate("scrollY") == 0


# Shapes of two boxes that share a point.
COVERED: Final = """() => {
  const boxes = selector => [...document.querySelectorAll(selector)].map(node => node.getBoundingClientRect());
  return boxes(".graph .node").some(a => boxes(".graph .zoom, .graph .keys").some(b =>
    a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom));
}"""


@pytest.mark.parametrize("width", [400, 1000, 1440])
async def test_buttons_and_legend_cover_no_step(log_in: LogIn, worker: Worker, width: int) -> None:
    trip = await worker.insert(Trip, 1)
    await worker.wait(trip)
    async with log_in("read", path=f"/i/{trip.id}", width=width, height=700) as page:
        await expect(page.locator(".graph .node").first).to_be_visible()
        assert not await page.evaluate(COVERED)
        await page.goto(page.url.replace(f"/i/{trip.id}", "/m/shop.trip"))
        await expect(page.locator(".graph .node").first).to_be_visible()
        assert not await page.evaluate(COVERED)


async def test_markup_of_users_is_text(log_in: LogIn, worker: Worker) -> None:
    order = await worker.insert(Checkout, Order(1, card=XSS), correlation_key=XSS)
    await worker.wait(order, until="parked")
    await worker.signal(order, XSS, {XSS: XSS})
    await worker.cancel(order, reason=XSS, actor=XSS)
    failed = await worker.insert(fragile, XSS)
    await worker.wait(failed, until="failed")
    await worker.retry(failed)
    await worker.wait(failed, until="failed")
    async with log_in("read", path=f"/i/{order.id}", width=400, color_scheme="dark") as page:
        await expect(page.get_by_role("link", name=XSS)).to_be_visible()
        await expect(page.get_by_role("region", name="Why it was cancelled")).to_contain_text(XSS)
        await expect(page.locator(".json")).to_contain_text(XSS)
        for tab in ("Executions", "Inbox", "Children", "Events", "Audit"):
            await page.get_by_role("tab", name=tab).click()
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth"), tab
        await expect(page.get_by_role("row", name="cancelled")).to_contain_text(XSS)
        await shot(page, "instance-400")
        await page.goto(page.url.split("/i/")[0] + f"/i/{failed.id}")
        await expect(page.get_by_role("region", name="Why it failed")).to_contain_text(f"ValueError: {XSS}")
        await expect(page.get_by_role("row", name="1 run stop")).to_contain_text(XSS)
        await expect(page.locator(".hops li")).to_contain_text(["run", "retried", "Failed"])
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def test_long_lists_say_how_many_there_are(log_in: LogIn, db: Any) -> None:
    id = await db.fetchval(
        "insert into gen_durable.gen_durable (fsm, step) values ('shop.big', 'run') returning id"
    )
    await db.execute(
        "insert into gen_durable.gen_durable (fsm, step, parent_id, parent_round) "
        "select 'shop.small', 'run', $1, 1 from generate_series(1, 500)",
        id,
    )
    async with log_in("read", path=f"/i/{id}?tab=children", fails=(404,)) as page:
        await expect(page.get_by_text("The newest 200 of 500.")).to_be_visible()
        await expect(page.get_by_role("link", name="500 runnable")).to_be_visible()
        await expect(page.get_by_role("table", name="Timeline")).to_contain_text("192 more")
        await expect(page.get_by_text("This version of the machine has no picture.")).to_be_visible()
        await expect(page.get_by_role("link", name="Workers").last).to_be_visible()


async def test_missing_and_collected_instances(log_in: LogIn, worker: Worker, db: Any) -> None:
    id = await ended(worker)
    await db.execute(
        "update gen_durable.gen_durable set state = 'null', result = null, collected_at = now() where id = $1",
        id,
    )
    async with log_in("read", path="/i/987654", fails=(404,)) as page:
        await expect(page.get_by_role("heading", name="There is no instance 987654")).to_be_visible()
        await page.goto(page.url.replace("987654", str(id)))
        await expect(page.get_by_text("by retention or keep=False")).to_be_visible()
        found = await worker.get(id)
        assert found is not None
        assert found.status is Status.DONE


async def test_payload_follows_the_chosen_signal(
    log_in: LogIn, client: AsyncClient, durable_dsn: str
) -> None:
    async with Worker([Talk], dsn=durable_dsn):
        talk = await client.insert(Talk, 1)
        await client.wait(talk, until="parked")
        async with log_in("operate", path=f"/i/{talk.id}") as page:
            await button(page, "Signal").click()
            dialog = page.get_by_role("dialog")
            payload = dialog.get_by_label("Payload")
            await expect(payload).to_have_value("0")
            await dialog.get_by_role("combobox").select_option("word")
            await expect(payload).to_have_value('""')


async def test_cancel_counts_descendants_and_an_edit_shows_changes(
    log_in: LogIn, client: AsyncClient, durable_dsn: str
) -> None:
    async with Worker([Checkout], dsn=durable_dsn) as only:
        id = await waiting(only)
        await client.signal(id, Checkout.paid, Payment(1))
        await client.wait(id, until="awaiting_children")
    async with log_in("operate", path=f"/i/{id}") as page:
        await button(page, "Cancel").click()
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_contain_text("1 instance to cancel: 1 awaiting children.")
        await dialog.get_by_label("Also cancel all descendants").check()
        await expect(dialog).to_contain_text("3 instances to cancel: 1 awaiting children, and 2 descendants.")
        await dialog.get_by_text("Close", exact=True).click()
        await button(page, "Edit").click()
        changes = dialog.get_by_role("region", name="Changes")
        await expect(dialog.get_by_label("State")).to_be_visible()
        await expect(changes).to_have_count(0)
        state = dialog.get_by_label("State")
        await state.fill((await state.input_value()).replace('"amount": 101', '"amount": 7'))
        await expect(changes.locator(".removed")).to_contain_text("state.amount:101")
        await expect(changes.locator(".added")).to_contain_text("state.amount:7")


async def test_r_opens_the_retry_of_the_instance(log_in: LogIn, worker: Worker) -> None:
    failed = await worker.insert(fragile, "page 1")
    await worker.wait(failed)
    async with log_in("operate", path=f"/i/{failed.id}") as page:
        await expect(page.get_by_role("heading", level=1)).to_be_visible()
        await page.keyboard.press("r")
        await expect(page.get_by_role("dialog", name=f"Retry shop.fragile #{failed.id}")).to_be_visible()
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("link", name="1", exact=True).first).to_have_attribute(
            "href", f"/i/{failed.id}?tab=executions"
        )
        await expect(page.get_by_text("1 of 1 transition", exact=True)).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_tabs_and_the_legend_are_visible_on_a_phone(log_in: LogIn, worker: Worker, scheme: Any) -> None:
    id = await ended(worker)
    async with log_in("read", path=f"/i/{id}", width=400, color_scheme=scheme) as page:
        await expect(page.get_by_role("tab", name="Audit")).to_be_visible()
        for tab in await page.get_by_role("tab").all():
            box = await tab.bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= 400
        shadow = "getComputedStyle(document.querySelector('.scroll')).backgroundAttachment"
        assert await page.evaluate(shadow) == "local, local, scroll, scroll"
