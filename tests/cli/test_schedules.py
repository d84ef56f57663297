"""`gen-durable schedules …`."""

from __future__ import annotations

import getpass
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from gen_durable import Context, Done, Machine, NoScheduleError, Outcome, Schedule, Spec, step
from gen_durable.cli.targets import load
from gen_durable.testing import Harness
from tests.cli.conftest import Gd, output, parsed, refused
from tests.cli.machines import Checkout


def test_add_and_show(gd: Gd, shop: Harness) -> None:
    added = parsed(
        gd(
            *("schedules", "add", "nightly", "Checkout", '{"order": 7}', "--cron", "0 3 * * *"),
            *("--tz", "Europe/Vienna", "--queue", "night", "--priority", 3, "--missed", "skip", "--json"),
        )
    )
    assert (added["name"], added["machine"], added["cron"], added["tz"]) == (
        "nightly",
        "Checkout",
        "0 3 * * *",
        "Europe/Vienna",
    )
    assert added["spec"] == {"fsm": "Checkout", "state": {"order": 7}, "queue": "night", "priority": 3}
    assert (added["missed"], added["overlap"], added["fired_count"], added["paused_at"]) == (
        "skip",
        "allow",
        0,
        None,
    )
    assert datetime.fromisoformat(added["next_at"]).minute == 0
    assert parsed(gd("schedules", "show", "nightly", "--json")) == added
    lines = gd("schedules", "show", "nightly").stdout.splitlines()
    assert lines[0] == "nightly: Checkout"
    assert lines[1].split() == ["when", "0", "3", "*", "*", "*", "Europe/Vienna"]
    assert lines[-1].split(maxsplit=1)[1] == (
        '{"machine": "Checkout", "queue": "night", "state": {"order": 7}, "priority": 3}'
    )


def test_add_with_a_limit(gd: Gd, shop: Harness) -> None:
    added = gd(
        *("schedules", "add", "calls", "Checkout", "--every", "1h", "--json"),
        *("--rate-limit", "crm:7", "--weight", 2, "--concurrency-key", "crm"),
    )
    spec = parsed(added)["spec"]
    assert (spec["rate_limit"], spec["weight"], spec["concurrency_key"]) == ("crm:7", 2, "crm")


class Tenant(Machine[dict[str, int], None], concurrency_key=lambda state: f"tenant:{state['tenant']}"):
    @step
    async def run(self, ctx: Context[dict[str, int]]) -> Outcome[None]:
        return Done()


@pytest.mark.parametrize("command", [["insert"], ["schedules", "add", "hourly"]])
def test_key_that_only_the_code_computes_has_to_be_given(gd: Gd, shop: Harness, command: list[str]) -> None:
    shop.use(Tenant)
    when = ["--every", "1h"] if command[0] == "schedules" else []
    assert refused(gd(*command, "Tenant", *when)) == (
        "machine 'Tenant' computes concurrency_key from the state, which needs its code; "
        'give --concurrency-key KEY, or --concurrency-key "" for none'
    )
    keys = {"tenant:7": "tenant:7", "": None}
    for given, stored in keys.items():
        assert gd(*command, "Tenant", '{"tenant": 7}', *when, "--concurrency-key", given).exit_code == 0
        if when:
            assert gd("schedules", "trigger", "hourly").exit_code == 0
        assert shop.list()[0].concurrency_key == stored


def test_pause_resume_trigger_and_rm(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    gd("schedules", "add", "often", "ops.nightly.v1", "null", "--every", "15m")
    paused = parsed(gd("schedules", "pause", "often", "--reason", "too loud", "--json"))
    assert (paused["pause_reason"], paused["paused_by"], paused["every"]) == (
        "too loud",
        getpass.getuser(),
        "15m",
    )
    assert "paused" in gd("schedules", "show", "often").stdout
    assert output(gd("schedules", "trigger", "often")) == (0, "inserted 1\n", "")
    assert parsed(gd("schedules", "trigger", "often", "--json")) == {"id": 2, "inserted": True}
    assert parsed(gd("schedules", "resume", "often", "--json"))["paused_at"] is None
    assert shop.drain().done == 2
    assert [row["id"] for row in parsed(gd("ls", "--schedule", "often", "--json"))] == [2, 1]
    assert output(gd("schedules", "rm", "often")) == (0, "removed schedule often\n", "")
    assert output(gd("schedules", "ls")) == (0, "", "no schedules\n")


def test_ls(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    shop.put_schedule(Schedule("a", Spec(Checkout, {}), cron="@daily", tz="Asia/Tokyo"))
    gd("schedules", "add", "b", "Checkout", "--every", "1h30m")
    gd("schedules", "pause", "b")
    gd("schedules", "trigger", "b")
    lines = [line.split("  ") for line in gd("schedules", "ls").stdout.splitlines()]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    assert cells[0] == ["NAME", "MACHINE", "WHEN", "NEXT", "LAST", "FIRED", "NOTE"]
    assert cells[1][:3] == ["a", "Checkout", "0 0 * * * Asia/Tokyo"]
    assert cells[1][3].startswith("in ")
    sql.execute("update gen_durable.schedules set next_at = now() - interval '3 d 2 h' where name = 'a'")
    assert "Asia/Tokyo  3d2h overdue  " in gd("schedules", "ls").stdout
    assert (cells[2][:4], cells[2][5:]) == (["b", "Checkout", "every 1h30m", "-"], ["1", "paused"])
    assert [row["name"] for row in parsed(gd("schedules", "ls", "--json"))] == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["add", "x", "Checkout"], "give either --cron or --every"),
        (
            ["add", "x", "Checkout", "--cron", "@daily", "--every", "1h"],
            "give either --cron or --every",
        ),
        (["add", "x", "Chekout", "--cron", "@daily"], "no worker has registered machine 'Chekout'"),
        (
            ["add", "x", "Checkout", "--cron", "@daily", "--version", "9"],
            "no worker has registered version 9",
        ),
        (["add", "x", "Checkout", "{", "--cron", "@daily"], "the state is invalid"),
        (["add", "x", "Checkout", "--cron", "every day"], "cron is 'every day' (wrong number of fields)"),
        (
            ["add", "x", "Checkout", "--cron", "@daily", "--tz", "Nowhere"],
            "tz is 'Nowhere', which is not a time zone",
        ),
        (["add", "x", "Checkout", "--every", "10ms"], "use at least 1 second"),
        (
            ["add", "x", "Checkout", "--cron", "@daily", "--missed", "all", "--overlap", "skip"],
            "only the first",
        ),
        (["show", "x"], "there is no schedule 'x'"),
        (["pause", "x"], "there is no schedule 'x'"),
        (["resume", "x"], "there is no schedule 'x'"),
        (["trigger", "x"], "there is no schedule 'x'"),
        (["rm", "x"], "there is no schedule 'x'"),
    ],
)
def test_invalid_schedules(gd: Gd, shop: Harness, arguments: list[str], problem: str) -> None:
    assert problem in refused(gd("schedules", *arguments))
    with pytest.raises(NoScheduleError):
        shop.get_schedule("x")


def test_file_with_machines_and_schedules(tmp_path: Path) -> None:
    (tmp_path / "daily_reports.py").write_text(
        "from gen_durable import Schedule, Spec, job\n"
        "@job('reports.daily.v1')\ndef daily() -> None: ...\n"
        "nightly = Schedule('nightly', Spec(daily), cron='@daily')\n"
    )
    found = load(f"{tmp_path}/daily_reports.py")
    assert isinstance(found, list)
    assert [type(each).__name__ for each in found] == ["JobFunction", "Schedule"]
