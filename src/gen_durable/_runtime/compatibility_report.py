"""Log and register at the start of a worker which live instances it cannot run."""

from __future__ import annotations

import logging
from typing import Final

from .._core.compatibility import differing_steps
from .._core.registry import Registry
from .._db.compatibility import compare, live_machines
from .._db.pool import Database
from .._db.workers import store_incompatible

__all__ = ["report_incompatible"]

_log: Final = logging.getLogger("gen_durable.worker")
# Instances per group that are read. `gen-durable check --against` reads more.
_SAMPLE: Final = 20
_MAX_LINES: Final = 20


async def report_incompatible(database: Database, registry: Registry, worker: str) -> None:
    """Log one warning per group of instances that the worker cannot run, and per machine with different steps.

    Findings that only the code shows are registered, for `doctor` and `explain`: those that list instances.
    """
    try:
        findings = await database.run(compare(registry, sample=_SAMPLE, is_worker=True))
        if registered := [finding for finding in findings if "ids" in finding.facts]:
            await database.run(store_incompatible(worker, registered))
        live = await database.run(live_machines())
    except Exception as error:  # noqa: BLE001 - the services report problems of the database; this is only a report
        _log.debug("live instances were not checked: %s", error)
        return
    ours = {machine.name for machine in registry}
    lines = [f"{finding.what}; {finding.fix}" for finding in findings]
    differing = [
        each
        for each in differing_steps(live)
        if each.fsm in ours and worker in (each.first.worker, each.second.worker)
    ]
    lines += [
        f"{each}; two services need different machine names, a renamed step needs was="
        for each in differing
        if each.is_conflict
    ]
    for each in differing:
        if not each.is_conflict:
            _log.info("%s; one of them may be a later release", each)
    for line in lines[:_MAX_LINES]:
        _log.warning("incompatible instances: %s", line)
    if len(lines) > _MAX_LINES:
        _log.warning(
            "incompatible instances: %d more groups; run gen-durable check --against", len(lines) - _MAX_LINES
        )
