"""Batches: preview, start, run and stop changes of many instances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from ... import _verbs
from ..._core.codec import encode
from ..._core.query_terms import parse
from ..._core.query_words import in_words
from ..._db import search
from ..._db.plan import Plan
from ..._verbs.changes import Verb
from ...batches import CHANGED, Batch, BatchOutcome, BatchPreview, BatchStatus, BatchVerb, InstanceVerb
from ...errors import BatchCountError, SearchError
from ..access import Role, User, allows
from ..board import Board
from ..endpoints import Reason, get, post
from ..live import topic
from ..problems import ProblemError
from ..redaction import Redact, decoded, restored
from ..searching import checked, hides

__all__ = [
    "BatchRow",
    "batch",
    "batches",
    "preview_batch",
    "row_of",
    "run_batch",
    "run_started",
    "start_batch",
    "stop_batch",
]

_MOST: Final = 100
_MAX_IDS: Final = 10_000
_ROLES: Final[Mapping[BatchVerb, Role]] = {
    "cancel": "operate",
    "retry": "operate",
    "delete": "admin",
    "restore": "admin",
    "replay": "operate",
}


_EFFECTS: Final[Mapping[InstanceVerb, str]] = {
    "retry": "Each continues at the step where it ended with the state that it had, unless you give others.",
    "delete": "They disappear from lists. Restore undoes it until retention removes them.",
    "restore": "They appear in lists again, with the status that they had.",
}
_YES_NO: Final[Mapping[Any, str]] = {True: "yes", False: "no"}
_DETAILS: Final[Mapping[BatchOutcome, str]] = {
    "cancelled": "cancelled",
    "requested": "are cancelled when their running step ends",
    "retried": "retried",
    "deleted": "deleted",
    "restored": "restored",
    "replayed": "are published again",
    "finished": "unchanged: they had ended before",
    "compensating": "unchanged: they run undo steps already",
    "left": "unchanged: their status does not allow it",
    "refused": "unchanged: another instance has their key",
    "locked": "unchanged: a transaction held a lock on their row",
    "missing": "do not exist",
}


class BatchDetail(msgspec.Struct, frozen=True, kw_only=True):
    """How many instances had an outcome."""

    text: str
    count: int
    is_change: bool


class BatchRow(msgspec.Struct, frozen=True, kw_only=True):
    """A batch, and how far it is."""

    id: int
    verb: BatchVerb
    status: BatchStatus
    words: str
    """What it selects."""
    q: str | None
    """The search, if it was started with one."""
    options: Mapping[str, str]
    """Those that are not the default; for example `cascade: yes`."""
    actor: str | None
    reason: str | None
    total: int
    visited: int
    done: int
    """Instances that were changed."""
    outcomes: Mapping[BatchOutcome, int]
    result: str
    """The outcomes in words."""
    details: Sequence[BatchDetail]
    """The outcomes, and why instances were not changed."""
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    stopped_by: str | None
    last_error: str | None


class BatchesPage(msgspec.Struct, frozen=True, kw_only=True):
    """The newest batches."""

    items: Sequence[BatchRow]


class PreviewPage(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch would change."""

    count: int
    """Matching instances that would change. Send it as `expected` with the start."""
    descendants: int
    """Live descendants of the matching instances, which a cascade cancels as well. 10,000 or more means "at least"."""
    total: int
    """Instances that match."""
    text: str
    """In words: the instances by status, and those that would not change."""
    effect: str
    """What the change does to each."""


class StartBody(Reason, frozen=True, kw_only=True):
    """A change of many instances: of those that a search selects, or of these ids."""

    verb: InstanceVerb
    q: str | None = None
    """A search; empty: all instances."""
    ids: Sequence[int] | None = None
    expected: int | None = None
    """`count` of the preview. The start is refused if it has moved by more than 10 % and more than 10 instances."""
    cascade: bool = False
    """Of a cancel: also all descendants."""
    force: bool = False
    """Of a cancel: also while a step executes, whose outcome is then discarded."""
    undo: bool = True
    """Of a cancel: run undo steps first."""
    step: str | None = None
    """Of a retry: continue at this step; default: the step where each ended."""
    state: str | None = None
    """Of a retry: JSON text, the state of all of them; default: each continues with its own."""


@get("/batches", summary="The newest batches")
async def batches(board: Board) -> BatchesPage:
    """Return the newest 100 batches."""
    if not board.options.read_only:
        board.batches.watch()
    return _hidden_page(await board.read(_batches()), board.redact)


