"""What the commands say about undo and on_cancel steps."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest

from gen_durable import Await, Context, Done, Machine, Next, Outcome, ScheduleChildren, Spec, Stop, step
from gen_durable.testing import Harness
from tests.cli.conftest import Gd, execute, output, parsed, refused


class Trip(Machine[str, None]):
    """Books a flight and a hotel (undo: drop_flight, drop_hotel), then pays."""

    @step(undo="drop_flight")
    async def flight(self, ctx: Context[str]) -> Outcome[None]:
        return Await("go", then=self.hotel)

    @step(undo="drop_hotel")
    async def hotel(self, ctx: Context[str]) -> Outcome[None]:
        return Await("go", then=self.pay)

    @step
    async def pay(self, ctx: Context[str]) -> Outcome[None]:
        return Stop("card declined")

    @step
    async def drop_hotel(self, ctx: Context[str]) -> Outcome[None]:
        return Done(None)

    @step
    async def drop_flight(self, ctx: Context[str]) -> Outcome[None]:
        return Stop("flight left") if ctx.state == "late" else Done(None)


class Sale(Machine[None, None]):
    @step(on_cancel="refund")
    async def offer(self, ctx: Context[None]) -> Outcome[None]:
        return Await("paid", then=self.offer)

    @step
    async def refund(self, ctx: Context[None]) -> Outcome[None]:
        return Await("refunded", then=self.end)

    @step
    async def end(self, ctx: Context[None]) -> Outcome[None]:
        return Done(None)


class Group(Machine[None, None]):
    @step
    async def begin(self, ctx: Context[None]) -> Outcome[None]:
        return ScheduleChildren([Spec(Trip, "")], then=self.end)

    @step
    async def end(self, ctx: Context[None]) -> Outcome[None]:
        return Done(None)


def booked(durable: Harness, state: str = "") -> int:
    """A trip with two steps to undo, which waits at `pay`."""
    trip = durable.insert(Trip, state)
    durable.drain()
    durable.signal(trip, "go")
    durable.drain()
    return trip.id


def line(gd: Gd, id: int, name: str) -> str:
    """The value of one line of `show`, and of the lines that continue it; times are left out."""
    text = gd("show", id).stdout
    found = re.search(rf"^  {name}: +(.*(?:\n {{20}}.*)*)", text, re.MULTILINE)
    value = "" if found is None else re.sub(r"\n +", " | ", found[1])
    return re.sub(r"\d{4}-\S+ \S+ \([^)]*\)", "…", value)


@pytest.mark.clause("CLI-2")
def test_cancel_says_which_steps_run_first(gd: Gd, durable: Harness, sql: psycopg.Connection[Any]) -> None:
    trip, sale = booked(durable), durable.insert(Sale).id
    durable.drain()
    preview = "cancel would change 1 instance\n  1 {} awaiting_signal: requested\n"
    assert output(gd("cancel", trip, "--dry-run")) == (0, preview.format("Trip"), "")
    assert output(gd("cancel", sale, "--dry-run")) == (0, preview.format("Sale"), "")
    assert gd("cancel", trip, "--dry-run", "--no-undo").stdout.endswith("cancelled\n")
    assert output(gd("cancel", sale)) == (0, f"{sale}: cancel requested; its on_cancel step runs first\n", "")
    assert output(gd("cancel", trip)) == (0, f"{trip}: cancel requested; its undo steps run first\n", "")
    assert gd("cancel", trip, "--dry-run").stdout.endswith("compensating\n")


def test_cancel_of_an_executing_step_says_what_runs_afterwards(
    gd: Gd, durable: Harness, sql: psycopg.Connection[Any]
) -> None:
    trip, sale = booked(durable), durable.insert(Sale).id
    other = booked(durable)
    for id in (trip, sale, other):
        execute(sql, id)
    begin = "cancel requested; "
    assert gd("cancel", trip).stdout == f"{trip}: {begin}when its running step ends, its undo steps run\n"
    assert (
        gd("cancel", sale).stdout == f"{sale}: {begin}when its running step ends, its on_cancel step runs\n"
    )
    assert gd("cancel", other, "--no-undo").stdout == f"{other}: {begin}it ends when its running step ends\n"
    assert "when the running step ends, step drop_hotel runs" in gd("explain", trip).stdout
    assert "when the running step ends, step refund runs" in gd("explain", sale).stdout
    assert "it takes effect when the running step ends" in gd("explain", other).stdout


def test_cascade_does_not_claim_that_a_waiting_child_runs(gd: Gd, durable: Harness) -> None:
    group = durable.insert(Group)
    durable.drain()
    (child,) = durable.children(group)
    done = gd("cancel", group.id, "--cascade", "--yes")
    assert done.stdout == (
        f"{group.id}: cancelled\n"
        f"{child.id}: cancel requested; its running step, on_cancel step or undo steps end first\n"
    )


def test_dry_run_of_a_filter_names_undo_steps(gd: Gd, durable: Harness) -> None:
    booked(durable)
    hint = "instances with on_cancel or undo steps run these before they end"
    assert hint in gd("cancel", "--where", "machine=Trip", "--dry-run").stdout
    assert hint not in gd("cancel", "--where", "machine=Trip", "--dry-run", "--force").stdout


def test_instance_cancelled_with_undo_says_who_cancelled_it(gd: Gd, durable: Harness) -> None:
    trip = booked(durable)
    gd("cancel", trip, "--actor", "ada", "--reason", "ill")
    assert line(gd, trip, "cancelled") == "… by ada: ill"
    durable.drain()
    assert line(gd, trip, "cancelled") == "… by ada: ill"
    assert line(gd, trip, "undo") == "cancelled at step pay: ill | undone: hotel, flight"
    found = parsed(gd("show", trip, "--json"))["compensation"]
    assert (found["status"], found["undone"], found["pending"]) == ("cancelled", ["hotel", "flight"], [])
    lines = gd("history", trip).stdout.splitlines()
    assert "drop_flight undone" in lines[-2]
    assert "->" not in lines[-2]
    assert lines[-1].endswith("cancelled by ada: ill")


@pytest.mark.parametrize("option", ["--force", "--no-undo"])
def test_skipped_undo_is_shown(gd: Gd, durable: Harness, option: str) -> None:
    trip = booked(durable)
    gd("cancel", trip, option, "--actor", "ada")
    assert line(gd, trip, "undo") == "skipped; not undone: hotel, flight"
    assert "undo steps that have not run: drop_hotel, drop_flight" in gd("explain", trip).stdout
    assert gd("history", trip).stdout.splitlines()[-1].endswith("cancelled by ada")


def test_failed_undo_lists_the_steps_that_are_left(gd: Gd, durable: Harness) -> None:
    trip = booked(durable, "late")
    durable.signal(trip, "go")
    durable.drain()
    assert line(gd, trip, "undo") == (
        "failed at step pay: card declined | undone: hotel | undo steps left: drop_flight"
    )
    assert "undo steps that have not run: drop_flight" in gd("explain", trip).stdout
    assert "drop_flight: stop" in gd("show", trip).stdout


def test_retry_of_an_undone_instance_names_its_first_step(gd: Gd, durable: Harness) -> None:
    trip, other = booked(durable), booked(durable)
    durable.signal(trip, "go")
    durable.cancel(other)
    durable.drain()
    hint = "starts at flight, the first step that was undone"
    assert f"card declined; a retry {hint}\n" in gd("explain", trip).stdout
    assert output(gd("retry", trip)) == (0, f"{trip}: retried; {hint}\n", "")
    durable.assert_at(trip, "flight")
    assert output(gd("retry", other, "--step", "pay")) == (0, f"{other}: retried\n", "")


def test_instance_at_its_on_cancel_step_says_that_it_was_cancelled(gd: Gd, durable: Harness) -> None:
    sale = durable.insert(Sale).id
    durable.drain()
    gd("cancel", sale, "--actor", "ada", "--reason", "ill")
    durable.drain()
    assert line(gd, sale, "cancelled") == "by ada: ill; went to its on_cancel step"
    assert "cancelled, went to its on_cancel step; waiting for signal refunded" in gd("ls").stdout
    assert "cancelled by ada: ill; it went to an on_cancel step" in gd("explain", sale).stdout


def test_parent_whose_undo_waits_for_children_says_so(gd: Gd, durable: Harness) -> None:
    class Party(Machine[None, None]):
        @step(undo="call_off")
        async def begin(self, ctx: Context[None]) -> Outcome[None]:
            return ScheduleChildren([Spec(Trip, "")], then=self.call_off)

        @step
        async def call_off(self, ctx: Context[None]) -> Outcome[None]:
            return Done(None)

    party = durable.insert(Party)
    durable.drain()
    durable.cancel(party)
    assert "then step call_off continues the undo" in gd("explain", party.id).stdout


def test_edit_of_a_compensating_step_says_what_to_do(gd: Gd, durable: Harness) -> None:
    trip = booked(durable, "late")
    durable.signal(trip, "go")
    durable.drain()
    done = gd("edit", trip, "--step", "flight", "--yes")
    assert (done.exit_code, done.stderr) == (1, "")
    assert "`retry --step` continues a failed one" in done.stdout
    same = gd("edit", trip, "--step", "drop_flight", "--yes")
    assert output(same) == (1, "", "nothing was changed: the step is the same\n")


def test_diff_after_the_last_transition_names_it(gd: Gd, durable: Harness) -> None:
    trip = booked(durable)
    assert refused(gd("diff", trip, 9)) == "there is no transition 9: the last one is 2"
    assert refused(gd("diff", trip, 0, 9)) == "there is no transition 9: the last one is 2"


def test_question_names_only_instances_that_change(gd: Gd, durable: Harness) -> None:
    failed, live = booked(durable), booked(durable)
    durable.signal(failed, "go")
    durable.drain()
    asked = gd("retry", failed, live, answer="n\n").stderr
    assert asked.startswith("Retry 1 instance (1 Trip failed)? [y/N]")


def test_undo_step_that_waits_is_not_listed_as_left(gd: Gd, durable: Harness) -> None:
    class Asking(Machine[None, None]):
        @step(undo="cancel_hotel")
        async def hotel(self, ctx: Context[None]) -> Outcome[None]:
            return Next(self.flight)

        @step(undo="ask")
        async def flight(self, ctx: Context[None]) -> Outcome[None]:
            return Next(self.pay)

        @step
        async def pay(self, ctx: Context[None]) -> Outcome[None]:
            return Stop("declined")

        @step
        async def ask(self, ctx: Context[None]) -> Outcome[None]:
            return Await("refunded", then=self.confirmed)

        @step
        async def confirmed(self, ctx: Context[None]) -> Outcome[None]:
            return Done()

        @step
        async def cancel_hotel(self, ctx: Context[None]) -> Outcome[None]:
            return Await("refunded", then=self.confirmed)

    id = durable.insert(Asking).id
    durable.drain()
    explained = gd("explain", id).stdout
    assert (
        "compensating, undo step ask has run and continues at step confirmed, undo steps left after it: cancel_hotel"
    ) in explained
    assert line(gd, id, "undo") == (
        "failed at step pay: declined | undo step ask continues at step confirmed | undo steps left: cancel_hotel"
    )
    assert "pay: starts undo" in gd("show", id).stdout
    assert "pay starts undo -> ask" in gd("history", id).stdout
    durable.signal(id, "refunded")
    durable.drain()
    assert gd("explain", id).stdout.count("cancel_hotel has run and continues at step confirmed\n") == 1
    assert line(gd, id, "undo") == (
        "failed at step pay: declined | undone: flight | undo step cancel_hotel continues at step confirmed"
    )


def test_timeline_has_the_request_to_cancel_before_its_undo(gd: Gd, durable: Harness) -> None:
    trip = booked(durable)
    gd("cancel", trip, "--actor", "ada")
    shown = gd("show", trip).stdout
    assert -1 < shown.index("cancel requested by ada") < shown.index("compensating by ada")
    assert "not changed: its undo steps are already running" in gd("cancel", trip).stdout
