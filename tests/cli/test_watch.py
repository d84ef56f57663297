"""`gen-durable watch`, `tail`, and the conditions and progress of `wait`."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gen_durable._db import snapshots
from gen_durable._db.plan import Row
from gen_durable._db.search import Filter
from gen_durable._verbs.tail import Tail
from gen_durable.cli.watch import _Printer
from gen_durable.testing import Harness
from tests.cli.conftest import Gd, output, parsed, refused
from tests.cli.machines import Checkout, Parcel
from tests.cli.program import exit_code, start


def test_watch_prints_each_change_until_the_end(
    gd: Gd, shop: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.insert(Checkout, {"order": 1}, correlation_key="order:1")
    printed, print_row = threading.Event(), _Printer.print

    def print_and_set(printer: _Printer, *values: Any) -> None:
        print_row(printer, *values)
        printed.set()

    monkeypatch.setattr(_Printer, "print", print_and_set)
    paying = threading.Thread(target=lambda: (printed.wait(30), shop.signal(1, "payment", 5), shop.drain()))
    paying.start()
    code, lines, errors = output(gd("watch", "order:1"))
    paying.join()
    assert (code, errors) == (0, "")
    head, first, *_, last = lines.splitlines()
    assert head.split() == ["ID", "MACHINE", "STEP", "STATUS", "ATTEMPT", "NOTE"]
    assert first.split()[:4] == ["1", "Checkout", "start", "runnable"]
    assert last.split()[3] == "done"
    assert "step start execution 1: " in lines


def test_watch_prints_no_line_twice_for_a_new_checkpoint(
    capsys: pytest.CaptureFixture[str], shop: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gen_durable.cli.watch._MAX_LINES", 2)
    row = shop._database.run(snapshots.get(shop.insert(Checkout, {"order": 1}).id))
    assert row is not None
    printer = _Printer(as_json=False)
    for checkpoint in ("1", "2", "3"):
        printer.print({**row, "checkpoint": checkpoint}, [])
    assert len(capsys.readouterr().out.splitlines()) == 2  # with the heading
    printer.print({**row, "attempt": 1}, [])
    assert len(capsys.readouterr().out.splitlines()) == 1
    for id in range(2, 9):
        printer.print({**row, "id": id}, [])
    assert len(capsys.readouterr().out.splitlines()) == 7
    assert len(printer._last_lines) == 2


def test_watch_prints_json_lines(gd: Gd, shop: Harness) -> None:
    shop.insert(Parcel, 1)
    shop.drain()
    (change,) = map(json.loads, output(gd("watch", 1, "--json"))[1].splitlines())
    assert (change["instance"]["id"], change["instance"]["status"], change["executions"]) == (1, "done", [])
    assert not any(name.startswith("read_") for name in change["instance"])


def test_watch_of_an_unknown_instance_is_refused(gd: Gd) -> None:
    assert refused(gd("watch", 4711)) == refused(gd("wait", 4711))
    assert refused(gd("watch", "order:9")) == refused(gd("wait", "order:9"))
    assert gd("watch").exit_code == 2


def test_wait_until_a_status_or_a_step(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {"order": 1})
    assert gd("wait", 1, "--until", "runnable").exit_code == 0
    assert gd("wait", 1, "--until", "awaiting_signal", "--until", "step:start").exit_code == 0
    assert gd("wait", 1, "--until", "awaiting_signal", "--timeout", "100ms").exit_code == 3
    shop.cancel(1)
    assert gd("wait", 1, "--until", "step:no").exit_code == 1
    assert gd("wait", 1, "--until", "cancelled").exit_code == 0
    assert "until is 'shipping'" in output(gd("wait", 1, "--until", "shipping"))[2]


def test_wait_json_has_the_columns_of_an_instance_only(gd: Gd, shop: Harness) -> None:
    shop.insert(Parcel, 1)
    shop.drain()
    assert parsed(gd("wait", 1, "--json")) == parsed(gd("ls", "--json"))[0]


def test_wait_prints_the_progress_as_lines(gd: Gd, shop: Harness, sql: Any) -> None:
    shop.insert(Checkout, {"order": 1})
    sql.execute(
        """update gen_durable.gen_durable set progress = '{"done": 3, "total": 4, "message": "page 3"}'"""
    )
    ending = threading.Timer(0.5, shop.cancel, [1])
    ending.start()
    assert "start: 3 of 4 (75%): page 3\n" in output(gd("wait", 1, "--progress"))[2]
    ending.join()


def found(shop: Harness, tail: Tail) -> Iterable[tuple[Row, Any]]:
    return shop._database.run(tail.next())


@pytest.mark.clause("WATCH-6")
def test_tail_finds_new_changed_and_ended_instances(shop: Harness) -> None:
    shop.insert(Checkout, {"order": 1})
    tail = Tail(Filter())
    shop._database.run(tail.start())
    assert found(shop, tail) == []
    shop.insert(Parcel, 1)
    assert [row["id"] for row, _ in found(shop, tail)] == [2]
    assert found(shop, tail) == []
    shop.drain()
    changed = {
        row["id"]: (row["status"], [one["step"] for one in executions])
        for row, executions in found(shop, tail)
    }
    assert changed[1] == ("awaiting_signal", ["start"])
    assert changed[2][0] == "done"
    assert found(shop, tail) == []


@pytest.mark.clause("WATCH-6")
def test_tail_finds_executions_and_ends_of_instances_it_does_not_know(shop: Harness, sql: Any) -> None:
    for number in range(4):
        shop.insert(Parcel, number)
    tail = Tail(Filter())
    shop._database.run(tail.start())
    tail._remembered.clear()
    sql.execute(
        "update gen_durable.gen_durable set status = 'executing', lease_token = 1, execution = 1 where id = 2"
    )
    sql.execute("update gen_durable.gen_durable set status = 'failed', finished_at = now() where id = 3")
    sql.execute("update gen_durable.gen_durable set priority = 3 where id = 4")
    assert [row["id"] for row, _ in found(shop, tail)] == [2, 3]


def test_tail_applies_its_filters_to_each_change(shop: Harness, sql: Any) -> None:
    tail = Tail(Filter(fsms=["Parcel"], statuses=["failed"]))
    shop._database.run(tail.start())
    shop.insert(Checkout, {"order": 1})
    shop.insert(Parcel, 1)
    assert found(shop, tail) == []
    sql.execute("update gen_durable.gen_durable set status = 'failed', finished_at = now()")
    assert [(row["id"], row["status"]) for row, _ in found(shop, tail)] == [(2, "failed")]


def test_tail_forgets_the_oldest_instances(shop: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gen_durable._verbs.tail._REMEMBERED", 2)
    tail = Tail(Filter())
    shop._database.run(tail.start())
    for number in range(5):
        shop.insert(Parcel, number)
    assert [row["id"] for row, _ in found(shop, tail)] == [1, 2, 3, 4, 5]
    assert list(tail._remembered) == [4, 5]


def test_tail_follows_until_interrupted(shop: Harness, durable_dsn: str, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    child = start(
        "tail",
        "--machine",
        "Parcel",
        "--json",
        "--dsn",
        durable_dsn,
        output=writer,
        errors=tmp_path / "errors",
    )
    inserting = threading.Timer(3, shop.insert, [Parcel, 1])
    inserting.start()
    with os.fdopen(reader) as lines:
        assert json.loads(next(lines))["instance"]["machine"] == "Parcel"
        child.send(signal.SIGINT)
        assert exit_code(child) == 130
    inserting.join()
