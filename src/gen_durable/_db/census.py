"""Count instances by machine, version, status and step, from bounded reads."""

from __future__ import annotations

from collections import Counter
from typing import Final

import msgspec

from ..stats import Awaited, Census, CensusGroup
from .plan import Plan, Row, statements
from .snapshots import now

__all__ = ["census"]

_SQL = statements("census.sql")
# Of one machine, and of each of many: the most rows that a figure counts, also of done and cancelled ones, and how many
# rows of a group are read for their age and what they await.
_OF_ONE: Final = {"most": 10_000, "most_ended": 10_000, "sample": 200}
_OF_EACH: Final = {"most": 500, "most_ended": 100, "sample": 10}

_awaits = msgspec.json.Decoder(list[list[tuple[tuple[str, ...], int]]]).decode


def census(machine: str | None) -> Plan[Census]:
    """Count the instances of one machine, or of all machines."""
    at = yield from now()
    if machine is None:
        rows = yield _SQL["of_all"](fsms=None, **_OF_EACH)
    else:
        rows = yield _SQL["of_machines"](fsms=[machine], **_OF_ONE)
    return Census(at=at, groups=tuple(map(_group, rows)))


def _group(row: Row) -> CensusGroup:
    awaited: Counter[tuple[str, ...]] = Counter()
    for found in _awaits(row["awaits"]):
        awaited.update(dict(found))
    return CensusGroup(
        machine=row["fsm"],
        version=row["fsm_version"],
        step=row["step"],
        state=row["state"],
        count=row["count"],
        at_least=row["at_least"],
        oldest=row["oldest"],
        awaits=tuple(Awaited(signals=names, sampled=count) for names, count in awaited.most_common()),
    )
