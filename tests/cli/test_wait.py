"""`gen-durable wait`: exit codes and output."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from gen_durable._db import changes
from gen_durable._db.failures import StatementError
from gen_durable._db.plan import Plan
from gen_durable.testing import Harness
from tests.cli.conftest import Gd, output, parsed, refused
from tests.cli.machines import BIG, Checkout, Parcel


@pytest.mark.clause("CLI-4")
def test_done_exits_with_0_and_prints_the_result(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {"order": 1}, correlation_key="order:1")
    shop.signal(1, "payment", BIG)
    shop.drain()
    assert output(gd("wait", 1)) == (0, f'{{"paid": {BIG}, "order": 1}}\n', "")
    assert output(gd("wait", "order:1", "--timeout", "0s"))[0] == 0
    found = parsed(gd("wait", 1, "--json"))
    assert (found["status"], found["result"]["paid"]) == ("done", BIG)


@pytest.mark.clause("CLI-4")
def test_failed_and_cancelled_exit_with_1(gd: Gd, shop: Harness) -> None:
    shop.insert(Parcel, -1)
    shop.insert(Checkout, {})
    shop.cancel(2)
    shop.drain()
    failed = gd("wait", 1)
    assert output(failed) == (
        1,
        "",
        "Parcel 1 has status failed at step pack: ValueError: lost\\nin the post\n",
    )
    assert output(gd("wait", 2)) == (1, "", "Checkout 2 has status cancelled at step start\n")
    as_json = gd("wait", 2, "--json")
    assert (as_json.exit_code, '"status":"cancelled"' in as_json.stdout) == (1, True)


@pytest.mark.clause("CLI-4")
def test_timeout_exits_with_3(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {})
    began = time.monotonic()
    late = gd("wait", 1, "--timeout", "300ms")
    assert output(late) == (3, "", "Checkout 1 still has status runnable at step start\n")
    assert 0.3 <= time.monotonic() - began < 3


def test_until_parked_returns_at_an_await(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {})
    shop.drain()
    parked = gd("wait", 1, "--until", "parked")
    assert output(parked) == (
        0,
        "",
        "Checkout 1 has status awaiting_signal at step ship: waiting for signal payment\n",
    )
    assert gd("wait", 1, "--timeout", "50ms").exit_code == 3


def test_until_a_step_that_the_machine_does_not_have_is_named(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {})
    code, _, errors = output(gd("wait", 1, "--until", "step:shp", "--timeout", "100ms"))
    assert code == 3
    assert errors.startswith(
        "-- --until: machine 'Checkout' has no step 'shp'; did you mean 'ship'? Use one of its steps (start, ship)"
    )
    assert "--until: " not in output(gd("wait", 1, "--until", "step:ship", "--timeout", "100ms"))[2]


def test_wait_for_a_running_instance(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {})
    cancelling = threading.Timer(0.3, shop.cancel, [1])
    cancelling.start()
    assert gd("wait", 1, "--timeout", "20s").exit_code == 1
    cancelling.join()


def test_wait_survives_a_database_outage(gd: Gd, shop: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.insert(Parcel, 1)
    shop.drain()
    errors = iter([StatementError("", "the server closed the connection")])
    read = changes.read

    def fragile(readers: Sequence[changes.Reader], most: int) -> Plan[list[changes.News]]:
        if (error := next(errors, None)) is not None:
            raise error
        return (yield from read(readers, most))

    monkeypatch.setattr(changes, "read", fragile)
    assert gd("wait", 1).exit_code == 0
    assert next(errors, None) is None


def test_unknown_instance(gd: Gd) -> None:
    assert refused(gd("wait", 9)).startswith("no instance has id 9. If it is a correlation key: ")
    assert gd("wait", 9, "--until", "never").exit_code == 2
    assert "or step:NAME; did you mean 'parked'?" in output(gd("wait", 9, "--until", "park"))[2]
    assert gd("wait", 9, "--timeout", "5").exit_code == 2


def test_instance_that_is_removed_during_the_wait_has_ended(
    gd: Gd, shop: Harness, sql: psycopg.Connection[Any]
) -> None:
    shop.insert(Checkout, {})
    remove = threading.Timer(0.3, lambda: sql.execute("delete from gen_durable.gen_durable"))
    remove.start()
    message = refused(gd("wait", 1, "--timeout", "60s"))
    remove.join()
    assert message.startswith("Checkout 1 has ended and was removed, with its result: by keep=False")


def test_removed_result_is_not_an_empty_result(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    shop.insert(Parcel, 1, idempotency_key="once")
    shop.drain()
    sql.execute("update gen_durable.gen_durable set state = '{}', result = null, collected_at = now()")
    waited = gd("wait", 1)
    assert (waited.exit_code, waited.stdout) == (0, "")
    assert "; state and result were removed at 2" in waited.stderr
    shown = gd("show", 1).stdout
    assert "removed:          state and result, 2" in shown
    assert "state: " not in shown
    assert "; state and result were removed at 2" in gd("explain", 1).stdout
