"""A scenario, and the result of an order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from tests.interleavings.product import Change
from tests.interleavings.session import Session, Work
from tests.interleavings.world import World

Choices: TypeAlias = tuple[str, ...]
"""An order: which session took each step."""


class End(msgspec.Struct, frozen=True):
    """The result of an order."""

    after: World
    sessions: Mapping[str, Session]
    trace: list[str]

    def result(self, name: str) -> Any:
        """What the last plan of a session returned."""
        return self.sessions[name].results[-1]

    def began(self, name: str) -> int:
        """The index of a session's first step."""
        return min(self._places(name))

    def is_before(self, first: str, second: str) -> bool:
        """Whether one session had ended when the other began."""
        return max(self._places(first)) < self.began(second)

    def _places(self, name: str) -> list[int]:
        return [place for place, step in enumerate(self.trace) if step.startswith(f"{name} ")]


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """Rows, concurrent sessions, and a check that holds for every order."""

    name: str
    setup: Sequence[str]
    sessions: Mapping[str, Sequence[Work]]
    check: Callable[[End], None]
    pauses: Sequence[Change] = ()
    """Places inside of the schema's functions at which a session can be stopped: calls of pause(n)."""
    may_meet: frozenset[str] = frozenset()
    """SQLSTATEs of races that are part of the design; any other refusal breaks the order."""
    never_wait: frozenset[str] = frozenset()
    """Sessions that may never wait for a lock."""
    sample: int = 24
    """This many orders kill all its mutants."""


class Broken(msgspec.Struct, frozen=True):
    """A failed order."""

    reason: str
    choices: Choices
    trace: list[str]

    def __str__(self) -> str:
        return f"{self.reason}\n      {' · '.join(self.trace)}\n      {self.choices}"
