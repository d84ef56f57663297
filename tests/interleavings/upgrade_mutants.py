"""Mutants of commits that change the version of an instance."""

from __future__ import annotations

from tests.interleavings.mutants import Mutant
from tests.interleavings.product import Change
from tests.interleavings.scenarios import upgrades

_GUARD = "g.id = any (array[o.id]) and g.lease_token = o.lease_token and g.step_seq = o.step_seq"
_MISFIT = "the state does not fit the version"
_VERSION = "fsm_version = case when g.cancel_requested_at is null and o.version is not null then o.version else g.fsm_version end"

MUTANTS = [
    Mutant(
        name="a late outcome of an old worker overwrites the upgraded state",
        scenario=upgrades.old_commit_and_upgrade("retry"),
        reason=_MISFIT,
        changes=[Change("commit_plain", _GUARD, "g.id = o.id")],
    ),
    Mutant(
        name="a late upgrade overwrites the state of an old worker",
        scenario=upgrades.late_upgrade_and_old_commit("retry"),
        reason="outcome and reaper both won",
        changes=[Change("commit", _GUARD, "g.id = o.id")],
    ),
    Mutant(
        name="the version changes although a cancel keeps the state",
        scenario=upgrades.upgrade_and_cancel("next"),
        reason=_MISFIT,
        changes=[Change("commit", _VERSION, "fsm_version = coalesce(o.version, g.fsm_version)")],
    ),
    Mutant(
        name="the state changes without its version",
        scenario=upgrades.upgrade_and_cancel("await"),
        reason=_MISFIT,
        changes=[Change("commit", _VERSION, "fsm_version = g.fsm_version")],
    ),
    Mutant(
        name="the pick of a new worker raises the version",
        scenario=upgrades.unchanged_state("retry"),
        reason=_MISFIT,
        changes=[Change("pick", "set status = 'executing',", "set status = 'executing', fsm_version = 2,")],
    ),
]
