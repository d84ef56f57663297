"""`gen-durable signal`."""

from __future__ import annotations

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
