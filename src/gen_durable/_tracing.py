"""The hook for traces. Without a tracer it costs the read of one global variable."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from ._running import Running

__all__ = ["Span", "Tracing", "set_tracing", "traceparent_of_insert", "traceparent_of_signal", "tracing"]


class Span(Protocol):
    """The span of one execution."""

    def failed(self, error: BaseException) -> None:
        """Record the exception of the step."""

    def ended(self, kind: str, error: str | None) -> None:
        """Record the outcome of the step."""


class Tracing(Protocol):
    """A tracer. Trace contexts are W3C traceparents."""

    def insert(self, machine: str) -> str | None:
        """Return the trace context for a new instance of this machine."""

    def signal(self) -> str | None:
        """Return the trace context of the sender of a signal."""

    def step(self, execution: Running) -> AbstractContextManager[Span]:
        """Start the span of an execution; it is current while the step runs."""


# One per process, like the tracer provider of OpenTelemetry.
_tracing: Tracing | None = None


def set_tracing(new: Tracing | None) -> None:
    """Set the tracer of this process; `None` removes it."""
    global _tracing
    _tracing = new


def tracing() -> Tracing | None:
    """Return the tracer of this process."""
    return _tracing


def traceparent_of_insert(machine: str) -> str | None:
    """Return the trace context for a new instance; `None` without a tracer."""
    return None if _tracing is None else _tracing.insert(machine)


def traceparent_of_signal() -> str | None:
    """Return the trace context for a signal; `None` without a tracer."""
    return None if _tracing is None else _tracing.signal()
