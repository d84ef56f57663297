"""The seam for traces. Nothing here knows who makes them; while nobody does, it costs one look at a global."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from ._running import Running

__all__ = ["Span", "Tracing", "set_tracing", "traceparent_of_insert", "traceparent_of_signal", "tracing"]


class Span(Protocol):
    """The span of one execution."""

    def failed(self, error: BaseException) -> None:
        """The step raised this."""

    def ended(self, kind: str, error: str | None) -> None:
        """Its outcome is known."""


class Tracing(Protocol):
    """Whoever makes spans. Trace contexts travel as W3C traceparents."""

    def insert(self, machine: str) -> str | None:
        """The context that a new instance of this machine belongs to."""

    def signal(self) -> str | None:
        """The context of whoever sends a signal now."""

    def step(self, execution: Running) -> AbstractContextManager[Span]:
        """The span of an execution, current while its step runs."""


# One for the process, as traces are: their own current span and provider are no less global.
_tracing: Tracing | None = None


def set_tracing(new: Tracing | None) -> None:
    """Let this one make the spans, or nobody."""
    global _tracing
    _tracing = new


def tracing() -> Tracing | None:
    """Whoever makes spans."""
    return _tracing


def traceparent_of_insert(machine: str) -> str | None:
    """The context that a new instance belongs to, if anybody makes traces."""
    return None if _tracing is None else _tracing.insert(machine)


def traceparent_of_signal() -> str | None:
    """The context of a signal, if anybody makes traces."""
    return None if _tracing is None else _tracing.signal()
