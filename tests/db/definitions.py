"""Definitions of a machine, to register its versions."""

from __future__ import annotations

from gen_durable._graph.description import Description
from gen_durable.definition import MachineDef, StepDef


def machine(version: int, initial: str, queue: str) -> Description:
    steps = {initial: StepDef(name=initial, function=print, is_async=False)}
    definition = MachineDef(
        name="Checkout",
        version=version,
        queue=queue,
        steps=steps,
        initial=initial,
        state_type=dict,
        result_type=dict,
    )
    return Description(definition=definition, steps=(initial,))
