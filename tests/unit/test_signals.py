"""Signals and inboxes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from gen_durable.errors import OptionError, UsageError
from gen_durable.signals import Inbox, Message, Signal, signal_name


class Payment(msgspec.Struct):
    amount: int


payment = Signal("payment_confirmed", Payment)
withdrawn = Signal("withdrawn")
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def message(id: int, name: str, payload: Any = None) -> Message:
    return Message(id=id, name=name, payload=payload, sent_at=NOON)


INBOX = Inbox(
    [
        message(1, "payment_confirmed", Payment(5)),
        message(2, "withdrawn"),
        message(3, "payment_confirmed", Payment(7)),
    ]
)


def test_get_returns_the_oldest_message() -> None:
    assert INBOX.get(payment) == INBOX.get("payment_confirmed") == Payment(5)
    assert INBOX.get("other") is None


class Counted(Message):
    """Counts how often its name is read."""

    reads = 0

    @property
    def name(self) -> str:
        Counted.reads += 1
        return "note" if self.id % 2 else "other"

    @name.setter
    def name(self, name: str) -> None: ...


def test_taking_all_messages_reads_each_a_few_times() -> None:
    Counted.reads = 0
    inbox = Inbox([Counted(id=id, name="", payload=id, sent_at=NOON) for id in range(1, 2001)])
    taken = []
    while (note := inbox.take("note")) is not None:
        taken.append(note)
    assert taken == list(range(1, 2001, 2))
    assert inbox.take("other") == 2
    assert Counted.reads < 10_000


def test_all_returns_messages_in_order() -> None:
    assert INBOX.all(payment) == INBOX.all("payment_confirmed") == [Payment(5), Payment(7)]
    assert INBOX.all("other") == []


def test_signal_without_payload_supports_in() -> None:
    assert withdrawn in INBOX
    assert "withdrawn" in INBOX
    assert INBOX.get(withdrawn) is None
    assert withdrawn not in Inbox()


def test_inbox_is_a_collection() -> None:
    assert [one.id for one in INBOX] == [1, 2, 3]
    assert INBOX[1].name == "withdrawn"
    assert len(INBOX) == 3
    assert INBOX
    assert not Inbox()
    assert repr(Inbox()) == "Inbox([])"


def test_signals_of_one_name_are_equal() -> None:
    assert signal_name(payment) == "payment_confirmed"
    assert signal_name("other") == "other"
    assert repr(payment) == "Signal('payment_confirmed', Payment)"
    assert repr(withdrawn) == "Signal('withdrawn')"


@pytest.mark.parametrize("signal", [5, None, b"paid"])
def test_value_that_is_not_a_signal_is_refused(signal: Any) -> None:
    for call in (INBOX.take, INBOX.get, INBOX.all, INBOX.__contains__):
        with pytest.raises(
            UsageError, match=f"type {type(signal).__name__} is not a signal; give a declared"
        ):
            call(signal)


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "é" * 128, None, b"paid"])
def test_unstorable_signal_name_is_rejected(name: Any) -> None:
    with pytest.raises(OptionError, match="the name of a signal"):
        Signal(name)
