"""Mutants of appends to streams."""

from __future__ import annotations

from tests.interleavings.mutants import Mutant
from tests.interleavings.product import Change
from tests.interleavings.scenarios import streams

_GUARD = "and g.lease_token = chunk.lease_token and g.step_seq = chunk.step_seq"
_LOCK = "for no key update of g skip locked"

MUTANTS = [
    Mutant(
        name="an append is guarded by the id alone",
        scenario=streams.zombie(),
        reason="items of an execution that has lost its lease",
        changes=[Change("append_items", f"{_GUARD}\n", "\n")],
    ),
    Mutant(
        name="an append is guarded without step_seq",
        scenario=streams.append_and_continue(),
        reason="items of a step that has committed",
        changes=[Change("append_items", _GUARD, "and g.lease_token = chunk.lease_token")],
    ),
    Mutant(
        name="an append does not lock its rows",
        scenario=streams.append_cancel_and_read(),
        reason="an item after the end",
        changes=[Change("append_items", _LOCK, "")],
    ),
    Mutant(
        name="an append that is sent again does not skip what is stored",
        scenario=streams.append_again(),
        reason="items lost, doubled or in another order",
        changes=[
            Change("append_items", "where item.number > tails.stored", "where item.number > 0"),
            Change("append_items", "item.number - tails.stored", "item.number"),
        ],
    ),
    Mutant(
        name="an append waits for locked rows",
        scenario=streams.append_beside_a_locked_row(),
        reason="waited for a lock",
        changes=[Change("append_items", _LOCK, "for no key update of g")],
    ),
    Mutant(
        name="a locked row counts as lost",
        scenario=streams.append_beside_a_locked_row(),
        reason="a locked row counted as lost",
        changes=[Change("append_items", "where g.id = chunk.id and", "where false and")],
    ),
    Mutant(
        name="an append does not flag its instance",
        scenario=streams.append_and_delete(),
        reason="its stream items are left",
        changes=[Change("append_items", "set has_items = true", "set has_items = false")],
    ),
    Mutant(
        name="the items of a deleted instance are left",
        scenario=streams.append_and_delete(),
        reason="its stream items are left",
        changes=[Change("delete_done", "filter (where has_items)", "filter (where false)")],
    ),
]
