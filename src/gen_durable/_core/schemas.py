"""Check JSON values against a JSON Schema. Needs the extra `cli`."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, Final

from .._dictionary import closest, did_you_mean

__all__ = ["is_available", "violation"]

_TYPES: Final = {
    dict: "object",
    list: "array",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
}


def is_available() -> bool:
    """Whether the library for JSON Schema is installed."""
    return importlib.util.find_spec("jsonschema") is not None


def violation(value: Any, schema: Any) -> str | None:
    """Say how a value violates a schema, and where; `None` if it is valid. It may be private, so it is not quoted."""
    jsonschema: Any = importlib.import_module("jsonschema")  # an optional dependency
    error = jsonschema.exceptions.best_match(jsonschema.Draft202012Validator(schema).iter_errors(value))
    if error is None:
        return None
    return f"at {error.json_path}: {_problem(error)}"


def _problem(error: Any) -> str:
    expected: Any = error.validator_value
    match error.validator:
        case "type":
            wanted = " or ".join(expected) if isinstance(expected, list) else expected
            return f"expected {wanted}, got {_TYPES.get(type(error.instance), 'another type')}"
        case "required":
            missing = [name for name in expected if name not in error.instance]
            return f"{_keys(missing)} missing{_renamed(error.instance, error.schema, missing)}"
        case "additionalProperties":
            known = error.schema.get("properties", {})
            unknown = [name for name in error.instance if name not in known]
            hint = did_you_mean(unknown[0], tuple(known)) if len(unknown) == 1 else ""
            return f"{_keys(unknown)} unknown{hint}"
        case "enum":
            return f"expected one of {', '.join(map(repr, expected))}"
        case "anyOf" | "oneOf":
            return "it matches none of the allowed types"
        case keyword:
            return f"it violates {keyword} {expected!r}"


def _renamed(given: Any, schema: Any, missing: list[str]) -> str:
    """Return a hint if an unknown key is similar to a missing one: it is probably a misspelling."""
    unknown = [name for name in given if name not in schema.get("properties", {})]
    meant = [(name, close) for name in unknown if (close := closest(name, missing))]
    return "".join(f"; instead of '{name}', did you mean '{close}'?" for name, close in meant[:1])


def _keys(names: list[str]) -> str:
    listed = ", ".join(map(repr, names))
    return f"the key {listed} is" if len(names) == 1 else f"the keys {listed} are"
