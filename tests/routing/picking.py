"""Inserting rows and picking them by prefix, one statement at a time."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

from gen_durable._core.model import Execution, NewInstance
from gen_durable._db import insert, pick
from gen_durable._db.plan import Plan
from gen_durable._db.pool import Database

LEASES: Final = pick.Leases(timedelta(seconds=60))


async def inserted(database: Database, db: Any, rows: Sequence[tuple[str, int, int, float]]) -> list[int]:
    """Insert rows (type, version, priority, seconds since due)."""
    answers = await database.run(
        insert.insert(
            [
                NewInstance(
                    fsm,
                    version,
                    "run",
                    "null",
                    "default",
                    priority,
                    None,
                    None,
                    None,
                    None,
                    None,
                    None,
                    None,
                    None,
                )
                for fsm, version, priority, _ in rows
            ],
            autocommit=True,
        )
    )
    await db.executemany(
        "update gen_durable.gen_durable set eligible_at = date_trunc('day', now()) - $2::float8 * interval '1 s'"
        " - interval '2 days' where id = $1",
        [(answer.id, ago) for answer, (*_, ago) in zip(answers, rows, strict=True)],
    )
    return [answer.id for answer in answers]


def by_prefix(
    prefix: str,
    demand: int = 1000,
    *,
    reach: int | None = None,
    machines: Iterable[tuple[str, int]] | None = None,
    leases: pick.Leases = LEASES,
) -> Plan[pick.Picked]:
    known = None
    if machines is not None:
        pairs = list(machines)
        known = ([fsm for fsm, _ in pairs], [version for _, version in pairs])
    request = pick.PickRequest(known, demand, secrets.randbits(62), "worker", leases)
    return pick.pick_by_prefix(prefix, request, reach or 2 * demand)


async def picked(database: Database, prefix: str, demand: int = 1000, **options: Any) -> list[Execution]:
    return (await database.run(by_prefix(prefix, demand, **options))).executions
