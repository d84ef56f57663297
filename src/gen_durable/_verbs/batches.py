"""Batches: preview, start, run, stop and list them."""

from __future__ import annotations

import os
import socket
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from .._checks import checked_id, checked_int, checked_name
from .._db import batches as stored
from .._db import control, insert_by_name, outbox, search, snapshots
from .._db.failures import StatementError, is_outage, is_race
from .._db.plan import Plan
from .._db.sqlstates import KEY_TAKEN
from ..batches import Batch, BatchGroup, BatchPreview, InstanceVerb
from ..errors import BatchCountError, NoBatchError, UsageError
from ..refs import Insertable
from .changes import Cancel, Delete, Restore, Retry, Verb
from .common import MAX_PAGE, checked_actor, checked_reason
from .reads import filter_of

__all__ = [
    "BatchRun",
    "batch_filter",
    "check_machines",
    "continue_batch",
    "count_descendants",
    "get_batch",
    "list_batches",
    "preview_batch",
    "preview_matching",
    "start_batch",
    "start_matching",
    "start_replay",
    "stop_batch",
    "verb_of",
]

# Ids that one statement reads: a filter of due instances sorts all of them for each page.
_READ_AHEAD: Final = 10_000
# The lease of a runner. A page takes at most a few seconds; if the runner dies, another one continues after this time.
_LEASE: Final = timedelta(seconds=15)
# Seconds between two looks at a batch that another process runs.
_WAIT: Final = 0.5
# Between pages, a batch pauses for as long as the last page took, within these bounds in seconds: the engine gets at
# least half of the time.
_SHORTEST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 1.0
# Seconds for which locked instances are tried again once nothing else is left.
_PATIENCE: Final = 10.0
# How far the count may move from the preview: this share of it, or this many instances.
_TOLERATED_SHARE: Final = 0.1
_TOLERATED: Final = 10

Run: TypeAlias = tuple[tuple[Batch, float | None], set[str]]


def verb_of(
    name: InstanceVerb,
    *,
    reason: str | None = None,
    actor: str | None = None,
    force: bool = False,
    undo: bool = True,
    cascade: bool = False,
    step: str | None = None,
    state: str | None = None,
) -> Verb:
    """Return the change that a caller names. Of a retry, `step`: where it continues; `state`: with this JSON."""
    for option, value in (("step", step), ("state", state)):
        if value is not None and name != "retry":
            raise UsageError(f"{option}= does not apply to {name}", "remove it")
    if name == "cancel":
        return Cancel(reason=reason, actor=actor, force=force, undo=undo, cascade=cascade)
    kinds: Mapping[str, type[Verb]] = {"retry": Retry, "delete": Delete, "restore": Restore}
    if name not in kinds:
        raise UsageError(f"there is no batch verb {name!r}", "the verbs are cancel, retry, delete, restore")
    if force or cascade or not undo:
        raise UsageError(f"force=, undo= and cascade= do not apply to {name}", "remove them")
    if name == "retry":
        return Retry(
            reason=reason,
            actor=actor,
            step=None if step is None else checked_name(step, "step"),
            state=state,
        )
    return kinds[name](reason=reason, actor=actor)


def preview_matching(
    verb: Verb, machine: Insertable[Any, Any] | str | None, filters: Mapping[str, Any]
) -> Plan[BatchPreview]:
    """Preview a batch of the instances that match the filters of a call."""
    return (yield from preview_batch(verb, (yield from batch_filter(verb, machine, filters))))


def start_matching(
    verb: Verb,
    machine: Insertable[Any, Any] | str | None,
    filters: Mapping[str, Any],
    ids: Iterable[int] | None,
    expected: int | None,
) -> Plan[Batch]:
    """Store a batch of the instances that a call selects: by ids or by filters."""
    if ids is None:
        wanted = yield from batch_filter(verb, machine, filters)
        # With other filters, the search is a part of the selection only.
        where = filters["where"] if machine is None and filters.keys() == {"where"} else None
        return (yield from start_batch(verb, wanted, expected=expected, where=where))
    if machine is not None or filters:
        raise UsageError("a batch got both ids= and filters", "pass one of them")
    return (yield from start_batch(verb, _checked_ids(ids), expected=expected))


