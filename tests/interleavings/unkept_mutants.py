"""Mutants of the commit that deletes done instances."""

from __future__ import annotations

from tests.interleavings.mutants import Mutant
from tests.interleavings.product import Change
from tests.interleavings.scenarios import unkept

_GUARD = "g.lease_token = o.lease_token and g.step_seq = o.step_seq"

MUTANTS = [
    Mutant(
        name="a deleting outcome is guarded by the id alone",
        scenario=unkept.delete_and_reap(),
        reason="outcome and reaper both won",
        changes=[Change("delete_done", f"and {_GUARD}", "")],
    ),
    Mutant(
        name="a deleting outcome is guarded without step_seq",
        scenario=unkept.delete_and_continue(),
        reason="applied twice",
        changes=[Change("delete_done", _GUARD, "g.lease_token = o.lease_token")],
    ),
    Mutant(
        name="a deleting outcome does not ask for a cancel",
        scenario=unkept.delete_and_cancel(),
        reason="an acknowledged cancel did not win",
        changes=[Change("delete_done", "and g.cancel_requested_at is null", "")],
    ),
    Mutant(
        name="an instance that occupies a unique key is deleted",
        scenario=unkept.delete_and_insert("unique"),
        reason="two instances with one key",
        changes=[Change("delete_done", "'done' <> all (g.unique_scope)", "true")],
    ),
    Mutant(
        name="an instance that occupies a correlation key is deleted",
        scenario=unkept.delete_and_insert("correlation"),
        reason="two instances with one key",
        changes=[Change("delete_done", "'done' <> all (g.correlation_scope)", "true")],
    ),
    Mutant(
        name="a signal that came during the delete is left",
        scenario=unkept.delete_and_deliver(),
        reason="its signals are left",
        changes=[Change("delete_done", "filter (where has_signals)", "filter (where false)")],
    ),
    Mutant(
        name="the audit of a deleted instance is left",
        scenario=unkept.delete_second_attempt(),
        reason="its audit events are left",
        changes=[Change("delete_done", "a.instance_id = audited.id", "false")],
    ),
    Mutant(
        name="the audit of a first execution is left",
        scenario=unkept.delete_audited(),
        reason="its audit events are left",
        changes=[Change("delete_done", "<> 'off'", "= 'off'")],
    ),
    Mutant(
        name="the audit of a signal that came during the delete is left",
        scenario=unkept.delete_and_deliver(),
        reason="its audit events are left",
        changes=[Change("delete_audit", "where a.instance_id", "where false and a.instance_id")],
    ),
    Mutant(
        name="the records of a deleted instance are left",
        scenario=unkept.delete_second_attempt(),
        reason="its records are left",
        changes=[Change("delete_done", "e.instance_id = collected.id", "false")],
    ),
    Mutant(
        name="an outcome that is committed in a transaction is kept",
        scenario=unkept.delete_without_an_answer(),
        reason="step_seq differs from the acknowledged commits",
        changes=[Change("collect_done", "g.status = 'done'", "false")],
    ),
]
