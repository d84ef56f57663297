"""`gen-durable show`."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from gen_durable.testing import Harness
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
    assert section(gd, target, "executions")[1].startswith("1 start: DONE (await) in 0.")


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
    assert section(gd, 1, "executions")[2] == "2 ship: ABORTED (cancelled) while waiting; no step ran"


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
    assert [line.split(",")[0] for line in section(gd, 1, "audit")[1:]] == ["cancelled", "deleted"]
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
