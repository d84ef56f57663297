"""The changes that an instance allows at present, as forms for a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal
from urllib.parse import quote

import msgspec

from ..instance import Instance, Status

__all__ = ["Action", "Field", "actions_of", "example", "restore_of", "resume_of", "signal_of", "wake_of"]

_DEPTH: Final = 6


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One input of a form."""

    name: str
    label: str
    type: Literal["text", "json", "checkbox", "number", "seconds", "datetime-local"] = "text"
    value: str | bool | int = ""
    hint: str | None = None
    options: tuple[tuple[str, str], ...] | None = None
    """Values and their texts, if these are the only ones."""
    sets: Mapping[str, Mapping[str, str]] | None = None
    """By value: what other fields get when it is chosen."""
    required: bool = False
    min: int | None = None
    max: int | None = None
    is_advanced: bool = False
    """Whether it is in a part of the form that is closed at first."""


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """A change: the form, and where its values go by POST. Empty values are left out."""

    text: str
    """Of the button that opens the form."""
    icon: str
    kind: Literal["primary", "danger"] | None = None
    need: Literal["operate", "admin"] = "operate"
    is_rare: bool = False
    """Whether it belongs in a menu."""
    path: str
    title: str
    what: str
    verb: str
    """Of the button that submits the form."""
    danger: bool = False
    fields: tuple[Field, ...] = ()
    body: dict[str, Any] = {}
    """Values without an input."""
    preview: dict[str, str] | None = None
    """Parameters of `/batches/preview`, beside the values of the fields."""
    shows_changes: bool = False
    """Whether the form shows which values differ from the present ones."""
    reads_state: bool = False
    """The field `state` shows the text of `/instances/{id}/state` and is left out if unchanged. `expected_step_seq` too
    is from there."""


def actions_of(
    one: Instance[Any, Any], steps: Sequence[str], signals: Mapping[str, Any]
) -> tuple[Action, ...]:
    """Return what can be done.

    Args:
        one: the instance.
        steps: the steps of its machine.
        signals: the JSON Schema of the payload, by name of the signal.
    """
    is_live = not one.status.is_terminal
    found = []
    is_executing = one.status is Status.EXECUTING
    if one.deleted_at is None:
        if is_live and (signals or one.awaits or not steps):
            found.append(signal_of(one, signals))
        if one.status in (Status.FAILED, Status.CANCELLED):
            found.append(_retry(one, steps))
        if ((is_live and not is_executing) or one.status is Status.FAILED) and one.compensation is None:
            found.append(_edit(one, steps))
        if is_live:
            found.append(_cancel(one))
    found.append(_fork(one, steps))
    return (*found, _delete(one) if one.deleted_at is None else restore_of(one))


def signal_of(one: Instance[Any, Any], signals: Mapping[str, Any]) -> Action:
    """Deliver a signal."""
    names = tuple(dict.fromkeys((*one.awaits, *signals)))
    first = names[0] if names else ""
    options = tuple((name, name) for name in names) or None
    payloads = {name: _text(example(signals.get(name))) for name in names}
    return Action(
        text="Signal",
        icon="bolt",
        path=_path(one, "signal"),
        title=f"Signal {_name(one)}",
        what=f"It waits for {' or '.join(one.awaits)}."
        if one.awaits
        else "It waits for no signal now. The signal stays in its inbox until a step awaits it.",
        verb="Send",
        fields=(
            Field(
                name="name",
                label="Signal",
                value=first,
                options=options,
                required=True,
                sets={name: {"payload": text} for name, text in payloads.items()} or None,
            ),
            Field(name="payload", label="Payload", type="json", value=payloads.get(first, "null")),
            Field(
                name="dedup_key",
                label="Dedup key",
                hint="Optional. Later signals with the same key are ignored.",
            ),
        ),
    )


