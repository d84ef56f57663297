"""`gen-durable show`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from unittest.mock import ANY

import click
import psycopg
import pytest

from gen_durable._db.plan import Plan, Statement
from gen_durable.cli.timeline import timeline_lines
from gen_durable.testing import Harness
from gen_durable.timeline import TimelineEntry
from tests.cli.conftest import Gd, execute, output, parsed, refused
from tests.cli.machines import BIG, Checkout, Parcel, Shipment


def lines(gd: Gd, target: object) -> dict[str, str]:
    """Return the facts of the first section by label."""
    shown = gd("show", target).stdout.split("\n\n")[0].splitlines()[1:]
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in shown)}


def section(gd: Gd, target: object, name: str) -> list[str]:
    for part in gd("show", target).stdout.split("\n\n")[1:]:
        head, *rest = part.splitlines()
        if head.partition(":")[0] == name:
            return [head, *(line.strip() for line in rest)]
    return []


@pytest.mark.parametrize("target", ["1", "order:1"])
def test_waiting_instance(gd: Gd, shop: Harness, target: str) -> None:
    shop.insert(Checkout, {"big": BIG}, correlation_key="order:1", unique_key=b"\xffu", concurrency_key="k")
    shop.signal(1, "note")
    shop.drain()
    assert gd("show", target).stdout.startswith("Checkout 1  awaiting_signal\n")
    facts = lines(gd, target)
    assert (facts["step"], facts["now"], facts["queue"]) == (
        "ship",
        "waiting for signal payment",
        "checkout, priority 0",
    )
    assert (facts["correlation key"], facts["unique key"], facts["concurrency key"]) == (
        "order:1",
        "\\xffu",
        "k",
    )
    assert facts["state"] == f'{{"big": {BIG}}}'
    assert "(in 23h59m)" in facts["deadline"]
    assert section(gd, target, "inbox")[0] == "inbox: 1 unconsumed, 4 bytes"
    assert section(gd, target, "inbox")[1].startswith("note × 1, ")
    timeline = section(gd, target, "timeline")
    assert [line.split("  ")[-1].strip() for line in timeline if "inserted" not in line][2:] == [
        "signal note (unread)",
        ANY,
        "waiting for signal payment",
    ]
    assert timeline[4].split("  ")[-1].strip().startswith("start: await, on test:")


def test_failed_instance_with_error(gd: Gd, shop: Harness) -> None:
    shop.insert(Parcel, -1)
    shop.drain()
    shown = gd("show", 1).stdout
    assert shown.startswith("Parcel v2 1  failed\n")
    assert "last error:       ValueError: lost\\nin the post\n" in shown
    assert '"type": "ValueError"' in shown
    assert '"attempt": 1' in shown
    assert lines(gd, 1)["step"] == "pack, 1 execution in total"
    found = parsed(gd("show", 1, "--json"))
    assert (found["error"]["message"], found["error"]["attempt"]) == ("lost\nin the post", 0)
    assert found["executions"][0]["outcome"] == "stop"


def test_next_attempt_counts_from_1(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    shop.insert(Checkout, {}, max_attempts=4)
    assert lines(gd, 1)["step"] == "start", "nothing was tried yet"
    sql.execute("update gen_durable.gen_durable set attempt = 2 where id = 1")
    assert lines(gd, 1)["step"] == "start, attempt 3 of 4 is next"


def test_instance_cancelled_while_waiting(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {})
    shop.drain()
    shop.cancel(1)
    assert lines(gd, 1)["step"] == "ship, 1 execution in total"
    assert [line.split("  ")[-1].strip() for line in section(gd, 1, "timeline")][-2:] == [
        "waiting for signal payment",
        "ship: cancelled",
    ]


def test_parent_with_children(gd: Gd, shop: Harness) -> None:
    shop.insert(Shipment, list(range(25)))
    shop.drain()
    shop.cancel(26, reason="out of stock")
    assert lines(gd, 1)["now"] == "waiting for 24 children"
    head, *rest = section(gd, 1, "children")
    assert head == "children: 24 awaiting_signal, 1 cancelled"
    assert len(rest) == 21
    assert rest[19] == "26 Checkout ship cancelled"
    assert rest[20] == "… 5 earlier ones: --json"
    found = parsed(gd("show", 1, "--json"))
    assert [child["id"] for child in found["children"]] == list(range(2, 27))
    assert found["children"][0]["machine"] == "Checkout"
    assert lines(gd, 26)["parent"] == "1"


def test_cancel_and_delete_name_the_actor(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {})
    shop.cancel(1, reason="wrong one", actor="ada")
    shop.soft_delete(1, reason="tidy", actor="bob")
    assert shop.get(1) is None
    assert lines(gd, 1)["cancelled"].endswith("by ada: wrong one")
    assert lines(gd, 1)["deleted"].endswith(": tidy")
    assert [line.split("  ")[-1].strip() for line in section(gd, 1, "timeline")[2:]] == [
        "inserted",
        "cancelled by ada (login postgres): wrong one",
        "deleted by bob (login postgres): tidy",
    ]
    found = parsed(gd("show", 1, "--json"))
    assert (found["cancelled_by"], found["cancel_reason"], found["delete_reason"]) == (
        "ada",
        "wrong one",
        "tidy",
    )
    assert [(event["event"], event["actor"], event["data"]) for event in found["audit_events"]] == [
        ("cancelled", "ada", {"step": "start", "step_seq": 1, "execution": 1, "attempt": 0}),
        ("deleted", "bob", None),
    ]


def test_executing_instance_names_its_worker(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    shop.insert(Checkout, {}, max_attempts=4)
    execute(sql, 1)
    facts = lines(gd, 1)
    assert (facts["now"], facts["step"]) == ("running on w", "start, attempt 1 of 4")
    assert "(in 59m" in facts["lease"]
    found = parsed(gd("show", 1, "--json"))
    assert (found["executions"][0]["status"], found["executions"][0]["lease_owner"]) == ("LEASED", "w")
    assert found["max_attempts"] == 4


def test_expired_lease_is_named(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    shop.insert(Checkout, {})
    execute(sql, 1)
    sql.execute("update gen_durable.gen_durable set lease_expires_at = now() - interval '90 s'")
    expired = "lease of worker w expired 1m30s ago"
    assert lines(gd, 1)["now"] == expired
    assert gd("ls").stdout.splitlines()[1].endswith(expired)
    assert expired in gd("wait", 1, "--timeout", "0s").stderr
    assert parsed(gd("ls", "--json"))[0]["lease_expires_at"] is not None


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        ("lease", "crashed (its process died, or its lease expired)"),
        ("poison", "crashed once too often (crash_limit)"),
        ("unknown_step", "left to other workers (this worker does not have the step)"),
        ("shutdown", "given back (the worker shut down)"),
        ("rejoin", "waits again (a child was retried)"),
        ("retry", "retry"),
    ],
)
def test_timeline_explains_outcomes_that_no_step_returned(outcome: str, text: str) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    entry = TimelineEntry(at=at, kind="execution", name="crawl", outcome=outcome, worker="w")
    assert click.unstyle(list(timeline_lines([entry]))[-1]).endswith(f"  crawl: {text}, on w")


def test_done_instance_with_long_json(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {"order": BIG, "text": "x" * 100})
    shop.drain()
    shop.signal(1, "payment", BIG)
    shop.drain()
    assert lines(gd, 1)["result"] == f'{{"paid": {BIG}, "order": {BIG}}}'
    assert f'  state:            {{\n                      "text": "{"x" * 100}",' in gd("show", 1).stdout
    found = gd("show", 1, "--json")
    assert f'"result":{{"paid": {BIG}, "order": {BIG}}}' in found.stdout


def test_unknown_instance(gd: Gd) -> None:
    assert refused(gd("show", 9)) == (
        "no instance has id 9. If it is a correlation key: gen-durable ls --correlation-key 9"
    )
    assert refused(gd("show", "order:9")) == "no instance has correlation key 'order:9'"


def test_deeply_nested_state_is_shown_as_is(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    deep = "[" * 3000 + "]" * 3000
    sql.execute("select gen_durable.insert('Checkout', %s::jsonb, step => 'start')", [deep])
    code, out, _ = output(gd("show", 1))
    assert (code, deep in out) == (0, True)
    for command in (["show", 1], ["ls"]):
        shown = gd(*command, "--json")
        assert (shown.exit_code, f'"state":{deep}' in shown.stdout) == (0, True)


def test_progress_and_checkpoint(gd: Gd, shop: Harness) -> None:
    shop.load(Checkout, state={}, checkpoint={"page": 7})
    progress = '{"done": 12, "total": 20, "message": "page\\u001b 12", "at": "2026-01-02T03:04:05Z"}'
    shop._database.run(_stored(1, progress))
    facts = lines(gd, 1)
    assert facts["progress"].startswith("12 of 20 (60%): page\\x1b 12, 2026-01-0")
    assert facts["checkpoint"] == '{"page": 7}'
    shown = parsed(gd("show", 1, "--json"))
    assert (shown["progress"]["done"], shown["checkpoint"]) == (12, {"page": 7})
    shop._database.run(_stored(1, None))
    assert "progress" not in lines(gd, 1)


_PROGRESS = Statement(
    "progress", "update gen_durable.gen_durable set progress = :progress::text::jsonb where id = :id::bigint"
)


def _stored(id: int, progress: str | None) -> Plan[None]:
    yield _PROGRESS(id=id, progress=progress)
