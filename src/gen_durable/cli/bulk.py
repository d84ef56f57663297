"""Change named instances or all that match: a preview first, then the change, as a batch if it is more than a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence

import msgspec

from .. import _verbs
from .._db import batches, control, machines, snapshots
from .._db.failures import StatementError
from .._db.plan import Plan, Row
from .._db.pool import Database
from .._db.search import Filter
from .._verbs.changes import Cancel, Change, Restore, Verb
from ..batches import CHANGED, Batch, BatchGroup, BatchOutcome
from ..errors import UsageError
from .failure import Failure, no_instance
from .selection import Selection

__all__ = ["Preview", "carry_out", "check", "preview", "start"]


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What would change, as far as it can be predicted."""

    groups: Sequence[BatchGroup]
    rows: Sequence[Row] = ()
    """The named instances."""
    wanted: Filter | None = None
    """The filter, if instances were not named."""
    where: str = ""
    """The search, if it is the whole filter."""
    before: int | None = None
    """Above every matching id: instances that are inserted later were not part of the confirmation."""
    cascade: bool = False
    reacts: bool = False
    """Whether machines of the filter have on_cancel or undo steps, so that the prediction is not exact."""
    child_count: int = 0
    """Live descendants, which --cascade cancels as well."""

    @property
    def is_batch(self) -> bool:
        """Return whether it concerns more than a page."""
        return sum(group.count for group in self.groups) + self.child_count > batches.PAGE

    @property
    def count(self) -> int:
        """Return how many instances would change."""
        return sum(group.count for group in self.groups if group.outcome in CHANGED) + self.child_count


async def preview(
    database: Database, verb: Verb, chosen: Sequence[int | str] | Selection, *, cascade: bool
) -> Preview:
    """Read the named instances, each once, or count all that match."""
    if isinstance(chosen, Selection):
        shown = await _matching(database, verb, chosen)
    else:
        rows = await _named(database, verb, chosen)
        if isinstance(verb, Cancel):
            leads_to = await database.run(control.leads_to([row["id"] for row in rows]))
            rows = [{**row, "leads_to": leads_to.get(row["id"])} for row in rows]
        counts = Counter((row["fsm"], row["status"], _predicted(verb, row)) for row in rows)
        shown = Preview(
            groups=[BatchGroup(*alike, count) for alike, count in sorted(counts.items())], rows=rows
        )
    if not cascade:
        return shown
    ids = await _ids(database, verb, shown)
    below: set[int] = set()
    async for parents in _generations(database, ids):
        below.update(await database.run(control.live_children(parents)))
    return msgspec.structs.replace(shown, cascade=True, child_count=len(below.difference(ids)))


async def check(database: Database, verb: Verb, shown: Preview) -> None:
    """Raise an error if the change does not fit the machines of a preview; for a filter, their newest versions."""
    if shown.wanted is not None:
        await database.run(_verbs.check_machines(verb, (group.machine for group in shown.groups)))
        return
    for fsm, version in sorted({(row["fsm"], row["fsm_version"]) for row in shown.rows}):
        await database.run(verb.check(fsm, version))


async def carry_out(database: Database, verb: Verb, shown: Preview) -> list[Change]:
    """Change the instances of a preview at once."""
    done = [Change(row["id"], "left") for row in shown.rows if _predicted(verb, row) == "left"]
    left = {change.id for change in done}
    try:
        ids = [id for id in await _ids(database, verb, shown) if id not in left]
        await _apply(database, verb, ids, done)
        if shown.cascade:
            async for parents in _generations(database, [change.id for change in done]):
                children = await database.run(control.live_children(parents))
                await _apply(database, verb, children, done)
    except StatementError as error:
        raise Failure(
            f"{error}\n{len(done)} instances were changed before. Repeat the command for the rest."
        ) from error
    return done


async def start(database: Database, verb: Verb, shown: Preview) -> Batch:
    """Start a batch that changes the instances of a preview."""
    if shown.wanted is None:
        return await database.run(_verbs.start_batch(verb, [row["id"] for row in shown.rows]))
    newest = None if shown.before is None else shown.before - 1
    return await database.run(
        _verbs.start_batch(verb, shown.wanted, newest=newest, where=shown.where or None)
    )


async def _matching(database: Database, verb: Verb, selection: Selection) -> Preview:
    wanted = await database.run(selection.filter(**verb.defaults))
    found = await database.run(_verbs.preview_batch(verb, wanted))
    names = [group.machine for group in found.groups]
    reacts = isinstance(verb, Cancel) and verb.runs_steps and await database.run(machines.react(names))
    return Preview(
        groups=found.groups,
        wanted=wanted,
        before=found.newest + 1,
        reacts=reacts,
        where="" if selection.values else str(selection.query),
    )


async def _named(database: Database, verb: Verb, targets: Sequence[int | str]) -> list[Row]:
    found: dict[int, Row] = {}
    for target in targets:
        row = await database.run(_find(verb, target))
        if row is None:
            raise no_instance(target, f"gen-durable {verb.name} --where correlation-key={{}}")
        found[row["id"]] = row
    return list(found.values())


def _find(verb: Verb, target: int | str) -> Plan[Row | None]:
    if isinstance(verb, Restore) and isinstance(target, str):
        # The latest deleted instance with this key, even if another instance has the key now.
        target = (yield from control.deleted_with_key(target)) or target
    return (yield from snapshots.get(target))


async def _ids(database: Database, verb: Verb, shown: Preview) -> list[int]:
    """Return the ids of a preview, in the order of the change."""
    if shown.wanted is None:
        return [row["id"] for row in shown.rows]
    ids = await database.run(control.matching_ids(shown.wanted, shown.before))
    return ids if verb.is_newest_first else ids[::-1]


async def _generations(database: Database, parents: Sequence[int]) -> AsyncIterator[Sequence[int]]:
    """Yield these instances, their children, and so on, without children of done ones.

    A failed or cancelled instance may still have live children. Cancel each generation in a transaction of its own:
    one transaction would lock parents and children in the wrong order.
    """
    while parents:
        yield parents
        parents = await database.run(control.unfinished_children(parents))


async def _apply(database: Database, verb: Verb, ids: Sequence[int], done: list[Change]) -> None:
    def on_refused(id: int, error: UsageError) -> None:
        done.append(Change(id, "refused", str(error)))

    await database.run(control.in_batches(ids, verb.plan, done.extend, on_refused))


def _predicted(verb: Verb, row: Row) -> BatchOutcome:
    return verb.predict(row["status"], is_deleted=row["deleted_at"] is not None, leads_to=row.get("leads_to"))