def batch_filter(
    verb: Verb, machine: Insertable[Any, Any] | str | None, filters: Mapping[str, Any]
) -> Plan[search.Filter]:
    """Return the filter of a caller, with the defaults of the verb."""
    defaults = dict(verb.defaults)
    wanted = yield from filter_of(machine, filters, defaults.pop("statuses", None), is_change=True)
    return msgspec.structs.replace(wanted, **defaults)


def preview_batch(verb: Verb, wanted: search.Filter) -> Plan[BatchPreview]:
    """Count the matching instances, and predict what the verb does to them."""
    newest = yield from search.ids(wanted, 1, None)
    groups = [
        BatchGroup(
            row["fsm"],
            row["status"],
            verb.predict(row["status"], is_deleted=wanted.only_deleted),
            row["count"],
        )
        for row in (yield from search.tally(wanted))
    ]
    return BatchPreview(verb=verb.name, groups=tuple(groups), newest=newest[0] if newest else 0)


def count_descendants(wanted: search.Filter, most: int) -> Plan[tuple[int, bool]]:
    """Count the live descendants of the matching instances, which a cascade cancels as well.

    Instances that match themselves do not count. Reads at most `most` matching instances and their descendants; returns
    whether these are all.
    """
    ids = yield from search.ids(wanted, most + 1, None)
    seen, live, parents = set(ids), set[int](), list(ids)
    while parents and len(seen) <= most:
        live.update((yield from control.live_children(parents)))
        # A failed or cancelled instance may have live children.
        parents = [id for id in (yield from control.unfinished_children(parents)) if id not in seen]
        seen.update(parents)
    return len(live.difference(ids)), not parents


def check_machines(verb: Verb, names: Iterable[str]) -> Plan[None]:
    """Raise an error if the change does not fit the newest version of one of these machines."""
    known = yield from insert_by_name.known_versions()
    for name in sorted({name for name in names if name in known}):
        yield from verb.check(name, max(known[name]))


def _check_versions(verb: Verb, ids: Sequence[int]) -> Plan[None]:
    """Raise an error if the change does not fit a version of a machine that one of these instances has."""
    rows = yield from snapshots.briefs(ids)
    for fsm, version in sorted({(row["fsm"], row["fsm_version"]) for row in rows}):
        yield from verb.check(fsm, version)


def start_batch(
    verb: Verb,
    chosen: search.Filter | Sequence[int],
    *,
    expected: int | None = None,
    newest: int | None = None,
    where: str | None = None,
) -> Plan[Batch]:
    """Store a batch. It changes nothing until it is run.

    Args:
        verb: the change, with its options, reason and actor.
        chosen: a filter, or ids.
        expected: how many instances changed in the preview.
        newest: the largest id of the batch. Default: the newest instance that matches now.
        where: the search that the filter was made of, for people.

    Raises:
        BatchCountError: the count has moved since the preview.
    """
    if isinstance(chosen, search.Filter):
        shown = yield from preview_batch(verb, chosen)
        _check_count(shown, expected)
        if isinstance(verb, Retry):
            yield from check_machines(verb, (group.machine for group in shown.groups))
        total, newest = shown.total, shown.newest if newest is None else newest
    else:
        if isinstance(verb, Retry) and (verb.step, verb.state) != (None, None):
            yield from _check_versions(verb, chosen)
        total, newest = len(set(chosen)), max(chosen, default=0)
    id = yield from stored.start(
        verb.name,
        chosen,
        msgspec.json.encode(verb.options).decode(),
        where=where,
        reason=checked_reason(verb.reason),
        actor=checked_actor(verb.actor),
        expected=expected,
        total=total,
        newest=newest,
    )
    return (yield from get_batch(id))


def start_replay(sink: str | None, reason: str | None, actor: str | None) -> Plan[Batch]:
    """Store a batch that publishes all dead letters again, or those of one sink. It changes nothing until it is run."""
    if sink is not None:
        checked_name(sink, "sink")
    total, newest = yield from outbox.dead_letters(sink)
    id = yield from stored.start(
        "replay",
        stored.DeadLetters(sink),
        msgspec.json.encode({} if sink is None else {"sink": sink}).decode(),
        where=None,
        reason=checked_reason(reason),
        actor=checked_actor(actor),
        expected=None,
        total=total,
        newest=newest,
    )
    return (yield from get_batch(id))


