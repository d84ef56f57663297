"""Single statements, and commit entries for the rows of population.sql."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

from gen_durable._core.change_cursor import ChangeCursor, EndCursor
from gen_durable._core.model import CommitEntry, Execution, Kind
from gen_durable._db import changes, commit, lease, pick, signals, snapshots
from gen_durable._db.commit import Recorder
from gen_durable._db.pick import Leases
from gen_durable._db.plan import Plan, Rows, statements
from tests.plans.explain import Explained, Explainer

LEASE: Final = timedelta(seconds=60)
LEASES: Final = Leases(LEASE)
MACHINES: Final = (["Machine0", "Machine1", "Machine2"], [1, 1, 1])
RECORDER: Final = Recorder("worker", "all")

# Ids by the kind of row, see population.sql. The lease token of a row is its id.
PARENTS: Final = range(19, 20_000, 20)
EXECUTING: Final = range(20_019, 60_000, 20)
EXECUTING_CHILDREN: Final = range(17, 200_000, 200)
HOLDERS: Final = range(18, 200_000, 200)
PARKED: Final = range(14, 200_000, 20)
ENDED: Final = range(7, 200_000, 20)


GATE_ALL: Final = (
    "update gen_durable.gen_durable set gated = true where queue = 'keyed' and status = 'runnable'"
)
# The indexes that ungate reads.
UNGATE: Final = {
    "gen_durable_slot",
    "gen_durable_concurrency",
    "gen_durable_gated",
    "gen_durable_pkey",
    "limits_pkey",
}


def statement(file: str, name: str, **values: Any) -> Plan[Rows]:
    """One statement of a file, for statements that plans run only in some cases."""
    return (yield statements(file)[name](**values))


def outcomes(
    ids: Iterable[int],
    kind: Kind,
    *,
    lease_token: int | None = None,
    step_seq: int = 1,
    parent_id: int | None = None,
    held_key: str | None = None,
    **fields: Any,
) -> list[CommitEntry]:
    """The same outcome for each of these rows, in lock order."""
    executions = (
        Execution(
            id=id,
            lease_token=id if lease_token is None else lease_token,
            fsm="Machine",
            version=1,
            step="step",
            step_seq=step_seq,
            attempt=0,
            state="{}",
            queue="default",
            parent_id=parent_id,
            concurrency_key=held_key,
        )
        for id in sorted(ids, reverse=True)
    )
    return [
        CommitEntry(execution=execution, kind=kind, **{"step": "next", "payload": '{"order": 7}', **fields})
        for execution in executions
    ]


async def explained(explainer: Explainer) -> Mapping[str, Explained]:
    """The frequent statements of workers, by name. Their changes are rolled back."""
    ids = EXECUTING[:100]
    plans: dict[str, Plan[Any]] = {
        "pick": pick.pick("q1", pick.PickRequest(MACHINES, 100, 7, "worker", LEASES)),
        "commit_plain": commit.commit_plain(outcomes(ids, "next"), RECORDER),
        "commit": commit.commit(outcomes(ids, "await", awaits=("paid",)), RECORDER),
        "join": commit.commit(outcomes(EXECUTING_CHILDREN[:50], "done", parent_id=19), RECORDER),
        "renew": lease.renew({(id, id): LEASE for id in ids}),
        "mark_started": lease.mark_started({((id, id), 1): None for id in ids}),
        "deliver": signals.deliver(PARKED[7], "paid", "1", None),
        "deliver by key": signals.deliver(f"order:{PARKED[7]}", "paid", "1", None),
        "inboxes": pick.inboxes(PARKED[:100]),
        "get": snapshots.get(PARKED[7]),
        "wait": changes.read([EndCursor(id, parked=True) for id in ids], 250),
        "watch": changes.read([ChangeCursor(id, (0, 0)) for id in ids], 250),
    }
    found: dict[str, Explained] = {}
    for name, plan in plans.items():
        transaction = explainer.connection.transaction()
        await transaction.start()
        for number, statement in enumerate(await explainer.explain(plan)):
            found[f"{name} {number}"] = statement
        await transaction.rollback()
    return found
