"""Everything public has a docstring: the API reference is generated from them."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

MODULES = [
    "gen_durable",
    "gen_durable.errors",
    "gen_durable.events",
    "gen_durable.inbound",
    "gen_durable.logs",
    "gen_durable.reasons",
    "gen_durable.sinks",
    "gen_durable.telemetry",
    "gen_durable.testing",
    "gen_durable.contrib.django",
    "gen_durable.contrib.fastapi",
    "gen_durable.contrib.opentelemetry",
    "gen_durable.contrib.prometheus",
    "gen_durable.contrib.starlette",
]
# Documented by the standard library, or by the protocol that they implement.
EXEMPT = {"Children.count", "Children.index"}


def exported(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            yield name, value


def methods(cls: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class has from this package."""
    for name, member in inspect.getmembers_static(cls):
        function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        is_ours = str(getattr(function, "__module__", "")).startswith("gen_durable")
        if inspect.isfunction(function) and is_ours and not name.startswith("_"):
            yield f"{cls.__name__}.{name}", function


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_has_a_docstring(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    missing = [label for label, value in exported(module) if not has_docstring(value)]
    for _, value in exported(module):
        if inspect.isclass(value):
            missing += [
                label for label, method in methods(value) if not method.__doc__ and label not in EXEMPT
            ]
    assert missing == []


def has_docstring(value: Any) -> bool:
    """Whether a class or function has its own docstring: neither inherited nor generated."""
    text = vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__
    return bool(text) and not str(text).startswith(f"{value.__name__}(")
