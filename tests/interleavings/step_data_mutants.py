"""Mutants of checkpoints and progress."""

from __future__ import annotations

from tests.interleavings.mutants import Mutant
from tests.interleavings.product import Change
from tests.interleavings.scenarios import step_data

_KEEPS = "case when g.cancel_requested_at is not null or o.repeats then g.{0} end"

MUTANTS = [
    Mutant(
        name="a checkpoint is guarded by the name of the worker",
        scenario=step_data.zombie_checkpoint(),
        reason="a lost execution has overwritten a checkpoint",
        changes=[
            Change(
                "checkpoint", "g.lease_token = $2::bigint", "g.locked_by = 'w1' and $2::bigint is not null"
            )
        ],
    ),
    Mutant(
        name="a checkpoint is guarded by the lease token alone",
        scenario=step_data.checkpoint_and_commit("continue"),
        reason="the next step has a checkpoint of another",
        changes=[Change("checkpoint", "g.step_seq = $3::bigint", "$3::bigint is not null")],
    ),
    Mutant(
        name="a checkpoint waits for the commit of its step",
        scenario=step_data.checkpoint_and_commit("continue"),
        reason="waited for a lock",
        changes=[Change("checkpoint", "skip locked", "")],
    ),
    Mutant(
        name="a checkpoint of a locked row counts as stored",
        scenario=step_data.checkpoint_and_commit("retry"),
        reason="the next step has a checkpoint of another",
        changes=[Change("checkpoint", "not exists (select from held)", "false")],
    ),
    Mutant(
        name="the reaper clears the checkpoint",
        scenario=step_data.zombie_checkpoint(),
        reason="the next attempt does not have the stored checkpoint",
        changes=[
            Change(
                "reap",
                "checkpoint = case when judged.verdict <> 'moved' then g.checkpoint end",
                "checkpoint = null",
            )
        ],
    ),
    Mutant(
        name="a chained commit keeps the checkpoint",
        scenario=step_data.checkpoint_and_commit("continue"),
        reason="the next step has a checkpoint of another",
        changes=[Change("commit_plain", _KEEPS.format("checkpoint"), "g.checkpoint")],
    ),
    Mutant(
        name="a retry clears the checkpoint",
        scenario=step_data.checkpoint_and_commit("retry"),
        reason="the next step has a checkpoint of another",
        changes=[Change("commit_plain", _KEEPS.format("checkpoint"), "null")],
    ),
    Mutant(
        name="progress is guarded by the lease token alone",
        scenario=step_data.progress_and_commit("continue"),
        reason="the next step has the progress of another",
        changes=[Change("progress", "and g.step_seq = report.step_seq", "")],
    ),
    Mutant(
        name="progress waits for the commit of its step",
        scenario=step_data.progress_and_commit("continue"),
        reason="waited for a lock",
        changes=[Change("progress", "skip locked", "")],
    ),
    Mutant(
        name="progress is guarded by the name of the worker",
        scenario=step_data.progress_reap_and_pick(),
        reason="stored after the lease was lost",
        changes=[
            Change("progress", "g.lease_token = report.lease_token", "g.locked_by = 'w1'"),
        ],
    ),
]
