"""`gen-durable ls`."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import msgspec
import psycopg
import pytest

from gen_durable._db import search, workers
from gen_durable.testing import Harness
from tests.cli.conftest import Gd, execute, output, parsed, refused
from tests.cli.machines import BIG, Checkout, Parcel, Shipment
from tests.support.worker_rows import WORKER_ROW


@pytest.fixture
def full(shop: Harness) -> Harness:
    """One instance per status, ids 1 to 7."""
    shop.insert(Checkout, {"big": BIG}, correlation_key="order:1", unique_key="u:1")
    shop.insert(Parcel, -1, queue="parcels")
    shop.insert(Parcel, 1, concurrency_key=("tenant", 7))
    shop.insert(Shipment, [1])
    shop.drain()
    shop.insert(Checkout, {}, correlation_key="late", unique_key="u:2")
    shop.insert(Checkout, {})
    shop.soft_delete(7, reason="mistaken")
    return shop


def listed(gd: Gd, *arguments: object) -> list[int]:
    return [row["id"] for row in parsed(gd("ls", *arguments, "--json"))]


FILTERS = {
    "": [6, 5, 4, 3, 2, 1],
    "--deleted": [7, 6, 5, 4, 3, 2, 1],
    "--machine Parcel": [3, 2],
    "--machine Parcel --machine Shipment": [4, 3, 2],
    "--status failed": [2],
    "--status failed --status awaiting_children": [4, 2],
    "--step ship --step join": [5, 4, 1],
    "--version 2 --status done": [3],
    "--queue parcels": [2],
    "--correlation-key order:1": [1],
    "--unique-key u:2": [6],
    "--concurrency-key tenant:7": [3],
    "--parent 4": [5],
    "--limit 2 --before 5": [4, 3],
    "--since 1h --machine Checkout": [6, 5, 1],
    "--until 1h": [],
    "--since 2001-01-01T00:00Z --until 2002-01-01T00:00Z": [],
}


@pytest.mark.usefixtures("full")
def test_filters(gd: Gd) -> None:
    assert {filters: listed(gd, *filters.split()) for filters in FILTERS} == FILTERS


SEARCHES = {
    ("machine:Parcel",): [3, 2],
    ("machine:Parcel,Shipment -status:done",): [4, 2],
    ("Parcel failed",): [2],
    ("6",): [6],
    ("late",): [6],
    ("ship",): [5, 1],
    ("key:order:1,u:2",): [6, 1],
    ("parent:4",): [5],
    ("status:deleted",): [7],
    ("error:~LOST age:<1h",): [2],
    ("awaits:payment", "--machine", "Checkout"): [5, 1],
    ("state.big:1",): [],
    (f"state.big:{BIG}",): [1],
    ("--where=-status:live", "--where", "machine=Parcel"): [3, 2],
    ("status:failed", "--limit", "1", "--json"): [2],
}


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize("arguments", SEARCHES)
def test_searches(gd: Gd, arguments: tuple[str, ...]) -> None:
    assert listed(gd, *arguments) == SEARCHES[arguments]


@pytest.mark.usefixtures("full")
def test_bounded_search_says_how_to_continue(gd: Gd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "BOUND", 2)
    assert output(gd("ls", "error:~lost")) == (
        0,
        "",
        "no matching instances\n2 instances checked. Continue: --before 5\n",
    )
    result = gd("ls", "error:~lost", "--before", "5", "--json")
    assert result.stderr == "2 instances checked. Continue: --before 3\n"
    assert [row["id"] for row in json.loads(gd("ls", "error:~lost", "--before", "3", "--json").stdout)] == [2]
    assert gd("retry", "--where", "error:~lost", "--yes").stdout == "1 retried\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["staus:failed"], "staus:failed (position 1): there is no term 'staus'; did you mean 'status'?"),
        (["a", "age:1h"], "age:1h (position 3): 'age' needs a comparison; write for example age:>1h"),
        (["--where", "machin=x"], "--where machin=x: unknown filter; did you mean 'machine'?"),
        (
            ["--queue", "a", "--where", "queue=b"],
            "queue is given as --queue and in the search. Give it once.",
        ),
    ],
)
def test_errors_of_searches(gd: Gd, arguments: list[str], message: str) -> None:
    for command in ("ls", "tail"):
        assert refused(gd(command, *arguments)).startswith(message)


@pytest.mark.usefixtures("full")
def test_json_keeps_large_numbers(gd: Gd) -> None:
    printed = gd("ls", "--json")
    assert f'"big": {BIG}' in printed.stdout
    assert len(printed.stdout.splitlines()) == 6
    first = json.loads(printed.stdout)[-1]
    assert (first["machine"], first["version"], first["step"]) == ("Checkout", 1, "ship")
    assert (first["status"], first["awaits"], first["unique_key"]) == ("awaiting_signal", ["payment"], "u:1")
    assert first["inserted_at"].endswith("Z")
    assert first["result"] is None


@pytest.mark.usefixtures("full")
def test_without_a_terminal_columns_are_plain_text(gd: Gd, sql: psycopg.Connection[Any]) -> None:
    execute(sql, 6)
    sql.execute("update gen_durable.gen_durable set inserted_at = inserted_at - interval '3 h 4 m'")
    assert [line.split(maxsplit=8) for line in gd("ls", "--deleted").stdout.splitlines()] == [
        ["ID", "MACHINE", "V", "STEP", "STATUS", "QUEUE", "KEY", "ATTEMPT", "AGE   NOTE"],
        ["7", "Checkout", "1", "start", "cancelled", "checkout", "-", "1", "3h4m  deleted; mistaken"],
        ["6", "Checkout", "1", "start", "executing", "checkout", "late", "1", "3h4m  running on w"],
        [
            "5",
            "Checkout",
            "1",
            "ship",
            "awaiting_signal",
            "checkout",
            "-",
            "1",
            "3h4m  waiting for signal payment",
        ],
        ["4", "Shipment", "1", "join", "awaiting_children", "default", "-", "1", "3h4m  waiting for 1 child"],
        ["3", "Parcel", "2", "pack", "done", "default", "-", "1", "3h4m  -"],
        ["2", "Parcel", "2", "pack", "failed", "parcels", "-", "1", "3h4m  ValueError: lost\\nin the post"],
        [
            "1",
            "Checkout",
            "1",
            "ship",
            "awaiting_signal",
            "checkout",
            "order:1",
            "1",
            "3h4m  waiting for signal payment",
        ],
    ]


@pytest.mark.clause("SQL-9")
@pytest.mark.usefixtures("full")
def test_filter_by_job_state(gd: Gd, sql: psycopg.Connection[Any]) -> None:
    execute(sql, 6)

    def ids(*arguments: str) -> list[int]:
        return [row["id"] for row in json.loads(gd("ls", "--json", *arguments).stdout)]

    assert ids("--status", "succeeded") == ids("--status", "done") == [3]
    assert ids("--status", "leased") == [6, 5, 4, 1]
    assert ids("--status", "pending") == ids("--status", "runnable") == []
    assert ids("--status", "succeeded", "--status", "failed") == [3, 2]
    would = json.loads(gd("cancel", "--where", "status=leased", "--dry-run", "--json").stdout)
    assert would["count"] == 4


@pytest.mark.clause("OUT-20")
@pytest.mark.usefixtures("full")
def test_ended_instance_shows_its_last_attempt(gd: Gd, sql: psycopg.Connection[Any]) -> None:
    sql.execute("update gen_durable.gen_durable set attempt = 2, max_attempts = 3 where id = 2")
    (line,) = gd("ls", "--status", "failed").stdout.splitlines()[1:]
    assert line.split()[7] == "3"
    assert "step:             pack, attempt 3 of 3, 1 execution in total" in gd("show", 2).stdout


def test_future_instance_shows_when_it_is_due(gd: Gd, shop: Harness) -> None:
    assert gd("insert", "Checkout", "--in", "2h1s").exit_code == 0
    assert gd("ls").stdout.splitlines()[1].endswith("in 2h")


def test_step_that_no_live_worker_has_is_named(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {})
    row = msgspec.structs.replace(WORKER_ROW, fsms=["Checkout"], fsm_steps='[["ship"]]')
    shop._database.run(workers.announce(row, timedelta(hours=1)))
    assert gd("ls").stdout.splitlines()[1].endswith("  no live worker has its step")
    assert "now:              no live worker has its step\n" in gd("show", 1).stdout
    row = msgspec.structs.replace(row, name="w2", fsm_steps='[["start"]]')
    shop._database.run(workers.announce(row, timedelta(hours=1)))
    assert gd("ls").stdout.splitlines()[1].endswith("  -")


def test_full_page_names_the_next_one(gd: Gd, full: Harness) -> None:
    page = gd("ls", "--limit", 3)
    assert page.stderr == "3 shown. Next page: --before 4\n"
    assert output(gd("ls", "--status", "cancelled")) == (0, "", "no matching instances\n")
    assert output(gd("ls", "--status", "cancelled", "--json")) == (0, "[]\n", "")


def test_stored_text_cannot_move_the_cursor(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {}, correlation_key="a\n\x1b[2J\x9bb")
    assert "a\\n\\x1b[2J\\x9bb" in gd("ls").stdout


def test_status_that_only_a_search_has_is_named(gd: Gd) -> None:
    assert refused(gd("ls", "--status", "live")).endswith("succeeded; search for it: status:live")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--status", "faild"], "--status: 'faild' is not a status; the statuses are runnable, executing"),
        (["--parent", "x"], "--parent: 'x' is not a number (id)"),
        (["--parent", "0"], "the id is 0"),
        (["--version", "two"], "--version: 'two' is not a number (version)"),
        (["--queue", "a", "--queue", "b"], "--queue is given 2 times. Give it once."),
        (
            ["--since", "yesterday"],
            "--since: 'yesterday' is not a time; write for example 2026-01-31T09:00Z, or an age",
        ),
        (["--machine", ""], "machine is empty"),
        (["--before", 2**63], "the id is 9223372036854775808"),
    ],
)
def test_invalid_filters(gd: Gd, arguments: list[object], message: str) -> None:
    assert refused(gd("ls", *arguments)).startswith(message)


def test_unknown_machine_is_named_if_nothing_is_found(gd: Gd, shop: Harness) -> None:
    hint = "no matching instances; no worker has registered machine 'Chekout'; did you mean 'Checkout'?\n"
    assert output(gd("ls", "--machine", "Chekout")) == (0, "", hint)
    assert output(gd("ls", "--machine", "Checkout")) == (0, "", "no matching instances\n")
