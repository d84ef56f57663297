"""Write a graph as plain text: one line per step and one per transition."""

from __future__ import annotations

from .._checks import duration_text
from .model import HANDLE, Edge, Graph

__all__ = ["details", "render"]

_KINDS = {"on_failure": "on failure", "on_cancel": "on cancel"}


def render(graph: Graph) -> str:
    """Write a graph."""
    lines = [f"{graph.machine} version {graph.version}, starts at {graph.initial}"]
    for node in graph.nodes:
        if node.kind not in ("step", "handle"):
            continue
        lines.append("")
        lines.append(f"{node.id}{_role(graph, node.id)}")
        edges = graph.edges_from(node.id)
        width = max((len(_KINDS.get(edge.kind, edge.kind)) for edge in edges), default=0)
        for edge in edges:
            kind = _KINDS.get(edge.kind, edge.kind).ljust(width)
            more = details(edge)
            lines.append(f"  {kind} -> {edge.target}{f'  ({more})' if more else ''}")
        if node.id in graph.unread:
            lines.append("  possibly others: not all targets can be read from the code")
    return "\n".join(lines) + "\n"


def _role(graph: Graph, node: str) -> str:
    """Say when `handle` or an undo step runs, and what follows its Done: the graph has no such edge."""
    if node == HANDLE:
        return ": after an error in any step"
    undone = [edge.source for edge in graph.edges_to(node) if edge.kind == "undo"]
    if not undone:
        return ""
    return f": undoes {', '.join(undone)}; after its Done, the next undo step or the end follows"


def details(edge: Edge) -> str:
    """Describe what an edge waits for: `paid, withdrawn; timeout 3d`."""
    parts: list[str] = []
    if edge.signals:
        parts.append(", ".join(edge.signals))
    if edge.children:
        parts.append(", ".join(edge.children))
    if edge.has_timeout:
        parts.append("timeout" if edge.timeout is None else f"timeout {duration_text(edge.timeout)}")
    if edge.is_delayed:
        parts.append("delay" if edge.delay is None else f"delay {duration_text(edge.delay)}")
    if edge.max_attempts is not None:
        parts.append(f"{edge.max_attempts} attempts")
    return "; ".join(parts)
