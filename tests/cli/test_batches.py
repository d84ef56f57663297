"""`gen-durable batches`, and bulk verbs that run as batches."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from gen_durable import Status
from gen_durable._db import batches as stored
from gen_durable.testing import Harness
from tests.cli.conftest import Gd, output, parsed, refused
from tests.cli.machines import Checkout, Parcel, Shipment
from tests.cli.program import exit_code, start


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "PAGE", 3)


def some(shop: Harness, number: int = 10) -> None:
    for _ in range(number):
        shop.insert(Checkout, {})


@pytest.mark.clause("CLI-8")
def test_more_than_a_page_is_a_batch(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    some(shop)
    shop.insert(Parcel, 1)
    question = "Cancel 10 instances (10 Checkout runnable)? [y/N]: "
    asked = gd(
        "cancel", "--where", "machine=Checkout", "--actor", "ada", "--reason", "sold out", answer="y\n"
    )
    assert output(asked) == (0, "10 cancelled (batch 1)\n", f"{question}y\n")
    assert shop.count(status=Status.RUNNABLE) == 1
    (batch,) = parsed(gd("batches", "--json"))
    assert (batch["actor"], batch["reason"], batch["done"], batch["status"]) == (
        "ada",
        "sold out",
        10,
        "finished",
    )
    assert parsed(gd("retry", "--where", "machine=Checkout", "--yes", "--json")) == {
        "verb": "retry",
        "dry_run": False,
        "count": 10,
        "outcomes": {"retried": 10},
        "batch": 2,
        "status": "finished",
    }
    assert output(gd("delete", *range(1, 8), "--yes")) == (0, "7 deleted (batch 3)\n", "")
    assert output(gd("restore", "--where", "machine=Checkout", "--yes")) == (0, "7 restored (batch 4)\n", "")


def test_batch_takes_the_options_of_the_verb(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    for _ in range(5):
        shop.insert(Parcel, -1)
    shop.drain()
    retried = gd("retry", "--where", "machine=Parcel", "--state", "7", "--yes")
    assert output(retried) == (0, "5 retried (batch 1)\n", "")
    shop.drain()
    assert shop.count(status=Status.DONE) == 5
    shop.insert(Shipment, [1, 2, 3, 4])
    shop.drain()
    assert output(gd("cancel", "--where", "machine=Shipment", "--cascade", "--yes"))[:2] == (
        0,
        "5 cancelled (batch 2)\n",
    )


def test_instances_inserted_after_the_confirmation_are_not_changed(
    gd: Gd, shop: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    some(shop)

    def agrees(*_: object) -> bool:
        some(shop)
        return True

    monkeypatch.setattr("gen_durable.cli.control._agrees", agrees)
    assert output(gd("cancel", "--where", "machine=Checkout")) == (0, "10 cancelled (batch 1)\n", "")
    assert shop.count(status=Status.RUNNABLE) == 10


def test_taken_keys_make_the_exit_code_1(gd: Gd, shop: Harness) -> None:
    for n in range(5):
        shop.insert(Checkout, {}, correlation_key=f"order:{n}")
    shop.cancel_all()
    shop.insert(Checkout, {}, correlation_key="order:2")
    done = gd("retry", "--where", "status=cancelled", "--yes")
    assert (done.exit_code, done.stdout) == (1, "4 retried, 1 refused (batch 1)\n")
    shown = gd("batches", "show", 1)
    assert (
        "last problem  cannot retry instance 3: its correlation_key belongs to Checkout 6 now" in shown.stdout
    )


def test_list_and_show(gd: Gd, shop: Harness) -> None:
    assert output(gd("batches")) == (0, "", "no batches\n")
    some(shop, 5)
    gd("cancel", "--where", "machine=Checkout", "--actor", "ada", "--yes")
    shop.start_batch("delete", ids=[1, 2], actor="ben", reason="\x1b[31mred")
    listed = gd("batches", "ls").stdout.splitlines()
    assert listed[0].split() == [
        "ID",
        "VERB",
        "STATUS",
        "VISITED",
        "CHANGED",
        "SKIPPED",
        "STARTED",
        "BY",
        "REASON",
    ]
    assert listed[1].split()[:6] == ["2", "delete", "pending", "0/2", "0", "0"]
    assert listed[2].split()[:6] == ["1", "cancel", "finished", "5/5", "5", "0"]
    assert "\x1b" not in listed[1]
    shown = gd("batches", "show", 2).stdout
    assert shown.startswith("batch 2: delete, pending\n  selects       ids\n  visited       0 of 2\n")
    assert shown.endswith("  continue      gen-durable batches run 2\n")
    assert refused(gd("batches", "show", 9)) == "there is no batch 9; list batches with `gen-durable batches`"


@pytest.mark.clause("CLI-8")
def test_run_and_stop(gd: Gd, shop: Harness) -> None:
    some(shop, 8)
    one, two = (shop.start_batch("cancel", Checkout) for _ in range(2))
    stopped = gd("batches", "stop", one.id, "--actor", "ada")
    assert (stopped.exit_code, stopped.stderr) == (0, "")
    assert stopped.stdout.startswith("batch 1: cancel, stopped\n")
    assert output(gd("batches", "run", one.id)) == (
        1,
        "stopped after 0 of 8: no matching instances (batch 1)\n",
        "",
    )
    assert output(gd("batches", "run", two.id)) == (0, "8 cancelled (batch 2)\n", "")
    assert gd("batches", "stop", two.id).stderr == "batch 2 had finished before\n"


def test_failed_run_says_how_to_continue(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    some(shop, 5)
    sql.execute("alter function gen_durable.cancel_rows rename to gone")
    said = refused(gd("cancel", "--where", "machine=Checkout", "--yes"))
    assert said.endswith("Batch 1 is not finished; continue it: gen-durable batches run 1")
    sql.execute("alter function gen_durable.gone rename to cancel_rows")
    assert output(gd("batches", "run", 1)) == (0, "5 cancelled (batch 1)\n", "")


@pytest.mark.clause("CLI-8")
def test_interrupt_stops_the_batch(
    durable_dsn: str, shop: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("GEN_DURABLE_DSN", durable_dsn)
    for _ in range(2000):
        shop.insert(Checkout, {})
    batch = shop.start_batch("cancel", Checkout)
    with psycopg.connect(durable_dsn) as blocker:
        # The second page waits for this row, again and again.
        blocker.execute("select from gen_durable.gen_durable where id = 700 for no key update")
        reader, writer = os.pipe()
        child = start("batches", "run", str(batch.id), output=writer, errors=tmp_path / "errors")
        while shop.get_batch(batch.id).visited < 1999:
            time.sleep(0.01)
        os.kill(child.pid, signal.SIGINT)
        assert exit_code(child) == 1
    assert os.read(reader, 1000) == b"stopped after 1999 of 2000: 1999 cancelled (batch 1)\n"
    os.close(reader)
    assert shop.get_batch(batch.id).status == "stopped"
