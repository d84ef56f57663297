"""Calls of `ctx.publish` and the like without `await`: they do nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from ..context import Context
from .source import Scope, own_nodes

__all__ = ["unawaited_calls"]

_METHODS: Final = ("checkpoint", "close_stream", "publish")


def unawaited_calls(scope: Scope) -> Iterator[tuple[ast.Call, str, str]]:
    """Yield awaitable calls of a context that are statements: the call, what it calls, and what to write instead."""
    contexts = {each.arg for each in scope.node.args.args if _is_context(scope, each)}
    for node in own_nodes(scope.node):
        match node:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) as call):
                if name in contexts and method in _METHODS:
                    called = f"{name}.{method}"
                    is_async = isinstance(scope.node, ast.AsyncFunctionDef)
                    yield call, called, f"write `await {called}(…)`" if is_async else f"use {called}_sync"
            case _:
                pass


def _is_context(scope: Scope, argument: ast.arg) -> bool:
    if argument.annotation is None:
        return argument.arg == "ctx"
    return scope.resolve(argument.annotation) is Context