def _text(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def wake_of(one: Instance[Any, Any]) -> Action:
    """Stop waiting."""
    return Action(
        text="Run now",
        icon="bolt",
        path=_path(one, "edit"),
        title=f"Run {_name(one)} now",
        what="It stops waiting, and is due at once. Its state stays as it is.",
        verb="Run now",
        body={"wake": True, "expected_step_seq": one.step_seq},
    )


def restore_of(one: Instance[Any, Any]) -> Action:
    """Undo a delete."""
    return Action(
        text="Restore",
        icon="retry",
        need="admin",
        is_rare=True,
        path=_path(one, "restore"),
        title=f"Restore {_name(one)}",
        what="It continues as it was when it was deleted.",
        verb="Restore",
    )


def resume_of(queue: str) -> Action:
    """Resume a queue."""
    return Action(
        text="Resume the queue",
        icon="play",
        path=f"/queues/{quote(queue, safe='')}/resume",
        title=f"Resume queue {queue}",
        what="Workers start its due instances with their next poll.",
        verb="Resume",
    )


def example(schema: Any, defs: Any = None, depth: int = 0) -> Any:
    """Return an example of a value that a JSON Schema allows: its required properties."""
    if not isinstance(schema, dict) or depth > _DEPTH:
        return None
    defs = schema.get("$defs", defs)
    if "$ref" in schema:
        return example((defs or {}).get(schema["$ref"].rpartition("/")[2]), defs, depth + 1)
    if schema.get("enum"):
        return schema["enum"][0]
    if schema.get("anyOf"):
        is_optional = any(each.get("type") == "null" for each in schema["anyOf"])
        return None if is_optional else example(schema["anyOf"][0], defs, depth + 1)
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        return {name: example(properties.get(name), defs, depth + 1) for name in schema.get("required", ())}
    values: dict[Any, Any] = {"array": [], "string": "", "integer": 0, "number": 0, "boolean": False}
    kind = schema.get("type")
    return values.get(kind) if isinstance(kind, str) else None


def _retry(one: Instance[Any, Any], steps: Sequence[str]) -> Action:
    return Action(
        text="Retry",
        icon="retry",
        path=_path(one, "retry"),
        title=f"Retry {_name(one)}",
        what="It runs again with this state. Its attempts count from zero.",
        verb="Retry",
        fields=(_step(steps, f"{one.step}, where it ended"), _STATE),
        reads_state=True,
    )


def _edit(one: Instance[Any, Any], steps: Sequence[str]) -> Action:
    return Action(
        text="Edit",
        icon="edit",
        path=_path(one, "edit"),
        title=f"Edit {_name(one)}",
        what="Refused if the instance moves on in the meantime. Hidden values keep what is stored.",
        verb="Save",
        fields=(
            _STATE,
            _step(steps, f"{one.step}, unchanged"),
            Field(name="wake", label="Stop waiting, and run now", type="checkbox", value=False),
        ),
        body={"expected_step_seq": one.step_seq},
        shows_changes=True,
        reads_state=True,
    )


def _cancel(one: Instance[Any, Any]) -> Action:
    is_executing = one.status is Status.EXECUTING
    return Action(
        text="Cancel",
        icon="close",
        kind="danger",
        path=_path(one, "cancel"),
        title=f"Cancel {_name(one)}",
        what="It ends when its running step ends." if is_executing else "It ends without running its step.",
        verb="Cancel the instance",
        danger=True,
        preview={"verb": "cancel", "ids": str(one.id)},
        fields=(
            Field(name="cascade", label="Also cancel all descendants", type="checkbox", value=False),
            Field(
                name="force",
                label="Also while a step runs; discard its outcome",
                type="checkbox",
                value=False,
            ),
            Field(name="undo", label="Run undo steps first", type="checkbox", value=True),
        ),
    )


def _fork(one: Instance[Any, Any], steps: Sequence[str]) -> Action:
    return Action(
        text="Fork",
        icon="fork",
        need="admin",
        is_rare=True,
        path=_path(one, "fork"),
        title=f"Fork {_name(one)}",
        what="A new instance starts after this transition. This one stays as it is.",
        verb="Fork",
        fields=(
            Field(name="at", label="Transition", type="number", value=one.step_seq),
            _step(steps, "as after that transition"),
            Field(name="state", label="State", type="json", hint="Empty: the state after that transition."),
            Field(name="correlation_key", label="Correlation key", hint="Optional."),
            Field(name="unique_key", label="Unique key", hint="Optional."),
        ),
    )


def _delete(one: Instance[Any, Any]) -> Action:
    return Action(
        text="Delete",
        icon="trash",
        kind="danger",
        need="admin",
        is_rare=True,
        path=_path(one, "delete"),
        title=f"Delete {_name(one)}",
        what="It never runs again. Restore undoes this until retention removes the instance.",
        verb="Delete",
        danger=True,
    )


_STATE: Final = Field(name="state", label="State", type="json")


def _step(steps: Sequence[str], unchanged: str) -> Field:
    return Field(name="step", label="Step", options=(("", unchanged), *((step, step) for step in steps)))


def _name(one: Instance[Any, Any]) -> str:
    return f"{one.machine} #{one.id}"


def _path(one: Instance[Any, Any], verb: str) -> str:
    return f"/instances/{one.id}/{verb}"