def _hidden_page(page: BatchesPage, redact: Redact) -> BatchesPage:
    return BatchesPage(items=[_hidden(row, redact) for row in page.items])


def _hidden(row: BatchRow, redact: Redact) -> BatchRow:
    """Hide a search for a value that is hidden: other tools can start batches with one."""
    if row.q is None or not hides(row.q, redact):
        return row
    return msgspec.structs.replace(row, q=None, words="instances by a hidden value")


@topic("batches", every=1.0, hide=_hidden_page)
def _batches() -> Plan[BatchesPage]:
    return BatchesPage(items=[row_of(one) for one in (yield from _verbs.list_batches(_MOST))])


@get("/batches/preview", summary="What a batch would change")
async def preview_batch(
    board: Board,
    *,
    verb: InstanceVerb,
    q: str = "",
    ids: str = "",
    cascade: bool = False,
    force: bool = False,
    undo: bool = True,
) -> PreviewPage:
    """Count what a batch would change. `ids`: separated by commas, instead of a search."""
    change = _verbs.verb_of(verb, cascade=cascade, force=force, undo=undo)
    if ids:
        wanted = _of_ids(change, _ids_of(ids))
    else:
        checked(q, board.redact)
        wanted = await board.read(_verbs.batch_filter(change, None, {"where": q} if q.strip() else {}))
    shown = await board.read(_verbs.preview_batch(change, wanted))
    below, is_exact = await board.read(_verbs.count_descendants(wanted, _MAX_IDS)) if cascade else (0, True)
    return PreviewPage(
        count=shown.count,
        descendants=below if is_exact else max(below, _MAX_IDS),
        total=shown.total,
        text=_preview_text(shown, below, is_exact=is_exact),
        effect=_effect(verb, force=force, undo=undo),
    )


@get("/batches/{id}", summary="One batch")
async def batch(board: Board, id: int) -> BatchRow:
    """Return a batch, and how far it is."""
    return _hidden(row_of(await board.read(_verbs.get_batch(id))), board.redact)


def run_started(board: Board, started: BatchRow) -> None:
    """Run a batch that has been stored. One that has ended or runs already is left unchanged."""
    board.batches.run(started.id)


@post("/batches", role="operate", summary="Start a change of many instances", then=run_started)
async def start_batch(board: Board, user: User, body: StartBody) -> BatchRow:
    """Start a batch. This process runs it; another one continues it if this one ends."""
    needed = _ROLES[body.verb]
    if not allows(user.role, needed):
        raise ProblemError(
            403,
            "Your role does not allow this",
            f"{user.name} has the role {user.role}; {body.verb} of many instances needs {needed}.",
        )
    if (body.q is None) == (body.ids is None):
        raise ProblemError(422, "The body is not valid", "give either q or ids")
    if body.q is not None:
        checked(body.q, board.redact)
    change = _verbs.verb_of(
        body.verb,
        reason=body.reason or None,
        actor=user.name,
        force=body.force,
        undo=body.undo,
        cascade=body.cascade,
        step=body.step or None,
        state=_state(body.state, board) if body.state else None,
    )
    where = {"where": body.q} if body.q is not None and body.q.strip() else {}
    try:
        started = await board.change(_verbs.start_matching(change, None, where, body.ids, body.expected))
    except BatchCountError as error:
        raise ProblemError(
            409,
            "The number of instances has changed",
            f"{error.verb} would change {error.found:,} instances now; the preview counted {error.expected:,}.",
            "Check the new number, and confirm again.",
            {"expected": error.expected, "found": error.found},
        ) from None
    return row_of(started)


def _state(text: str, board: Board) -> str:
    value = restored(decoded(text, "the state"), None, board.redact)
    return encode(value, Any, "the state", board.client.settings.max_payload)


@post("/batches/{id}/run", role="operate", summary="Continue a batch that no process runs", then=run_started)
async def run_batch(board: Board, user: User, id: int, body: Reason) -> BatchRow:
    """Run a batch in this process. If another process runs it, this one waits for it."""
    found = await board.read(_verbs.get_batch(id))
    if not allows(user.role, _ROLES[found.verb]):
        raise ProblemError(403, "Your role does not allow this", f"{found.verb} needs {_ROLES[found.verb]}.")
    if not found.is_over:
        found = await board.change(_verbs.continue_batch(id, body.reason or None, user.name))
    return _hidden(row_of(found), board.redact)


@post("/batches/{id}/stop", role="operate", summary="Stop a batch; what it has changed stays changed")
async def stop_batch(board: Board, user: User, id: int, body: Reason) -> BatchRow:
    """Stop a batch before its next page."""
    stopped = await board.client.stop_batch(id, reason=body.reason or None, actor=user.name)
    return _hidden(row_of(stopped), board.redact)


