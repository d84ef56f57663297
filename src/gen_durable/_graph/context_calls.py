"""Calls of `ctx.publish` and the like: without `await` they do nothing, and they name streams."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from ..context import Context
from ..streams import Stream
from .source import Scope, own_nodes

__all__ = ["stream_names", "unawaited_calls"]

_METHODS: Final = ("checkpoint", "close_stream", "publish")
_OF_STREAMS: Final = ("close_stream", "close_stream_sync", "publish", "publish_sync")


def unawaited_calls(scope: Scope) -> Iterator[tuple[ast.Call, str, str]]:
    """Yield awaitable calls of a context that are statements: the call, what it calls, and what to write instead."""
    contexts = _contexts(scope)
    for node in own_nodes(scope.node):
        match node:
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) as call):
                if name in contexts and method in _METHODS:
                    called = f"{name}.{method}"
                    is_async = isinstance(scope.node, ast.AsyncFunctionDef)
                    yield call, called, f"write `await {called}(…)`" if is_async else f"use {called}_sync"
            case _:
                pass


def stream_names(scope: Scope) -> Iterator[tuple[ast.Call, str]]:
    """Yield calls of a context that publish to a stream or close one, with its name if that is certain."""
    contexts = _contexts(scope)
    for node in ast.walk(scope.node):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method), args=[first, *_]) if (
                name in contexts and method in _OF_STREAMS
            ):
                value = scope.resolve(first)
                if isinstance(value, Stream):
                    yield node, value.name
                elif isinstance(value, str):
                    yield node, value
            case _:
                pass


def _contexts(scope: Scope) -> set[str]:
    """Return the names of the arguments that are contexts."""
    return {each.arg for each in scope.node.args.args if _is_context(scope, each)}


def _is_context(scope: Scope, argument: ast.arg) -> bool:
    if argument.annotation is None:
        return argument.arg == "ctx"
    return scope.resolve(argument.annotation) is Context
