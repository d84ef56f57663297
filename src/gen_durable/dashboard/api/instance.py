"""One instance: why it does not run, what happened to it, and how to change it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from ... import _verbs
from ..._db import snapshots
from ..._db.plan import Plan
from ..._typing import KEEP
from ...audit import AuditEvent
from ...errors import NoTargetError
from ...events import EventRecord
from ...instance import (
    AlreadyFinished,
    Cancelled,
    CancelRequested,
    Compensating,
    Deleted,
    Delivered,
    Edited,
    ExecutionRecord,
    Instance,
    Retried,
    Status,
    Transition,
)
from ...progress import Progress
from ...reasons import Explanation
from ..access import User
from ..answers import Answer, Part, answer_of, facts_of
from ..board import Board
from ..endpoints import Reason, get, post
from ..instance_actions import Action, actions_of
from ..live import topic
from ..problems import ProblemError
from ..redaction import decoded, restored, without_defaults
from ..timeline_drawing import TimelineDrawing, draw

__all__ = ["InstancePage", "instance"]

# Rows of one kind that the page shows; it says how many there are if these are not all.
_MOST: Final = 200
# Storage of the states of all transitions, which is compressed.
_MOST_BYTES: Final = 1_000_000


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A signal in the inbox that no step has consumed."""

    id: int
    name: str
    payload: Any
    received_at: datetime
    is_awaited: bool


class ChildRow(msgspec.Struct, frozen=True, kw_only=True):
    """A child, without its state."""

    id: int
    machine: str
    step: str
    status: Status
    inserted_at: datetime
    finished_at: datetime | None
    last_error: str | None


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has registered about the machine of an instance."""

    steps: tuple[str, ...]
    signals: dict[str, Any]
    """The JSON Schema of the payload, by name of the signal, without default values."""


class InstancePage(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one instance, as it was at one moment."""

    at: datetime
    instance: Instance[Any, Any]
    is_collected: bool
    facts: tuple[Part, ...]
    """What the head of a page says."""
    totals: dict[str, int]
    """How many executions, messages, children, events and audit events there are; at least `limit` where it is that."""
    explanation: Explanation
    answer: Answer
    """The explanation in words."""
    actions: tuple[Action, ...]
    """The changes that it allows at present."""
    timeline: TimelineDrawing
    transitions: Sequence[Transition]
    """The newest ones. The states of early ones are left out if all states are large."""
    executions: Sequence[ExecutionRecord]
    """The newest ones, oldest first."""
    inbox: Sequence[Message]
    children: Sequence[ChildRow]
    children_counts: dict[str, int]
    """Children by status; a count of 10,000 means "at least"."""
    events: Sequence[EventRecord]
    audit: Sequence[AuditEvent]
    machine: MachineFacts
    max_attempts: int | None
    limit: int
    """How many transitions, executions, messages, children, events and audit events are shown at most, each."""


class Pulse(msgspec.Struct, frozen=True, kw_only=True):
    """What changes while an instance lives. A page reads the instance again when this differs."""

    id: int
    status: Status
    step: str
    step_seq: int
    attempt: int
    updated_at: datetime
    eligible_at: datetime
    progress: Progress | None
    inbox: int
    children_pending: int


@get(
    "/instances/{id}",
    summary="One instance: explanation, timeline, transitions, inbox, children, events, audit",
)
async def instance(board: Board, id: int) -> InstancePage:
    """Read an instance and all that belongs to it, at one moment."""
    return _hidden(await board.snapshot(_page(id)), board)


def _page(id: int) -> Plan[InstancePage]:
    found = yield from _verbs.get(id, with_deleted=True)
    details = None if found is None else (yield from snapshots.details(id))
    if found is None or details is None:
        raise NoTargetError(id, "show")
    explanation = yield from _verbs.explain(id)
    facts = yield from _verbs.machine_facts(found.machine, found.version)
    after = max(found.step_seq - _MOST, 0) or None
    transitions = (yield from _verbs.history_of(id, after, _MOST + 1, most_bytes=_MOST_BYTES)) or (
        # Retention has removed the records.
        yield from _verbs.history_of(id, None, 1, most_bytes=_MOST_BYTES)
    )
    inbox = yield from snapshots.messages(id, _MOST)
    children = yield from snapshots.newest_children(id, _MOST)
    counts = yield from snapshots.children_counts(id)
    records = yield from _verbs.newest_executions(id, _MOST)
    timeline = yield from _verbs.timeline(id, _MOST, each=True)
    events = yield from _verbs.events(id, None, None, None, _MOST)
    audit = yield from _verbs.newest_audit(id, _MOST)
    steps = facts.steps or ()
    signals = {name: without_defaults(schema) for name, schema in facts.signals.items()}
    actions = actions_of(found, steps, signals)
    known = {row["id"]: f"{row['status'].replace('_', ' ')} at {row['step']}" for row in children}
    return InstancePage(
        at=explanation.at,
        instance=found,
        is_collected=found.collected_at is not None,
        facts=facts_of(found, details["execution"]),
        totals={
            "executions": details["execution"],
            "inbox": len(inbox),
            "children": sum(row["count"] for row in counts),
            "events": len(events),
            "audit": len(audit),
        },
        explanation=explanation,
        answer=answer_of(explanation, found, actions, signals, known),
        actions=actions,
        timeline=draw(timeline, found, explanation.at),
        transitions=transitions,
        executions=records,
        inbox=[
            Message(
                id=row["id"],
                name=row["name"],
                payload=_read(row["payload"]),
                received_at=row["inserted_at"],
                is_awaited=row["name"] in found.awaits,
            )
            for row in inbox
        ],
        children=[
            ChildRow(
                id=row["id"],
                machine=row["fsm"],
                step=row["step"],
                status=Status(row["status"]),
                inserted_at=row["inserted_at"],
                finished_at=row["finished_at"],
                last_error=row["last_error"],
            )
            for row in children
        ],
        children_counts={row["status"]: row["count"] for row in counts},
        events=events,
        audit=audit,
        machine=MachineFacts(steps=steps, signals=signals),
        max_attempts=details["max_attempts"],
        limit=_MOST,
    )


