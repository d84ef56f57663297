"""`Graph`: the steps of a machine, and the transitions between them."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, Literal, TypeAlias

import msgspec

__all__ = ["CANCELLED", "DONE", "FAILED", "HANDLE", "Edge", "EdgeKind", "Graph", "Node", "NodeKind"]

NodeKind: TypeAlias = Literal["step", "handle", "done", "failed", "cancelled"]
"""A step, the `handle` method, or an end."""

EdgeKind: TypeAlias = Literal[
    "next",
    "await",
    "children",
    "retry",
    "possible",
    "on_failure",
    "on_cancel",
    "undo",
    "done",
    "stop",
    "cancel",
]
"""How a transition comes about.

`next`, `await`, `children`, `retry`, `done` and `stop` are outcomes; `on_failure`, `on_cancel` and `undo` are options
of a step; `cancel` is a raised `Cancel`. `possible` is a target without a known outcome: it is in `@step(to=…)`, or the
source of the step is not available and its code mentions the target.
"""

HANDLE: Final = "handle"
"""The id of the node of the `handle` method. No step has this name."""
# In parentheses: a step may be named `done`.
DONE: Final = "(done)"
FAILED: Final = "(failed)"
CANCELLED: Final = "(cancelled)"


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step, the `handle` method, or an end."""

    id: str
    """The name of the step; `handle`; `(done)`, `(failed)` or `(cancelled)`."""
    kind: NodeKind = "step"
    doc: str = ""
    """The first line of its docstring."""
    line: int = 0
    """Where it is defined in its file; 0 if that is not known."""


class Edge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One possible transition."""

    source: str
    """The id of a step; `handle`: the transition may begin at any step that raises."""
    target: str
    kind: EdgeKind
    signals: tuple[str, ...] = ()
    """The names of the awaited signals."""
    has_timeout: bool = False
    """Whether the wait has a timeout or a deadline."""
    timeout: timedelta | None = None
    """The timeout, if it is a constant."""
    is_delayed: bool = False
    """Whether the next step starts after a delay."""
    delay: timedelta | None = None
    """The delay, if it is a constant."""
    children: tuple[str, ...] = ()
    """The names of the machines of the children."""
    max_attempts: int | None = None
    """Of a retry by a policy: the maximum number of executions."""
    line: int = 0
    """Where the outcome is made; 0 if that is not known."""

    @property
    def waits(self) -> bool:
        """Whether time passes or something else has to happen before the target runs."""
        if self.kind == "await":
            return self.timeout is None or self.timeout > timedelta(0)
        is_later = self.delay is None or self.delay > timedelta(0)
        return self.kind == "children" or (self.is_delayed and is_later)


class Graph(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The steps of a machine and the transitions between them, as far as they can be read from its code.

    In Jupyter it is shown as a picture. Workers store it as JSON in the table `machines`.
    """

    machine: str
    version: int
    initial: str
    """The step at which instances start."""
    nodes: tuple[Node, ...]
    """The steps in the order of the class, then `handle` if it is overridden, then the ends that are reached."""
    edges: tuple[Edge, ...]
    unread: tuple[str, ...] = ()
    """Steps whose targets could not all be read. Declare them: `@step(to=…)`."""
    doc: str = ""
    """The first line of the docstring of the machine."""
    file: str = ""
    """The name of the file that defines it, without its directory."""

    @property
    def steps(self) -> tuple[str, ...]:
        """The names of the steps."""
        return tuple(node.id for node in self.nodes if node.kind == "step")

    def edges_from(self, step: str) -> tuple[Edge, ...]:
        """Return the transitions that may follow a step, without those of `handle`."""
        return tuple(edge for edge in self.edges if edge.source == step)

    def edges_to(self, step: str) -> tuple[Edge, ...]:
        """Return the transitions that lead to a step or an end."""
        return tuple(edge for edge in self.edges if edge.target == step)

    def svg(self) -> str:
        """Draw the graph as SVG."""
        from .svg import render

        return render(self)

    def mermaid(self) -> str:
        """Write the graph as a Mermaid state diagram."""
        from .mermaid import render

        return render(self)

    def dot(self) -> str:
        """Write the graph in the DOT language of Graphviz."""
        from .dot import render

        return render(self)

    def text(self) -> str:
        """Write the graph as plain text, one line per transition."""
        from .text import render

        return render(self)

    def _repr_svg_(self) -> str:
        return self.svg()
