"""Definitions of a machine, to register its versions."""

from __future__ import annotations

from gen_durable.definition import MachineDef, StepDef


def machine(version: int, initial: str, queue: str) -> MachineDef:
    steps = {initial: StepDef(name=initial, function=print, is_async=False)}
    return MachineDef(
        name="Checkout",
        version=version,
        queue=queue,
        steps=steps,
        initial=initial,
        state_type=dict,
        result_type=dict,
    )