def _ids_of(text: str) -> list[int]:
    ids = text.split(",")
    if len(ids) > _MAX_IDS or not all(one.isascii() and one.isdecimal() and len(one) < 19 for one in ids):
        raise ProblemError(422, "The query is not valid", f"ids: give at most {_MAX_IDS:,} ids, as 1,2,3")
    return [int(one) for one in ids]


def _of_ids(change: Verb, ids: Sequence[int]) -> search.Filter:
    """The filter of instances by id. A batch visits all of them, whatever their status is."""
    defaults = {name: value for name, value in change.defaults.items() if name != "statuses"}
    return search.Filter(ids=ids, **defaults)


def _effect(verb: InstanceVerb, *, force: bool, undo: bool) -> str:
    """Return what a change does to each instance."""
    if verb != "cancel":
        return _EFFECTS[verb]
    running = "The outcomes of running steps are discarded." if force else "Running steps finish first."
    undone = "Undo steps run first, where there are any." if undo and not force else "No undo steps run."
    return f"{running} Waiting instances are cancelled at once. {undone}"


def _preview_text(shown: BatchPreview, below: int, *, is_exact: bool) -> str:
    changed: dict[str, int] = {}
    left: dict[str, int] = {}
    for group in shown.groups:
        counts = changed if group.outcome in CHANGED else left
        counts[group.status] = counts.get(group.status, 0) + group.count
    text = f"to {shown.verb}" + (f": {_listed(changed)}" if changed else "")
    if below:
        text += f"{', and' if changed else ':'} {below:,}{'' if is_exact else ' or more'} descendants"
    return text + (f". Unchanged: {_listed(left)}" if left else "")


def _listed(counts: Mapping[str, int]) -> str:
    largest = sorted(counts.items(), key=lambda one: -one[1])
    return ", ".join(f"{number:,} {status.replace('_', ' ')}" for status, number in largest)


def row_of(found: Batch) -> BatchRow:
    """Describe a batch."""
    return BatchRow(
        id=found.id,
        verb=found.verb,
        status=found.status,
        words=_words(found),
        q=found.where,
        # The state of a retry is user data.
        options={
            name: _YES_NO.get(value, value)
            for name, value in found.options.items()
            if name not in ("state", "sink") and value != (name == "undo") and value is not None
        },
        actor=found.actor,
        reason=found.reason,
        total=found.total,
        visited=found.visited,
        done=found.done,
        outcomes=found.outcomes,
        result=("Stopped: " if found.stopped_at else "") + _result(found),
        details=[
            BatchDetail(text=_DETAILS[outcome], count=number, is_change=outcome in CHANGED)
            for outcome, number in _outcomes(found)
        ],
        created_at=found.created_at,
        started_at=found.started_at,
        finished_at=found.finished_at,
        stopped_by=found.stopped_by,
        last_error=found.last_error,
    )


def _outcomes(found: Batch) -> list[tuple[BatchOutcome, int]]:
    return [(name, found.outcomes[name]) for name in _DETAILS if name in found.outcomes]


def _result(found: Batch) -> str:
    counts: dict[str, int] = {}
    for outcome, number in _outcomes(found):
        word = outcome if outcome in CHANGED or outcome == "missing" else "unchanged"
        counts[word] = counts.get(word, 0) + number
    return ", ".join(f"{number:,} {word}" for word, number in counts.items()) or "nothing changed"


def _words(found: Batch) -> str:
    if found.where is not None:
        try:
            return in_words(parse(found.where))
        except SearchError:  # stored by another version
            return found.where
    if found.verb == "replay":
        sink = found.options.get("sink")
        return "dead letters" + (f" of {sink}" if sink else "")
    if found.filter is None:
        return f"{found.total:,} selected instance{'' if found.total == 1 else 's'}"
    given = {name: value for name, value in found.filter.items() if name not in _IMPLIED}
    named = [
        f"{words} {', '.join(map(str, given.pop(name)))}" for name, words in _NAMED.items() if name in given
    ]
    if given:
        named.append(f"by {', '.join(name.replace('_', ' ') for name in sorted(given))}")
    return f"instances {' '.join(named)}" if named else "all instances"


# Fields of a filter whose values are names from code.
_NAMED: Final = {"fsms": "of", "versions": "of version", "steps": "at step", "queues": "in queue"}
# Fields of a filter that come from the verb.
_IMPLIED: Final = frozenset({"statuses", "with_deleted", "only_deleted"})
