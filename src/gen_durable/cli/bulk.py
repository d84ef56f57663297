"""Doing something to a few instances or to all that match: first a preview, then the work, batch by batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec

from .._db import control, inspect
from .._db.failures import StatementError
from .._db.inspect import Filter
from .._db.plan import Row
from .._db.pool import Database
from ..errors import UsageError
from .failure import Failure, nobody
from .selection import Selection
from .verbs import IDLE, Change, Group, Outcome, Verb

__all__ = ["Preview", "carry_out", "preview"]

# How many instances one transaction changes.
_BATCH: Final = 500


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What would be touched, as far as it can be told beforehand."""

    groups: Sequence[Group]
    rows: Sequence[Row] = ()
    """The instances, where they were named one by one."""
    wanted: Filter | None = None
    """Else, the filter that they match."""
    before: int | None = None
    """Above every id that matched. What is inserted later was not shown to whoever said yes."""
    cascade: bool = False
    child_count: int = 0
    """Live ones below those to cancel, which a cascade cancels as well."""

    @property
    def count(self) -> int:
        """How many would change."""
        return sum(group.count for group in self.groups if group.outcome not in IDLE) + self.child_count


async def preview(
    database: Database, verb: Verb, chosen: Sequence[int | str] | Selection, *, cascade: bool
) -> Preview:
    """Look at the instances that are named, each once, or at all that match."""
    if isinstance(chosen, Selection):
        shown = await _matching(database, verb, chosen)
    else:
        rows = await _named(database, chosen)
        counts = Counter((row["fsm"], row["status"], _foreseen(verb, row)) for row in rows)
        shown = Preview(groups=[Group(*alike, count) for alike, count in sorted(counts.items())], rows=rows)
    if not cascade:
        return shown
    ids = {id async for batch in _ids(database, shown) for id in batch}
    below = {id async for batch in _generations(database, sorted(ids)) for id in batch}
    return msgspec.structs.replace(shown, cascade=True, child_count=len(below - ids))


async def carry_out(database: Database, verb: Verb, shown: Preview) -> list[Change]:
    """Do it, in transactions of a batch; what became of each instance."""
    done = [Change(row["id"], "left") for row in shown.rows if _foreseen(verb, row) == "left"]
    try:
        async for ids in _ids(database, shown):
            left = {change.id for change in done if change.outcome == "left"}
            done += await _apply(database, verb, [id for id in ids if id not in left])
            if shown.cascade:
                async for children in _generations(database, ids):
                    done += await _apply(database, verb, children)
    except StatementError as error:
        raise Failure(
            f"{error}\n{len(done)} instances were done before; run it again for the rest"
        ) from error
    return done


async def _matching(database: Database, verb: Verb, selection: Selection) -> Preview:
    wanted = await database.run(selection.filter(**verb.defaults))
    newest = await database.run(inspect.ids(wanted, 1, None))
    groups = [
        Group(
            row["fsm"],
            row["status"],
            verb.foresee(row["status"], is_deleted=wanted.only_deleted),
            row["count"],
        )
        for row in await database.run(inspect.tally(wanted))
    ]
    return Preview(groups=groups, wanted=wanted, before=newest[0] + 1 if newest else 0)


async def _named(database: Database, targets: Sequence[int | str]) -> list[Row]:
    found: dict[int, Row] = {}
    for target in targets:
        row = await database.run(inspect.get(target))
        if row is None:
            raise nobody(target)
        found[row["id"]] = row
    return list(found.values())


async def _ids(database: Database, shown: Preview) -> AsyncIterator[list[int]]:
    """The ids of those that were shown, batch by batch."""
    if shown.wanted is None:
        ids = [row["id"] for row in shown.rows]
        for start in range(0, len(ids), _BATCH):
            yield ids[start : start + _BATCH]
        return
    before = shown.before
    while ids := await database.run(inspect.ids(shown.wanted, _BATCH, before)):
        yield ids
        before = ids[-1]


async def _generations(database: Database, parents: Sequence[int]) -> AsyncIterator[list[int]]:
    """The live children of these, then theirs, and so on.

    Whoever cancels on the way has a transaction per generation: parents and children in one would take their locks in
    the wrong order.
    """
    while children := sorted(await database.run(control.live_children(parents))):
        yield children
        parents = children


async def _apply(database: Database, verb: Verb, ids: Sequence[int]) -> list[Change]:
    """Do it to these. One whose key is taken holds up nobody else: around it, the batch is halved."""
    done: list[Change] = []
    batches = [ids] if ids else []
    while batches:
        batch = batches.pop(0)
        try:
            done += await database.run(verb.plan(batch))
        except UsageError:
            half = len(batch) // 2
            if half:
                batches[:0] = [batch[:half], batch[half:]]
            else:
                done.append(Change(batch[0], "refused"))
    places = {id: place for place, id in enumerate(ids)}
    return sorted(done, key=lambda change: places[change.id])


def _foreseen(verb: Verb, row: Row) -> Outcome:
    return verb.foresee(row["status"], is_deleted=row["deleted_at"] is not None)
