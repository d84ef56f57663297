"""`gen-durable graph app.py:Checkout`: draw machines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import click

from .._graph import Graph
from .._graph import graph as graph_of
from ..schedules import Schedule
from ..worker import Worker
from .failure import Failure
from .targets import load, variables

__all__ = ["graph", "machines_of"]

_SUFFIXES: Final = {"svg": ".svg", "mermaid": ".mmd", "dot": ".dot", "text": ".txt"}


@click.command()
@click.argument("target")
@click.option(
    "--format",
    "format_",
    type=click.Choice(list(_SUFFIXES)),
    default="text",
    show_default=True,
    help="svg: a picture; mermaid: a state diagram for Markdown; dot: for Graphviz.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="File to write, or an existing directory for one file per machine. Default: standard output.",
)
def graph(target: str, format_: str, output: Path | None) -> None:
    """Print the graph of the machines in TARGET: steps and transitions, read from the code.

    TARGET is a file or module (app.py: all its machines), or a variable in it (app.py:Checkout), as for `worker`.
    """
    machines = machines_of(target)
    graphs = [graph_of(machine) for machine in machines]
    if output is not None and output.is_dir():
        for each in graphs:
            path = output / f"{_file_name(each)}{_SUFFIXES[format_]}"
            _write(path, _rendered(each, format_))
            click.echo(str(path))
        return
    if format_ == "svg" and len(graphs) > 1:
        place = target.partition(":")[0]
        names = [f"{place}:{name}" for name in variables(place, machines)]
        one = f"Name one of them ({', '.join(names)}), or give" if names else "Give"
        raise Failure(
            f"{target} has {len(graphs)} machines. {one} --output with an existing directory, for a file of each."
        )
    text = "\n".join(_rendered(each, format_) for each in graphs)
    if output is None:
        click.echo(text, nl=False)
    else:
        _write(output, text)


def machines_of(target: str) -> list[Any]:
    """Return the machines and jobs of a target."""
    loaded = load(target)
    if isinstance(loaded, Worker):
        return loaded.registered
    return [each for each in loaded if not isinstance(each, Schedule)]


def _rendered(graph: Graph, format_: str) -> str:
    text: str = getattr(graph, format_)()
    return text


def _file_name(graph: Graph) -> str:
    return re.sub(
        r"[^\w.-]", "_", f"{graph.machine}-v{graph.version}" if graph.version > 1 else graph.machine
    )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failure(f"{path} cannot be written: {error.strerror or error}") from None
