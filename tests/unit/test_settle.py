"""Outcomes as commit entries, and back."""

from __future__ import annotations

import pytest

from gen_durable import Done
from gen_durable._core.model import Execution
from gen_durable._core.settle import Bounds, outcome_of, settle
from gen_durable.errors import EncodeError
from tests.engine.undo.sagas import Order, Saga


def test_only_steps_of_an_undo_end_without_a_result() -> None:
    """Also a step process, whose entry middleware sees as an outcome."""
    machine, bounds = Saga.__definition__, Bounds(max_payload=1000, max_children=10)
    undo = Execution(1, 7, "Saga", 1, "ship", 4, 0, "{}", "default", is_compensating=True)
    entry = settle(undo, machine, Done(), Order(), bounds)
    assert (entry.payload, outcome_of(entry, machine)) == ("null", Done())
    ordinary = Execution(1, 7, "Saga", 1, "refund", 4, 0, "{}", "default")
    with pytest.raises(EncodeError, match="the result of Saga 1"):
        settle(ordinary, machine, Done(), Order(), bounds)
