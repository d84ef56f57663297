"""Change named instances or all that match: a preview first, then the change in batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence

import msgspec

from .._db import control, insert_by_name, search, snapshots
from .._db.failures import StatementError
from .._db.plan import Plan, Row
from .._db.pool import Database
from .._db.search import Filter
from ..errors import UsageError
from .failure import Failure, no_instance
from .selection import Selection
from .verbs import IDLE, Change, Group, Outcome, Restore, Verb

__all__ = ["Preview", "carry_out", "check", "preview"]


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What would change, as far as it can be predicted."""

    groups: Sequence[Group]
    rows: Sequence[Row] = ()
    """The named instances."""
    wanted: Filter | None = None
    """The filter, if instances were not named."""
    before: int | None = None
    """Above every matching id: instances that are inserted later were not part of the confirmation."""
    cascade: bool = False
    child_count: int = 0
    """Live descendants, which --cascade cancels as well."""

    @property
    def count(self) -> int:
        """Return how many instances would change."""
        return sum(group.count for group in self.groups if group.outcome not in IDLE) + self.child_count


async def preview(
    database: Database, verb: Verb, chosen: Sequence[int | str] | Selection, *, cascade: bool
) -> Preview:
    """Read the named instances, each once, or count all that match."""
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


async def check(database: Database, verb: Verb, shown: Preview) -> None:
    """Raise an error if the change does not fit the machines of a preview; for a filter, their newest versions."""
    if shown.wanted is None:
        versions = {(row["fsm"], row["fsm_version"]) for row in shown.rows}
    else:
        known = await database.run(insert_by_name.known_versions())
        versions = {(name, max(known[name])) for group in shown.groups if (name := group.machine) in known}
    for fsm, version in sorted(versions):
        await database.run(verb.check(fsm, version))


async def carry_out(
    database: Database, verb: Verb, shown: Preview, report: Callable[[int], None]
) -> list[Change]:
    """Change the instances of a preview, batch by batch; `report` gets the number of those done so far."""
    done = [Change(row["id"], "left") for row in shown.rows if _predicted(verb, row) == "left"]
    left = {change.id for change in done}
    try:
        ids = [id for id in await _ids(database, verb, shown) if id not in left]
        await _apply(database, verb, ids, done, report)
        if shown.cascade:
            async for parents in _generations(database, [change.id for change in done]):
                children = await database.run(control.live_children(parents))
                await _apply(database, verb, children, done, report)
    except StatementError as error:
        raise Failure(
            f"{error}\n{len(done)} instances were changed before. Repeat the command for the rest."
        ) from error
    return done


async def _matching(database: Database, verb: Verb, selection: Selection) -> Preview:
    wanted = await database.run(selection.filter(**verb.defaults))
    newest = await database.run(search.ids(wanted, 1, None))
    groups = [
        Group(
            row["fsm"],
            row["status"],
            verb.predict(row["status"], is_deleted=wanted.only_deleted),
            row["count"],
        )
        for row in await database.run(search.tally(wanted))
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


async def _apply(
    database: Database, verb: Verb, ids: Sequence[int], done: list[Change], report: Callable[[int], None]
) -> None:
    def on_changed(changes: Sequence[Change]) -> None:
        done.extend(changes)
        report(len(done))

    def on_refused(id: int, error: UsageError) -> None:
        done.append(Change(id, "refused", str(error)))

    await database.run(control.in_batches(ids, verb.plan, on_changed, on_refused))


def _predicted(verb: Verb, row: Row) -> Outcome:
    return verb.predict(row["status"], is_deleted=row["deleted_at"] is not None)
