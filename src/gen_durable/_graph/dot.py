"""Write a graph in the DOT language of Graphviz."""

from __future__ import annotations

from .model import CANCELLED, DONE, FAILED, Graph
from .text import details

__all__ = ["render"]

_ENDS = {DONE: ("done", "green4"), FAILED: ("failed", "red3"), CANCELLED: ("cancelled", "orange3")}
_DASHED = ("possible", "on_failure", "on_cancel", "undo")


def render(graph: Graph) -> str:
    """Write a graph."""
    lines = [
        f"digraph {_quoted(f'{graph.machine} version {graph.version}')} {{",
        '  node [shape=box, style=rounded, fontname="monospace"];',
        '  edge [fontname="monospace", fontsize=10];',
        '  "(start)" [shape=point, width=0.15];',
        f'  "(start)" -> {_quoted(graph.initial)};',
    ]
    for node in graph.nodes:
        if node.id in _ENDS:
            text, colour = _ENDS[node.id]
            lines.append(f"  {_quoted(node.id)} [label={_quoted(text)}, shape=oval, color={colour}];")
        else:
            style = ", style=dashed" if node.kind == "handle" else ""
            lines.append(f"  {_quoted(node.id)} [label={_quoted(node.id)}{style}];")
    for edge in graph.edges:
        kind = "" if edge.kind == "next" or edge.target in _ENDS else edge.kind.replace("_", " ")
        label = ": ".join(filter(None, [kind, details(edge)]))
        facts = [f"label={_quoted(label)}"] if label else []
        facts += ["style=dashed"] if edge.kind in _DASHED else []
        options = f" [{', '.join(facts)}]" if facts else ""
        lines.append(f"  {_quoted(edge.source)} -> {_quoted(edge.target)}{options};")
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
