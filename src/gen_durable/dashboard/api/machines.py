"""Machines: their pictures, and where their instances are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any
from urllib.parse import quote

import msgspec

from ... import _verbs
from ..._checks import checked_delay, checked_moment
from ..._db.insert_by_name import NamedInsert
from ..._db.machines import RegisteredMachine, StoredGraph
from ..._db.plan import Plan
from ..._graph.drawing import Drawing
from ...errors import GenDurableError, KeyTakenError, LimitError, UsageError
from ...stats import CensusState
from ..access import User
from ..board import Board
from ..endpoints import Reason, get, post
from ..instance_actions import Action, Field, example
from ..live import topic
from ..pictures import Picture, graph_of, picture_of, small_picture_of
from ..problems import at_field
from ..redaction import without_defaults
from .machine_rates import chosen, unread

__all__ = ["MachinePage", "MachinesPage", "Population", "machine", "machines", "population"]


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """The newest version of a machine."""

    name: str
    version: int
    versions: int
    """How many versions workers have registered."""
    queue: str
    doc: str
    workers: int
    """How many live workers run this version."""
    picture: Drawing | None


class MachinesPage(msgspec.Struct, frozen=True, kw_only=True):
    """All registered machines."""

    machines: Sequence[Card]


class Population(msgspec.Struct, frozen=True, kw_only=True):
    """Where the instances of all machines are at one moment.

    A count of 500 or more means "at least"; of done and cancelled ones, of 100 or more.
    """

    at: datetime
    machines: Mapping[str, Mapping[str, Mapping[CensusState, int]]]
    """Counts by machine, step and state, of all versions."""


class VersionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a machine."""

    version: int
    queue: str
    workers: int
    registered_at: datetime


