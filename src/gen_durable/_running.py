"""The execution that the current task or thread runs, for logs and traces."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Final, Protocol

__all__ = ["Running", "Sent", "running"]


class Sent(Protocol):
    """The part of a signal that traces need."""

    @property
    def traceparent(self) -> str | None: ...


class Running(Protocol):
    """The part of an execution that logs and traces need."""

    @property
    def id(self) -> int: ...
    @property
    def fsm(self) -> str: ...
    @property
    def version(self) -> int: ...
    @property
    def step(self) -> str: ...
    @property
    def step_seq(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def queue(self) -> str: ...
    @property
    def traceparent(self) -> str | None: ...
    @property
    def inserted_at(self) -> datetime | None: ...
    @property
    def awaited(self) -> Sequence[Sent]: ...


# A step in a thread runs in a copy of the context of its task, so the variable is set there, too.
running: Final[ContextVar[Running | None]] = ContextVar("gen_durable running", default=None)
