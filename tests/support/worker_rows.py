"""The row that a worker registers, for tests without a worker."""

from __future__ import annotations

from gen_durable._db.workers import WorkerRow

# It serves queue default and runs version 1 of machine A.
WORKER_ROW = WorkerRow(
    name="w",
    host="h",
    pid=1,
    version="1",
    queues=["default"],
    capacities=[10],
    prefixes=[],
    prefix_capacities=[],
    leaves_unknown=False,
    fsms=["A"],
    fsm_versions=[1],
)
