"""Which execution this task or thread works on: for whoever watches steps from inside, logs and traces."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Final, Protocol

__all__ = ["Running", "Sent", "running"]


class Sent(Protocol):
    """A signal, as far as a watcher needs to know it."""

    @property
    def traceparent(self) -> str | None: ...


class Running(Protocol):
    """An execution, as far as a watcher needs to know it."""

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


# A step on a thread runs in a copy of its task's context, so it is known there as well.
running: Final[ContextVar[Running | None]] = ContextVar("gen_durable running", default=None)