class MachinePage(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a machine."""

    name: str
    version: int
    versions: Sequence[VersionInfo]
    """Newest first."""
    queue: str
    doc: str
    file: str
    initial: str | None
    picture: Picture | None
    """`None` if its worker could not read the graph from the code."""
    state_schema: Any
    """The JSON Schema of the state, without default values; `None` if it is not known."""
    computed: Sequence[str]
    """The keys that the machine computes from the state; an insert has to give them."""
    insert: Action
    """The form that inserts an instance."""


class Insert(Reason, frozen=True, kw_only=True):
    """A new instance."""

    state: Any = msgspec.field(default_factory=dict)
    version: int | None = None
    correlation_key: str | None = None
    unique_key: str | None = None
    concurrency_key: str | None = None
    """The empty text: none, although the machine computes one."""
    rate_limit: str | None = None
    queue: str | None = None
    step: str | None = None
    """The first step; default: the initial step of the machine."""
    priority: Annotated[int, msgspec.Meta(ge=-(2**15), lt=2**15)] | None = None
    idempotency_key: str | None = None
    weight: Annotated[int, msgspec.Meta(ge=1, lt=2**31)] | None = None
    """Tokens of the rate limit that the first step takes."""
    max_attempts: Annotated[int, msgspec.Meta(ge=1, lt=2**31)] | None = None
    delay: timedelta | None = None
    """Before the first step."""
    eligible_at: datetime | None = None
    """The same as a time."""


class Inserted(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an insert."""

    id: int
    is_new: bool
    """Otherwise `id` is the instance that has the unique key."""
    status: str
    text: str
    """What happened."""


@get("/machines", every=10, summary="Registered machines with their pictures")
async def machines(board: Board) -> MachinesPage:
    """Return the newest version of each machine."""
    found = await board.cached("machines", 2.0, _verbs.stored_graphs)
    newest = {one.name: one for one in found}
    return MachinesPage(
        machines=[
            Card(
                name=one.name,
                version=one.version,
                versions=sum(each.name == one.name for each in found),
                queue=one.queue,
                doc=graph.doc if one.graph is not None and (graph := graph_of(one.graph)) else "",
                workers=one.workers,
                picture=await small_picture_of(one.graph),
            )
            for one in newest.values()
        ]
    )


@get("/population", summary="Instances of all machines by step and state")
async def population(board: Board) -> Population:
    """Count instances."""
    return await board.cached("population", 1.0, _population)


@topic("population", every=2.0)
def _population() -> Plan[Population]:
    census = yield from _verbs.census(None)
    found: dict[str, dict[str, dict[CensusState, int]]] = {}
    for group in census.groups:
        states = found.setdefault(group.machine, {}).setdefault(group.step, {})
        states[group.state] = states.get(group.state, 0) + group.count
    return Population(at=census.at, machines=found)


@get("/machines/{name}", every=10, summary="One version of a machine: picture, schema of the state")
async def machine(board: Board, name: str, *, version: int | None = None) -> MachinePage:
    """Return a version of a machine, by default the newest."""
    found = await board.read(_verbs.stored_graphs(name))
    one = chosen(found, name, version)
    facts = await board.read(_verbs.machine_facts(name, one.version))
    graph = None if one.graph is None else graph_of(one.graph)
    day = await board.cached(f"day:{name}", 60.0, lambda: _verbs.step_rates(name, "24h"))
    return MachinePage(
        name=name,
        version=one.version,
        versions=[
            VersionInfo(
                version=each.version,
                queue=each.queue,
                workers=each.workers,
                registered_at=each.registered_at,
            )
            for each in reversed(found)
        ],
        queue=one.queue,
        doc=graph.doc if graph is not None else "",
        file=graph.file if graph is not None else "",
        initial=graph.initial if graph is not None else None,
        picture=await picture_of(one.graph, unread(graph, one.version, day.edges)),
        # A default may be a secret.
        state_schema=without_defaults(facts.state_schema),
        computed=facts.computed,
        insert=_insert_of(one, facts),
    )


def _insert_of(one: StoredGraph, facts: RegisteredMachine) -> Action:
    state = msgspec.json.format(msgspec.json.encode(example(facts.state_schema) or {}), indent=2).decode()
    keys = [
        Field(
            name="correlation_key",
            label="Correlation key",
            hint="Optional. Signals and searches can name the instance by it.",
        ),
        Field(
            name="unique_key",
            label="Unique key",
            hint="Optional. A second instance with this key is not inserted.",
        ),
        *(
            Field(
                name=name,
                label=name.replace("_", " ").capitalize(),
                hint="The machine computes it from the state, which needs its code. Empty: none.",
            )
            for name in facts.computed
        ),
        *_advanced(one, facts),
    ]
    return Action(
        text="Insert",
        icon="plus",
        path=f"/machines/{quote(one.name, safe='')}/instances",
        title=f"Insert an instance of {one.name}",
        what="The state is checked against the type that the worker has registered."
        if facts.state_schema
        else "The type of the state is not known, so it is not checked.",
        verb="Insert",
        fields=(Field(name="state", label="State", type="json", value=state), *keys),
        body={"version": one.version},
    )


def _advanced(one: StoredGraph, facts: RegisteredMachine) -> list[Field]:
    """The options of an insert that are seldom given."""
    steps = tuple((step, step) for step in facts.steps or ())
    fields = [
        Field(name="step", label="First step", options=(("", "initial step"), *steps))
        if steps
        else Field(name="step", label="First step", hint="Empty: the initial step of the machine."),
        Field(name="queue", label="Queue", hint=f"Empty: {one.queue}."),
        Field(
            name="priority",
            label="Priority",
            type="number",
            min=-(2**15),
            max=2**15 - 1,
            hint="Smaller numbers run earlier.",
        ),
        Field(name="delay", label="Delay in seconds", type="seconds", min=0),
        Field(
            name="eligible_at",
            label="Or not before",
            type="datetime-local",
            hint="In the time zone of this browser.",
        ),
        Field(
            name="max_attempts",
            label="Attempts",
            type="number",
            min=1,
            max=2**31 - 1,
            hint="At each step. Empty: as the machine or its retry policy says.",
        ),
        Field(
            name="weight",
            label="Weight",
            type="number",
            min=1,
            max=2**31 - 1,
            hint="Tokens of the rate limit that the first step takes. Empty: 1.",
        ),
        Field(
            name="idempotency_key",
            label="Idempotency key",
            hint="Instead of a unique key: a second insert returns the first instance, also after that has ended.",
        ),
    ]
    return [msgspec.structs.replace(field, is_advanced=True) for field in fields]


@post("/machines/{name}/instances", role="operate", summary="Insert an instance")
async def insert(board: Board, user: User, name: str, body: Insert) -> Inserted:
    """Insert an instance. The state is checked against the schema that a worker has registered."""
    try:
        new = NamedInsert(
            fsm=name,
            state=msgspec.json.encode(body.state).decode(),
            version=body.version,
            queue=body.queue or None,
            correlation_key=body.correlation_key or None,
            unique_key=body.unique_key or None,
            concurrency_key=body.concurrency_key,
            rate_limit=body.rate_limit,
            step=body.step or None,
            priority=body.priority,
            idempotency_key=body.idempotency_key or None,
            weight=body.weight,
            max_attempts=body.max_attempts,
            **_times(body),
        )
        made = await board.change(_verbs.insert_named(new, body.reason or None, user.name))
    except (UsageError, KeyTakenError, LimitError) as error:
        raise at_field(error, _field_of(error, body)) from error
    text = "is inserted" if made.inserted else "has this key; nothing was inserted"
    return Inserted(id=made.id, is_new=made.inserted, status=made.status, text=f"Instance {made.id} {text}")


def _times(body: Insert) -> dict[str, Any]:
    if body.delay is not None and body.eligible_at is not None:
        raise UsageError("delay and eligible_at are both given", "give one of them")
    return {
        "delay": None if body.delay is None else checked_delay(body.delay, "delay"),
        "eligible_at": None if body.eligible_at is None else checked_moment(body.eligible_at, "eligible_at"),
    }


def _field_of(error: GenDurableError, body: Insert) -> str | None:
    """Return the field of an insert that an error is about. Texts of errors begin with it."""
    match error:
        case LimitError():
            return "weight"
        case KeyTakenError(key=body.correlation_key):
            return "correlation_key"
        case KeyTakenError():
            return "unique_key" if body.unique_key else "idempotency_key"
        case UsageError(problem=problem):
            words = re.findall(
                r"\w+", (problem.partition(": ")[2] or problem).replace("rate limit", "rate_limit")
            )
            found = next((word for word in words if word in Insert.__struct_fields__), None)
            # Both are stored as the unique key.
            return "idempotency_key" if found == "unique_key" and not body.unique_key else found
    return None
