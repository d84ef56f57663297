"""Write a graph as a Mermaid state diagram, which GitHub and many wikis draw."""

from __future__ import annotations

from .model import CANCELLED, DONE, FAILED, Graph
from .text import details

__all__ = ["render"]

# Ends are `[*]`; which one it is stands in the label of the transition.
_ENDS = {DONE: "[*]", FAILED: "[*]", CANCELLED: "[*]"}
_KINDS = {"next": "", "possible": "possible", "stop": "failed", "cancel": "cancelled"}


def render(graph: Graph) -> str:
    """Write a graph."""
    # Ids of our own: a step may be named like a keyword of Mermaid (`end`, `state`).
    ids = {node.id: f"s{index}" for index, node in enumerate(graph.nodes) if node.id not in _ENDS}
    lines = ["stateDiagram-v2"]
    lines += [f"    state {_quoted(name)} as {id}" for name, id in ids.items()]
    lines.append(f"    [*] --> {ids[graph.initial]}")
    for edge in graph.edges:
        kind = _KINDS.get(edge.kind, edge.kind.replace("_", " "))
        label = " ".join(filter(None, [kind, _text(details(edge))]))
        target = _ENDS.get(edge.target) or ids.get(edge.target)
        if target is not None:
            lines.append(f"    {ids[edge.source]} --> {target}{f' : {label}' if label else ''}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    escaped = text.replace('"', "#quot;")
    return f'"{escaped}"'


def _text(label: str) -> str:
    """Escape what would end a label: `;` and `:` separate statements."""
    return label.replace(";", ",").replace(":", "#58;").replace('"', "#quot;")
