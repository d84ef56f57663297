"""Machines as a worker registers them, for tests without a worker."""

from __future__ import annotations

from gen_durable._graph.description import Description


def own(*machines: Description) -> list[tuple[int, Description]]:
    """The machines, each with its own version."""
    return [(machine.definition.version, machine) for machine in machines]
