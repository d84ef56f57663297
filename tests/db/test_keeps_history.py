"""Which instances keep their history when no worker of their machine makes the transition."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.clause("HIS-1", "HIS-3")
@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [(True, False, [True, False]), (False, True, [True, True]), (False, False, [False, False])],
)
async def test_newer_versions_decide_for_rows_that_they_upgrade(
    database: Any, db: Any, first: bool, second: bool, expected: list[bool]
) -> None:
    await db.execute(
        """insert into gen_durable.machines (fsm, fsm_version, initial_step, queue, keeps_history)
           select 'm', version, 's', 'q', keeps from unnest(array[1, 2], $1::boolean[]) as given (version, keeps)""",
        [first, second],
    )
    for version, keeps in enumerate(expected, 1):
        assert await db.fetchval("select gen_durable.keeps_history('m', $1)", version) is keeps
    assert await db.fetchval("select gen_durable.keeps_history('unknown', 1)") is False