def _read(text: str | None) -> Any:
    try:
        return None if text is None else msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):  # it is nested too deeply
        return text


def _hidden(page: InstancePage, board: Board) -> InstancePage:
    """Hide secrets in the data of users."""
    hide, replace = board.redact, msgspec.structs.replace
    found = page.instance
    return replace(
        page,
        instance=replace(
            found,
            state=hide(found.state),
            stored_result=hide(found.stored_result),
            checkpoint=hide(found.checkpoint),
        ),
        transitions=[
            replace(
                one,
                state=hide(one.state),
                # Pages compute differences from the states, so that hidden values stay hidden.
                changes=None,
            )
            for one in page.transitions
        ],
        inbox=[replace(one, payload=hide(one.payload)) for one in page.inbox],
        events=[replace(one, data=hide(one.data)) for one in page.events],
        audit=[replace(one, data=hide(dict(one.data))) for one in page.audit],
    )


@topic("instance", every=0.5, takes=True)
def pulse(text: str) -> Plan[Pulse | None]:
    """Read what changes while an instance lives, by its primary key."""
    row = (yield from snapshots.pulse(int(text))) if text.isdecimal() and len(text) < 19 else None
    if row is None:
        return None
    progress = row["progress"]
    return Pulse(
        id=row["id"],
        status=Status(row["status"]),
        step=row["step"],
        step_seq=row["step_seq"],
        attempt=row["attempt"],
        updated_at=row["updated_at"],
        eligible_at=row["eligible_at"],
        progress=None if progress is None else msgspec.json.decode(progress, type=Progress),
        inbox=row["inbox_count"],
        children_pending=row["children_pending"],
    )


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an instance as text, for an editor."""

    text: str
    """JSON. Numbers are exactly as they are stored; secrets are hidden."""
    step: str
    step_seq: int
    """Send it as `expected_step_seq` with an edit."""


@get("/instances/{id}/state", summary="The state of an instance as JSON text")
async def state(board: Board, id: int) -> State:
    """Return the state for an editor."""
    found = await board.read(_verbs.get(id, with_deleted=True))
    if found is None:
        raise NoTargetError(id, "show")
    text = msgspec.json.format(msgspec.json.encode(board.redact(found.state)), indent=2)
    return State(text=text.decode(), step=found.step, step_seq=found.step_seq)


class SignalBody(Reason, frozen=True, kw_only=True):
    """A signal."""

    name: str
    payload: str = "null"
    """JSON text."""
    dedup_key: str | None = None


class CancelBody(Reason, frozen=True, kw_only=True):
    """A cancel."""

    cascade: bool = False
    """Also all descendants."""
    force: bool = False
    """Also while a step executes, whose outcome is then discarded."""
    undo: bool = True
    """Run undo steps first."""


class RetryBody(Reason, frozen=True, kw_only=True):
    """A retry."""

    step: str | None = None
    state: str | None = None
    """JSON text; default: the stored state."""


class EditBody(Reason, frozen=True, kw_only=True):
    """A change of the state or the step."""

    expected_step_seq: int
    """Refuse the edit if the instance has moved on since."""
    state: str | None = None
    """JSON text. Hidden values keep what is stored."""
    step: str | None = None
    wake: bool = False
    """Stop waiting, and run now."""


class ForkBody(Reason, frozen=True, kw_only=True):
    """A copy of an instance."""

    at: int | None = None
    """The transition after which it starts; default: the last one."""
    state: str | None = None
    """JSON text; default: the state after that transition."""
    step: str | None = None
    correlation_key: str | None = None
    unique_key: str | None = None


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """What a change has done."""

    id: int
    outcome: str
    text: str
    """In words."""


@post("/instances/{id}/signal", role="operate", summary="Deliver a signal")
async def signal(board: Board, user: User, id: int, body: SignalBody) -> Changed:
    """Deliver a signal with actor and reason."""
    decoded(body.payload, "the payload")
    answer = await board.change(
        _verbs.signal_with_reason(
            id,
            body.name,
            body.payload,
            body.dedup_key,
            board.client.settings,
            body.reason or None,
            user.name,
            validate=True,
        )
    )
    if not isinstance(answer, Delivered):
        return Changed(id=id, outcome="duplicate", text="The instance has received this dedup_key before.")
    text = (
        "The instance continues." if answer.is_awaited else "The signal is in the inbox: nothing awaits it."
    )
    return Changed(id=id, outcome="delivered", text=text)


@post("/instances/{id}/cancel", role="operate", summary="Cancel an instance")
async def cancel(board: Board, user: User, id: int, body: CancelBody) -> Changed:
    """Cancel an instance."""
    # A cascade has a transaction per generation: parents and children in one would be locked in the wrong order. If the
    # process dies before the answer is stored, a second request cancels what is left.
    client = board.unbound if body.cascade else board.client
    answer = await client.cancel(
        id,
        reason=body.reason or None,
        actor=user.name,
        force=body.force,
        undo=body.undo,
        cascade=body.cascade,
    )
    match answer:
        case Cancelled():
            return Changed(id=id, outcome="cancelled", text="Cancelled.")
        case CancelRequested():
            return Changed(id=id, outcome="requested", text="Cancelled when the running step ends.")
        case Compensating():
            return Changed(id=id, outcome="compensating", text="It runs its undo steps already.")
        case AlreadyFinished():
            return Changed(id=id, outcome="finished", text=f"It has ended already: {answer.status}.")


@post("/instances/{id}/retry", role="operate", summary="Retry a failed or cancelled instance")
async def retry(board: Board, user: User, id: int, body: RetryBody) -> Changed:
    """Retry an instance, at the step where it ended or at another one."""
    state = KEEP if body.state is None else await _edited(board, id, body.state)
    answer = await board.client.retry(
        id, state=state, step=body.step, reason=body.reason or None, actor=user.name
    )
    if isinstance(answer, Retried):
        return Changed(id=id, outcome="retried", text="The instance runs again.")
    raise ProblemError(409, "The instance was not retried", f"Its status is {answer.status}.")


@post("/instances/{id}/edit", role="operate", summary="Change the state or the step of an instance")
async def edit(board: Board, user: User, id: int, body: EditBody) -> Changed:
    """Edit an instance, unless it has moved on."""
    state = KEEP if body.state is None else await _edited(board, id, body.state)
    answer = await board.client.edit(
        id,
        state=state,
        step=body.step,
        expected_step_seq=body.expected_step_seq,
        wake=body.wake,
        reason=body.reason or None,
        actor=user.name,
    )
    if isinstance(answer, Edited):
        return Changed(id=id, outcome="edited", text=f"Edited: transition {answer.step_seq}.")
    raise ProblemError(409, "The instance was not edited", _WHY[answer.why], facts={"why": answer.why})


_WHY: Final[dict[str, str]] = {
    "executing": "A step is executing. Wait until it ends, or cancel it.",
    "moved": "It has moved on since you read it. Read it again.",
    "ended": "It is done or cancelled. Retry or fork it.",
    "deleted": "It is deleted. Restore it first.",
    "collected": "Retention has removed its state.",
    "compensating": "It runs undo steps, or has run them.",
}


@post("/instances/{id}/fork", role="admin", summary="Start a new instance from a transition of this one")
async def fork(board: Board, user: User, id: int, body: ForkBody) -> Changed:
    """Fork an instance."""
    answer = await board.client.fork(
        id,
        at=body.at,
        state=KEEP if body.state is None else await _edited(board, id, body.state, at=body.at),
        step=body.step,
        correlation_key=body.correlation_key or None,
        unique_key=body.unique_key or None,
        reason=body.reason or None,
        actor=user.name,
    )
    return Changed(
        id=answer.id,
        outcome="forked",
        text=f"Instance {answer.id} starts after transition {answer.step_seq}.",
    )


@post("/instances/{id}/delete", role="admin", summary="Delete an instance; restore undoes it until retention")
async def delete(board: Board, user: User, id: int, body: Reason) -> Changed:
    """Soft-delete an instance."""
    answer: Deleted = await board.client.soft_delete(id, reason=body.reason or None, actor=user.name)
    running = " Its step still executes." if answer.is_executing else ""
    return Changed(id=id, outcome="deleted", text=f"Deleted.{running}")


@post("/instances/{id}/restore", role="admin", summary="Undo the delete of an instance")
async def restore(board: Board, user: User, id: int, body: Reason) -> Changed:
    """Restore a deleted instance."""
    answer = await board.client.restore(id, reason=body.reason or None, actor=user.name)
    return Changed(id=id, outcome="restored", text=f"Restored: {answer.status}.")


async def _edited(board: Board, id: int, text: str, at: int | None = None) -> Any:
    """Read an edited state; hidden values are those of the stored state that was shown."""
    edited = decoded(text, "the state")
    found = await board.read(_verbs.get(id, with_deleted=True))
    stored = None if found is None else found.state
    if found is not None and at not in (None, found.step_seq):
        transitions = await board.read(_verbs.history_of(id, at - 1 if at else None, 1))
        stored = transitions[0].state if transitions and transitions[0].step_seq == at else None
    return restored(edited, stored, board.redact)
