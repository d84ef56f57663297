"""`gen-durable outbox`."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable.testing import Harness
from tests.cli.conftest import Gd, output, parsed, refused
from tests.outbox.machines import Teller


@pytest.fixture
def full(shop: Harness) -> Harness:
    shop.insert(Teller, {}, step="several", correlation_key="order:1")
    shop.drain()
    shop.insert(Teller, {}, step="stops")
    shop.drain()
    return shop


@pytest.mark.usefixtures("full")
def test_ls(gd: Gd) -> None:
    events = parsed(gd("outbox", "ls", "--json"))
    assert [event["id"] for event in events] == ["2:1:1", "1:2:1", "1:1:4", "1:1:3", "1:1:2", "1:1:1"]
    assert [event["type"] for event in parsed(gd("outbox", "ls", "--sink", "other", "--json"))] == ["fourth"]
    assert len(parsed(gd("outbox", "ls", "--instance", "order:1", "--json"))) == 5
    assert refused(gd("outbox", "ls", "--instance", "order:2")).startswith("cannot list events: no instance")
    assert parsed(gd("outbox", "ls", "--state", "dead", "--json")) == []
    lines = output(gd("outbox", "ls", "--limit", "1"))[1].splitlines()
    assert lines[0].split() == [
        "NUMBER",
        "EVENT",
        "TYPE",
        "SINK",
        "STATE",
        "FAILURES",
        "AGE",
        "SUBJECT",
        "NOTE",
    ]
    assert lines[1].split()[:6] == ["6", "2:1:1", "stopped", "default", "pending", "0"]
    assert lines[1].split()[7:] == ["2", "expires", "in", "29d23h"]


@pytest.mark.usefixtures("full")
def test_ls_shows_retries_and_when_an_event_expires(gd: Gd, sql: Any) -> None:
    sql.execute(
        "update gen_durable.outbox set attempts = 3, last_error = '503', created_at = now() - interval '1 day',"
        " next_at = now() + interval '5 min' where id = 6"
    )
    sql.execute("update gen_durable.outbox set dead_at = now(), last_error = 'no' where id = 5")
    lines = output(gd("outbox", "ls", "--limit", "2", "--retention-pending", "2d"))[1].splitlines()
    assert lines[1].endswith("503")
    assert "  3         1d " in lines[1]
    assert "next attempt in 4m59s; expires in 23h59m; 503" in lines[1]
    assert lines[2].split()[7:] == ["the", "end", "no"]
    pending, dead = parsed(gd("outbox", "ls", "--limit", "2", "--json"))
    assert pending["expires_at"] > pending["created_at"]
    assert dead["expires_at"] is None


@pytest.mark.usefixtures("full")
def test_ls_names_the_failed_event_that_an_event_waits_for(gd: Gd, sql: Any) -> None:
    sql.execute("update gen_durable.outbox set attempts = 1, last_error = '503' where id = 2")
    lines = output(gd("outbox", "ls"))[1].splitlines()
    notes = {line.split()[1]: "waiting for 1:1:2" in line for line in lines[1:]}
    later = {"1:1:3": True, "1:2:1": True}
    other_sink_or_instance = {"1:1:4": False, "2:1:1": False}
    assert notes == {"1:1:1": False, "1:1:2": False, **later, **other_sink_or_instance}


@pytest.mark.usefixtures("full")
def test_replay(gd: Gd, sql: Any) -> None:
    sql.execute("update gen_durable.outbox set dead_at = now(), last_error = 'no' where id <= 2")
    sql.execute("update gen_durable.outbox set published_at = now() where id = 3")
    assert "give either event numbers or --dead" in refused(gd("outbox", "replay"))
    assert "Add --yes" in refused(gd("outbox", "replay", "--dead"))
    assert parsed(gd("outbox", "replay", 3, 4, "--json")) == {"replayed": 1}
    assert output(gd("outbox", "replay", "--dead", "--yes"))[1] == "2 events will be published again\n"
    sql.execute("update gen_durable.outbox set dead_at = now(), last_error = 'no' where id = 1")
    assert parsed(gd("outbox", "replay", "--dead", "--json")) == {
        "replayed": 1,
        "batch": 2,
        "status": "finished",
    }
    assert "dead letters" in output(gd("batches", "show", 2))[1]
    assert {event["state"] for event in parsed(gd("outbox", "ls", "--json"))} == {"pending"}
