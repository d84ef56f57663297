"""Doing something to a few instances or to all that match: first a preview, then the work, batch by batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import msgspec

from .._db import control, snapshots
from .._db.failures import StatementError, is_race
from .._db.plan import Plan, Row
from .._db.pool import Database
from .._db.snapshots import Filter
from ..errors import UsageError
from .failure import Failure, no_instance
from .selection import Selection
from .verbs import IDLE, Change, Group, Outcome, Restore, Verb

__all__ = ["Preview", "carry_out", "preview"]

# How many instances one transaction changes, and how many ids one look brings.
_BATCH: Final = 500
_LOOK: Final = 10_000
# How often a batch is tried that another transaction is in the way of.
_TRIES: Final = 3


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
        rows = await _named(database, verb, chosen)
        counts = Counter((row["fsm"], row["status"], _predicted(verb, row)) for row in rows)
        shown = Preview(groups=[Group(*alike, count) for alike, count in sorted(counts.items())], rows=rows)
    if not cascade:
        return shown
    ids = await _ids(database, verb, shown)
    below: set[int] = set()
    async for parents in _generations(database, ids):
        below.update(await database.run(control.live_children(parents)))
    return msgspec.structs.replace(shown, cascade=True, child_count=len(below.difference(ids)))


async def carry_out(
    database: Database, verb: Verb, shown: Preview, tell: Callable[[int], None]
) -> list[Change]:
    """Do it, in transactions of a batch; what became of each instance. Now and then it tells how many are done."""
    done = [Change(row["id"], "left") for row in shown.rows if _predicted(verb, row) == "left"]
    left = {change.id for change in done}
    try:
        for batch in _batches([id for id in await _ids(database, verb, shown) if id not in left]):
            done += await _apply(database, verb, batch)
            tell(len(done))
        if shown.cascade:
            async for parents in _generations(database, [change.id for change in done]):
                for batch in _batches(await database.run(control.live_children(parents))):
                    done += await _apply(database, verb, batch)
                    tell(len(done))
    except StatementError as error:
        raise Failure(
            f"{error}\n{len(done)} instances were done before; run it again for the rest"
        ) from error
    return done


async def _matching(database: Database, verb: Verb, selection: Selection) -> Preview:
    wanted = await database.run(selection.filter(**verb.defaults))
    newest = await database.run(snapshots.ids(wanted, 1, None))
    groups = [
        Group(
            row["fsm"],
            row["status"],
            verb.predict(row["status"], is_deleted=wanted.only_deleted),
            row["count"],
        )
        for row in await database.run(snapshots.tally(wanted))
    ]
    return Preview(groups=groups, wanted=wanted, before=newest[0] + 1 if newest else 0)


async def _named(database: Database, verb: Verb, targets: Sequence[int | str]) -> list[Row]:
    found: dict[int, Row] = {}
    for target in targets:
        row = await database.run(_find(verb, target))
        if row is None:
            raise no_instance(target, "--where correlation-key={}")
        found[row["id"]] = row
    return list(found.values())


def _find(verb: Verb, target: int | str) -> Plan[Row | None]:
    if isinstance(verb, Restore) and isinstance(target, str):
        # A key means whoever is deleted and had it, even if another instance has it now.
        target = (yield from control.deleted_with_key(target)) or target
    return (yield from snapshots.get(target))


async def _ids(database: Database, verb: Verb, shown: Preview) -> list[int]:
    """The ids of those that were shown, in the order in which they are to be changed."""
    if shown.wanted is None:
        return [row["id"] for row in shown.rows]
    ids: list[int] = []
    before = shown.before
    while batch := await database.run(snapshots.ids(shown.wanted, _LOOK, before)):
        ids += batch
        before = batch[-1]
    return ids if verb.is_newest_first else ids[::-1]


async def _generations(database: Database, parents: Sequence[int]) -> AsyncIterator[Sequence[int]]:
    """These, their children, and so on: whoever may have live children, also if it failed or was cancelled before.

    Whoever cancels on the way has other transactions for children than for parents: one would take their locks in the
    wrong order.
    """
    while parents:
        yield parents
        parents = await database.run(control.unfinished_children(parents))


def _batches(ids: Sequence[int]) -> list[Sequence[int]]:
    return [ids[start : start + _BATCH] for start in range(0, len(ids), _BATCH)]


async def _apply(database: Database, verb: Verb, ids: Sequence[int]) -> list[Change]:
    """Do it to these. One whose key is taken holds up nobody else: around it, the batch is halved."""
    done: list[Change] = []
    batches, tries = [ids], _TRIES
    while batches:
        batch = batches.pop(0)
        try:
            done += await database.run(verb.plan(batch))
        except StatementError as error:
            tries -= 1
            if not tries or not is_race(error):
                raise
            batches.insert(0, batch)
        except UsageError as error:
            half = len(batch) // 2
            if half:
                batches[:0] = [batch[:half], batch[half:]]
            else:
                done.append(Change(batch[0], "refused", str(error)))
    places = {id: place for place, id in enumerate(ids)}
    return sorted(done, key=lambda change: places[change.id])


def _predicted(verb: Verb, row: Row) -> Outcome:
    return verb.predict(row["status"], is_deleted=row["deleted_at"] is not None)
