"""`check --against` and the report of a starting worker, among 200,000 instances."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable import Context, Done, Machine, Outcome, Signal, step
from gen_durable._core.registry import Registry
from gen_durable._db.compatibility import compare
from tests.plans.explain import Explainer, check

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Machine1(Machine[dict[str, Any], None]):
    never = Signal("never")

    @step
    async def first(self, ctx: Context[dict[str, Any]]) -> Outcome[None]:
        return Done(None)


async def test_comparison_reads_groups_and_samples_by_indexes(explainer: Explainer) -> None:
    findings, statements = await explainer.run(compare(Registry([Machine1]), sample=20, is_worker=True))
    assert findings
    parked, waiting, _, ids, states, *_ = statements
    check(parked, {"gen_durable_resting"}, blocks=40_000)
    check(waiting, {"gen_durable_machine", "gen_durable_gated", "gen_durable_lease"}, blocks=40_000)
    check(ids, {"gen_durable_resting"}, blocks=2_000)
    check(states, {"gen_durable_pkey"}, blocks=5_000)
