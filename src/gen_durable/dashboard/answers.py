"""What is said about an instance: its explanation in sentences with links, the change that helps, its facts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote

import msgspec

from .. import reasons
from .._core.query import quoted
from ..instance import Instance, Status
from .instance_actions import Action, restore_of, resume_of, signal_of, wake_of

__all__ = ["Answer", "Part", "answer_of", "facts_of"]

Kind: TypeAlias = Literal[
    "run", "due", "later", "gated", "wait", "kids", "retry", "fail", "done", "cancel", "deleted"
]
"""The colours and shapes of pages."""

_KINDS: Final[Mapping[Status, Kind]] = {
    Status.EXECUTING: "run",
    Status.AWAITING_SIGNAL: "wait",
    Status.AWAITING_CHILDREN: "kids",
    Status.FAILED: "fail",
    Status.DONE: "done",
    Status.CANCELLED: "cancel",
}
_TITLES: Final[Mapping[Kind, str]] = {
    "run": "What it does",
    "done": "How it ended",
    "fail": "Why it failed",
    "cancel": "Why it was cancelled",
}
# A number is an id only at these places, and only if the reason names it.
_LINKS: Final = re.compile(
    r"(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+00:00)|(?:(?<=by )|(?<=, )|(?<=: )|(?<=\())(?P<id>\d+)"
)
_UNQUOTED: Final = re.compile(r"""[^\s",\\~<>]+""")
_COMMAND: Final = re.compile(r"(?P<text>.*;[^;]*:) (?P<command>gen-durable .*)", re.DOTALL)


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a sentence, or a fact: a text, a time, a link to an instance, or a link to a list or a machine."""

    name: str | None = None
    """Of a fact."""
    text: str = ""
    at: datetime | None = None
    id: int | None = None
    to: str | None = None
    """A path of the dashboard."""


class Sentence(msgspec.Struct, frozen=True, kw_only=True):
    """One reason."""

    text: str
    parts: tuple[Part, ...]
    command: str | None = None
    """What to run where no button helps."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """Where to look."""

    text: str
    icon: str
    to: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Why an instance does not run, or what it does."""

    kind: Kind
    title: str
    sentences: tuple[Sentence, ...]
    """The cause first."""
    action: Action | None = None
    """The change that lets it run."""
    link: Link | None = None


def answer_of(
    explanation: reasons.Explanation,
    one: Instance[Any, Any],
    actions: tuple[Action, ...],
    signals: Mapping[str, Any],
    children: Mapping[int, str],
) -> Answer:
    """Put an explanation into words.

    Args:
        explanation: the reasons.
        one: the instance.
        actions: what can be done with it.
        signals: the JSON Schema of the payload, by name of the signal.
        children: where known children are, by id.
    """
    cause = explanation.reasons[0] if explanation.reasons else None
    kind = _kind(cause, one)
    title = _TITLES.get(kind, "Why it does not run")
    if kind == "fail" and one.status is not Status.FAILED:
        title = "Why it does not run"
    return Answer(
        kind=kind,
        title=title,
        sentences=tuple(_sentence(reason, children) for reason in explanation.reasons),
        action=next(
            filter(None, (_action(each, one, actions, signals) for each in explanation.reasons)), None
        ),
        link=next(filter(None, (_link(each, one) for each in explanation.reasons)), None),
    )


def facts_of(one: Instance[Any, Any], executions: int) -> tuple[Part, ...]:
    """Return what the head of the page says, with links to what else has the same key or queue."""
    links = {
        "key": one.correlation_key,
        "queue": one.queue,
        "concurrency": one.concurrency_key,
        "schedule": one.schedule,
    }
    ids = {"parent": one.parent_id, "forked from": one.forked_from}
    return (
        Part(name="machine", text=f"{one.machine} v{one.version}", to=f"/m/{quote(one.machine, safe='')}"),
        *(
            Part(name=name, text=value, to=_list((name, value)))
            for name, value in links.items()
            if value is not None
        ),
        *(Part(name=name, id=id) for name, id in ids.items() if id is not None),
        Part(name="inserted", at=one.inserted_at),
        Part(name="transitions", text=f"{one.step_seq:,}"),
        Part(name="executions", text=f"{executions:,}", to=f"/i/{one.id}?tab=executions"),
        *([Part(name="priority", text=str(one.priority))] if one.priority else ()),
    )


def _list(*terms: tuple[str, str]) -> str:
    """The path of the instances that have these values."""
    written = (f"{name}:{value if _UNQUOTED.fullmatch(value) else quoted(value)}" for name, value in terms)
    return f"/instances?q={quote(' '.join(written), safe='')}"


