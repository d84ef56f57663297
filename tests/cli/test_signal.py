"""`gen-durable signal`."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from gen_durable.testing import Harness
from tests.cli.conftest import Gd, output, parsed, refused
from tests.cli.machines import BIG, Checkout, Parcel


@pytest.mark.parametrize("target", ["1", "order:1"])
def test_signal_wakes_a_waiting_instance(gd: Gd, shop: Harness, target: str) -> None:
    order = shop.insert(Checkout, {"order": 1}, correlation_key="order:1")
    shop.drain()
    sent = gd("signal", target, "payment", f'{{"amount": {BIG}}}')
    assert output(sent) == (0, "delivered to 1, which was waiting for it\n", "")
    shop.drain()
    assert shop.assert_done(order) == {"order": 1, "paid": {"amount": BIG}}


def test_signal_goes_to_the_inbox(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {})
    assert output(gd("signal", 1, "payment")) == (
        0,
        "delivered to the inbox of 1; the instance is not waiting for it\n",
        "",
    )
    assert parsed(gd("signal", 1, "payment", "-", "--json", answer="[]")) == {
        "id": 1,
        "delivered": True,
        "is_awaited": False,
    }


def test_dedup_key_delivers_once(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {})
    assert gd("signal", 1, "payment", "--dedup-key", "evt-7").exit_code == 0
    again = gd("signal", 1, "payment", "--dedup-key", "evt-7")
    assert output(again) == (0, "not delivered: instance 1 already has a signal with this dedup key\n", "")


def test_unknown_instance(gd: Gd, shop: Harness) -> None:
    shop.insert(Parcel, 1, correlation_key="parcel")
    shop.drain()
    for target in (1, 9, "parcel", "nobody"):
        assert refused(gd("signal", target, "payment")).startswith("cannot signal 'payment': ")
    assert refused(gd("signal", 1, "payment", "{")) == "the payload is invalid: Input data was truncated"
    assert refused(gd("signal", 0, "payment")).startswith("the id is 0; ")
    assert refused(gd("signal", 1, "")).startswith("the name of a signal is empty")


@pytest.mark.clause("CLI-7")
def test_payload_is_checked_against_the_registered_schema(
    gd: Gd, shop: Harness, sql: psycopg.Connection[Any]
) -> None:
    shop.insert(Parcel, 1, correlation_key="parcel")
    assert refused(gd("signal", "parcel", "moved", '[1, "north"]')) == (
        "the payload of signal 'moved' cannot be stored as its type in Parcel version 2: at $[1]: expected integer, got string. "
        "Correct the payload, or add --no-validate."
    )
    assert "expected null, got object" in refused(gd("signal", 1, "lost", "{}"))
    assert sql.execute("select count(*) from gen_durable.signals").fetchone() == (0,)
    assert gd("signal", 1, "lost").exit_code == 0
    assert gd("signal", 1, "moved", "[1, 2]").exit_code == 0
    assert gd("signal", 1, "moved", '"far"', "--no-validate").exit_code == 0


@pytest.mark.clause("CLI-7")
def test_payload_without_a_known_schema_is_not_checked(
    gd: Gd, shop: Harness, sql: psycopg.Connection[Any]
) -> None:
    shop.insert(Parcel, 1)
    warned = gd("signal", 1, "mooved", '"far"')
    assert warned.exit_code == 0
    assert warned.stderr == "warning: machine Parcel declares no signal 'mooved'; did you mean 'moved'?\n"
    other = gd("signal", 1, "xyz", '"far"')
    assert other.stderr.startswith("warning: machine Parcel declares no signal 'xyz'; it declares ")
    sql.execute("update gen_durable.machines set signals = '{\"moved\": null}'")
    assert gd("signal", 1, "moved", '"far"').exit_code == 0
    sql.execute("update gen_durable.machines set signals = null")
    assert gd("signal", 1, "moved", '"far"').exit_code == 0
    sql.execute("delete from gen_durable.machines")
    assert gd("signal", 1, "moved", '"far"').exit_code == 0
