"""`gen-durable history` and `gen-durable diff`."""

from __future__ import annotations

import re
from typing import Any

import psycopg
import pytest

from gen_durable import Settings
from gen_durable.testing import Harness
from tests.cli.conftest import Gd, output, parsed, refused
from tests.cli.machines import Checkout, Shipment


@pytest.fixture
def durable_settings() -> Settings:
    return Settings(history="all")


@pytest.mark.clause("HIS-2")
def test_history_shows_transitions_and_changes(gd: Gd, shop: Harness) -> None:
    shop.insert(Shipment, [1, 2], correlation_key="shipment")
    shop.drain()
    shop.edit("shipment", state=[1, 3], machine=Shipment)
    done = gd("history", "shipment")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = [re.sub(r"\d{4}-\S+ \S+|took \S+ s|on test:\S+", "…", line) for line in done.stdout.splitlines()]
    assert lines == [
        "   0  …  insert -> split",
        "   1  …  split schedule_children -> join, …, 2 children, …",
        "   2  …  join edit -> join",
        "      ~ $[1]: 2 -> 3",
    ]
    found = parsed(gd("history", 1, "--json"))
    assert [(one["state"], one["version"]) for one in found] == [([1, 2], 1), ([1, 2], 1), ([1, 3], 1)]
    assert found[1]["children"] == [2, 3]
    assert [one["step_seq"] for one in parsed(gd("history", 1, "--after", 0, "--limit", 1, "--json"))] == [1]


@pytest.mark.clause("HIS-2")
def test_diff_compares_two_transitions(gd: Gd, shop: Harness) -> None:
    ref = shop.insert(Checkout, {"order": 1})
    shop.edit(ref, state={"order": 2})
    shop.edit(ref, state={"order": 2, "note": "x\x1b"})
    assert output(gd("diff", 1)) == (0, '~ $.order: 1 -> 2\n+ $.note: "x\\u001b"\n', "")
    assert output(gd("diff", 1, 1)) == (0, "~ $.order: 1 -> 2\n", "")
    assert output(gd("diff", 1, 2, 1)) == (0, '- $.note: "x\\u001b"\n', "")
    assert parsed(gd("diff", 1, 1, 2, "--json")) == [
        {"path": "$.note", "kind": "added", "before": None, "after": "x\x1b"}
    ]
    assert output(gd("diff", 1, 2, 2)) == (0, "", "")


def test_missing_states_and_instances_are_errors(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {})
    assert refused(gd("history", 9)).startswith("no instance has id 9")
    assert refused(gd("diff", 9)).startswith("no instance has id 9")
    assert refused(gd("diff", 1, 0)).startswith("transition 0 is the insert")
    assert refused(gd("diff", 1, 7)).startswith("there is no transition 7: the last one is 0")


@pytest.mark.clause("FRK-1")
def test_fork_starts_after_a_transition(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {"order": 1})
    shop.edit(1, state={"order": 2})
    assert output(gd("fork", 1, "--at", 0)) == (0, "inserted 2, forked from 1 after transition 0\n", "")
    assert parsed(gd("fork", 1, "--step", "ship", "--correlation-key", "copy", "--json")) == {
        "id": 3,
        "origin_id": 1,
        "step_seq": 1,
        "status": "runnable",
    }
    states = [found.state for id in (2, 3) if (found := shop.get(id)) is not None]
    assert states == [{"order": 1}, {"order": 2}]
    assert "forked from:      1, after transition 0\n" in gd("show", 2).stdout
    assert refused(gd("fork", 1, "--at", 7)).startswith(
        "cannot fork instance 1 at transition 7: it has not made this transition; give a smaller --at"
    )


def test_fork_names_the_option_that_is_needed(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    shop.insert(Checkout, {"order": 1})
    sql.execute(
        "update gen_durable.gen_durable set status = 'done', finished_at = now(), collected_at = now()"
    )
    assert refused(gd("fork", 1)).endswith("retention has removed its state; pass --state")