def _kind(cause: reasons.Reason | None, one: Instance[Any, Any]) -> Kind:
    match cause:
        case reasons.Deletion():
            return "deleted"
        case reasons.QueuePaused() | reasons.Retrying():
            return "retry"
        case reasons.KeyBusy() | reasons.NotFirstInLine():
            return "gated"
        case reasons.NotDue() | reasons.BucketEmpty():
            return "later"
        case (
            reasons.LoopBlocked()
            | reasons.UnknownLimit()
            | reasons.Incompatible()
            | reasons.NoWorkerForQueue()
            | reasons.NoWorkerForMachine()
            | reasons.NoWorkerForStep()
        ):
            return "fail"
    return _KINDS.get(one.status, "due")


def _action(
    reason: reasons.Reason,
    one: Instance[Any, Any],
    actions: tuple[Action, ...],
    signals: Mapping[str, Any],
) -> Action | None:
    found: Action | None = None
    text = ""
    match reason:
        case reasons.Finished():
            found = next((action for action in actions if action.text == "Retry"), None)
            text = f"Retry {one.step}"
        case reasons.Deletion():
            found, text = restore_of(one), "Restore it"
        case reasons.AwaitingSignals(names=(first, *_)):
            found, text = signal_of(one, signals), f"Send {first}"
        case reasons.AwaitingSignals() | reasons.NotDue():
            found, text = wake_of(one), "Run now"
        case reasons.Retrying(until=datetime()):
            found, text = wake_of(one), "Run now"
        case reasons.QueuePaused(queue=queue):
            found, text = resume_of(queue), "Resume the queue"
    return None if found is None else msgspec.structs.replace(found, text=text, kind="primary")


def _link(reason: reasons.Reason, one: Instance[Any, Any]) -> Link | None:
    match reason:
        case reasons.Finished(status=Status.FAILED):
            terms = [("machine", one.machine), ("step", one.step), ("status", "failed")]
            if one.error is not None:
                terms.append(("error", one.error.type))
            return Link(text="Similar failures", icon="failures", to=_list(*terms))
        case (
            reasons.AwaitingChildren(live=(id, *_))
            | reasons.NotFirstInLine(first=id)
            | reasons.KeyBusy(holders=(reasons.Holder(id=id), *_))
        ):
            return Link(text=f"Open #{id}", icon="instances", to=f"/i/{id}")
        case reasons.BucketEmpty() | reasons.UnknownLimit():
            return Link(text="Limits", icon="queues", to="/queues")
        case (
            reasons.LoopBlocked()
            | reasons.Incompatible()
            | reasons.NoWorkerForQueue()
            | reasons.NoWorkerForMachine()
            | reasons.NoWorkerForStep()
            | reasons.WorkersBusy()
            | reasons.Waiting()
        ):
            return Link(text="Workers", icon="workers", to="/workers")
    return None


def _sentence(reason: reasons.Reason, children: Mapping[int, str]) -> Sentence:
    whole = str(reason)
    found = None if isinstance(reason, reasons.Finished) else _COMMAND.fullmatch(whole)
    text, command = (whole, None) if found is None else found.group("text", "command")
    if isinstance(reason, reasons.QueuePaused | reasons.Deletion):
        # A button does it.
        text, command = text.rpartition(";")[0] if found else text, None
    ids = {} if isinstance(reason, reasons.Finished) else _ids(reason, children)
    return Sentence(text=whole, parts=tuple(_parts(text, ids)), command=command)


def _ids(reason: reasons.Reason, children: Mapping[int, str]) -> dict[int, str]:
    """The instances that a reason names, and where they are if that is known."""
    match reason:
        case reasons.AwaitingChildren(live=live):
            return {id: children.get(id, "") for id in live}
        case reasons.NotFirstInLine(first=first):
            return {first: ""}
        case reasons.KeyBusy(holders=holders):
            return {holder.id: "" for holder in holders}
        case reasons.WorkersBusy(oldest=reasons.Holder(id=id)):
            return {id: ""}
    return {}


def _parts(text: str, ids: Mapping[int, str]) -> Iterator[Part]:
    last = 0
    for found in _LINKS.finditer(text):
        at, number = found.group("at", "id")
        id = None if number is None or int(number) not in ids else int(number)
        if at is None and id is None:
            continue
        if found.start() > last:
            yield Part(text=text[last : found.start()])
        yield Part(text=at, at=datetime.fromisoformat(at)) if at else Part(text=f"#{id}", id=id)
        if id is not None and ids[id]:
            yield Part(text=f" ({ids[id]})")
        last = found.end()
    if last < len(text):
        yield Part(text=text[last:])
