"""`gen-durable signal`."""

from __future__ import annotations

import pytest

from gen_durable.testing import Harness
from tests.cli.conftest import Gd, parsed, refused, told
from tests.cli.machines import BIG, Checkout, Parcel


@pytest.mark.parametrize("target", ["1", "order:1"])
def test_who_waits_for_it_goes_on(gd: Gd, shop: Harness, target: str) -> None:
    order = shop.insert(Checkout, {"order": 1}, correlation_key="order:1")
    shop.drain()
    sent = gd("signal", target, "payment", f'{{"amount": {BIG}}}')
    assert told(sent) == (0, "delivered to 1, which was waiting for it\n", "")
    shop.drain()
    assert shop.assert_done(order) == {"order": 1, "paid": {"amount": BIG}}


def test_who_does_not_finds_it_in_its_inbox(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {})
    assert told(gd("signal", 1, "payment")) == (0, "delivered to 1; it lies in its inbox\n", "")
    assert parsed(gd("signal", 1, "payment", "-", "--json", answer="[]")) == {
        "id": 1,
        "delivered": True,
        "is_awaited": False,
    }


def test_a_dedup_key_counts_once(gd: Gd, shop: Harness) -> None:
    shop.insert(Checkout, {})
    assert gd("signal", 1, "payment", "--dedup-key", "evt-7").exit_code == 0
    again = gd("signal", 1, "payment", "--dedup-key", "evt-7")
    assert told(again) == (0, "1 has had a signal with that dedup key; nothing was added\n", "")


def test_unknown_target_is_an_error(gd: Gd, shop: Harness) -> None:
    shop.insert(Parcel, 1, correlation_key="parcel")
    shop.drain()
    for target in (1, 9, "parcel", "nobody"):
        assert refused(gd("signal", target, "payment")).startswith("cannot signal 'payment': ")
    assert refused(gd("signal", 1, "payment", "{")) == "the payload cannot be used: Input data was truncated"
    assert refused(gd("signal", 0, "payment")).startswith("the id is 0; ")
    assert refused(gd("signal", 1, "")).startswith("the name of a signal is empty")
