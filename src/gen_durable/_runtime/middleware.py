"""Middleware: async functions around every step, with its context and its outcome or exception."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

from .._core.settle import checked_outcome
from ..context import Context
from ..errors import UsageError
from ..outcome import Outcome

__all__ = ["CallNext", "Middleware", "checked_middleware", "wrapped"]

CallNext: TypeAlias = Callable[[], Awaitable[Outcome[Any]]]
"""Calls the next middleware or, in the last one, the step. Await it once."""

Middleware: TypeAlias = Callable[[Context[Any], CallNext], Awaitable[Outcome[Any]]]
"""`async def timed(ctx, call_next): … return await call_next()`."""


def checked_middleware(given: Iterable[Middleware]) -> tuple[Middleware, ...]:
    """Return the layers, outermost first; raise UsageError if one is not an async function."""
    layers = tuple(given)
    for layer in layers:
        call = layer if inspect.isroutine(layer) else getattr(layer, "__call__", None)  # noqa: B004
        if not inspect.iscoroutinefunction(call):
            raise UsageError(
                f"middleware {_name(layer)} is not an async function",
                "write `async def middleware(ctx, call_next): return await call_next()`",
            )
    return layers


def wrapped(layers: Iterable[Middleware], context: Context[Any], call: CallNext) -> CallNext:
    """Wrap the call in all layers."""
    for layer in reversed(tuple(layers)):
        call = _Layer(layer, context, call)
    return call


class _Layer:
    """One middleware around one execution."""

    __slots__ = ("_context", "_inner", "_is_used", "_middleware")

    def __init__(self, middleware: Middleware, context: Context[Any], inner: CallNext) -> None:
        self._middleware = middleware
        self._context = context
        self._inner = inner
        self._is_used = False

    async def __call__(self) -> Outcome[Any]:
        value = await self._middleware(self._context, self._call_next)
        where = f"{self._context.step} (its middleware {_name(self._middleware)})"
        return checked_outcome(value, self._context.machine, where)

    async def _call_next(self) -> Outcome[Any]:
        if self._is_used:
            # A second run would start with the ctx.state that the first run has changed.
            raise UsageError(
                f"middleware {_name(self._middleware)} called call_next twice",
                "return Retry(…) to run the step again",
            )
        self._is_used = True
        return await self._inner()


def _name(layer: object) -> str:
    return getattr(layer, "__qualname__", None) or type(layer).__qualname__
