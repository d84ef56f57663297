"""What workers store about their machines for tools without code: steps, graph, JSON Schema of state and signals."""

from __future__ import annotations

import logging
import weakref
from typing import Any, Final

import msgspec

from ..definition import MachineDef, definition_of
from ..refs import Insertable
from .model import Graph
from .reader import read

__all__ = ["Description", "describe"]

_SUBSCHEMAS: Final = frozenset({"items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf"})
_NAMED_SUBSCHEMAS: Final = frozenset({"properties", "$defs"})
_log: Final = logging.getLogger("gen_durable.worker")


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as it is registered in the table `machines`."""

    definition: MachineDef
    steps: tuple[str, ...]
    graph: Graph | None = None
    """`None` if it cannot be read."""
    state_schema: dict[str, Any] | None = None
    """JSON Schema of the state; `None` if the type has none."""
    signals: dict[str, dict[str, Any] | None] = {}
    """By name of each declared signal, the JSON Schema of its payload; `None` if the type has none."""
    streams: dict[str, dict[str, Any] | None] = {}
    """The same for the items of each declared stream."""


# By machine class or job: a process may open many workers with the same machines.
_described: Final[weakref.WeakKeyDictionary[Any, Description]] = weakref.WeakKeyDictionary()


def describe(machine: Insertable[Any, Any]) -> Description:
    """Describe a machine or job. Never raises for a machine that runs: what cannot be described is left out."""
    definition = definition_of(machine)
    key = machine if isinstance(machine, type) or "__definition__" in vars(machine) else type(machine)
    found = _described.get(key)
    if found is None or found.definition is not definition:
        found = Description(
            definition=definition,
            steps=tuple(definition.steps),
            graph=_graph(machine),
            state_schema=_schema(definition.state_type),
            signals={name: _schema(type_) for name, type_ in definition.signals.items()},
            streams={name: _schema(type_) for name, type_ in definition.streams.items()},
        )
        _described[key] = found
    return found


def _graph(machine: Insertable[Any, Any]) -> Graph | None:
    try:
        return read(machine).graph
    except Exception:  # noqa: BLE001 - the picture of a machine must not stop its worker
        _log.warning("the graph of machine %s cannot be read", definition_of(machine).name, exc_info=True)
        return None


def _schema(type_: Any) -> dict[str, Any] | None:
    try:
        if (own := getattr(type_, "model_json_schema", None)) is not None:
            schema: dict[str, Any] = own()
        else:
            schema = msgspec.json.schema(type_, schema_hook=_model_schema)
        strict: dict[str, Any] = _strict(schema)
        return strict
    except Exception:  # noqa: BLE001 - the hooks of a type are user code; without a schema, tools do not check states
        return None


def _strict(schema: Any) -> Any:
    """Refuse unknown keys, as clients that have the type do, unless the type itself says what they may be."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _strict(value) if key in _SUBSCHEMAS else value for key, value in schema.items()}
    for key in _NAMED_SUBSCHEMAS & schema.keys():
        found[key] = {name: _strict(each) for name, each in schema[key].items()}
    if "properties" in found:
        found.setdefault("additionalProperties", False)
    return found


def _model_schema(type_: Any) -> dict[str, Any]:
    """Return the schema of a pydantic model inside another type."""
    schema: dict[str, Any] = type_.model_json_schema()
    # Its references would not resolve inside another document.
    return {"type": "object", "title": schema.get("title", "")} if "$defs" in schema else schema