def get_batch(id: int) -> Plan[Batch]:
    """Read a batch.

    Raises:
        NoBatchError: it does not exist, or the collector has removed it.
    """
    batch = yield from stored.get(checked_id(id))
    if batch is None:
        raise NoBatchError(id)
    return batch


def list_batches(limit: int) -> Plan[Sequence[Batch]]:
    """Return the newest batches."""
    return (yield from stored.list_batches(checked_int(limit, "limit", 1, MAX_PAGE)))


def continue_batch(id: int, reason: str | None, actor: str | None) -> Plan[Batch]:
    """Audit that a caller continues a batch that has not ended; return it. It changes nothing until it is run."""
    yield from stored.record_continue(checked_id(id), checked_reason(reason), checked_actor(actor))
    return (yield from get_batch(id))


def stop_batch(id: int, reason: str | None, actor: str | None) -> Plan[Batch]:
    """Stop a batch before its next page; return it. A batch that has ended is left unchanged."""
    yield from stored.stop(checked_id(id), checked_reason(reason), checked_actor(actor))
    return (yield from get_batch(id))


class _Next(NamedTuple):
    """What a page visits."""

    ids: list[int]
    visited: int | None
    """The last of them in the order of the walk; `None`: only instances that were locked before."""
    is_exhausted: bool


