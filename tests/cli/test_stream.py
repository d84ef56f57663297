"""`gen-durable stream` and `gen-durable outbox tail`."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from gen_durable.testing import Harness
from tests.cli.conftest import Gd, output, refused
from tests.cli.program import exit_code, start
from tests.engine.streams.publishers import Story
from tests.outbox.machines import Teller


@pytest.fixture
def finished(durable: Harness) -> int:
    """A story of two attempts, whose lines are published."""
    ref = durable.insert(Story, "raise", correlation_key="story:1")
    durable.drain()
    durable.assert_done(ref)
    return ref.id


def test_stream_prints_texts_and_says_where_another_execution_continues(gd: Gd, finished: int) -> None:
    code, lines, notes = output(gd("stream", finished, "lines"))
    assert (code, lines) == (0, "first 0\nhandle RuntimeError\nfirst 1\n")
    assert notes == "-- position 3, execution 2: step first, attempt 2\n"
    assert output(gd("stream", "story:1", "lines", "--after", 2))[1] == "first 1\n"


def test_stream_that_the_machine_does_not_declare_is_named(gd: Gd, finished: int, sql: Any) -> None:
    note = "-- machine Story declares no stream 'line'; did you mean 'lines'?\n"
    assert output(gd("stream", finished, "line")) == (0, "", note)
    assert gd("machines").stdout.splitlines()[1].split()[-2:] == ["lines", "none"]
    sql.execute("update gen_durable.machines set streams = '{}'")
    assert output(gd("stream", finished, "line")) == (0, "", "")


def test_texts_of_a_stream_are_printed_raw_to_a_pipe(gd: Gd, finished: int, sql: Any) -> None:
    sql.execute(
        "update gen_durable.stream_items set value = to_jsonb(e'a\\tb\\u001b[1m'::text) where position = 1"
    )
    assert output(gd("stream", finished, "lines"))[1].splitlines()[0] == "a\tb\x1b[1m"


def test_interrupted_stream_names_the_last_position(
    durable: Harness, durable_dsn: str, sql: Any, tmp_path: Path
) -> None:
    ref = durable.insert(Story, "next")
    durable.drain()
    sql.execute("update gen_durable.gen_durable set status = 'runnable', finished_at = null")
    reader, writer = os.pipe()
    errors = tmp_path / "errors"
    child = start("stream", str(ref.id), "other", "--dsn", durable_dsn, output=writer, errors=errors)
    with os.fdopen(reader) as lines:
        assert next(lines) == '{"a":1}\n'
        child.send(signal.SIGINT)
        assert exit_code(child) == 130
    assert errors.read_text().splitlines()[-1] == "-- read up to position 1; continue: --after 1"


def test_stream_prints_json_lines(gd: Gd, finished: int) -> None:
    items = [json.loads(line) for line in output(gd("stream", finished, "lines", "--json"))[1].splitlines()]
    assert [(item["position"], item["value"], item["execution"], item["attempt"]) for item in items] == [
        (1, "first 0", 1, 0),
        (2, "handle RuntimeError", 1, 0),
        (3, "first 1", 2, 1),
    ]
    assert set(items[0]) == {
        "position",
        "value",
        "step",
        "step_seq",
        "attempt",
        "execution",
        "created_at",
    }


def test_stream_without_follow_prints_what_is_there(gd: Gd, durable: Harness, sql: Any) -> None:
    ref = durable.insert(Story, "next")
    assert output(gd("stream", ref.id, "lines", "--no-follow")) == (0, "", "")
    durable.drain()
    sql.execute("update gen_durable.gen_durable set status = 'runnable', finished_at = null")
    assert output(gd("stream", ref.id, "other", "--no-follow"))[1] == '{"a":1}\n'


def test_stream_of_an_unknown_instance_is_refused(gd: Gd) -> None:
    assert refused(gd("stream", 4711, "lines")) == refused(gd("wait", 4711))
    assert refused(gd("stream", "story:2", "lines")) == refused(gd("wait", "story:2"))
    assert refused(gd("stream", 1, "")).startswith("the name of a stream")


def test_outbox_tail_prints_events_in_order(gd: Gd, durable: Harness) -> None:
    durable.insert(Teller, {}, step="several", correlation_key="order:1")
    durable.drain()
    lines: list[str] = []
    for _ in range(200):  # an open write transaction of another test delays the tail
        lines = output(gd("outbox", "tail", "--after", 0, "--no-follow"))[1].splitlines()
        if len(lines) == 5:
            break
        time.sleep(0.05)
    assert [line.split()[:3] for line in lines] == [
        ["1", "1:1:1", "first"],
        ["2", "1:1:2", "second"],
        ["3", "1:1:3", "third"],
        ["4", "1:1:4", "fourth"],
        ["5", "1:2:1", "done"],
    ]
    assert lines[1] == '2  1:1:2  second  default  order:1  {"n":2}'
    other: list[str] = []
    for _ in range(200):
        found = output(gd("outbox", "tail", "--after", 1, "--sink", "other", "--no-follow", "--json"))[1]
        other = [json.loads(line)["type"] for line in found.splitlines()]
        if other:
            break
        time.sleep(0.05)
    assert other == ["fourth"]
    assert output(gd("outbox", "tail", "--no-follow")) == (0, "", "")


def test_outbox_tail_follows_until_interrupted(durable: Harness, durable_dsn: str, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    arguments = ("outbox", "tail", "--after", "0", "--json", "--dsn", durable_dsn)
    child = start(*arguments, output=writer, errors=tmp_path / "errors")
    durable.insert(Teller, {}, step="several")
    durable.drain()
    with os.fdopen(reader) as lines:
        assert [json.loads(next(lines))["type"] for _ in range(3)] == ["first", "second", "third"]
        child.send(signal.SIGINT)
        assert exit_code(child) == 130
