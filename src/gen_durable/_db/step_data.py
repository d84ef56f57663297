"""Write what steps store while they run: checkpoints and progress."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .._core.model import Execution, Lease
from ..progress import Progress
from .plan import Plan, statements

__all__ = ["Report", "checkpoint", "progress"]

_SQL = statements("step_data.sql")


class Report(msgspec.Struct, frozen=True, gc=False):
    """The progress of one running step."""

    execution: Execution
    progress: Progress


def checkpoint(execution: Execution, value: str) -> Plan[bool | None]:
    """Store the checkpoint of a running step, as JSON.

    Returns:
        Whether it is stored; `False`: the execution has lost its lease; `None`: another transaction has locked the row.
    """
    rows = yield _SQL["checkpoint"](
        id=execution.id, lease_token=execution.lease_token, step_seq=execution.step_seq, value=value
    )
    if not rows:
        return False
    return None if rows[0]["is_locked"] else True


def progress(reports: Sequence[Report]) -> Plan[set[Lease]]:
    """Store the progress of running steps. Returns the leases of those that are stored.

    The others have lost their lease, or another transaction has locked their row.
    """
    rows = yield _SQL["progress"](
        ids=[report.execution.id for report in reports],
        lease_tokens=[report.execution.lease_token for report in reports],
        step_seqs=[report.execution.step_seq for report in reports],
        values=[msgspec.json.encode(report.progress).decode() for report in reports],
    )
    return {(row["id"], row["lease_token"]) for row in rows}