class BatchRun:
    """Runs a batch page by page, or waits while another process does.

    One thread or task uses it. It reads ids ahead, so an instance that stops matching within a few seconds before its
    page may still be visited; the verb checks the status again.
    """

    def __init__(self, id: int) -> None:
        self._id = checked_id(id)
        self._runner = f"{socket.gethostname()}:{os.getpid()}"
        self._token: int | None = None
        self._chosen: search.Filter | list[int] | stored.DeadLetters | None = None
        self._is_upwards = self._is_cascade = False
        self._ahead: deque[int] = deque()
        self._has_read_all = False
        # The most instances of the next page: less after an error, to find the instance that caused it.
        self._size = stored.PAGE
        self._visited = 0
        self._moved_at = time.monotonic()

    def plan(self) -> Plan[Run]:
        """Run one page; return the batch, the pause until the next call (`None`: it is over), and queues with work."""
        began = time.monotonic()
        queues: set[str] = set()
        batch = yield from get_batch(self._id)
        if not batch.is_over and (self._token is not None or (yield from self._begin(batch))):
            try:
                queues = yield from self._page()
            except StatementError as error:
                # After an outage the lease expires.
                if self._token is not None and not is_outage(error):
                    yield from stored.release(self._id, self._token, str(error))
                raise
            batch = yield from get_batch(self._id)
        if batch.is_over:
            return (batch, None), queues
        if batch.visited != self._visited:
            self._visited, self._moved_at = batch.visited, time.monotonic()
        if self._token is None:
            return (batch, _WAIT), queues
        took = time.monotonic() - began
        is_stuck = time.monotonic() - self._moved_at > _LONGEST_PAUSE
        return (
            batch,
            _LONGEST_PAUSE if is_stuck else min(max(took, _SHORTEST_PAUSE), _LONGEST_PAUSE),
        ), queues

    def _begin(self, batch: Batch) -> Plan[bool]:
        """Take the lease; return whether this process has it now."""
        if self._chosen is None:
            self._chosen = yield from stored.selection(self._id)
            self._is_upwards = batch.verb != "retry"
            self._is_cascade = bool(batch.options.get("cascade"))
        self._token = yield from stored.lease(self._id, self._runner, _LEASE)
        self._ahead.clear()
        self._has_read_all = False
        self._visited, self._moved_at = batch.visited, time.monotonic()
        return self._token is not None

    def _page(self) -> Plan[set[str]]:
        at = yield from stored.position(self._id)
        if at.is_over or at.lease_token != self._token:
            self._token = None
            return set()
        following = yield from self._next(at)
        is_stuck = time.monotonic() - self._moved_at > _PATIENCE
        if is_stuck and following.visited is None and following.ids:
            return (yield from self._skip(at, following, "locked", "their rows were locked"))
        try:
            queues = yield from self._change(at, following)
        except StatementError as error:
            if error.sqlstate != KEY_TAKEN and not is_race(error):
                raise
            if len(following.ids) > 1:
                self._size = len(following.ids) // 2
                return set()
            if error.sqlstate == KEY_TAKEN:
                return (yield from self._skip(at, following, "refused", error.message))
            return (yield from self._skip(at, following, "locked", error.message)) if is_stuck else set()
        self._size = min(stored.PAGE, self._size * 2)
        return queues

    def _skip(self, at: stored.Position, following: _Next, outcome: str, problem: str) -> Plan[set[str]]:
        return (yield from self._change(at, following, outcome, problem))

    def _change(
        self, at: stored.Position, following: _Next, skipped: str | None = None, problem: str | None = None
    ) -> Plan[set[str]]:
        queues = yield from stored.page(
            self._id,
            at,
            following.ids,
            visited=following.visited,
            is_exhausted=following.is_exhausted,
            alive_for=_LEASE,
            skipped=skipped,
            problem=problem,
        )
        return queues or set()

    def _next(self, at: stored.Position) -> Plan[_Next]:
        """The instances of the next page: those that were locked before, then the next ones of the walk."""
        again = list(at.pending[: self._size])
        room = self._size - len(again)
        if not room:
            return _Next(again, None, is_exhausted=False)
        if at.levels:
            ids = yield from stored.children(at.levels[-1], room)
            is_exhausted = len(ids) < room
        else:
            ids = yield from self._walk(at, room)
            is_exhausted = self._has_read_all and len(ids) == len(self._ahead)
        return _Next(again + ids, ids[-1] if ids else None, is_exhausted)

    def _walk(self, at: stored.Position, room: int) -> Plan[list[int]]:
        """The next matching ids, which stay in `_ahead` until they are visited."""
        while self._ahead and self._is_visited(self._ahead[0], at):
            self._ahead.popleft()
        if not self._ahead and not self._has_read_all:
            # A cascade changes instances that the walk would visit later.
            demand = room if self._is_cascade else _READ_AHEAD
            ids = yield from self._read(at, demand)
            self._ahead.extend(ids)
            self._has_read_all = len(ids) < demand
        return [self._ahead[place] for place in range(min(room, len(self._ahead)))]

    def _is_visited(self, id: int, at: stored.Position) -> bool:
        return at.after_id is not None and (id <= at.after_id if self._is_upwards else id >= at.after_id)

    def _read(self, at: stored.Position, demand: int) -> Plan[list[int]]:
        after = at.after_id
        if isinstance(self._chosen, list):
            if self._is_upwards:
                left = self._chosen[bisect_right(self._chosen, after or 0) :]
            else:
                left = [id for id in reversed(self._chosen) if after is None or id < after]
            return left[:demand]
        if isinstance(self._chosen, stored.DeadLetters):
            return (yield from outbox.dead_upwards(self._chosen.sink, demand, after or 0, at.newest))
        assert self._chosen is not None  # noqa: S101 - read with the lease
        if self._is_upwards:
            return (yield from search.ids_upwards(self._chosen, demand, after or 0, at.newest + 1))
        return (yield from search.ids(self._chosen, demand, at.newest + 1 if after is None else after))


def _check_count(shown: BatchPreview, expected: int | None) -> None:
    if expected is not None and abs(shown.count - expected) > max(_TOLERATED, expected * _TOLERATED_SHARE):
        raise BatchCountError(shown.verb, expected, shown.count)


def _checked_ids(ids: Iterable[int]) -> list[int]:
    """Return the ids of a batch; raise UsageError if they are too many or invalid."""
    checked = [checked_id(id) for id in ids]
    if len(checked) > MAX_PAGE:
        raise UsageError(
            f"a batch takes at most {MAX_PAGE:,} ids, got {len(checked):,}", "use filters, or several batches"
        )
    return checked
