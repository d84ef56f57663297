"""The graph of a machine, read from its code: model, reader, checks and pictures."""

from __future__ import annotations

from typing import Any

from ..refs import Insertable
from .checks import check
from .model import Edge, Graph, Node
from .reader import read

__all__ = ["Edge", "Graph", "Node", "check", "graph"]


def graph(machine: Insertable[Any, Any], /) -> Graph:
    """Read the graph of a machine or job from its code: its steps, and the transitions between them.

        print(graph(Checkout).text())
        Path("checkout.svg").write_text(graph(Checkout).svg())

    The source of the steps and of their helpers is parsed, not run. Targets of a step that computes them are known only
    if it declares them: `@step(to=…)`.

    Args:
        machine: a machine class, an object of one, or a job.

    Returns:
        The nodes and edges, with methods that draw them.

    Raises:
        UsageError: it is neither a machine nor a job.
    """
    return read(machine).graph
